"""Measured points: one time for each, out of its rounds and repeats, and how noisy the run was.

The time is the median over all repeats of all rounds, after the drift of the machine's speed is
taken out (``drift``). The minimum is no better here: a shared CPU has fast spells that not every
point meets. The split-half instability compares even with odd rounds by the same estimator; it
tells a quiet run from a disturbed one, and it is the evidence for the choice of estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from lrkv_plan.calibration.decode_samples import DecodeSample, by_point
from lrkv_plan.calibration.drift import log_drift
from lrkv_plan.calibration.samples import KernelSamples

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

ESTIMATORS: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "cpu": ("median", median),
    "cuda": ("median", median),
}
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"minimum": min, "median": median}
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """One point: its first row for what it is, all repeats of all rounds, and its time. [s]

    ``rounds_s`` have the machine's drift taken out, ``raw_rounds_s`` are as measured.
    """

    sample: DecodeSample
    rounds_s: tuple[tuple[float, ...], ...]
    raw_rounds_s: tuple[tuple[float, ...], ...]
    controls_s: tuple[float, ...]
    time_s: float
    allocated_equals_predicted: bool
    peak_bytes: int

    @property
    def is_fitted(self) -> bool:
        """Whether the fit and the choice of form may use the point."""
        return self.sample.role == "fit"

    @property
    def repeats_s(self) -> tuple[float, ...]:
        """All repeats of all rounds, drift taken out."""
        return tuple(t for one in self.rounds_s for t in one)

    @property
    def latencies_s(self) -> tuple[float, ...]:
        """All repeats of all rounds as measured."""
        return tuple(t for one in self.raw_rounds_s for t in one)

    def instability(
        self, estimate: Callable[[Sequence[float]], float] | None = None, *, raw: bool = False
    ) -> float:
        """|ln| of the estimate in even rounds over that in odd ones; NaN with one repeat.

        Alternate repeats take the place of rounds where there is one round only. ``raw``: with the
        machine's drift left in.
        """
        chosen = estimate or estimator(self.sample.device)[1]
        rounds = self.raw_rounds_s if raw else self.rounds_s
        parts = rounds if len(rounds) > 1 else tuple((t,) for t in rounds[0])
        even = [t for one in parts[0::2] for t in one]
        odd = [t for one in parts[1::2] for t in one]
        return abs(math.log(chosen(even) / chosen(odd))) if odd else math.nan


def estimator(device: str) -> tuple[str, Callable[[Sequence[float]], float]]:
    """Name and function that make one time out of repeats on that device."""
    return ESTIMATORS.get(device, ESTIMATORS["cuda"])


def measured_points(samples: Iterable[DecodeSample]) -> list[MeasuredPoint]:
    """The points of a run, in order of first appearance; ``samples`` in the order of measuring."""
    listed = list(samples)
    slower = {
        (s.point, s.round): math.exp(d) for s, d in zip(listed, log_drift(listed), strict=True)
    }
    return [_point(rounds, slower) for rounds in by_point(listed).values()]


def _point(rounds: list[DecodeSample], slower: dict[tuple[str, int], float]) -> MeasuredPoint:
    ordered = sorted(rounds, key=lambda s: s.round)
    first = ordered[0]
    raw = tuple(sample.repeats_s for sample in ordered)
    factors = [slower[sample.point, sample.round] for sample in ordered]
    times = tuple(tuple(t / f for t in one) for one, f in zip(raw, factors, strict=True))
    _, estimate = estimator(first.device)
    return MeasuredPoint(
        sample=first,
        rounds_s=times,
        raw_rounds_s=raw,
        controls_s=tuple(c for sample in ordered for c in sample.controls_s),
        time_s=estimate([t for one in times for t in one]),
        allocated_equals_predicted=all(s.allocated_bytes == s.predicted_bytes for s in ordered),
        peak_bytes=max(s.peak_bytes for s in ordered),
    )


def noise(
    points: Iterable[MeasuredPoint],
    estimate: Callable[[Sequence[float]], float] | None = None,
    *,
    raw: bool = False,
) -> float | None:
    """Median split-half instability of the points; None where none can be split."""
    found = [v for p in points if not math.isnan(v := p.instability(estimate, raw=raw))]
    return median(found) if found else None


def control_spread(points: Iterable[MeasuredPoint]) -> float | None:
    """How much longer the median control of the run took than its tenth percentile."""
    controls = sorted(c for point in points for c in point.controls_s)
    if len(controls) < 2:
        return None
    return median(controls) / controls[len(controls) // 10] - 1


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of ``values`` does not exceed, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def as_arrays(points: Sequence[MeasuredPoint], *, bandwidth: float, peak: float) -> KernelSamples:
    """Points of one path as arrays, one element each."""
    import numpy as np

    def column(name: str) -> FloatArray:
        return np.array([float(getattr(p.sample, name)) for p in points])

    return KernelSamples(
        n_bytes=column("n_bytes"), flops=column("flops"), work_units=column("work_units"),
        time_s=np.array([p.time_s for p in points]), context_tokens=column("context_tokens"),
        n_heads=column("n_heads"), n_kv_heads=column("n_copies"), head_dim=column("head_dim"),
        bandwidth=bandwidth, peak=peak,
    )  # fmt: skip
