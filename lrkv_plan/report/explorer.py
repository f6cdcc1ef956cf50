"""A page's sliders: a grid of rank, context, batch and cache format, and the text of every value.

``serving.explore`` computes the values; a page only looks them up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.families.low_rank import plain_low_rank, rotated_low_rank
from lrkv_plan.attention.registry import all_families
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
from lrkv_plan.report.series.cache_vs_rank import widest_rank
from lrkv_plan.report.series.capacity import default_contexts
from lrkv_plan.report.tables import count
from lrkv_plan.report.views.capacity import bounded
from lrkv_plan.serving.engine import engine_record
from lrkv_plan.serving.explore import (
    Explored,
    ExploredStep,
    designs_at_own_cache,
    explored_caches,
    explored_capacities,
    explored_step_models,
    explored_steps,
    explored_token_bytes,
    explored_weights,
    explored_work,
)
from lrkv_plan.serving.load import timed_unpadded
from lrkv_plan.serving.plan import AS_ASKED, ComparedDesign, compared_designs
from lrkv_plan.specs.design import (
    design_label,
    design_text,
    first_backbone,
    swap_attention,
    with_size,
)

if TYPE_CHECKING:
    from lrkv_plan.report.request import Settled
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec

MOST_RANKS, MOST_CONTEXTS = 17, 9
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_VARIANTS = (("LRKV", plain_low_rank), ("LRKV, keys rotated", rotated_low_rank))
OWN_ROLE = "own design"
# Of a time: on an axis of one to three decades, closer than a line is wide.
LINE_WIDTH = 0.03
PLANNED, EQUAL = "planned", "equal"  # sizes of a plan and the rank slider; all in the own cache

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


@dataclass(frozen=True, kw_only=True)
class _Line:
    """A design before it is computed: one model, or one per rank."""

    role: str
    models: tuple[ModelSpec, ...]
    names: tuple[str, ...]
    sets: tuple[str, ...]

    @property
    def identity(self) -> str:
        """Its design with any size; lines of equal identity are one line at two sizes."""
        if self.role == OWN_ROLE:
            return OWN_ROLE
        is_fixed = self.role == AS_ASKED or self.role in _fixed_roles()
        return self.names[0] if is_fixed else design_text(self.models[0], "N")


def slider_grid(settled: Settled) -> SliderGrid:
    """The grid around the report's own context, batch and aligned rank.

    Raises
    ------
    UsageError, SpecError
        If the model has no attention layers.
    """
    model, deployment = settled.request.model, settled.deployment
    ranks, contexts, batches = _ranks(settled), _contexts(settled), _batches(settled)
    aligned = settled.ceiling.aligned.value if settled.ceiling else 0
    lines = [*_planned(settled), *_varied(model, ranks), *_at_own_cache(model, deployment)]
    computed = {
        kv_dtype: [_computed(settled, line, contexts, batches, kv_dtype) for line in lines]
        for kv_dtype in _formats(deployment)
    }
    formats = _usable(computed)
    kept, remarks = _kept(lines, [computed[one] for one in formats])
    chips: dict[Chip, int] = {}
    shape = (len(contexts), len(batches))
    designs = [
        _design(settled, lines[n], [computed[one][n] for one in formats], shape, chips)
        for n in kept
    ]
    designs = _styled(designs, [lines[n].identity for n in kept])
    designs = [
        replace(one, is_covered=_is_covered(one, designs[:n])) for n, one in enumerate(designs)
    ]
    rows = computed[formats[0]][0]["capacity"].values
    left_out = rows[0].weights_left_out if rows else ()
    axes = (
        _axis(
            "rank", "LRKV rank per head", "rank", ranks,
            aligned or next((rank for rank in ranks if rank), 0), count,  # rank 0 is no LRKV
        ),
        _axis(
            "context_tokens", "Context per user", "context", contexts, settled.context_tokens,
            tokens, short_tokens,
        ),
        _axis("batch_size", "Users decoded together", "batch", batches, settled.batch_size, count),
        _axis("kv_dtype", "Cache format", "kv", formats, settled.kv_dtype, str),
    )  # fmt: skip
    return SliderGrid(
        axes=axes,
        designs=tuple(designs),
        compared={name: _compared(designs, name) for name in (PLANNED, EQUAL)},
        where=f"{bounded(left_out)}{model.name} on {_gpus(settled)}",
        own_cache=designs[0].measure("bytes_per_token_per_gpu").texts[0],
        command=_command(settled),
        chips=(*chips, *_chips(settled)),
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


def _ranks(settled: Settled) -> list[int]:
    """Multiples of the alignment up to a head's width, thinned, with the report's own."""
    widest, step = widest_rank(settled.request.model), settled.deployment.rank_alignment
    while widest // step + 1 > MOST_RANKS:
        step *= 2
    own = {settled.ceiling.aligned.value} if settled.ceiling else set()
    return sorted({*range(0, widest + 1, step), *own})


def _contexts(settled: Settled) -> list[int]:
    points = default_contexts(settled.request.model)
    return sorted({*points[-MOST_CONTEXTS:], settled.context_tokens})


def _batches(settled: Settled) -> list[int]:
    return sorted({*_BATCHES, settled.batch_size})


def _formats(deployment: Deployment) -> list[str]:
    """The report's own cache format, and one of about half or twice its width."""
    own = deployment.settings.kv_dtype
    small = engine_record(deployment.engine.name).small_kv_dtypes
    other = "bf16" if own in small else next(iter(small), None)
    return [own, *([other] if other is not None and other != own else [])]


def _planned(settled: Settled) -> Iterator[_Line]:
    """What a plan compares, but the designs that follow the rank slider."""
    model = settled.request.model
    limit = settled.ceiling.budget_bytes_per_token_per_gpu if settled.ceiling else None
    follows = {
        design_text(swap_attention(model, variant(first_backbone(model))), "N")
        for _, variant in _VARIANTS
    }
    for one in compared_designs(model, settled.deployment, limit, settled.request.designs):
        if one.refused is not None:
            continue
        line = _line(one, (PLANNED,))
        if one.text is None or one.role == AS_ASKED or line.identity not in follows:
            stays = one.text is None or one.role in _fixed_roles()
            yield replace(line, sets=(PLANNED, EQUAL)) if stays else line


def _fixed_roles() -> set[str]:
    """Roles of designs that no budget sizes; they stay as they are at equal cache."""
    planned = (one for family in all_families() for one in family.planned)
    return {one.role for one in planned if not one.in_budget}


def _line(one: ComparedDesign, sets: tuple[str, ...]) -> _Line:
    name = one.text or design_label(one.model)
    return _Line(role=one.role, models=(one.model,), names=(name,), sets=sets)


def _varied(model: ModelSpec, ranks: Sequence[int]) -> Iterator[_Line]:
    """LRKV at every rank of the slider, plain and with keys rotated as they are rebuilt."""
    for role, variant in _VARIANTS:
        varied = swap_attention(model, variant(first_backbone(model)))
        swapped = tuple(with_size(varied, rank) for rank in ranks)
        names = tuple(map(design_text, swapped))
        yield _Line(role=role, models=swapped, names=names, sets=(PLANNED,))


def _at_own_cache(model: ModelSpec, deployment: Deployment) -> Iterator[_Line]:
    for one in designs_at_own_cache(model, deployment):
        yield replace(_line(one, (EQUAL,)), role="in the own cache")


Computed = Mapping[str, Explored]


def _computed(
    settled: Settled, line: _Line, contexts: Sequence[int], batches: Sequence[int], kv_dtype: str
) -> Computed:
    """All quantities of a line in one cache format."""
    settings = replace(settled.deployment.settings, kv_dtype=kv_dtype)
    deployment, target = replace(settled.deployment, settings=settings), settled.request.target
    steps = explored_steps(line.models, contexts, batches, deployment, target)
    return {
        "token": explored_token_bytes(line.models, deployment),
        "cache": explored_caches(line.models, contexts, batches, deployment),
        "capacity": explored_capacities(line.models, contexts, deployment),
        "step": steps,
        "model": explored_step_models(line.models, deployment, target),
        "weights": explored_weights(line.models),
        "work": explored_work(line.models, contexts),
    }


def _usable(computed: Mapping[str, Sequence[Computed]]) -> list[str]:
    """The first format, and those that lose nothing that the first has."""
    own, *others = computed
    return [
        own,
        *(
            other
            for other in others
            if all(
                found[key].refused is None or first[key].refused is not None
                for first, found in zip(computed[own], computed[other], strict=True)
                for key in first
            )
        ),
    ]


def _kept(
    lines: Sequence[_Line], computed: Sequence[Sequence[Computed]]
) -> tuple[list[int], list[str]]:
    """Lines to show, and what to say of the others: refused, or the same as one before."""
    kept: list[int] = []
    remarks: dict[str, None] = {}
    for n, line in enumerate(lines):
        found = [one[n] for one in computed]
        refused = found[0]["cache"].refused
        if refused is not None and n:
            remarks[f"left out: {line.names[0]}: {refused}"] = None
            continue
        twin = next(
            (m for m in kept if lines[m].sets == line.sets
             and all(_shown(one[m]) == _shown(one[n]) for one in computed)), None,
        )  # fmt: skip
        if twin is None:
            kept.append(n)
        elif len(line.names) > 1:
            remarks[f"{line.role}: the same as {lines[twin].role} at every point"] = None
        else:
            remarks[f"{line.names[0]}: the same as {lines[twin].names[0]} at every point"] = None
    return kept, list(remarks)


def _shown(computed: Computed) -> list[Any]:
    """What a page shows of a line, to compare lines."""
    found = {key: one for key, one in computed.items() if key not in ("model", "capacity")}
    rows = computed["capacity"]
    held = rows.each(lambda row: (row.max_sequences, row.total_sequences))
    return [*found.values(), held]


def _design(
    settled: Settled,
    line: _Line,
    computed: Sequence[Computed],
    shape: tuple[int, int],
    chips: dict[Chip, int],
) -> GridDesign:
    """The measures of a line; chips that are new are added to ``chips``."""
    n_contexts, n_batches = shape
    n_models, by_rank = len(line.models), len(line.models) > 1
    alone: Strides = (int(by_rank), 0, 0, n_models)
    held: Strides = (n_contexts if by_rank else 0, 1, 0, n_models * n_contexts)
    cells = n_contexts * n_batches
    whole: Strides = (cells if by_rank else 0, n_batches, 1, n_models * cells)
    found = {key: _joined(one[key] for one in computed) for key in computed[0]}
    steps, rows, batches = found["step"], found["capacity"], _batches(settled)
    for_all = settled.deployment.n_replicas * settled.deployment.parallel.dp_size > 1
    foundations = found["model"].each(
        lambda model: [chips.setdefault(one, len(chips)) for one in step_chips(model)]
    )
    basis = _bases(chips, found["model"], steps, cells)
    marks = [chip.mark for chip in chips]
    names = Explored(values=line.names * len(computed))
    return GridDesign(
        role=line.role,
        line="",
        style=0,
        sets=line.sets,
        is_covered=False,
        remarks=tuple(
            filter(None, (timed_unpadded(one, settled.deployment) for one in line.models))
        ),
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
        return Explored(refused=models.refused or steps.refused)
    found = []
    for n, model in enumerate(models.values):
        of_terms = chips_by_term(model)
        for step in steps.values[n * per_model : (n + 1) * per_model]:
            chip = of_terms.get(step.rests_on, of_terms["matrices"])
            found.append(chips.setdefault(chip, len(chips)))
    return Explored(values=tuple(found))


def _joined(parts: Iterable[Explored]) -> Explored:
    """One quantity of all formats, one after the other."""
    found = list(parts)
    refused = next((one.refused for one in found if one.refused is not None), None)
    if refused is not None:
        return Explored(refused=refused)
    return Explored(values=tuple(value for one in found for value in one.values))


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


def _gpus(settled: Settled) -> str:
    n_gpus = settled.deployment.n_replicas * settled.deployment.parallel.n_gpus
    shared = "" if settled.tp_size == 1 else f" at TP {settled.tp_size}"
    return f"{gpu_words(settled.gpu.name, settled.gpu.title, n_gpus)}{shared}"


def _chips(settled: Settled) -> Iterator[Chip]:
    """What users and bytes rest on."""
    model, deployment = settled.request.model, settled.deployment
    here = [settled.context_tokens]
    for row in explored_capacities([model], here, deployment).values:
        if row.budget is not None:
            yield users_chip(str(deployment.engine), row.budget.stages[0].terms)
    yield bytes_chip(source.citation for source in model.source if source.citation)


_OF_A_POINT = ("--context-tokens", "--batch-size", "--kv-dtype")


def _command(settled: Settled) -> str:
    """The command that plans a point, but for the options of the point."""
    request, n_gpus = settled.request, settled.deployment.n_gpus
    options = {f: text for f, text in request.options.items() if f not in _OF_A_POINT}
    gpus = () if n_gpus is None else ("--n-gpus", str(n_gpus))
    return replace(request, options=options).command(
        "plan", "--tp-size", str(settled.tp_size), *gpus
    )
