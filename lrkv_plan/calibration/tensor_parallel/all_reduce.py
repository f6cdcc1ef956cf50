"""How long an all-reduce among the workers takes, by message size; and their link's rate.

Left out: groups over several machines behave differently per link; nothing here tells them apart.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from lrkv_plan.calibration.fit_allreduce import AllReduceSamples, fit_allreduce
from lrkv_plan.calibration.tensor_parallel.timing import Repeats, time_together
from lrkv_plan.calibration.torch_gate import TORCH_DTYPES, require_torch, torch_dtype
from lrkv_plan.errors import CalibrationError

if TYPE_CHECKING:
    import torch

    from lrkv_plan.calibration.fit_allreduce import AllReduceFit
    from lrkv_plan.calibration.tensor_parallel.group import Group

COLUMNS = (
    "gpu", "library", "library_version", "kernel", "dtype", "n_gpus", "message_elems",
    "latency_us", "message_bytes", "source", "source_version", "latency_min_us",
    "latency_median_us", "n_repeats",
)  # fmt: skip
SMALLEST_BYTES = 1024
LARGEST_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class AllReducePoint:
    """One message size in one format. [bytes]"""

    dtype: str
    n_workers: int
    message_bytes: int
    message_elements: int
    repeats: Repeats


def message_sizes(largest_bytes: int) -> list[int]:
    """Sizes to measure, doubling from 1 KiB. [bytes]

    Examples
    --------
    >>> message_sizes(4096)
    [1024, 2048, 4096]
    """
    sizes = [SMALLEST_BYTES]
    while 2 * sizes[-1] <= largest_bytes:
        sizes.append(2 * sizes[-1])
    return sizes


def measure_all_reduce(
    group: Group,
    *,
    dtypes: Sequence[str],
    largest_bytes: int,
    n_repeats: int,
    n_rounds: int = 3,
    progress: Progress = lambda _: None,
) -> list[AllReducePoint]:
    """Every size in every format, ``n_repeats`` times in all, spread over ``n_rounds`` passes.

    A disturbance that lasts shorter than a pass then spoils no size altogether.

    Raises
    ------
    CalibrationError
        If the workers' sums are wrong, or one of them is lost.
    """
    torch = require_torch()
    found: dict[tuple[str, int], list[float]] = {}
    for done in range(n_rounds):
        for dtype in dtypes:
            for size in message_sizes(largest_bytes):
                progress(f"all-reduce {dtype}, {size:,} bytes, pass {done + 1} of {n_rounds}")
                elements = size // torch_dtype(dtype).itemsize
                message = torch.zeros(elements, dtype=torch_dtype(dtype), device=group.device)
                if done == 0:
                    check_sum(group, message)
                each = -(-n_repeats // n_rounds)
                timed = time_together(group, partial(group.all_reduce, message), n_repeats=each)
                found.setdefault((dtype, elements), []).extend(timed.times_s)
    return [
        AllReducePoint(
            dtype=dtype, n_workers=group.n_workers, message_elements=elements,
            message_bytes=elements * torch_dtype(dtype).itemsize,
            repeats=Repeats(times_s=tuple(times), on_gpu=group.on_gpu),
        )
        for (dtype, elements), times in found.items()
    ]  # fmt: skip


def check_sum(group: Group, message: torch.Tensor) -> None:
    """Sum 1 to P over the workers, exact in every format up to P = 22; zero ``message`` again."""
    n = group.n_workers
    message.fill_(group.index + 1)
    group.all_reduce(message)
    wanted = n * (n + 1) // 2
    is_right = (
        abs(float(message.float().min()) / wanted - 1)
        < 0.01
        > abs(float(message.float().max()) / wanted - 1)
    )
    if not all(group.each(is_right)):
        raise CalibrationError(f"the {group.backend} all-reduce of 1 to {n} is not {wanted}")
    message.zero_()


def measure_link(group: Group, *, n_bytes: int, n_repeats: int) -> float:
    """Bytes per second from worker 0 to worker 1, one way, while the others wait. [bytes/s]

    One large message there and one scalar back, the scalar's time not subtracted.
    """
    torch = require_torch()
    message = torch.zeros(n_bytes // 4, dtype=torch.float32, device=group.device)
    answer = torch.zeros(1, dtype=torch.float32, device=group.device)

    def there_and_back() -> None:
        if group.index == 0:
            group.send(message, 1)
            group.receive(answer, 1)
        elif group.index == 1:
            group.receive(message, 0)
            group.send(answer, 0)

    timed = time_together(group, there_and_back, n_repeats=n_repeats)
    return n_bytes / timed.estimate_s


def fit_points(
    points: Sequence[AllReducePoint], dtype: str, link_bytes_per_s: float
) -> AllReduceFit:
    """The all-reduce model's constants from the points of one format.

    Raises
    ------
    CalibrationError
        If scipy is missing or the points are too few.
    """
    chosen = [p for p in points if p.dtype == dtype]
    try:
        import numpy as np

        samples = AllReduceSamples(
            message_bytes=np.array([float(p.message_bytes) for p in chosen]),
            time_s=np.array([p.repeats.estimate_s for p in chosen]),
            n_gpus=chosen[0].n_workers if chosen else 0,
            link_bytes_per_s=link_bytes_per_s,
        )
        return fit_allreduce(samples)
    except ModuleNotFoundError as error:
        raise CalibrationError(
            f"{error.name} is not installed: the fit needs it; "
            "install it with: pip install 'lrkv-plan[calibrate]'"
        ) from None


def as_csv(points: Sequence[AllReducePoint], *, gpu: str, backend: str, version: str) -> str:
    """The points with the columns of published all-reduce tables, and both estimators. [us]"""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for point in points:
        times = point.repeats
        estimates = (times.estimate_s, times.least_s, times.median_s)
        shown_us, least_us, median_us = (f"{1e6 * t:.3f}" for t in estimates)
        writer.writerow((
            gpu, backend, version, f"torch.distributed/{backend}",
            TORCH_DTYPES[point.dtype], point.n_workers, point.message_elements,
            shown_us, point.message_bytes, "lrkv-plan", version, least_us, median_us,
            len(times.times_s),
        ))  # fmt: skip
    return text.getvalue()
