"""Which of two designs decodes faster, at every context, for each of several pairs.

Every change along the context is exact: it is solved by ``latency.crossover``, not read off a grid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import UsageError
from lrkv_plan.latency.crossover import context_breakpoints, sign_changes
from lrkv_plan.latency.step import step_time

if TYPE_CHECKING:
    from lrkv_plan.latency.kernel import KernelModel
    from lrkv_plan.latency.step import StepModel

Pair = tuple["StepModel", "StepModel"]
# Per column: the design that is faster first (None for a tie), and (context, faster from there).
Columns = Sequence[tuple[int, tuple[int | None, list[tuple[int, int]]]]]


@dataclass(frozen=True, kw_only=True)
class FasterMap:
    """Which of two designs is faster from ``low`` to ``high``, per column of ``over``. [tokens]

    ``found`` is with the constants as they are, ``leaning`` with the first and with the second
    design at its best. ``columns`` are (value, both designs there).
    """

    over: str
    low: int
    high: int
    batch_size: int
    query_tokens: int
    columns: Sequence[tuple[int, Pair]]
    found: Columns
    leaning: tuple[Columns, Columns]


def faster_map(
    columns: Sequence[tuple[int, Pair]],
    *,
    over: str,
    low: int,
    high: int,
    batch_size: int = 1,
    query_tokens: int = 1,
) -> FasterMap:
    """The map of ``solved_columns``, as predicted and at both ends of the bands.

    Raises
    ------
    UsageError
        If there are fewer than two columns, or ``low`` is not below ``high``.
    """
    if len(columns) < 2 or low >= high:
        raise UsageError(f"{over}, {low} to {high} tokens: a map needs two values of each axis")
    told: dict[str, Any] = {
        "over": over, "low": low, "high": high, "batch_size": batch_size,
        "query_tokens": query_tokens,
    }  # fmt: skip
    first, second = (solved_columns(columns, favoured=better, **told) for better in (0, 1))
    return FasterMap(
        columns=columns, found=solved_columns(columns, **told), leaning=(first, second), **told
    )


def solved_columns(
    columns: Sequence[tuple[int, Pair]],
    *,
    over: str,
    low: int,
    high: int,
    batch_size: int,
    query_tokens: int,
    favoured: int | None = None,
) -> Columns:
    """The faster design at ``low`` and every change up to ``high``, per column.

    Parameters
    ----------
    columns : (value, both designs there).
    over : what the value is; with batch_size it is the batch, otherwise ``batch_size`` is.
    low, high : contexts. [tokens]
    favoured : the design whose attention is taken at the fast end of its 90 % band, the other's at
        the slow end; none when None.
    """
    return [
        (
            at,
            _changes(
                _leaning(pair, favoured), low, high, at if over == "batch_size" else batch_size,
                query_tokens,
            ),
        )
        for at, pair in columns
    ]  # fmt: skip


def _changes(
    pair: Pair, low: int, high: int, batch_size: int, query_tokens: int
) -> tuple[int | None, list[tuple[int, int]]]:
    def times(context: Any) -> tuple[Any, Any]:
        one, other = (step_time(m, context, batch_size, query_tokens).step_s for m in pair)
        return one, other

    return sign_changes(times, low, high, context_breakpoints(pair, batch_size, query_tokens))


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


def _scaled(kernel: KernelModel, factor: float) -> KernelModel:
    """A kernel whose every time is ``factor`` times as long."""
    short = kernel.short
    if short is not None:
        short = replace(
            short,
            t0_s=short.t0_s * factor,
            work_unit_s=short.work_unit_s * factor,
            bytes_per_s=short.bytes_per_s / factor,
        )
    return replace(
        kernel,
        short=short,
        t0_s=kernel.t0_s * factor,
        work_unit_s=kernel.work_unit_s * factor,
        bytes_per_s=kernel.bytes_per_s / factor,
        flops_per_s=kernel.flops_per_s / factor,
    )
