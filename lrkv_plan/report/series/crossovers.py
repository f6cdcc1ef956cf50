"""Which of two designs decodes faster, as a map over context and rank, or context and batch.

The boundary is exact at every column: each one is solved by ``calculators.crossover``, not read
off a grid, and so are the boundaries with the constants at the ends of their bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.crossover import context_breakpoints, sign_changes
from lrkv_plan.calculators.kernel_time import KernelModel
from lrkv_plan.calculators.step_time import step_time
from lrkv_plan.errors import UsageError
from lrkv_plan.report.captions import caption, unmeasured
from lrkv_plan.report.figures import Axis, Figure, Panel
from lrkv_plan.report.series.crossover_shapes import Columns, boundary_series, region_series

if TYPE_CHECKING:
    from lrkv_plan.calculators.step_time import StepModel

Pair = tuple["StepModel", "StepModel"]


def crossover_map(
    columns: Sequence[tuple[int, Pair]],
    labels: tuple[str, str],
    *,
    over: str,
    low: int,
    high: int,
    batch_size: int = 1,
    query_tokens: int = 1,
    where: str = "",
    inputs: Mapping[str, Any] | None = None,
) -> Figure:
    """Regions of the faster design, the boundary between them, and its band.

    Parameters
    ----------
    columns : (value on the x axis, both designs there), ascending; along the batch the designs are
        the same in all of them.
    over : rank or batch_size, the x axis.
    low, high : contexts of the y axis. [tokens]
    batch_size : sequences decoded together, unless it is the x axis. [sequences]

    Raises
    ------
    UsageError
        If there are fewer than two columns, or ``low`` is not below ``high``.
    """
    if len(columns) < 2 or low >= high:
        raise UsageError(f"{over}, {low} to {high} tokens: a map needs two values of each axis")
    batches = {at: at if over == "batch_size" else batch_size for at, _ in columns}

    def solved(favoured: int | None) -> Columns:
        return [
            (at, _changes(_leaning(pair, favoured), low, high, batches[at], query_tokens))
            for at, pair in columns
        ]

    found, leaning = solved(None), [solved(0), solved(1)]
    regions = [region_series(found, faster, labels[faster], (low, high)) for faster in (0, 1)]
    bands = [
        one
        for better in (0, 1)
        for one in boundary_series(leaning[better], (low, high), f"{labels[better]} at best")
    ]
    x_axis = (
        Axis(
            key="batch_size", label="Sequences decoded together", scale="log2",
            low=columns[0][0], high=columns[-1][0],
        )
        if over == "batch_size"
        else Axis(
            key="rank", label="Rank per head", low=columns[0][0], high=columns[-1][0], step=16,
        )
    )  # fmt: skip
    sequences = "1 sequence" if batch_size == 1 else f"{batch_size:,} sequences"
    return Figure(
        kind="crossover-map",
        title=f"Which decodes faster, {labels[0]} or {labels[1]}?",
        caption=caption(
            where,
            "" if over == "batch_size" else sequences,
            "" if query_tokens == 1 else f"{query_tokens} query tokens",
            "whole steps compared",
            "at best: attention at the good end of its 90 % band, the other's at the bad end",
            *_everywhere(leaning, labels),
            unmeasured(zip(labels, columns[-1][1], strict=True)),
        ),
        inputs={
            **(inputs or {}),
            "over": over,
            "context_tokens": [low, high],
            "batch_size": None if over == "batch_size" else batch_size,
            "query_tokens": query_tokens,
        },
        panels=(
            Panel(
                name="map",
                x=x_axis,
                y=Axis(
                    key="context_tokens", label="Context, tokens", scale="log2", low=low, high=high
                ),
                series=(*regions[0], *regions[1], *boundary_series(found, (low, high)), *bands),
            ),
        ),
        remarks=_remarks(labels, columns[0][1]),
    )


def _changes(
    pair: Pair, low: int, high: int, batch_size: int, query_tokens: int
) -> tuple[int | None, list[tuple[int, int]]]:
    """The faster design at ``low`` and every change along the context."""

    def times(context: Any) -> tuple[Any, Any]:
        one, other = (step_time(m, context, batch_size, query_tokens).step_s for m in pair)
        return one, other

    return sign_changes(times, low, high, context_breakpoints(pair, query_tokens))


def _leaning(pair: Pair, favoured: int | None) -> Pair:
    """The pair with one design's attention at its band's low end and the other's at the high."""
    if favoured is None:
        return pair
    one, other = (
        replace(
            model, kernels=tuple(_scaled(k, k.band90[index != favoured]) for k in model.kernels)
        )
        for index, model in enumerate(pair)
    )
    return one, other


def _everywhere(leaning: Sequence[Columns], labels: tuple[str, str]) -> list[str]:
    """What the bands' ends say where they leave no boundary to draw."""
    said = []
    for better, found in enumerate(leaning):
        leaders = {start for _, (start, changes) in found if start is not None and not changes}
        if len(leaders) == 1 and not any(changes for _, (_, changes) in found):
            leader = labels[leaders.pop()]
            said.append(f"with {labels[better]} at best, {leader} is faster everywhere")
    return said


def _scaled(kernel: KernelModel, factor: float) -> KernelModel:
    """A kernel whose every time is ``factor`` times as long."""
    return replace(
        kernel,
        t0_s=kernel.t0_s * factor,
        work_unit_s=kernel.work_unit_s * factor,
        bytes_per_s=kernel.bytes_per_s / factor,
        flops_per_s=kernel.flops_per_s / factor,
    )


def _remarks(labels: tuple[str, str], pair: Pair) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            f"{label}: {remark}"
            for label, model in zip(labels, pair, strict=True)
            for remark in model.remarks
        )
    )
