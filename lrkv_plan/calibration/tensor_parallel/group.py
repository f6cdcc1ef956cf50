"""The workers of one run: joining, collectives whose failures end in one line, agreeing on errors.

Every collective is called by all workers in the same order. A worker that fails must not leave the
others waiting: errors that a person can mend are exchanged (``agree``), a lost worker ends the
others' collectives after ``TIMEOUT_S`` or as soon as its connection closes.
"""

from __future__ import annotations

import datetime as dt
import importlib
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lrkv_plan.calibration.torch_gate import require_torch, resolve_device
from lrkv_plan.errors import CalibrationError, PlanError, UsageError, shown

if TYPE_CHECKING:
    import torch

TIMEOUT_S = 120.0
STARTED_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
COMMAND = "torchrun --nproc-per-node 2 -m lrkv_plan calibrate tensor-parallel --output DIR"

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands: ``index`` of ``n_workers``, and how they find each other."""

    index: int
    local_index: int
    n_workers: int
    init_method: str = "env://"


def place_from(environment: Mapping[str, str]) -> Place:
    """The place that torchrun gave this process.

    Raises
    ------
    UsageError
        If torchrun did not start it, or it is the only one.
    """
    values = [environment.get(name, "") for name in STARTED_BY_TORCHRUN]
    if not all(values) or not all(value.isdecimal() for value in values[:3]):
        raise UsageError(f"this measures several processes together; start it with: {COMMAND}")
    index, n_workers, local_index = map(int, values[:3])
    if n_workers < 2:
        raise UsageError(f"1 process has nobody to reduce with; start at least two: {COMMAND}")
    return Place(index=index, local_index=local_index, n_workers=n_workers)


@dataclass(frozen=True, kw_only=True)
class Group:
    """The workers, as one of them sees them."""

    index: int
    n_workers: int
    device: torch.device
    backend: str
    dist: Any
    blocks: dict[int, Any] = field(default_factory=dict, repr=False)

    @property
    def on_gpu(self) -> bool:
        """Whether the workers have a GPU each."""
        return self.device.type == "cuda"

    def barrier(self) -> None:
        """Wait for all workers."""
        with _others_may_be_lost(self):
            self.dist.barrier()

    def all_reduce(self, tensor: torch.Tensor) -> None:
        """Sum over all workers, in place."""
        with _others_may_be_lost(self):
            self.dist.all_reduce(tensor)

    def send(self, tensor: torch.Tensor, to: int) -> None:
        """Give one other worker a tensor, which it must receive."""
        with _others_may_be_lost(self):
            self.dist.send(tensor, to)

    def receive(self, tensor: torch.Tensor, sender: int) -> None:
        """Fill a tensor with what one other worker sends."""
        with _others_may_be_lost(self):
            self.dist.recv(tensor, sender)

    def all_gather(self, into: torch.Tensor, mine: torch.Tensor, members: Any = None) -> None:
        """Fill ``into``, (members, shape of mine), in their order; all workers when None."""
        newer = getattr(self.dist, "all_gather_single", None)  # the older name warns where it is
        gather = newer or self.dist.all_gather_into_tensor
        with _others_may_be_lost(self):
            gather(into.view(-1), mine.view(-1), group=members)

    def subgroups(self, size: int) -> Any:
        """A handle to this worker's block of ``size`` neighbours; None for all workers."""
        if size == self.n_workers:
            return None
        if size not in self.blocks:
            with _others_may_be_lost(self):
                for start in range(0, self.n_workers, size):  # every worker creates every block
                    block = self.dist.new_group(list(range(start, start + size)))
                    if start <= self.index < start + size:
                        self.blocks[size] = block
        return self.blocks[size]

    def each(self, value: Result) -> list[Result]:
        """What every worker gave, in their order; small picklable values."""
        values: list[Any] = [None] * self.n_workers
        with _others_may_be_lost(self):
            self.dist.all_gather_object(values, value)
        return values

    def slowest(self, times_s: Sequence[float]) -> tuple[float, ...]:
        """Element by element the largest over the workers. [s]"""
        return tuple(max(column) for column in zip(*self.each(tuple(times_s)), strict=True))

    def agree(self, work: Callable[[], Result]) -> Result:
        """``work`` done by every worker; if one fails, all raise its error.

        Raises
        ------
        PlanError
            The error of the first worker that had one.
        """
        result: Any = None
        failed: tuple[type[PlanError], str] | None = None
        try:
            result = work()
        except PlanError as error:
            failed = type(error), str(error)
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            failed = CalibrationError, f"out of memory: {str(error).splitlines()[0]}"
        for other in self.each(failed):
            if other is not None:
                raise other[0](other[1])
        return result  # type: ignore[no-any-return]

    def first_does(self, work: Callable[[], Result]) -> Result | None:
        """``work`` done by worker 0 alone; its error is everybody's. None on the others."""
        return self.agree(lambda: work() if self.index == 0 else None)


def _is_out_of_memory(error: Exception) -> bool:
    """Whether Python or torch had no memory left; torch has no type of its own for it on CPUs."""
    text = str(error)
    return isinstance(error, MemoryError) or "out of memory" in text or "allocate memory" in text


@contextmanager
def _others_may_be_lost(group: Group) -> Iterator[None]:
    """A collective's RuntimeError as one line. gloo and nccl raise no narrower type."""
    try:
        yield
    except RuntimeError as error:
        first = str(error).splitlines()[:1]
        raise CalibrationError(
            f"worker {group.index} of {group.n_workers} lost another one: {''.join(first)}"
        ) from None


@contextmanager
def joined(place: Place, device_name: str, timeout_s: float = TIMEOUT_S) -> Iterator[Group]:
    """The group, left again at the end.

    Raises
    ------
    UsageError, CalibrationError
        If the device is unknown or not there, or another worker does not come.
    """
    require_torch()
    device = worker_device(place, device_name)
    dist = importlib.import_module("torch.distributed")
    backend = "nccl" if device.type == "cuda" else "gloo"
    group = Group(
        index=place.index, n_workers=place.n_workers, device=device, backend=backend, dist=dist
    )
    with _others_may_be_lost(group):
        dist.init_process_group(
            backend, init_method=place.init_method, rank=place.index, world_size=place.n_workers,
            timeout=dt.timedelta(seconds=timeout_s), device_id=device if group.on_gpu else None,
        )  # fmt: skip
    try:
        yield group
    finally:
        dist.destroy_process_group()


def worker_device(place: Place, name: str) -> torch.device:
    """This worker's own device; sets torch to use it, and one thread on a CPU.

    Raises
    ------
    UsageError, CalibrationError
        If the name is unknown, or the machine has fewer GPUs than workers.
    """
    torch = require_torch()
    if ":" in name:
        raise UsageError(f"device {shown(name)}: every worker takes its own GPU: auto, cpu or cuda")
    device = resolve_device(name)
    if device.type == "cpu":
        torch.set_num_threads(1)
        return device
    n_gpus = torch.cuda.device_count()
    if place.local_index >= n_gpus:
        raise CalibrationError(
            f"every worker needs a GPU of its own, and torch sees {n_gpus}: "
            f"--nproc-per-node {n_gpus}, or --device cpu"
        )
    torch.cuda.set_device(place.local_index)
    return torch.device(f"cuda:{place.local_index}")  # type: ignore[no-any-return]


def loopback_bytes() -> int | None:
    """Bytes sent over this machine's loopback since it started; None where Linux does not tell."""
    try:
        lines = Path("/proc/net/dev").read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    for line in lines:
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return None


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
