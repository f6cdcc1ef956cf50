"""Cache, sequences and step time on a grid of rank, context and batch, for a page's sliders.

Every value comes from the calculator that its command uses; a page only looks values up. What a
page shows is the text beside each value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.families.low_rank import plain_low_rank, rotated_low_rank
from lrkv_plan.errors import PlanError, one_line
from lrkv_plan.latency.step import step_time
from lrkv_plan.memory.cache import cache_bytes
from lrkv_plan.report.series.cache_vs_rank import widest_rank
from lrkv_plan.report.series.capacity import default_contexts
from lrkv_plan.report.tables import count
from lrkv_plan.report.views.time import milliseconds
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.load import timed_step
from lrkv_plan.specs.design import (
    design_label,
    design_text,
    first_backbone,
    swap_attention,
    with_size,
)
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.report.request import Settled
    from lrkv_plan.specs.model import ModelSpec

MOST_RANKS, MOST_CONTEXTS = 17, 9
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_VARIANTS = (("LRKV", plain_low_rank), ("LRKV, keys rotated", rotated_low_rank))


@dataclass(frozen=True, kw_only=True)
class GridAxis:
    """One slider: its grid points, their texts, and where it starts."""

    key: str
    label: str
    values: tuple[int, ...]
    texts: tuple[str, ...]
    start: int  # index of the report's own point


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Values and their texts in the order of ``strides``: index = sum of stride x axis index.

    A stride is 0 where the value does not depend on that axis. ``refused`` says why all are absent.
    """

    key: str
    title: str
    strides: tuple[int, int, int]
    values: tuple[Any, ...] = ()
    texts: tuple[str, ...] = ()
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class GridDesign:
    """A design of the grid; ``names`` has one text per rank, or one for all."""

    role: str
    names: tuple[str, ...]
    measures: tuple[Measure, ...]


@dataclass(frozen=True, kw_only=True)
class SliderGrid:
    """Axes in the order rank, context, batch, and the designs' measures on them."""

    axes: tuple[GridAxis, GridAxis, GridAxis]
    designs: tuple[GridDesign, ...]


def slider_grid(settled: Settled) -> SliderGrid:
    """The grid around the report's own context, batch and aligned rank.

    Raises
    ------
    UsageError, SpecError
        If the model has no attention layers.
    """
    model = settled.request.model
    ranks, contexts, batches = _ranks(settled), _contexts(settled), _batches(settled)
    aligned = settled.ceiling.aligned.value if settled.ceiling else ranks[0]
    axes = (
        _axis("rank", "LRKV rank per head", ranks, aligned, ""),
        _axis("context_tokens", "Context per sequence", contexts, settled.context_tokens, "tokens"),
        _axis("batch_size", "Sequences decoded together", batches, settled.batch_size, ""),
    )
    own = design_label(model)
    fixed = [("own design", own, model)]
    if own != "mha":
        fixed.append(("full attention", "mha", swap_attention(model, "mha")))
    designs = [
        GridDesign(role=role, names=(name,), measures=_measures(settled, [one], contexts, batches))
        for role, name, one in fixed
    ]
    for role, variant in _VARIANTS:
        varied = swap_attention(model, variant(first_backbone(model)))
        swapped = [with_size(varied, rank) for rank in ranks]
        names = [design_text(one) for one in swapped]
        measures = _measures(settled, swapped, contexts, batches)
        designs.append(GridDesign(role=role, names=tuple(names), measures=measures))
    return SliderGrid(axes=axes, designs=tuple(designs))


def _axis(key: str, label: str, values: Sequence[int], start: int, unit: str) -> GridAxis:
    texts = tuple(f"{count(value)} {unit}".strip() for value in values)
    return GridAxis(
        key=key, label=label, values=tuple(values), texts=texts, start=values.index(start)
    )


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


def _measures(
    settled: Settled, models: Sequence[ModelSpec], contexts: Sequence[int], batches: Sequence[int]
) -> tuple[Measure, ...]:
    """All measures of one design, or of one design per rank."""
    n_contexts, n_batches = len(contexts), len(batches)
    by_rank = len(models) > 1
    whole = (n_contexts * n_batches if by_rank else 0, n_batches, 1)
    held = (n_contexts if by_rank else 0, 1, 0)
    fits = _measure(
        "max_sequences", "Sequences that fit", held,
        lambda: _sequences(settled, models, contexts), count,
    )  # fmt: skip
    batch_fits = _measure(
        "batch_fits", "This batch", whole,
        lambda: (batch <= most for most in fits.values for batch in batches),
        lambda value: "fits" if value else "does not fit",
    )  # fmt: skip
    return (
        _measure(
            "cache_bytes_per_gpu", "Cache per GPU", whole,
            lambda: _caches(settled, models, contexts, batches), format_bytes,
        ),
        fits,
        *_step_measures(settled, models, contexts, batches, whole),
        replace(batch_fits, refused=fits.refused),
    )  # fmt: skip


def _measure(
    key: str, title: str, strides: tuple[int, int, int],
    values: Callable[[], Iterable[Any]], text: Callable[[Any], str],
) -> Measure:  # fmt: skip
    try:
        found = tuple(values())
    except PlanError as error:
        return Measure(key=key, title=title, strides=strides, refused=one_line(str(error)))
    return Measure(
        key=key, title=title, strides=strides, values=found, texts=tuple(map(text, found))
    )


def _caches(
    settled: Settled, models: Sequence[ModelSpec], contexts: Sequence[int], batches: Sequence[int]
) -> Iterable[int]:
    for model in models:
        for context in contexts:
            for batch in batches:
                held = cache_bytes(
                    model, context_tokens=context, batch_size=batch, kv_dtype=settled.kv_dtype,
                    tp_size=settled.tp_size,
                )  # fmt: skip
                yield held.total  # type: ignore[misc]


def _sequences(
    settled: Settled, models: Sequence[ModelSpec], contexts: Sequence[int]
) -> Iterable[int]:
    deployment = settled.deployment
    for model in models:
        for context in contexts:
            told = replace(deployment.settings, context_tokens=context)
            yield capacity_row(model, replace(deployment, settings=told)).max_sequences


def _step_measures(
    settled: Settled,
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    strides: tuple[int, int, int],
) -> tuple[Measure, Measure]:
    try:
        steps = [
            step_time(one, context, batch, settled.query_tokens)
            for one in (
                timed_step(model, settled.deployment, settled.request.target) for model in models
            )
            for context in contexts
            for batch in batches
        ]  # fmt: skip
    except PlanError as error:
        reason = one_line(str(error))
        return (
            Measure(key="step_s", title="Step (ms)", strides=strides, refused=reason),
            Measure(key="step_band", title="Band (ms)", strides=strides, refused=reason),
        )
    bands = [f"{milliseconds(float(s.low_s))} to {milliseconds(float(s.high_s))}" for s in steps]
    seconds = [float(s.step_s) for s in steps]
    return (
        Measure(
            key="step_s", title="Step (ms)", strides=strides, values=tuple(seconds),
            texts=tuple(map(milliseconds, seconds)),
        ),
        Measure(
            key="step_band", title="Band (ms)", strides=strides, values=tuple(bands),
            texts=tuple(bands),
        ),
    )  # fmt: skip
