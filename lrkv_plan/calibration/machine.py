"""The device that a run measures: its name, caches, memory and clocks, and its measured peaks.

Facts come from torch, from the operating system's own files and from nvidia-smi; what none of
them tells stays None. On a CPU the process keeps to one core and one thread: the shortest time of
one thread repeats where that of several depends on what else runs.
"""

from __future__ import annotations

import functools
import gc
import os
import platform
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from lrkv_plan.calibration.torch_gate import torch_dtype
from lrkv_plan.errors import UsageError

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


STREAM_BYTES = 256 * 2**20
GEMM_SIZE = {"cpu": 768, "cuda": 8192}
PROBE_SECONDS = 0.2
N_YARDSTICKS = 2  # before a run, and as many after it
_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


@functools.cache
def n_cores() -> int:
    """Cores that this process could use when it first asked; measuring then keeps to one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_on(device: torch.device, asked: int | None) -> int:
    """Threads of a measurement: as asked, one if nothing was, 0 on a GPU.

    Raises
    ------
    UsageError
        If a GPU or more threads than cores were asked for.
    """
    if device.type != "cpu":
        if asked is not None:
            raise UsageError(
                f"--threads {asked}: counts CPU threads, and {device.type} is measured"
            )
        return 0
    threads = 1 if asked is None else asked
    if not 1 <= threads <= n_cores():
        raise UsageError(
            f"--threads {threads}: this process may use {n_cores()} cores; allowed are 1 to "
            f"{n_cores()}"
        )
    return threads


def prepare_cpu(threads: int) -> str:
    """Fix the number of threads and, for one thread, the core; what was done, for the record."""
    torch.set_num_threads(threads)
    if threads == 1 and hasattr(os, "sched_setaffinity"):
        core = max(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        return f"1 thread on core {core}"
    return f"{threads} threads"


def stopwatch_of(device: torch.device) -> Stopwatch:
    """The way to time calls on that device."""
    if device.type == "cuda":
        return CudaStopwatch(device, _l2_of_gpu(device))
    return CpuStopwatch(cache_bytes(3) or cache_bytes(2))


def describe(device: torch.device) -> dict[str, Any]:
    """Facts about the device, as ``RunInfo`` names them; unknown ones are left out."""
    facts = _cuda_facts(device) if device.type == "cuda" else _cpu_facts()
    facts |= {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load_average": load_average(),
    }
    return {name: value for name, value in facts.items() if value is not None}


def measured_peaks(device: torch.device, dtypes: Sequence[str], watch: Stopwatch) -> dict[str, Any]:
    """Bandwidth of a plain read and FLOP/s of a square matrix product by format, as measured.

    Returns
    -------
    ``stream_bytes_per_s`` and ``peak_flops_per_s``: the best of ``PROBE_SECONDS`` each. Measured
    once, they say nothing about how well they repeat: ``run.yardsticks`` joins several.

    Notes
    -----
    The product of two n x n matrices takes 2 n^3 FLOPs.
    """
    rows = torch.ones(STREAM_BYTES // 4, device=device)
    stream = best_rate(STREAM_BYTES, rows.sum, seconds=PROBE_SECONDS, stopwatch=watch)
    del rows
    size = GEMM_SIZE[device.type]
    peaks = {}
    for dtype in dict.fromkeys(("fp32", *dtypes)):
        one = torch.ones(size, size, device=device, dtype=torch_dtype(dtype))
        product = functools.partial(torch.matmul, one, one)
        peaks[dtype] = best_rate(2 * size**3, product, seconds=PROBE_SECONDS, stopwatch=watch)
    return {"stream_bytes_per_s": stream, "peak_flops_per_s": peaks}


def free_bytes(device: torch.device) -> int | None:
    """Memory that a point may still take; None where the system does not tell. [bytes]"""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return int(found[1]) * 1024 if found else None


def load_average() -> float | None:
    """Processes that ran or waited over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def clock_hz(device: torch.device) -> float | None:
    """The clock that the device says it runs at now. [Hz]"""
    if device.type == "cuda":
        answer = _nvidia_smi(device, "clocks.sm")
        return float(answer) * 1e6 if answer and answer.replace(".", "").isdecimal() else None
    clocks = [float(m) for m in re.findall(r"cpu MHz\s*:\s*([\d.]+)", _read(Path("/proc/cpuinfo")))]
    return max(clocks) * 1e6 if clocks else None


def cache_bytes(level: int) -> int | None:
    """Size of core 0's cache of that level. [bytes]"""
    for folder in sorted(_CACHES.glob("index*")):
        size = re.fullmatch(r"(\d+)K", _read(folder / "size").strip())
        if _read(folder / "level").strip() == str(level) and size:
            return int(size[1]) * 1024
    return None


def _cpu_facts() -> dict[str, Any]:
    name = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    total = re.search(r"^MemTotal:\s+(\d+) kB", _read(Path("/proc/meminfo")), re.MULTILINE)
    return {
        "device_name": name[1].strip() if name else platform.processor() or None,
        "mem_capacity_bytes": int(total[1]) * 1024 if total else None,
        "l2_bytes": cache_bytes(2),
        "l3_bytes": cache_bytes(3),
        "clock_hz": clock_hz(torch.device("cpu")),
    }


def _cuda_facts(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "device_name": properties.name,
        "mem_capacity_bytes": int(properties.total_memory),
        "l2_bytes": _l2_of_gpu(device),
        "n_sm": int(properties.multi_processor_count),
        "driver": _nvidia_smi(device, "driver_version"),
        "clock_hz": clock_hz(device),
    }


def _l2_of_gpu(device: torch.device) -> int | None:
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", None)
    return int(size) if size else None


def _nvidia_smi(device: torch.device, field: str) -> str | None:
    """One field of the device, asked by its identity: CUDA and nvidia-smi number GPUs apart."""
    identity = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    chosen = ["-i", f"GPU-{identity}"] if identity else ["-i", str(device.index or 0)]
    command = ["nvidia-smi", *chosen, f"--query-gpu={field}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=20, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
