"""Printed beside predicted: a run of a server's log against the same engine's rules.

Tokens, blocks and concurrency are predicted from the memory that the log itself prints, where it
does: so a wrong budget and a wrong rate are told apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from lrkv_plan.errors import UsageError
from lrkv_plan.memory.exact import ceil_div
from lrkv_plan.memory.largest import largest
from lrkv_plan.serving.budget import MemoryBudget, StageBudget
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_record, pool_of
from lrkv_plan.serving.log import LogFormat, LogRun, Printed
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.design import as_stored
from lrkv_plan.specs.model import ModelSpec

Unit = Literal["bytes", "tokens", "blocks", "x"]
UNITS = get_args(Unit)
CACHE = "cache"
# What an engine prints of its memory beside the cache, in the order of a budget.
_PARTS = {
    "memory": "memory", "weights": "weights", "activation": "activation peak",
    "non_torch": "non-torch", "graphs": "CUDA graphs",
}  # fmt: skip
_UNEQUAL = Fraction(5, 4)  # servers, not GPUs of one, differ by more


@dataclass(frozen=True, kw_only=True)
class LogRow:
    """One printed figure beside the predicted one, both in base units.

    ``is_inside`` says whether some value that prints as the log's lies in the predicted range;
    ``difference`` is printed less predicted.
    """

    term: str
    unit: Unit
    printed: Fraction
    printed_low: Fraction
    printed_high: Fraction
    predicted: Fraction
    predicted_low: Fraction
    predicted_high: Fraction
    line: int
    provenance: str

    @property
    def is_inside(self) -> bool:
        """Whether the ranges meet."""
        return self.printed_low <= self.predicted_high and self.predicted_low <= self.printed_high

    @property
    def difference(self) -> Fraction:
        """Printed less predicted."""
        return self.printed - self.predicted

    @property
    def outside_by(self) -> Fraction:
        """How far the printed figure lies outside the predicted range; 0 inside."""
        below, above = (
            self.predicted_low - self.printed_high,
            self.printed_low - self.predicted_high,
        )
        return max(below, above, Fraction(0))


@dataclass(frozen=True, kw_only=True)
class LogCheck:
    """A run's figures beside the predicted ones."""

    deployment: Deployment
    rows: tuple[LogRow, ...]
    budget: MemoryBudget | None

    @property
    def differs_most(self) -> LogRow | None:
        """The row furthest outside its range, None where all are inside.

        Of the memory's terms, unless what the log does not print differs by more: then the cache.
        Where the memory is right, of what it holds.
        """
        outside = [row for row in self.rows if not row.is_inside]
        cache = next((row for row in outside if row.term == CACHE), None)
        parts = [row for row in outside if row.unit == "bytes" and row.term != CACHE]
        worst = max(parts, key=lambda row: row.outside_by, default=None)
        if cache is not None and (worst is None or abs(self.unprinted) > abs(worst.difference)):
            return cache
        return worst or max(outside, key=_share_outside, default=None)

    @property
    def unprinted(self) -> Fraction:
        """What terms that the log does not print take less than predicted. [bytes]

        The cache's difference less that of the printed terms.
        """
        cache = self.row(CACHE)
        if cache is None or self.budget is None:
            return Fraction(0)
        left = cache.difference
        for row in self.rows:
            if row.unit == "bytes" and row.term not in (CACHE, "memory"):
                left += row.difference
        memory = self.row("memory")
        return left - (memory.difference * self.budget.utilisation if memory else 0)

    def row(self, term: str) -> LogRow | None:
        """The row of that term, if there is one."""
        return next((row for row in self.rows if row.term == term), None)


def _share_outside(row: LogRow) -> Fraction:
    return row.outside_by / (row.predicted or 1)


def check_log(run: LogRun, model: ModelSpec, deployment: Deployment, n_sequences: int) -> LogCheck:
    """The figures of a run beside those of the rules.

    Parameters
    ----------
    deployment : as the log states it; without a GPU the budget is not predicted.
    n_sequences : that llama.cpp was told to hold.

    Raises
    ------
    UsageError
        If the run's pools differ so much that they are of several servers, or nothing can be
        predicted without a GPU.
    PlacementError, SpecError
        As ``capacity_row``.
    """
    form = engine_record(deployment.engine.name).log
    assert form is not None, "the engine was found by its log"
    _refuse_several(run, deployment)
    stored = as_stored(model, deployment.rank_alignment)
    printed = _printed_cache(run, form)
    rows: list[LogRow] = []
    budget = None
    if form.asked_bytes is not None:
        if printed is not None:
            asked = form.asked_bytes(stored, deployment.settings, n_sequences)
            rows.append(_row(CACHE, "bytes", printed, asked, asked, asked, "what -c asks for"))
        return LogCheck(deployment=deployment, rows=tuple(rows), budget=None)
    if deployment.hardware is not None:
        budget = capacity_row(model, replace(deployment, kv_memory_bytes=None)).budget
        assert budget is not None, "no pool was stated"
        rows += _budget_rows(run, form, budget, printed)
    rows += _pool_rows(run, form, stored, deployment, budget, printed)
    if not rows:
        raise UsageError(
            "the log prints neither memory nor blocks that its pool could be predicted from: name "
            "the GPU (--gpu)"
        )
    return LogCheck(deployment=deployment, rows=tuple(rows), budget=budget)


def _refuse_several(run: LogRun, deployment: Deployment) -> None:
    found = run.figures.get("n_tokens", [])
    values = [one.value for one in found]
    if deployment.parallel.pp_size == 1 and values and max(values) > _UNEQUAL * min(values):
        raise UsageError(
            f"pools of {int(min(values)):,} and {int(max(values)):,} tokens stand in one log "
            f"(lines {found[0].line} and {found[-1].line}): give the lines of one server"
        )


def _printed_cache(run: LogRun, form: LogFormat) -> Printed | None:
    """The printed memory of the cache; keys and values printed apart add up."""
    whole = run.figure("cache", form.combine.get("cache", "least"))
    key, value = run.figure("key", "first"), run.figure("value", "first")
    if whole is not None or key is None or value is None:
        return whole
    return Printed(
        value=key.value + value.value, half_unit=key.half_unit + value.half_unit, line=key.line
    )


def _row(
    term: str, unit: Unit, printed: Printed, value: Fraction, low: Fraction, high: Fraction,
    provenance: str,
) -> LogRow:  # fmt: skip
    return LogRow(
        term=term, unit=unit, printed=printed.value, printed_low=printed.low,
        printed_high=printed.high, predicted=Fraction(value), predicted_low=Fraction(low),
        predicted_high=Fraction(high), line=printed.line, provenance=provenance,
    )  # fmt: skip


def _budget_rows(
    run: LogRun, form: LogFormat, budget: MemoryBudget, cache: Printed | None
) -> Iterator[LogRow]:
    """Terms that the log prints, of the stage that takes most, and the cache of the fewest."""
    for name, title in _PARTS.items():
        printed = run.figure(name, form.combine.get(name, "least"))
        found = [
            ends for stage in budget.stages
            if (ends := _ends(stage, form.terms.get(name, ()))) is not None
        ]  # fmt: skip
        if printed is not None and found:
            value, low, high, why = max(found)
            yield _row(title, "bytes", printed, value, low, high, why)
    if cache is not None:
        stage = budget.deciding
        yield _row(
            CACHE, "bytes", cache, Fraction(stage.kv_bytes), Fraction(stage.kv_low_bytes),
            Fraction(stage.kv_high_bytes), "what the terms leave",
        )  # fmt: skip


def _ends(
    stage: StageBudget, names: tuple[str, ...]
) -> tuple[Fraction, Fraction, Fraction, str] | None:
    """Size, least and most of some terms together, and what they rest on; None without one."""
    terms = sorted(
        (term for term in stage.terms if term.name in names),
        key=lambda term: names.index(term.name),
    )
    if not terms:
        return None
    sizes = [abs(term.n_bytes) for term in terms]
    bounds = [
        sorted(
            abs(term.n_bytes if end is None else end) for end in (term.low_bytes, term.high_bytes)
        )
        for term in terms
    ]
    low, high = (sum(several, 0) for several in zip(*bounds, strict=True))
    return Fraction(sum(sizes)), Fraction(low), Fraction(high), terms[0].provenance


@dataclass(frozen=True, kw_only=True)
class _Pools:
    """The pools of the least, a middling and the most memory, and what that is taken from."""

    least: Pool
    middle: Pool
    most: Pool
    source: str

    def row(self, name: str, printed: Printed) -> LogRow:
        """A printed figure beside that of these pools."""
        term, unit = _HELD[name]
        value, low, high = (_of(pool, name) for pool in (self.middle, self.least, self.most))
        return _row(term, unit, printed, value, low, high, self.source)


# What an engine prints of its pool, in the order in which one follows from the other.
_HELD: Mapping[str, tuple[str, Unit]] = {
    "n_blocks": ("blocks", "blocks"), "n_tokens": ("tokens", "tokens"),
    "x_concurrency": ("concurrency", "x"),
}  # fmt: skip


def _of(pool: Pool, name: str) -> Fraction:
    return {
        "n_blocks": Fraction(pool.n_blocks), "n_tokens": Fraction(pool.kv_tokens),
        "x_concurrency": Fraction(pool.max_concurrency),
    }[name]  # fmt: skip


def _pool_rows(
    run: LogRun, form: LogFormat, model: ModelSpec, deployment: Deployment,
    budget: MemoryBudget | None, cache: Printed | None,
) -> Iterator[LogRow]:  # fmt: skip
    """Blocks, tokens and concurrency: of the printed memory where there is one.

    Else the first of them is that of the predicted budget, and the others follow from the first as
    it was printed.
    """
    found = {
        name: printed for name in _HELD
        if (printed := run.figure(name, form.combine.get(name, "least"))) is not None
    }  # fmt: skip
    if not found:
        return
    if cache is not None:
        pools = _of_memory(run, model, deployment, cache)
        yield from (pools.row(name, printed) for name, printed in found.items())
        return
    first, *others = found
    if budget is not None:
        yield _of_budget(model, deployment, budget).row(first, found[first])
    if others:
        pools = _of_figure(model, deployment, first, found[first])
        yield from (pools.row(name, found[name]) for name in others)


def _pool(model: ModelSpec, deployment: Deployment, budgets: Sequence[int]) -> Pool:
    return pool_of(
        model, tuple(budgets), deployment.settings, engine=deployment.engine,
        parallel=deployment.parallel,
    )  # fmt: skip


def _of_memory(run: LogRun, model: ModelSpec, deployment: Deployment, cache: Printed) -> _Pools:
    """Pools of all memory that prints as the log's."""
    stages = _per_stage(run, deployment.parallel.pp_size, cache)
    least, middle, most = (
        _pool(model, deployment, [int(getattr(one, end)) for one in stages])
        for end in ("low", "value", "high")
    )
    return _Pools(least=least, middle=middle, most=most, source="the printed memory")


def _of_budget(model: ModelSpec, deployment: Deployment, budget: MemoryBudget) -> _Pools:
    return _Pools(
        least=_pool(model, deployment, [stage.kv_low_bytes for stage in budget.stages]),
        middle=_pool(model, deployment, budget.stage_kv_bytes_per_gpu),
        most=_pool(model, deployment, [stage.kv_high_bytes for stage in budget.stages]),
        source="the predicted budget",
    )


_MOST_BLOCKS = 2**30


def _of_figure(model: ModelSpec, deployment: Deployment, name: str, printed: Printed) -> _Pools:
    """Pools that print that many blocks or tokens: of the fewest and of the most blocks."""
    stages = deployment.parallel.pp_size
    size = Fraction(_pool(model, deployment, [2**40] * stages).block_bytes)

    def pool(n_blocks: int) -> Pool:
        n_bytes = int(ceil_div(n_blocks * size.numerator, size.denominator))
        return _pool(model, deployment, [n_bytes] * stages)

    def blocks_with_less_than(figure: Fraction) -> int:
        found = largest(range(_MOST_BLOCKS), lambda n: _of(pool(n), name), figure - Fraction(1, 2))
        return -1 if found is None else found

    fewest = blocks_with_less_than(printed.value) + 1
    most = max(fewest, blocks_with_less_than(printed.value + 1))
    return _Pools(
        least=pool(fewest), middle=pool(fewest), most=pool(most),
        source=f"the printed {_HELD[name][0]}",
    )  # fmt: skip


def _per_stage(run: LogRun, stages: int, cache: Printed) -> tuple[Printed, ...]:
    """The printed memory of each pipeline stage: by the worker's name, else in printed order."""
    several = run.figures.get("cache", [])
    if len(several) != stages:
        return (cache,) * stages
    if all(one.stage is not None for one in several):
        return tuple(sorted(several, key=lambda one: one.stage or 0))
    return tuple(several)


def measured_runtime(check: LogCheck) -> dict[str, int]:
    """The budget that the log measured on one GPU: memory, weights and cache. [bytes]

    Raises
    ------
    UsageError
        If it prints none, or of several pipeline stages, or no GPU was named.
    """
    cache, budget = check.row(CACHE), check.budget
    if budget is None:
        raise UsageError("the log measures no budget without the GPU: name it (--gpu)")
    if len(budget.stages) > 1:
        raise UsageError("pipeline stages print several budgets; a file holds that of one GPU")
    if cache is None:
        raise UsageError("the log does not print the cache's memory, so it measures no budget")
    weights, memory = check.row("weights"), check.row("memory")
    stage = budget.stages[0]
    found = {
        "memory_bytes": _whole(memory) or stage.bytes_of("memory"),
        "weights_bytes": _whole(weights) or -stage.bytes_of("weights"),
        "cache_bytes": math.floor(cache.printed),
    }
    runtime = int(found["memory_bytes"] * budget.utilisation)
    runtime -= found["weights_bytes"] + found["cache_bytes"]
    if runtime < 0:
        raise UsageError(
            f"weights and cache take {-runtime / 2**30:.2f} GiB more than the memory at a "
            f"utilisation of {float(budget.utilisation):.4g}: another GPU than the log's?"
        )
    return found


def _whole(row: LogRow | None) -> int:
    return 0 if row is None else math.floor(row.printed)
