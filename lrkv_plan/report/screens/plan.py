"""The screen of ``plan``: what the model's own design serves, and each other at its own load."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.latency.basis import attention_basis
from lrkv_plan.notes import Note
from lrkv_plan.report.equations import cache_equation, sequences_equation
from lrkv_plan.report.screen import (
    GLYPHS,
    Row,
    Screen,
    ScreenColumn,
    short,
    short_percent,
    short_tokens,
    significant,
    with_band,
)
from lrkv_plan.report.screens.rank import budget_words
from lrkv_plan.report.screens.words import (
    a_token,
    brief,
    counted,
    gpu_words,
    legend,
    sharing_words,
    tokens,
    users,
)
from lrkv_plan.report.time_equations import step_equations
from lrkv_plan.schema import NO_SOURCE
from lrkv_plan.serving.plan import AS_ASKED

if TYPE_CHECKING:
    from lrkv_plan.latency.crossover import Crossover
    from lrkv_plan.serving.load import Admission
    from lrkv_plan.serving.plan import Plan, PlanRow
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

LRKV_POSITIONS = (
    "LRKV keeps rotary positions exact with position=rope_expand (keys rebuilt, more arithmetic); "
    "without it the basis must be trained for rotation in rank space, or positions are another kind"
)
Ask: TypeAlias = Callable[..., Sequence[str]]
SIZES = ("pp_size", "dp_size", "ep_size")
_BAND = 30  # cells of the band's bar
SAME_TIME = 0.01  # share of a time below which two of the same cache are one row


@dataclass(frozen=True, kw_only=True)
class PlanAnswer:
    """A plan, what was asked, and the notes that a screen says.

    ``batch_size`` is the stated load of each replica; ``bound`` begins the verdict where weights
    are left out.
    """

    model: ModelSpec
    inputs: Mapping[str, Any]
    plan: Plan
    gpu: HardwareProfile
    batch_size: int | None
    bound: str
    notes: Sequence[Note]
    launch: Sequence[str] = ()

    @property
    def own(self) -> PlanRow:
        """The model's own design."""
        return self.plan.rows[0]

    @property
    def is_limited(self) -> bool:
        """Whether a target or a stated batch sets the load, so that more may fit than is served."""
        return self.inputs["tpot_ms"] is not None or self.batch_size is not None

    @property
    def where(self) -> str:
        """GPUs and layout in words."""
        plan = self.plan
        words = gpu_words(self.gpu.name, self.gpu.title, plan.n_gpus)
        if plan.n_gpus == 1:
            return words
        replicas = f" in {plan.n_replicas:,} replicas" if plan.n_replicas > 1 else ""
        return f"{words}, {sharing_words(plan.parallel)}{replicas}"


def said_beside(notes: Sequence[Any]) -> list[Note]:
    """The notes of a plan's table that change what its numbers mean."""
    return [
        note for note in notes
        if note.kind == "refusal" or (note.kind == "limit" and note.text != LRKV_POSITIONS)
    ]  # fmt: skip


def plan_screen(answer: PlanAnswer, ask: Ask | None) -> Screen:
    """What the own design serves, LRKV in the same cache, and a row per design."""
    kept = told_apart(answer.plan.rows)
    names = brief([row.attention for row in kept])
    rows = [
        {"row": row, "name": f"{name}  own" if row is answer.own else row.attention}
        for row, name in zip(kept, names, strict=True)
    ]
    return Screen(
        verdict=tuple(_verdict(answer)),
        columns=_columns(answer, rows),
        rows=rows,
        foot=tuple(_foot(answer)),
        following=() if ask is None else tuple(_following(answer, ask)),
        launch=answer.launch,
        notes=answer.notes,
    )


def told_apart(rows: Sequence[PlanRow]) -> list[PlanRow]:
    """Rows without those that store and hold what an earlier one does, and take as long."""
    return [row for row, same in with_same(rows) if same is None]


def with_same(rows: Sequence[PlanRow]) -> Iterator[tuple[PlanRow, PlanRow | None]]:
    """Each row with the earlier one of its family that it differs from by less than is known.

    A design that was asked for differs from all.
    """
    kept: list[PlanRow] = []
    for row in rows:
        others = [] if row.role == AS_ASKED else kept
        same = next((one for one in others if _is_same(one, row)), None)
        if same is None:
            kept.append(row)
        yield row, same


def _is_same(one: PlanRow, other: PlanRow) -> bool:
    """Whether two rows of a family differ in nothing but a time within ``SAME_TIME``."""
    if one.load is None or other.load is None:
        return False
    alike = (
        (type(_first_layer(row)), row.capacity.bytes_per_token_per_gpu, row.capacity.max_sequences,
         row.load and row.load.batch_size, row.load and row.load.time_basis)
        for row in (one, other)
    )  # fmt: skip
    longer = abs(other.load.tpot_s - one.load.tpot_s) / one.load.tpot_s
    return next(alike) == next(alike) and longer <= SAME_TIME


def _first_layer(row: PlanRow) -> Any:
    return next((group.attention for group in row.model.attention_groups), None)


def _verdict(answer: PlanAnswer) -> Iterator[str]:
    own, load = answer.own, answer.own.load
    head = f"{answer.bound}{answer.model.name} keeps {own.attention} on {answer.where}: "
    if load is None:
        yield head + _no_load(answer, own)
    else:
        of = tokens(answer.plan.context_tokens)
        yield f"{head}{users(load.sequences)} of {of} at {_load_words(load)}."
    aligned = answer.plan.ceiling.aligned
    row = next((row for row in answer.plan.rows if row.attention == aligned.text), None)
    largest = answer.plan.ceiling.largest
    words = _budget(answer)
    if row is None:
        yield f"LRKV in {words}: rank {largest.value}."
    else:
        yield f"LRKV in {words}: rank {largest.value}{_aligned(answer, row)}."


def _aligned(answer: PlanAnswer, row: PlanRow) -> str:
    ceiling = answer.plan.ceiling
    same = ceiling.aligned.value == ceiling.largest.value
    rank = "" if same else f"; in steps of {ceiling.alignment} rank {ceiling.aligned.value}"
    if row.load is None:
        return f"{rank}, {_no_load(answer, row)}"
    assumed = ", time assumed" if attention_basis(row.step) == "assumed" else ""
    return f"{rank}, {users(row.load.sequences)}{assumed}"


def _budget(answer: PlanAnswer) -> str:
    budget = answer.plan.budget
    return "the same cache" if budget == answer.own.attention else budget_words(budget)


def _no_load(answer: PlanAnswer, row: PlanRow) -> str:
    batch, held = answer.batch_size, row.capacity.max_sequences
    if not held:
        return "not one sequence fits"
    if batch is not None and batch > held:
        return f"a batch of {batch:,} does not fit; {users(held)} would"
    return f"no user within {answer.inputs['tpot_ms']:g} ms a token"


def _load_words(load: Admission) -> str:
    """Time with its band, whether it misses the target, tokens per second and price."""
    missed = "" if load.meets_target else ", which misses the target"
    cost = load.usd_per_million_tokens
    priced = "" if cost is None else f", ${significant(cost, 2)} per million tokens"
    time = a_token(load.tpot_s, load.tpot_low_s, load.tpot_high_s)
    return f"{time}{missed}, {significant(load.tokens_per_s)} tok/s{priced}"


def _columns(answer: PlanAnswer, rows: Sequence[Row]) -> tuple[ScreenColumn, ...]:
    own_bytes = answer.own.capacity.bytes_per_token_per_gpu
    each = "KiB/token" if answer.plan.parallel.tp_size == 1 else "KiB/token/GPU"
    priced = any(one["row"].load and one["row"].load.usd_per_million_tokens for one in rows)
    columns = [
        ScreenColumn(title="design", text=lambda shown: str(shown["name"]), is_number=False),
        ScreenColumn(title=each, text=_of_row(lambda row: short(_kib(row))), drop=3),
        ScreenColumn(
            title="of own", drop=5,
            text=_of_row(lambda row: short_percent(row.capacity.bytes_per_token_per_gpu
                                                   / own_bytes) if own_bytes else "-"),
        ),
    ]  # fmt: skip
    if answer.is_limited:
        columns += [
            ScreenColumn(title="fit", text=_of_row(_fit), drop=2, tone=_tone),
            ScreenColumn(title="users", text=_of_row(_served), tone=_tone),
        ]
    else:
        columns.append(ScreenColumn(title="users", text=_of_row(_fit), tone=_tone))
    columns += [
        ScreenColumn(title="ms/token", text=_of_row(_time), tone=_doubt),
        ScreenColumn(title="tok/s", text=_of_load(lambda load: significant(load.tokens_per_s)),
                     drop=6),
    ]  # fmt: skip
    if priced:
        columns.append(ScreenColumn(title="$/Mtok", text=_of_load(_price), drop=7))
    if answer.is_limited:
        columns.append(ScreenColumn(title="bound by", text=_of_row(_bound), is_number=False,
                                    drop=4))  # fmt: skip
    band = _band_title(rows)
    if band is not None:
        columns.append(ScreenColumn(title=band[0], text=_of_row(band[1]), is_number=False, drop=9))
    if answer.plan.batch_size is not None:
        columns.append(
            ScreenColumn(title=f"beats own from, batch {answer.plan.batch_size:,}",
                         text=_of_row(beats_own_from), is_number=False, drop=8)
        )  # fmt: skip
    return tuple(columns)


def _of_row(write: Callable[[PlanRow], str]) -> Callable[[Row], str]:
    return lambda shown: write(shown["row"])


def _of_load(write: Callable[[Admission], str]) -> Callable[[Row], str]:
    return lambda shown: "-" if shown["row"].load is None else write(shown["row"].load)


def _kib(row: PlanRow) -> float:
    return float(row.capacity.bytes_per_token_per_gpu) / 1024


def _fit(row: PlanRow) -> str:
    return f"{row.capacity.total_sequences:,}"


def _served(row: PlanRow) -> str:
    return "-" if row.load is None else f"{row.load.sequences:,}"


def _time(row: PlanRow) -> str:
    load = row.load
    if load is None:
        return "-"
    return f"{with_band(load.tpot_s, load.tpot_low_s, load.tpot_high_s)} {GLYPHS[load.time_basis]}"


def _price(load: Admission) -> str:
    cost = load.usd_per_million_tokens
    return "-" if cost is None else significant(cost, 2)


def _bound(row: PlanRow) -> str:
    if row.load is None:
        return str(row.missing)
    return row.load.binds if row.load.meets_target else "misses the target"


def _tone(shown: Row) -> Any:
    row = shown["row"]
    misses = row.load is None or not row.load.meets_target
    return "bad" if misses else "good"


def _doubt(shown: Row) -> Any:
    load = shown["row"].load
    return "doubtful" if load is not None and load.time_basis == "assumed" else None


def _band_title(rows: Sequence[Row]) -> tuple[str, Callable[[PlanRow], str]] | None:
    """Title with the scale in milliseconds, and the bar of a row's band on it."""
    loads = [one["row"].load for one in rows if one["row"].load is not None]
    if not loads:
        return None
    low = min(load.tpot_low_s for load in loads)
    high = max(load.tpot_high_s for load in loads)
    ends = (f"{significant(1e3 * low, 2)} ms", f"{significant(1e3 * high, 2)} ms")
    title = ends[0] + ends[1].rjust(_BAND - len(ends[0]))

    def place(seconds: float) -> int:
        share: float = (seconds - low) / ((high - low) or 1)
        return round((_BAND - 1) * share)

    def drawn(row: PlanRow) -> str:
        if row.load is None:
            return ""
        cells = [" "] * _BAND
        first, last = place(row.load.tpot_low_s), place(row.load.tpot_high_s)
        cells[first : last + 1] = "─" * (last + 1 - first)
        cells[first], cells[last] = "├", "┤"
        cells[place(row.load.tpot_s)] = GLYPHS[row.load.time_basis]
        return "".join(cells)

    return title, drawn


def beats_own_from(row: PlanRow) -> str:
    """Where the row's design becomes faster than the own one, with the bands' range.

    ``always`` and ``never`` are within the contexts that were looked at; a change whose range is
    open to both sides is too close to call.
    """
    against = row.against_own
    if against is None:
        return "-"
    if not against.crossings:
        if against.faster_first is None:
            return "never: as fast"
        return "always" if against.faster_first else f"never up to {short_tokens(against.high)}"
    return ", ".join(_change(against, index) for index in range(len(against.crossings)))


def _change(against: Crossover, index: int) -> str:
    crossing = against.crossings[index]
    if crossing.earliest is None and crossing.latest is None:
        return f"{crossing.at:,}, too close to call"
    until = "" if crossing.faster_after else "until "
    ends = [f"{end:,}" if end is not None else "never" for end in
            (crossing.earliest, crossing.latest)]  # fmt: skip
    return f"{until}{crossing.at:,} ({ends[0]} to {ends[1]})"


def _foot(answer: PlanAnswer) -> Iterator[str]:
    plan = answer.plan
    load = "Each row at its own load." if answer.is_limited else "Each row at its own full load."
    if answer.batch_size is not None:
        each = "" if plan.n_replicas == 1 else " on each replica"
        load = f"Every row at a batch of {answer.batch_size:,}{each}."
    yield (f"{load} All but {answer.own.attention} need training; quality is not predicted.")
    yield from _left_out(answer)
    yield f"Bytes exact. {_evidence(answer)}. Why: --explain"
    yield from _price_source(answer)
    if plan.layout is not None and plan.n_gpus > 1:
        yield f"{sharing_words(plan.parallel)} {plan.layout}."


def _left_out(answer: PlanAnswer) -> Iterator[str]:
    """Which designs have no row, for what they would show stands in another's."""
    for row, same in with_same(answer.plan.rows):
        if same is not None:
            yield (f"{row.attention} is as {same.attention}, times within {100 * SAME_TIME:.0f} %.")


def _price_source(answer: PlanAnswer) -> Iterator[str]:
    """Whose price it is where none was given; its address waits for ``--explain``."""
    usd, source = answer.inputs["gpu_hour_usd"], answer.inputs["gpu_hour_usd_source"]
    if usd is not None and source not in (None, "given"):
        read = re.sub(r",? ?https?://\S+", "", source)
        yield f"Price: ${usd:g} an hour, {f'source: {source}' if source == NO_SOURCE else read}."


def _evidence(answer: PlanAnswer) -> str:
    """What the times rest on: the glyphs that stand in the table, and the kernels' errors."""
    shown = [row.load.time_basis for row in answer.plan.rows if row.load is not None]
    marks = legend(shown)
    errors = [
        kernel.held_out_median_error
        for row in answer.plan.rows for kernel in row.step.kernels
        if kernel.basis == "measured" and kernel.held_out_median_error is not None
    ]  # fmt: skip
    rests = f"Times: {marks}, by the weakest part over a tenth" if shown else "No times"
    if not errors:
        return rests
    low, high = (f"{100 * end:.1f}" for end in (min(errors), max(errors)))
    return (
        f"{rests}; attention kernels measured within {low if low == high else f'{low} to {high}'} %"
    )


def _following(answer: PlanAnswer, ask: Ask) -> Iterator[Sequence[str]]:
    """The crossover against the first design that takes less cache and is timed."""
    own = answer.own
    less = [
        row for row in told_apart(answer.plan.rows)[1:]
        if row.capacity.bytes_per_token_per_gpu < own.capacity.bytes_per_token_per_gpu
        and " " not in own.attention and row.load is not None
    ]  # fmt: skip
    if less:
        other = max(less, key=lambda row: row.capacity.bytes_per_token_per_gpu)
        parallel = answer.plan.parallel
        sizes = {name: getattr(parallel, name) for name in ("tp_size", *SIZES)}
        sized = {name: None if size == 1 else size for name, size in sizes.items()}
        yield ask(
            "crossover",
            own.attention,
            other.attention,
            without=("context_tokens",),
            batch_size=answer.plan.batch_size,
            **sized,
        )


def plan_equations(answer: PlanAnswer, attention: str) -> list[str]:
    """Bytes, users, time and price of one row with its numbers put in."""
    row = next(one for one in answer.plan.rows if one.attention == attention)
    plan, load = answer.plan, row.load
    tp_size = plan.parallel.tp_size
    lines = [
        f"{attention}: {cache_equation(row.model, row.capacity.kv_dtype, tp_size)}, exact",
        f"  users: {sequences_equation(row.capacity)}"
        + (f" x {plan.n_replicas} replicas" if plan.n_replicas > 1 else ""),
    ]
    if load is None:
        return lines
    lines.append(
        f"  ms/token at batch {load.batch_size:,}, {row.capacity.context_tokens:,} tokens:"
    )
    at = (row.capacity.context_tokens, load.batch_size, answer.inputs["speculative_tokens"])
    lines += [f"    {line}" for line in step_equations(row.step, load.step, *at)]
    lines.append(
        f"  tok/s: {users(load.sequences)} / {1e3 * load.tpot_s:.4g} ms = {load.tokens_per_s:,.0f}"
    )
    if load.usd_per_million_tokens is not None:
        price = answer.inputs["gpu_hour_usd"]
        lines.append(
            f"  $/Mtok: {counted(plan.n_gpus, 'GPU')} x ${price:g} an hour / 3,600 s / "
            f"{load.tokens_per_s:,.0f} tok/s x 10^6 = ${load.usd_per_million_tokens:.4g}"
        )
    return lines
