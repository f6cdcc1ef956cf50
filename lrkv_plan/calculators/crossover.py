"""Where the ranking of two designs changes, exactly, along one whole-numbered variable.

Along the context a step time is linear between a few known places (windows that fill, layers that
turn from memory- to compute-bound), so signs at those places and bisection inside find every
change. Along batch, rank, query tokens and GPUs every whole number is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.step_time import StepModel, StepTime, step_time
from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    from lrkv_plan.calculators.exact import IntArray

SCAN_CHUNK = 65_536  # values that a scan evaluates at a time: a few MB of arrays

# (first, second) times of one evaluation; arrays over the variable. [s]
Pair = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """At ``at`` and from there on the other design is faster (or as fast).

    ``earliest`` and ``latest`` are the same change with the constants' bands against and for the
    design that becomes faster; None where the bands allow that it never happens.
    """

    at: int
    faster_before: int  # 0 the first design, 1 the second
    faster_after: int
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """All changes of rank from ``low`` to ``high``; ``faster_first`` is None where they tie."""

    low: int
    high: int
    faster_first: int | None
    crossings: tuple[Crossing, ...]


def context_breakpoints(models: Iterable[StepModel], query_tokens: int) -> set[int]:
    """Contexts around which a step time is not linear: full windows and layers' ridges. [tokens]

    A layer's ridge is the R with (R a + f + q w) / bw = R c / peak:
    R = (f + q w) / (c bw / peak - a). The batch scales both sides alike.
    """
    places: set[int] = set()
    for model in models:
        for layer, kernel in zip(model.work.attention, model.kernels, strict=True):
            if layer.window_tokens is not None:
                places.add(layer.window_tokens)
            per_row = query_tokens * layer.row_flops + layer.expand_row_flops
            slope = per_row * kernel.bytes_per_s / kernel.flops_per_s - layer.row_read_bytes
            constant = layer.fixed_bytes + query_tokens * layer.token_write_bytes
            if slope > 0 and constant > 0:
                places.add(int(constant / slope))
    return places


def sign_changes(
    times: Pair, low: int, high: int, breakpoints: Iterable[int]
) -> tuple[int | None, list[tuple[int, int]]]:
    """Changes of the faster design on [low, high], for times linear between breakpoints.

    Returns
    -------
    The design faster at ``low`` (None for a tie there), and (place, design faster from there on).

    Raises
    ------
    UsageError
        If ``low`` exceeds ``high``.
    """
    if low > high:
        raise UsageError(f"from {low} to {high}: the range is empty")
    places = {low, high}
    for point in breakpoints:
        # The neighbours bracket a break that is not whole.
        places |= {p for p in (point - 1, point, point + 1, point + 2) if low <= p <= high}
    ordered = sorted(places)
    faster = [_faster(times, place) for place in ordered]
    changes: list[tuple[int, int]] = []
    current = faster[0]
    for left, right, after in zip(ordered[:-1], ordered[1:], faster[1:], strict=True):
        if after is None or after == current:
            continue
        if current is None:
            current = after
            continue
        changes.append((_bisect(times, left, right, after), after))
        current = after
    return faster[0], changes


def _bisect(times: Pair, left: int, right: int, after: int) -> int:
    """The first whole number in (left, right] at which ``after`` is strictly faster."""
    while right - left > 1:
        middle = (left + right) // 2
        if _faster(times, middle) == after:
            right = middle
        else:
            left = middle
    return right


def _faster(times: Pair, place: int) -> int | None:
    first, second = times(place)
    if first == second:
        return None
    return 0 if first < second else 1


def scan(times: Pair, values: IntArray) -> tuple[int | None, list[tuple[int, int]]]:
    """The same as ``sign_changes`` by evaluating every value; for any shape of times.

    ``SCAN_CHUNK`` values are evaluated at a time, so that memory stays bounded.
    """
    changes: list[tuple[int, int]] = []
    current: int | None = None
    start: int | None = None
    for index, faster in _edges(times, values):
        if index == 0:
            start = current = faster
        elif faster is not None and faster != current:
            if current is not None:
                changes.append((int(values[index]), faster))
            current = faster
    return start, changes


def _edges(times: Pair, values: IntArray) -> Iterator[tuple[int, int | None]]:
    """Index 0, every index where the faster design changes, and the first of each chunk."""
    import numpy as np

    for begin in range(0, values.size, SCAN_CHUNK):
        chunk = values[begin : begin + SCAN_CHUNK]
        first, second = times(chunk)
        signs = np.sign(np.asarray(first) - np.asarray(second)) + np.zeros(chunk.shape)
        for index in (0, *(np.flatnonzero(np.diff(signs)) + 1).tolist()):
            yield begin + index, None if signs[index] == 0 else int(signs[index] > 0)


def context_crossover(
    models: tuple[StepModel, StepModel],
    *,
    low: int = 1,
    high: int,
    batch_size: int = 1,
    query_tokens: int = 1,
) -> Crossover:
    """Where the ranking of two designs changes along the cached tokens.

    Parameters
    ----------
    models : two designs on the same GPUs.
    low, high : contexts to look between, both included. [tokens]

    Notes
    -----
    Steps are compared by the sum of their parts (``StepTime.step_s``). A crossing's band repeats
    the search with one design's attention at the low end of its band and the other's at the high
    end; errors that both share cancel in truth and widen the band here.
    """

    def at(place: Any) -> tuple[StepTime, StepTime]:
        one, other = (step_time(m, place, batch_size, query_tokens) for m in models)
        return one, other

    breaks = context_breakpoints(models, query_tokens)
    return _with_bands(at, low, high, lambda times: sign_changes(times, low, high, breaks))


def scanned_crossover(
    steps_at: Callable[[Any], tuple[StepTime, StepTime]], values: IntArray
) -> Crossover:
    """The same along any variable, by evaluating each of ``values`` (ascending)."""
    return _with_bands(steps_at, int(values[0]), int(values[-1]), lambda times: scan(times, values))


def _with_bands(
    steps_at: Callable[[Any], tuple[StepTime, StepTime]],
    low: int,
    high: int,
    search: Callable[[Pair], tuple[int | None, list[tuple[int, int]]]],
) -> Crossover:
    start, changes = search(lambda place: _step_seconds(steps_at(place)))
    favoured = [
        search(lambda place, better=better: _leaning(steps_at(place), better))  # type: ignore[misc]
        for better in (0, 1)
    ]
    crossings = []
    for index, (place, after) in enumerate(changes):
        early = _same_change(favoured[after], after, index, low)
        late = _same_change(favoured[1 - after], after, index, None)
        crossings.append(
            Crossing(
                at=place, faster_before=1 - after, faster_after=after, earliest=early, latest=late
            )
        )
    return Crossover(low=low, high=high, faster_first=start, crossings=tuple(crossings))


def _step_seconds(steps: tuple[StepTime, StepTime]) -> tuple[Any, Any]:
    return steps[0].step_s, steps[1].step_s


def _leaning(steps: tuple[StepTime, StepTime], better: int) -> tuple[Any, Any]:
    """Step times with design ``better``'s attention at its best and the other's at its worst."""
    first, second = (
        step.step_s
        - step.attention_s
        + (step.attention_low_s if index == better else step.attention_high_s)
        for index, step in enumerate(steps)
    )
    return first, second


def _same_change(
    found: tuple[int | None, list[tuple[int, int]]], after: int, index: int, at_start: int | None
) -> int | None:
    """The matching change of a leaning search, or ``at_start`` if ``after`` leads all along."""
    start, changes = found
    matching = [place for place, faster in changes if faster == after]
    if start == after and not matching:
        return at_start
    return matching[min(index // 2, len(matching) - 1)] if matching else None


def describe(crossover: Crossover, labels: Sequence[str], what: str) -> str:
    """The answer in words: always, never, or where it changes."""
    if not crossover.crossings:
        if crossover.faster_first is None:
            return f"never: {labels[0]} and {labels[1]} are equally fast"
        leader = labels[crossover.faster_first]
        return f"always {leader}, from {crossover.low:,} to {_place(crossover.high, what)}"
    places = (f"{labels[c.faster_after]} from {_place(c.at, what)}" for c in crossover.crossings)
    first = crossover.faster_first
    start = f"{labels[first]} first, " if first is not None else ""
    return start + ", then ".join(places)


def _place(value: int, what: str) -> str:
    """A rank is a place, everything else an amount: rank 5, but 5 context tokens."""
    return f"rank {value:,}" if what == "rank" else f"{value:,} {what}"
