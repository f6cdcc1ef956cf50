"""A page's sliders: the text of every value of an explored grid, its lines and their looks.

The question ``explore`` computes the values; a page only looks them up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.provenance import (
    Chip,
    bytes_chip,
    chips_by_term,
    step_chips,
    users_chip,
)
from lrkv_plan.report.screen import (
    milliseconds,
    short_bytes,
    short_percent,
    short_tokens,
    significant,
    with_band,
)
from lrkv_plan.report.screens.words import gpu_words, tokens
from lrkv_plan.report.tables import count
from lrkv_plan.report.views.capacity import bounded

if TYPE_CHECKING:
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.explore import Explored, ExploredGrid, ExploredLine, ExploredStep

OWN_ROLE = "own design"
# Of a time: on an axis of one to three decades, closer than a line is wide.
LINE_WIDTH = 0.03
PLANNED, EQUAL = "planned", "equal"  # views: the rank slider and a plan's sizes; one cache for all

Strides = tuple[int, int, int, int]


@dataclass(frozen=True, kw_only=True)
class GridAxis:
    """One slider: its grid points, their texts, and where it starts.

    ``fragment`` is its name in the page's address, ``ticks`` are short texts along a picture.
    """

    key: str
    label: str
    fragment: str
    values: tuple[Any, ...]
    texts: tuple[str, ...]
    ticks: tuple[str, ...]
    start: int  # index of the report's own point


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Values and their texts in the order of ``strides``: index = sum of stride x axis index.

    A stride is 0 where the value does not depend on that axis. ``refused`` says why all are absent.
    One without a ``title`` is no column of the table.
    """

    key: str
    title: str
    strides: Strides
    values: tuple[Any, ...] = ()
    texts: tuple[str, ...] = ()
    refused: str | None = None

    def place(self, at: Sequence[int]) -> int:
        """Where the value of those axis indices stands."""
        return sum(stride * index for stride, index in zip(self.strides, at, strict=True))


@dataclass(frozen=True, kw_only=True)
class GridDesign:
    """A design of the grid: a line of the pictures and a row of the table in its ``sets``.

    ``line`` tells lines apart (one design at two sizes is one line), ``style`` its looks. One that
    ``is_covered`` draws what a design before it does, closer than a line is wide.
    """

    role: str
    line: str
    style: int
    sets: tuple[str, ...]
    is_covered: bool
    name: Measure
    measures: tuple[Measure, ...]
    remarks: tuple[str, ...] = ()

    def measure(self, key: str) -> Measure:
        """The measure of that key."""
        return next(one for one in (self.name, *self.measures) if one.key == key)

    @property
    def columns(self) -> tuple[Measure, ...]:
        """The measures that are columns of the table."""
        return tuple(one for one in self.measures if one.title)


@dataclass(frozen=True, kw_only=True)
class SliderGrid:
    """Axes in the order rank, context, batch, cache format, and the designs' measures on them.

    ``where`` names the model and its GPUs; ``command`` makes a plan of a point once the words of
    the point are put between its two halves. ``compared`` has the design of each set that the
    verdict compares with the first one; None where there is none.
    """

    axes: tuple[GridAxis, GridAxis, GridAxis, GridAxis]
    designs: tuple[GridDesign, ...]
    compared: Mapping[str, int | None]
    where: str
    own_cache: str
    command: str
    chips: tuple[Chip, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def start(self) -> tuple[int, int, int, int]:
        """The report's own point."""
        rank, context, batch, kv_dtype = (axis.start for axis in self.axes)
        return rank, context, batch, kv_dtype


def slider_grid(explored: ExploredGrid, command: str) -> SliderGrid:
    """The grid with its texts.

    Parameters
    ----------
    command : makes a plan of a point once the words of the point are put after it.
    """
    lines = explored.lines
    kept, remarks = _kept(lines)
    chips: dict[Chip, int] = {}
    designs = [_design(explored, lines[n], chips) for n in kept]
    designs = _styled(designs, [lines[n].identity for n in kept])
    designs = [
        replace(one, is_covered=_is_covered(one, designs[:n])) for n, one in enumerate(designs)
    ]
    rows = lines[0].computed[0]["capacity"].values
    left_out = rows[0].weights_left_out if rows else ()
    rank, context, batch, kv_dtype = explored.at
    axes = (
        _axis("rank", "LRKV rank per head", "rank", explored.ranks, rank, count),
        _axis(
            "context_tokens", "Context per user", "context", explored.contexts, context, tokens,
            short_tokens,
        ),
        _axis("batch_size", "Users decoded together", "batch", explored.batches, batch, count),
        _axis("kv_dtype", "Cache format", "kv", explored.formats, kv_dtype, str),
    )  # fmt: skip
    return SliderGrid(
        axes=axes,
        designs=tuple(designs),
        compared={name: _compared(designs, name) for name in (PLANNED, EQUAL)},
        where=f"{bounded(left_out)}{explored.model.name} on {_gpus(explored.deployment)}",
        own_cache=designs[0].measure("bytes_per_token_per_gpu").texts[0],
        command=command,
        chips=(*chips, *_chips(explored)),
        remarks=tuple(remarks),
    )


def _axis(
    key: str,
    label: str,
    fragment: str,
    values: Sequence[Any],
    start: Any,
    text: Callable[[Any], str],
    tick: Callable[[Any], str] | None = None,
) -> GridAxis:
    return GridAxis(
        key=key, label=label, fragment=fragment, values=tuple(values),
        texts=tuple(map(text, values)), ticks=tuple(map(tick or text, values)),
        start=values.index(start),
    )  # fmt: skip


def _kept(lines: Sequence[ExploredLine]) -> tuple[list[int], list[str]]:
    """Lines to show, and what to say of the others: refused, or the same as one before."""
    kept: list[int] = []
    remarks: dict[str, None] = {}
    for n, line in enumerate(lines):
        refused = line.computed[0]["cache"].refused
        if refused is not None and n:
            remarks[f"left out: {line.names[0]}: {refused}"] = None
            continue
        twin = next(
            (m for m in kept if lines[m].sets == line.sets
             and list(map(_shown, lines[m].computed)) == list(map(_shown, line.computed))), None,
        )  # fmt: skip
        if twin is None:
            kept.append(n)
        elif len(line.names) > 1:
            remarks[f"{line.role}: the same as {lines[twin].role} at every point"] = None
        else:
            remarks[f"{line.names[0]}: the same as {lines[twin].names[0]} at every point"] = None
    return kept, list(remarks)


def _shown(computed: Mapping[str, Explored]) -> list[Any]:
    """What a page shows of a line, to compare lines."""
    found = {key: one for key, one in computed.items() if key not in ("model", "capacity")}
    rows = computed["capacity"]
    held = rows.each(lambda row: (row.max_sequences, row.total_sequences))
    return [*found.values(), held]


def _design(explored: ExploredGrid, line: ExploredLine, chips: dict[Chip, int]) -> GridDesign:
    """The measures of a line; chips that are new are added to ``chips``."""
    computed, deployment, batches = line.computed, explored.deployment, explored.batches
    n_contexts, n_batches = len(explored.contexts), len(batches)
    n_models, by_rank = len(line.models), len(line.models) > 1
    alone: Strides = (int(by_rank), 0, 0, n_models)
    held: Strides = (n_contexts if by_rank else 0, 1, 0, n_models * n_contexts)
    cells = n_contexts * n_batches
    whole: Strides = (cells if by_rank else 0, n_batches, 1, n_models * cells)
    found = {key: _joined([one[key] for one in computed]) for key in computed[0]}
    steps, rows = found["step"], found["capacity"]
    for_all = deployment.n_replicas * deployment.parallel.dp_size > 1
    foundations = found["model"].each(
        lambda model: [chips.setdefault(one, len(chips)) for one in step_chips(model)]
    )
    basis = _bases(chips, found["model"], steps, cells)
    marks = [chip.mark for chip in chips]
    names = replace(found["token"], values=line.names * len(computed), refused=None)
    return GridDesign(
        role=line.role,
        line="",
        style=0,
        sets=line.sets,
        is_covered=False,
        remarks=line.unpadded,
        name=_measure("attention", "Design", alone, names, str),
        measures=(
            _measure(
                "bytes_per_token_per_gpu", "Cache a token", alone, found["token"], short_bytes
            ),
            _measure("cache_bytes_per_gpu", "Cache per GPU", whole, found["cache"], short_bytes),
            _measure(
                "max_sequences", "Users on a replica" if for_all else "Users that fit", held,
                rows.each(lambda row: row.max_sequences), count,
            ),
            _measure(
                "total_sequences", "Users that fit" if for_all else "", held,
                rows.each(lambda row: row.total_sequences), count,
            ),
            _measure("step_s", "Step (ms)", whole, steps.each(lambda s: s.step_s), milliseconds),
            _measure("step_band", "Band (ms)", whole, steps.each(_band), str),
            _measure("low_s", "", whole, steps.each(lambda s: s.low_s)),
            _measure("high_s", "", whole, steps.each(lambda s: s.high_s)),
            _measure("time_basis", "", whole, basis, lambda n: marks[n]),
            _measure("foundations", "", alone, foundations),
            _measure("kv_params_ratio", "K/V weights of MHA", alone, found["weights"], _share),
            _measure("arithmetic_ratio", "Work of MHA", held, found["work"], _times),
            _measure(
                "batch_fits", "This batch", whole,
                replace(rows, values=tuple(
                    batch <= row.max_sequences for row in rows.values for batch in batches
                )),
                lambda value: "fits" if value else "does not fit",
            ),
        ),
    )  # fmt: skip


def _band(step: ExploredStep) -> str:
    """The ends as screens write them beside the time."""
    return with_band(step.step_s, step.low_s, step.high_s).partition("(")[2].rstrip(")")


def _share(ratio: Any) -> str:
    return "-" if ratio is None else short_percent(ratio)


def _times(ratio: Any) -> str:
    return "-" if ratio is None else f"{significant(ratio)}x"


def _bases(chips: dict[Chip, int], models: Explored, steps: Explored, per_model: int) -> Explored:
    """The chip of each step's deciding term; new ones are added to ``chips``."""
    if models.refused is not None or steps.refused is not None:
        return replace(steps, values=(), refused=models.refused or steps.refused)
    found = []
    for n, model in enumerate(models.values):
        of_terms = chips_by_term(model)
        for step in steps.values[n * per_model : (n + 1) * per_model]:
            chip = of_terms.get(step.rests_on, of_terms["matrices"])
            found.append(chips.setdefault(chip, len(chips)))
    return replace(steps, values=tuple(found))


def _joined(parts: Sequence[Explored]) -> Explored:
    """One quantity of all formats, one after the other."""
    refused = next((one for one in parts if one.refused is not None), None)
    if refused is not None:
        return refused
    return replace(parts[0], values=tuple(value for one in parts for value in one.values))


def _measure(
    key: str,
    title: str,
    strides: Strides,
    found: Explored,
    text: Callable[[Any], str] | None = None,
) -> Measure:
    texts = () if text is None else tuple(map(text, found.values))
    return Measure(
        key=key, title=title, strides=strides, values=found.values, texts=texts,
        refused=found.refused,
    )  # fmt: skip


def _styled(designs: Sequence[GridDesign], identities: Sequence[str]) -> list[GridDesign]:
    """The designs with a line and a style each: the own one 0, LRKV 1, the others as they come."""
    lines: dict[str, str] = {}
    for design, identity in zip(designs, identities, strict=True):
        if identity not in lines:
            word = "own" if design.role == OWN_ROLE else re.split(r"[:,]", identity)[0]
            n = sum(line.partition("-")[0] == word for line in lines.values())
            lines[identity] = word if n == 0 else f"{word}-{n + 1}"
    first = [OWN_ROLE, *(i for d, i in zip(designs, identities, strict=True) if _is_varied(d))]
    order = list(dict.fromkeys([*first, *identities]))
    return [
        replace(design, line=lines[identity], style=order.index(identity))
        for design, identity in zip(designs, identities, strict=True)
    ]


def _is_covered(design: GridDesign, before: Iterable[GridDesign]) -> bool:
    """Whether users are those of an earlier design, and times within ``LINE_WIDTH`` everywhere."""
    users, steps = (design.measure(key) for key in ("total_sequences", "step_s"))
    return any(
        set(one.sets) & set(design.sets)
        and one.measure("total_sequences") == users
        and _is_near(one.measure("step_s"), steps)
        for one in before
    )


def _is_near(one: Measure, other: Measure) -> bool:
    if (one.strides, one.refused) != (other.strides, other.refused):
        return False
    pairs = zip(one.values, other.values, strict=True)
    return all(abs(theirs - its) <= LINE_WIDTH * its for its, theirs in pairs)


def _is_varied(design: GridDesign) -> bool:
    return bool(design.name.strides[0])


def _compared(designs: Sequence[GridDesign], name: str) -> int | None:
    """The design of a set that is LRKV as the slider has it, or at equal cache."""
    lines = {design.line for design in designs if _is_varied(design)}
    return next(
        (n for n, one in enumerate(designs) if n and name in one.sets and one.line in lines), None
    )


def _gpus(deployment: Deployment) -> str:
    hardware, tp_size = deployment.hardware, deployment.parallel.tp_size
    assert hardware is not None, "a report names its GPU"
    n_gpus = deployment.n_replicas * deployment.parallel.n_gpus
    shared = "" if tp_size == 1 else f" at TP {tp_size}"
    return f"{gpu_words(hardware.name, hardware.title, n_gpus)}{shared}"


def _chips(explored: ExploredGrid) -> Iterator[Chip]:
    """What users and bytes rest on."""
    row = explored.own_row
    if row is not None and row.budget is not None:
        yield users_chip(str(explored.deployment.engine), row.budget.stages[0].terms)
    yield bytes_chip(source.citation for source in explored.model.source if source.citation)
