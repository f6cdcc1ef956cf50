"""A page's sliders: a grid of rank, context and batch, and the text of every value on it.

``serving.explore`` computes the values; a page only looks them up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.families.low_rank import plain_low_rank, rotated_low_rank
from lrkv_plan.report.series.cache_vs_rank import widest_rank
from lrkv_plan.report.series.capacity import default_contexts
from lrkv_plan.report.tables import count
from lrkv_plan.report.views.time import milliseconds
from lrkv_plan.serving.explore import (
    Explored,
    explored_caches,
    explored_sequences,
    explored_steps,
)
from lrkv_plan.specs.design import (
    design_label,
    design_text,
    first_backbone,
    layers_of,
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
    fixed = [("own design", design_label(model), model)]
    full = swap_attention(model, "mha")
    if layers_of(full) != layers_of(model):
        fixed.append(("full attention", design_label(full), full))
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
    deployment, target = settled.deployment, settled.request.target
    caches = explored_caches(
        models, contexts, batches, kv_dtype=settled.kv_dtype, tp_size=settled.tp_size
    )
    fits = explored_sequences(models, contexts, deployment)
    steps = explored_steps(models, contexts, batches, deployment, target)
    batch_fits = [batch <= most for most in fits.values for batch in batches]
    bands = [
        f"{milliseconds(float(s.low_s))} to {milliseconds(float(s.high_s))}" for s in steps.values
    ]
    return (
        _measure("cache_bytes_per_gpu", "Cache per GPU", whole, caches, format_bytes),
        _measure("max_sequences", "Sequences that fit", held, fits, count),
        _measure(
            "step_s", "Step (ms)", whole,
            replace(steps, values=tuple(float(s.step_s) for s in steps.values)), milliseconds,
        ),
        _measure("step_band", "Band (ms)", whole, replace(steps, values=tuple(bands)), str),
        _measure(
            "batch_fits", "This batch", whole, replace(fits, values=tuple(batch_fits)),
            lambda value: "fits" if value else "does not fit",
        ),
    )  # fmt: skip


def _measure(
    key: str,
    title: str,
    strides: tuple[int, int, int],
    found: Explored,
    text: Callable[[Any], str],
) -> Measure:
    return Measure(
        key=key, title=title, strides=strides, values=found.values,
        texts=tuple(map(text, found.values)), refused=found.refused,
    )  # fmt: skip
