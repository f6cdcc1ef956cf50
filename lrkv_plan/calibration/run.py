"""Measure the planned points, round after round, until the time is up; nothing measured is lost.

Every round measures each point once, in an order of its own, so that slow and quiet moments of a
shared machine fall on all points alike. Rows go to disk one by one. A run that was stopped goes on
where it was; a point that memory cannot hold is left out before it is tried, with the reason.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.calibration.decode.paths import PATHS
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.calibration.design import PlannedPoint
from lrkv_plan.calibration.machine import (
    Stopwatch,
    TimedCalls,
    free_bytes,
)
from lrkv_plan.calibration.samples import DecodeSample, SampleFile
from lrkv_plan.units import GIB

MAX_ROUNDS = 64
# Rounds differ more than repeats of one (10 against 5 % here): few repeats, many rounds.
SLICE_S = 0.01  # of one point in one round, flushes included
REPEATS = (1, 25)
SMALL_TOKENS = 8
MEMORY_SHARE = 0.8  # of what is free, that a point may take
Progress = Callable[[int, int, float], None]  # rounds begun, points left in it, seconds left


@dataclass(kw_only=True)
class Measuring:
    """One device, one file of samples, and the time that is left.

    ``deadline`` is on the clock of ``time.monotonic``. ``skipped`` maps points to reasons.
    """

    device: torch.device
    device_name: str
    threads: int
    stopwatch: Stopwatch
    file: SampleFile
    deadline: float
    cold: bool = True
    seed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    _repeats: dict[str, int] = field(default_factory=dict)
    _small: dict[tuple[str, ...], DecodeStep] = field(default_factory=dict)

    def run(self, points: Sequence[PlannedPoint], progress: Progress) -> int:
        """Measure until the deadline; the number of whole rounds that all points then have.

        A round that is complete on disk is not measured again.
        """
        done = {(s.point, s.round) for s in self.file.rows}
        cost: dict[str, float] = {}
        for number in range(MAX_ROUNDS):
            left = [p for p in points if (p.name, number) not in done]
            random.Random(self.seed * MAX_ROUNDS + number).shuffle(left)  # noqa: S311
            for index, point in enumerate(left):
                now = time.monotonic()
                progress(number, len(left) - index, self.deadline - now)
                if now + cost.get(point.name, SLICE_S) >= self.deadline:
                    return number
                if point.name not in self.skipped:
                    self._measure(point, number)
                    cost[point.name] = time.monotonic() - now
        return MAX_ROUNDS

    def _measure(self, point: PlannedPoint, number: int) -> None:
        """One round of one point, on disk at the end; or why not, in ``skipped``."""
        reason = too_large(point, self.device)
        if reason is None:
            try:
                step = self._step(point, number)
                self.file.append(self._sample(point, number, step, self._timed(point, step)))
                return
            except (torch.OutOfMemoryError, MemoryError) as error:
                reason = f"out of memory when tried: {str(error).splitlines()[0][:200]}"
        self.skipped[point.name] = reason
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _step(self, point: PlannedPoint, number: int) -> DecodeStep:
        return build_step(
            point.path, point.spec(), model_dim=point.n_heads * point.head_dim,
            batch_size=point.batch_size, context_tokens=point.context_tokens,
            query_tokens=point.query_tokens, dtype=point.dtype, device=str(self.device),
            page_tokens=point.page_tokens or None, seed=self.seed + number,
        )  # fmt: skip

    def _timed(self, point: PlannedPoint, step: DecodeStep) -> TimedCalls:
        """As many repeats as fit into a slice, as the round before took."""
        kind = (point.path, point.attention, str(point.n_heads), point.dtype)
        if kind not in self._small:
            few = max(SMALL_TOKENS, point.query_tokens)
            small = replace(point, batch_size=1, context_tokens=few)
            self._small[kind] = self._step(small, 0)
        timed = self.stopwatch.time(
            step.run, n_repeats=self._repeats.get(point.name, REPEATS[0]), cold=self.cold,
            small=self._small[kind].run if self.cold else None,
        )  # fmt: skip
        each = (sum(timed.repeats_s) + sum(timed.control_s)) / len(timed.repeats_s)
        self._repeats[point.name] = max(REPEATS[0], min(REPEATS[1], int(SLICE_S / each)))
        return timed

    def _sample(
        self, point: PlannedPoint, number: int, step: DecodeStep, timed: TimedCalls
    ) -> DecodeSample:
        spec = point.spec()
        layout = layout_of(spec, point.n_heads * point.head_dim)
        return DecodeSample(
            point=point.name, round=number, role=point.role, path=point.path,
            kernel=PATHS[point.path].kernel, device=self.device.type,
            device_name=self.device_name, dtype=point.dtype, attention=point.attention,
            n_heads=point.n_heads, n_copies=max(t.copies_per_layer for t in layout.cached),
            head_dim=point.head_dim, rank=getattr(spec, "key_rank", 0),
            latent_dim=getattr(spec, "latent_dim", 0), batch_size=point.batch_size,
            context_tokens=point.context_tokens, query_tokens=point.query_tokens,
            page_tokens=point.page_tokens, cache_state="cold" if self.cold else "hot",
            threads=self.threads, n_bytes=float(step.read_bytes + step.weight_bytes),
            flops=float(step.flops), work_units=float(step.work_units),
            allocated_bytes=step.allocated_bytes, predicted_bytes=int(step.predicted_bytes),
            peak_bytes=timed.peak_bytes,
            repeats_s=timed.repeats_s, controls_s=timed.control_s,
        )  # fmt: skip


def too_large(point: PlannedPoint, device: torch.device) -> str | None:
    """Why the device's free memory cannot hold the point; None if it can, or nobody knows.

    Notes
    -----
    Needed at most: the cache twice (a path may gather it), full keys and values of every head,
    and four copies of the scores, in fp32.
    """
    free = free_bytes(device)
    if free is None:
        return None
    layout = layout_of(point.spec(), point.n_heads * point.head_dim)
    width = {"fp32": 4}.get(point.dtype, 2)
    tokens = point.batch_size * point.context_tokens
    cache = tokens * layout.scalars_per_token() * width
    per_head = 2 * point.head_dim + 4 * point.query_tokens
    needed = 2 * cache + 4 * tokens * point.n_heads * per_head
    if needed <= MEMORY_SHARE * free:
        return None
    return (
        f"not tried: may need {needed / GIB:.2f} GiB, {MEMORY_SHARE:.0%} of the free "
        f"{free / GIB:.2f} GiB is allowed"
    )
