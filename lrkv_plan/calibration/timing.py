"""Time calls on a CPU or a CUDA GPU with cold caches, every repeat kept, a control beside them.

Before each repeat the caches are emptied by reading a buffer larger than the last one. That read
is itself the control: it is the same memory-bound work every time, so its spread is the machine's
noise. On a CPU it also evicts the program; a call of the same kind on a few rows then brings the
code back, not the data, because a serving loop's code stays warm (without it, the shortest calls
took 290 instead of 70 us here). Which statistic is a point's time is decided in ``points``.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch

N_WARM_UP = 1
FLUSH_FACTOR = 1.5  # of the last-level cache
CPU_FLUSH_BYTES = 64 * 2**20  # where the size of the last-level cache is unknown
CUDA_FLUSH_BYTES = 256 * 2**20

Call = Callable[[], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class TimedCalls:
    """Seconds of every repeat and of the flush before it (empty in the hot state)."""

    repeats_s: tuple[float, ...]
    control_s: tuple[float, ...]
    peak_bytes: int  # the allocator's, above what was allocated before; 0 is not measured


class Stopwatch(Protocol):
    """How calls are timed on one device."""

    method: str

    def time(
        self, call: Call, *, n_repeats: int, cold: bool = True, small: Call | None = None
    ) -> TimedCalls:
        """Time ``n_repeats`` calls after a warm-up; ``small`` runs the same code on a few rows."""


class CpuStopwatch:
    """Monotonic clock around each call; caches flushed by a read."""

    def __init__(self, llc_bytes: int | None = None) -> None:
        """``llc_bytes`` is the last-level cache; ``CPU_FLUSH_BYTES`` are read if unknown."""
        size = int(FLUSH_FACTOR * llc_bytes) if llc_bytes else CPU_FLUSH_BYTES
        self._buffer = torch.zeros(size // 4)
        self.method = (
            f"monotonic clock around each call; caches flushed before it by reading {size} bytes, "
            "code warmed by a call on a few rows"
        )

    def flush(self) -> float:
        """Read the buffer; how long it took. [s]"""
        start = time.perf_counter()
        self._buffer.sum()
        return time.perf_counter() - start

    def time(
        self, call: Call, *, n_repeats: int, cold: bool = True, small: Call | None = None
    ) -> TimedCalls:
        """Time ``n_repeats`` calls after ``N_WARM_UP`` untimed ones; garbage is not collected."""
        for _ in range(N_WARM_UP):
            call()
        repeats, controls = [], []
        with _no_collection():
            for _ in range(n_repeats):
                if cold:
                    controls.append(self.flush())
                if small is not None:
                    small()
                start = time.perf_counter()
                call()
                repeats.append(time.perf_counter() - start)
        return TimedCalls(repeats_s=tuple(repeats), control_s=tuple(controls), peak_bytes=0)


class CudaStopwatch:
    """Device events around each call, one synchronisation at the end; L2 flushed by a write.

    The call is captured in a CUDA graph where that works, because serving engines replay graphs:
    without one, launching the kernels from Python takes longer than short calls do.
    """

    def __init__(self, device: torch.device, l2_bytes: int | None = None) -> None:
        """``l2_bytes`` is the size of the L2; ``CUDA_FLUSH_BYTES`` are written if unknown."""
        size = max(2 * l2_bytes if l2_bytes else 0, CUDA_FLUSH_BYTES)
        self._device = device
        self._buffer = torch.empty(size // 4, dtype=torch.int32, device=device)
        self.method = (
            "device events around each call (a CUDA graph where it can be captured); "
            f"L2 flushed before it by writing {size} bytes"
        )

    def time(
        self,
        call: Call,
        *,
        n_repeats: int,
        cold: bool = True,
        small: Call | None = None,  # noqa: ARG002
    ) -> TimedCalls:
        """Time ``n_repeats`` calls after ``N_WARM_UP`` untimed ones, outside the flushes."""
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        for _ in range(N_WARM_UP):
            call()
        peak = torch.cuda.max_memory_allocated(self._device) - before
        replay = self._captured(call)
        mark: Any = torch.cuda.Event
        marks = [[mark(enable_timing=True) for _ in range(3)] for _ in range(n_repeats)]
        with _no_collection():
            for start_flush, start, end in marks:
                start_flush.record()
                if cold:
                    self._buffer.zero_()
                start.record()
                replay()
                end.record()
            torch.cuda.synchronize(self._device)
        return TimedCalls(
            repeats_s=tuple(s.elapsed_time(e) * 1e-3 for _, s, e in marks),
            control_s=tuple(f.elapsed_time(s) * 1e-3 for f, s, _ in marks) if cold else (),
            peak_bytes=peak,
        )

    def _captured(self, call: Call) -> Callable[[], object]:
        """The call as a graph replay; the call itself where it cannot be captured."""
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                call()
        except RuntimeError:
            torch.cuda.synchronize(self._device)
            return call
        graph.replay()
        return graph.replay


@contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def best_rate(amount: float, call: Call, *, seconds: float, stopwatch: Stopwatch) -> float:
    """``amount`` (bytes or FLOPs) over the shortest of the calls that fit into ``seconds``.

    Returns
    -------
    A rate per second: the best that the device showed, which fitted shares refer to.
    """
    once = stopwatch.time(call, n_repeats=1, cold=False).repeats_s[0]
    n_repeats = max(3, min(200, int(seconds / max(once, 1e-9))))
    return amount / min(stopwatch.time(call, n_repeats=n_repeats, cold=False).repeats_s)
