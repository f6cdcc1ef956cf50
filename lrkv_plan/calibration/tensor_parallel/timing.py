"""Timing what all workers do together: warm-up, a common start, the slowest worker per repeat.

Estimator: on CPUs the minimum over repeats, because other programs only ever add time; on GPUs the
median of device times. Both are reported.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.calibration.torch_gate import require_torch

if TYPE_CHECKING:
    from lrkv_plan.calibration.tensor_parallel.group import Group

MIN_REPEAT_S = 1e-3  # a repeat makes as many calls as fill this, so that starting together is small
MAX_CALLS = 20
SLICE_S = 1.0  # of one measurement; where calls take long, fewer repeats are made than asked for
MIN_REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Times of one call, one per repeat, each of the slowest worker. [s]"""

    times_s: tuple[float, ...]
    on_gpu: bool

    @property
    def least_s(self) -> float:
        """The shortest repeat."""
        return min(self.times_s)

    @property
    def median_s(self) -> float:
        """The middle repeat."""
        return statistics.median(self.times_s)

    @property
    def estimate_s(self) -> float:
        """Median on GPUs, minimum on CPUs."""
        return self.median_s if self.on_gpu else self.least_s


def time_together(
    group: Group, call: Callable[[], object], *, n_repeats: int, n_warm: int = 2
) -> Repeats:
    """Times of ``call``, which every worker makes.

    The workers start a repeat at a barrier and make the same number of calls in a row; all know
    the slowest first call, and choose the same numbers from it.
    """
    for _ in range(n_warm):
        call()
    first_s = max(group.each(_elapsed(group, call, 1)))
    n_calls = max(1, min(MAX_CALLS, math.ceil(MIN_REPEAT_S / max(first_s, 1e-9))))
    times = []
    fitting = int(SLICE_S / max(first_s * n_calls, 1e-9))
    for _ in range(min(n_repeats, max(MIN_REPEATS, fitting))):
        group.barrier()
        times.append(_elapsed(group, call, n_calls) / n_calls)
    return Repeats(times_s=group.slowest(times), on_gpu=group.on_gpu)


def _elapsed(group: Group, call: Callable[[], object], n_calls: int) -> float:
    if group.on_gpu:
        return _device_elapsed(call, n_calls)
    start = time.perf_counter()
    for _ in range(n_calls):
        call()
    return time.perf_counter() - start


def _device_elapsed(call: Callable[[], object], n_calls: int) -> float:
    """Between two events on the current stream, which nccl's own stream waits for and joins."""
    torch = require_torch()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(n_calls):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(begin.elapsed_time(end)) * 1e-3
