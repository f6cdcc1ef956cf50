"""Where two designs' measured decode times cross along the context, beside the predicted place.

Pairs are found in the data: two series of contexts with equal heads, head width, batch, format and
query tokens, that differ either in the rank on one path, or in that one caches every head whole
(MHA) and the other a low rank.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.calibration.points import MeasuredPoint, estimator

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

MIN_CONTEXTS = 3
N_RESAMPLES = 200


@dataclass(frozen=True, kw_only=True)
class Design:
    """One side of a comparison."""

    path: str
    attention: str


@dataclass(frozen=True, kw_only=True)
class TimedCrossing:
    """Crossings of two designs over the contexts that both were measured at.

    ``ratios`` are times of the first over the second at ``contexts``, with the 90 % interval of
    resampled repeats. ``measured`` and ``predicted`` are the contexts from which the other design
    is faster, by log-linear interpolation (empty: none in range; ``predicted`` None: no constants).
    ``crossing_share`` is the share of resamples that cross at all, and ``low``, ``high`` the 90 %
    interval of where those cross first.
    """

    first: Design
    second: Design
    dtype: str
    n_heads: int
    head_dim: int
    batch_size: int
    query_tokens: int
    contexts: tuple[int, ...]
    ratios: tuple[float, ...]
    ratios_low: tuple[float, ...]
    ratios_high: tuple[float, ...]
    predicted_ratios: tuple[float, ...] | None
    measured: tuple[float, ...]
    predicted: tuple[float, ...] | None
    crossing_share: float
    low: float | None
    high: float | None


Series = dict[int, MeasuredPoint]  # by context


def timed_crossings(
    points: Iterable[MeasuredPoint], predicted_s: dict[str, float] | None = None, seed: int = 0
) -> list[TimedCrossing]:
    """Every pair of comparable series.

    Parameters
    ----------
    points : all points of a run, held-out ones included.
    predicted_s : predicted time by point name, from the fitted constants. [s]
    seed : of the resampled repeats.
    """
    return [
        _crossing(one, other, predicted_s or {}, seed)
        for one, other in _pairs(_series(points).values())
    ]


def crossings_of(contexts: Sequence[float], log_ratios: Sequence[float]) -> tuple[float, ...]:
    """Contexts at which a log ratio of times changes sign, linear in ln(context) between points.

    Examples
    --------
    >>> crossings_of([100, 10000], [0.5, -0.5])  # halfway on a log scale
    (1000.0,)
    >>> crossings_of([100, 10000], [0.5, 0.1])
    ()
    """
    found = []
    pairs = list(zip(contexts, log_ratios, strict=True))
    signed = [pair for pair in pairs if pair[1] != 0]
    for (left, before), (right, after) in itertools.pairwise(signed):
        if before * after < 0:
            share = before / (before - after)
            found.append(math.exp(math.log(left) + share * math.log(right / left)))
    return tuple(round(place, 6) for place in found)


def _series(points: Iterable[MeasuredPoint]) -> dict[tuple[object, ...], Series]:
    found: dict[tuple[object, ...], Series] = defaultdict(dict)
    for point in points:
        s = point.sample
        key = (
            s.path, s.attention, s.dtype, s.n_heads, s.head_dim, s.batch_size, s.query_tokens,
            s.page_tokens, s.cache_state, s.device_name,
        )  # fmt: skip
        found[key][s.context_tokens] = point
    return {key: series for key, series in found.items() if len(series) >= MIN_CONTEXTS}


def _pairs(series: Iterable[Series]) -> Iterator[tuple[Series, Series]]:
    alike: dict[tuple[object, ...], list[Series]] = defaultdict(list)
    for one in series:
        s = next(iter(one.values())).sample
        key = (
            s.dtype, s.n_heads, s.head_dim, s.batch_size, s.query_tokens, s.page_tokens,
            s.cache_state, s.device_name,
        )  # fmt: skip
        alike[key].append(one)
    for group in alike.values():
        for index, one in enumerate(group):
            for other in group[index + 1 :]:
                first, second = sorted((one, other), key=_rank, reverse=True)
                if _compare(first, second) and len(set(first) & set(second)) >= MIN_CONTEXTS:
                    yield first, second


def _rank(series: Series) -> int:
    return next(iter(series.values())).sample.rank


def _compare(first: Series, second: Series) -> bool:
    """Two ranks on one path, or a low rank beside whole heads; the higher rank comes first."""
    one, other = (next(iter(s.values())).sample for s in (first, second))
    if one.rank == other.rank or not one.rank:
        return False
    whole = not other.rank and not other.latent_dim and other.n_copies == other.n_heads
    return whole or (other.rank > 0 and one.path == other.path)


def _crossing(
    first: Series, second: Series, predicted_s: dict[str, float], seed: int
) -> TimedCrossing:
    import numpy as np

    contexts = sorted(set(first) & set(second))
    pairs = [(first[c], second[c]) for c in contexts]
    logs = [math.log(one.time_s / other.time_s) for one, other in pairs]
    resampled = np.column_stack([_resampled(one, other, seed) for one, other in pairs])
    low, high = np.exp(np.quantile(resampled, (0.05, 0.95), axis=0))
    places = [found[0] for row in resampled if (found := crossings_of(contexts, row.tolist()))]
    ends = np.quantile(places, (0.05, 0.95)).tolist() if places else (None, None)
    known = all(p.sample.point in predicted_s for pair in pairs for p in pair)
    ahead = [
        math.log(predicted_s[one.sample.point] / predicted_s[other.sample.point])
        for one, other in pairs
        if known
    ]
    s = pairs[0][0].sample
    return TimedCrossing(
        first=_design(pairs[0][0]), second=_design(pairs[0][1]), dtype=s.dtype, n_heads=s.n_heads,
        head_dim=s.head_dim, batch_size=s.batch_size, query_tokens=s.query_tokens,
        contexts=tuple(contexts), ratios=tuple(math.exp(v) for v in logs),
        ratios_low=tuple(low.tolist()), ratios_high=tuple(high.tolist()),
        predicted_ratios=tuple(math.exp(v) for v in ahead) if known else None,
        measured=crossings_of(contexts, logs),
        predicted=crossings_of(contexts, ahead) if known else None,
        crossing_share=len(places) / len(resampled), low=ends[0], high=ends[1],
    )  # fmt: skip


def _design(point: MeasuredPoint) -> Design:
    return Design(path=point.sample.path, attention=point.sample.attention)


def _resampled(one: MeasuredPoint, other: MeasuredPoint, seed: int) -> FloatArray:
    """ln of the ratio of times, with each point's repeats drawn again with replacement."""
    import numpy as np

    generator = np.random.default_rng(seed)
    logs = []
    for point in (one, other):
        repeats = np.array(point.repeats_s)
        drawn = repeats[generator.integers(0, len(repeats), (N_RESAMPLES, len(repeats)))]
        smallest = estimator(point.sample.device)[0] == "minimum"
        logs.append(np.log(drawn.min(axis=1) if smallest else np.median(drawn, axis=1)))
    return logs[0] - logs[1]  # type: ignore[no-any-return]


def describe(crossing: TimedCrossing, places: Sequence[float] | None, ratio: float) -> str:
    """Where the ranking changes, in words; ``ratio`` is first over second at the last context."""
    first, second = crossing.first.attention, crossing.second.attention
    if places is None:
        return "no constants"
    if not places:
        if ratio == 1:
            return "equally fast"
        return f"none in range: {first if ratio < 1 else second} is faster"
    until = second if (ratio < 1) == (len(places) % 2 == 1) else first
    names = [until]
    for _ in places:
        names.append(first if names[-1] == second else second)
    parts = [f"{name} from {place:,.0f}" for name, place in zip(names[1:], places, strict=True)]
    return f"{names[0]} first, " + ", ".join(parts)
