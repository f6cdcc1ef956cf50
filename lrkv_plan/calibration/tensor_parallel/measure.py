"""Tensor-parallel measurements: all-reduces and sharded steps, written with what was predicted."""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lrkv_plan.calibration.decode.paths import path_named
from lrkv_plan.calibration.fit import band
from lrkv_plan.calibration.folder_lock import alone
from lrkv_plan.calibration.machine import (
    N_YARDSTICKS,
    describe,
    free_bytes,
    load_average,
    measured_peaks,
    stopwatch_of,
)
from lrkv_plan.calibration.profile import profile_of_device
from lrkv_plan.calibration.run_record import (
    RUN_FILE,
    SAMPLES_FILE,
    RunInfo,
    write_run_info,
    yardsticks,
)
from lrkv_plan.calibration.table_fit import AllReduceFit, AllReduceSamples, fit_allreduce
from lrkv_plan.calibration.tensor_parallel.group import Group, Repeats, time_together
from lrkv_plan.calibration.tensor_parallel.options import Options
from lrkv_plan.calibration.tensor_parallel.sharded import (
    TOLERANCE,
    Case,
    PolicyResult,
    append_samples,
    device_name,
    policies_of,
    run_case,
    shares_of,
)
from lrkv_plan.calibration.torch_gate import TORCH_DTYPES, require_torch, torch_dtype
from lrkv_plan.documents import read_yaml
from lrkv_plan.errors import CalibrationError, UsageError
from lrkv_plan.files import made, refuse_existing, write_together, write_whole
from lrkv_plan.latency.all_reduce import AllReduceModel, allreduce_time
from lrkv_plan.loader import find_hardware, load_all_hardware
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.schema import validate
from lrkv_plan.specs.hardware import AllReduceConstants, HardwareProfile, with_block
from lrkv_plan.units import GIB

COLUMNS = (
    "gpu", "library", "library_version", "kernel", "dtype", "n_gpus", "message_elems",
    "latency_us", "message_bytes", "source", "source_version", "latency_min_us",
    "latency_median_us", "n_repeats",
)  # fmt: skip
SMALLEST_BYTES = 1024
LARGEST_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}
AllReduceProgress = Callable[[str], None]


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
    progress: AllReduceProgress = lambda _: None,
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


MAX_MEDIAN_ERROR = 0.25  # of sizes left out; a worse fit is not written into a profile
COMMENT = "measured by lrkv-plan calibrate tensor-parallel; see specs/hardware.py"


@dataclass(frozen=True, kw_only=True)
class Link:
    """The rate that efficiencies refer to, per direction. [bytes/s]"""

    bytes_per_s: float
    name: str
    is_measured: bool


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Where an entry's figures come from."""

    n_workers: int
    backend: str
    torch_version: str
    device_name: str
    date: str
    n_points: int
    largest_bytes: int
    remark: str | None = None


def errors_of(fit: AllReduceFit) -> tuple[float, float]:
    """Median and 90th percentile of |measured / predicted - 1| on sizes left out."""
    import numpy as np

    shares = np.abs(np.expm1(fit.left_out))
    return float(np.median(shares)), float(np.quantile(shares, 0.9))


def model_of(fit: AllReduceFit, n_workers: int, link: Link) -> AllReduceModel:
    """The fitted constants, ready to predict with."""
    return AllReduceModel(
        n_gpus=n_workers, t0_s=fit.constants["t0_s"],
        link_bytes_per_s=fit.constants["link_efficiency"] * link.bytes_per_s,
        two_shot_s=fit.constants.get("two_shot_s"), band90=band(fit.left_out), basis="measured",
    )  # fmt: skip


def entry_of(fit: AllReduceFit, measured: Measured) -> AllReduceConstants:
    """The profile's entry.

    Raises
    ------
    CalibrationError
        If sizes left out were predicted worse than ``MAX_MEDIAN_ERROR``.
    """
    median, p90 = errors_of(fit)
    if median > MAX_MEDIAN_ERROR:
        raise CalibrationError(
            f"the all-reduce fit is off by {median:.0%} in the median on sizes left out, above "
            f"{MAX_MEDIAN_ERROR:.0%}, so no profile is written; measure on a quiet machine, with "
            "no more workers than free cores"
        )
    low, high = band(fit.left_out)
    return AllReduceConstants(
        n_gpus=measured.n_workers,
        **{k: float(f"{v:.4g}") for k, v in fit.constants.items()},
        backend=f"torch.distributed/{measured.backend}",
        backend_version=measured.torch_version,
        max_message_bytes=measured.largest_bytes,
        identified=fit.identified,
        n_points=measured.n_points,
        held_out_by="rows",
        held_out_median_error=round(median, 4),
        held_out_p90_error=round(p90, 4),
        band90=(round(low, 4), round(high, 4)),
        source=f"measured on {measured.device_name}, {measured.date}",
        licence="own measurement",
        remark=measured.remark,
    )


def base_profile(argument: str | None, device: torch.device) -> tuple[HardwareProfile, Path] | None:
    """The profile that the entry is added to, and its file.

    The given one; on a CPU the shipped one; the shipped one of the GPU by its name; else None.

    Raises
    ------
    SpecError
        If there is no such profile.
    """
    if argument is None and device.type == "cuda":
        own = profile_of_device(device_name(device), load_all_hardware())
        argument = own.name if own else None
    elif argument is None:
        argument = "cpu"
    return None if argument is None else find_hardware(argument)


def calibrated_name(path: Path) -> str:
    """File name of the copy; not that of the kernel fit's own profile, which may lie beside it.

    Examples
    --------
    >>> calibrated_name(Path("run/h200.calibrated.yaml"))
    'h200.allreduce.yaml'
    """
    return f"{path.stem.removesuffix('.calibrated').removesuffix('.allreduce')}.allreduce.yaml"


def calibrated_text(
    profile: HardwareProfile, path: Path, entry: AllReduceConstants, link: Link
) -> str:
    """The profile's text with the entry in place of those for as many GPUs, all else untouched."""
    text = path.read_text(encoding="utf-8")
    if profile.link is None:
        text = text.rstrip("\n") + (
            f"\nlink:  # {COMMENT}\n  name: {link.name}\n"
            f"  bandwidth_bytes_per_s: {link.bytes_per_s:.4e}\n"
        )
    others = [e for e in profile.allreduce if e.n_gpus != entry.n_gpus]
    return with_block(text, "allreduce", [*others, entry], COMMENT)


USUAL_DTYPE = {"cpu": "fp32", "cuda": "bf16"}
USUAL_CONTEXT = {"cpu": 1024, "cuda": 8192}
MEMORY_SHARE = 0.8  # of what is free, that all workers may take
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the workers measured, before anything is fitted."""

    results: list[PolicyResult]
    points: list[AllReducePoint]
    link: Link
    dtype: str
    device_name: str
    load_before: float | None


def cases_of(options: Options, kind: str) -> list[Case]:
    """One case per design and context."""
    return [
        Case(
            spec=spec, model_dim=options.model_dim, batch_size=options.batch_size,
            context_tokens=tokens,
            query_tokens=options.query_tokens, dtype=options.dtype or USUAL_DTYPE[kind],
            path=options.path, seed=options.seed,
        )
        for spec in options.designs
        for tokens in options.context_tokens or (USUAL_CONTEXT[kind],)
    ]  # fmt: skip


def check(group: Group, case: Case, policies: Sequence[str]) -> None:
    """Refuse what cannot run, before anything is measured.

    Raises
    ------
    UsageError
        If the case names a path that does not run its design, or a policy cannot spread its rows.
    CalibrationError
        If the workers' tensors would not fit into memory.

    Notes
    -----
    Every worker draws the whole cache and the whole output projection and holds its shares beside
    them, worker 0 a float64 copy of one head too: at most three and two times as much.
    """
    path_named(case.path_name, case.spec)
    for policy in policies:
        shares = shares_of(
            case.layout, policy, index=group.index, tp_size=group.n_workers,
            context_tokens=case.context_tokens,
        )  # fmt: skip
        if len(shares[0].tokens) < case.query_tokens:
            raise UsageError(
                f"context_tokens {case.context_tokens}: a GPU keeps {len(shares[0].tokens)} of "
                f"them under {policy}, fewer than the {case.query_tokens} query tokens' own"
            )
    free = free_bytes(group.device)
    if free is None:
        return
    rows = case.context_tokens * case.batch_size
    sharing = 1 if group.on_gpu else group.n_workers
    projection = 4 * case.model_dim * case.layout.n_heads * case.spec.backbone().v_head_dim
    cache = 3 * rows * bytes_per_token(case.model(), kv_dtype=case.dtype)
    needed = float((cache + 2 * projection) * sharing)
    if needed > MEMORY_SHARE * free:
        raise CalibrationError(
            f"{case.spec.label()} with {rows} tokens may need {needed / GIB:.2f} GiB for "
            f"{sharing} workers, and {free / GIB:.2f} GiB are free: use fewer --context-tokens"
        )


def measure(group: Group, options: Options, progress: Progress) -> Found:
    """Everything that needs all workers.

    Raises
    ------
    PlacementError
        If the heads of a design cannot be dealt out over the workers.
    UsageError, SpecError, CalibrationError
        If options do not fit together, or a worker is lost.
    """
    kind, load_before = group.device.type, load_average()
    cases = cases_of(options, kind)
    planned = [(case, policies_of(case, group.n_workers, options.policies)) for case in cases]
    used = {placement.policy for _, chosen in planned for placement in chosen}
    if idle := [policy for policy in options.policies if policy not in used]:
        raise UsageError(f"--policy {idle[0]}: none of the designs can be placed so")
    for case, chosen in planned:
        group.agree(partial(check, group, case, [p.policy for p in chosen]))
    link = link_of(group, options, progress)
    dtype = cases[0].dtype
    points = measure_all_reduce(
        group, dtypes=tuple(dict.fromkeys((dtype, "fp32", "bf16"))),
        largest_bytes=options.largest_bytes or LARGEST_BYTES[kind],
        n_repeats=options.n_repeats, progress=progress,
    )  # fmt: skip
    watch, results = stopwatch_of(group.device), []
    for case, chosen in planned:
        names = ", ".join(placement.policy for placement in chosen)
        progress(f"{case.spec.label()}, {case.context_tokens} tokens: {names}")
        results += run_case(group, case, chosen, n_repeats=options.n_repeats, watch=watch)
    return Found(
        results=results, points=points, link=link, dtype=dtype, load_before=load_before,
        device_name=str(describe(group.device).get("device_name", kind)),
    )  # fmt: skip


def link_of(group: Group, options: Options, progress: Progress) -> Link:
    """The profile's link where it states one, else the measured rate."""
    base = group.agree(lambda: base_profile(options.gpu, group.device))
    if base is not None and base[0].link is not None:
        link = base[0].link
        return Link(bytes_per_s=link.bandwidth_bytes_per_s, name=link.name, is_measured=False)
    progress("link: one large message from worker 0 to worker 1")
    largest = LARGEST_BYTES[group.device.type]
    rate = measure_link(group, n_bytes=largest, n_repeats=options.n_repeats)
    name = f"{group.backend}, one way between two workers, measured"
    return Link(bytes_per_s=rate, name=name, is_measured=True)


NOISY_SPREAD = 1.0  # in half of the sizes the median was twice the minimum, or more


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that one run found."""

    inputs: dict[str, Any]
    results: Sequence[PolicyResult]
    points: Sequence[AllReducePoint]
    fit: AllReduceFit
    fit_dtype: str
    link: Link
    model: AllReduceModel
    refused: str | None  # why no profile was written
    profile: Mapping[str, str]  # its text by the file's name; nothing where there is none
    remarks: Sequence[str]

    @property
    def failures(self) -> list[str]:
        """Policies whose bytes or results are not what they must be."""
        return [
            f"{r.case.spec.label()} {r.policy}: "
            + ("bytes differ from the prediction" if not r.bytes_agree else
               f"outputs are off by {r.max_error:.1e}, more than {TOLERANCE[r.case.dtype]:.0e}")
            for r in self.results
            if not (r.bytes_agree and r.is_exact)
        ]  # fmt: skip


def spread_of(points: Sequence[AllReducePoint]) -> float:
    """Median over sizes of median / minimum - 1: how noisy the machine was."""
    return statistics.median(p.repeats.median_s / p.repeats.least_s - 1 for p in points)


def noise(points: Sequence[AllReducePoint]) -> str:
    """How far medians lie above minima, and whether that makes the machine noisy."""
    spread = spread_of(points)
    verdict = "NOISY: times are upper bounds" if spread >= NOISY_SPREAD else "acceptable"
    return f"repeats: median above minimum by {spread:.0%} in half of the sizes ({verdict})"


def policy_row(result: PolicyResult, model: AllReduceModel) -> dict[str, Any]:
    """One policy in base units."""
    return {
        "attention": result.case.spec.label(),
        "path": result.case.path_name,
        "context_tokens": result.case.context_tokens,
        "policy": result.policy,
        "n_workers": result.n_workers,
        "cache_bytes_per_gpu_predicted": result.predicted_bytes,
        "cache_bytes_per_gpu_allocated": list(result.allocated_bytes),
        "scratch_bytes_per_gpu": result.scratch_bytes,
        "link_bytes_per_gpu_predicted": result.predicted_link_bytes,
        "link_bytes_per_gpu_moved": list(result.link_bytes),
        "merge_bytes_per_gpu_moved": result.merge_bytes,
        "loopback_bytes_of_all": result.loopback_bytes,
        "bytes_agree": result.bytes_agree,
        "max_error": result.max_error if math.isfinite(result.max_error) else None,
        "is_exact": result.is_exact,
        "attention_s": result.attention.estimate_s,
        "attention_median_s": result.attention.median_s,
        "whole_step_s": result.whole_step.estimate_s,
        "whole_step_median_s": result.whole_step.median_s,
        "allreduce_message_bytes": result.message_bytes,
        "allreduce_predicted_s": allreduce_time(model, result.message_bytes).time_s,
    }


def message_row(point: AllReducePoint, model: AllReduceModel) -> dict[str, Any]:
    """One message size in base units."""
    times = point.repeats
    predicted: Any = allreduce_time(model, point.message_bytes).time_s
    return {
        "dtype": point.dtype,
        "message_bytes": point.message_bytes,
        "time_s": times.estimate_s,
        "least_s": times.least_s,
        "median_s": times.median_s,
        "n_repeats": len(times.times_s),
        "predicted_s": predicted,
        "error": predicted / times.estimate_s - 1,
    }


REPORT_FILES = ("tensor-parallel.md", "tensor-parallel.json")
MESSAGES_FILE = "allreduce.csv"


def check_output(options: Options, device: torch.device) -> None:
    """Make the folder, and refuse to overwrite an earlier report.

    Raises
    ------
    UsageError
        If a file of an earlier run is there and ``force`` is not given, or the folder cannot be
        made.
    SpecError
        If the profile to copy is unknown.
    """
    names = [*REPORT_FILES, MESSAGES_FILE]
    if base := base_profile(options.gpu, device):
        names.append(calibrated_name(base[1]))
    with made(options.output):
        if not options.force:
            refuse_existing(options.output, names)


def report_of(group: Group, found: Found, options: Options) -> Report:
    """The fit, and what was measured beside what it predicts.

    Raises
    ------
    CalibrationError
        If nothing can be fitted.
    """
    fit = fit_points(found.points, found.dtype, found.link.bytes_per_s)
    report = Report(
        inputs=_inputs(group, found, options), results=found.results, points=found.points, fit=fit,
        fit_dtype=found.dtype, link=found.link, model=model_of(fit, group.n_workers, found.link),
        refused=None, profile={}, remarks=(noise(found.points), *_remarks(group, options)),
    )  # fmt: skip
    try:
        return replace(report, profile=_profile(group, found, options, report))
    except CalibrationError as error:
        return replace(report, refused=str(error))


def write(
    group: Group, found: Found, options: Options, contents: Mapping[str, str | bytes]
) -> list[Path]:
    """Add the samples, and write the messages and other ``contents`` by name together.

    Raises
    ------
    CalibrationError, UsageError
        If the folder cannot be written.
    """
    folder, version = options.output, torch.__version__
    table = as_csv(found.points, gpu=found.device_name, backend=group.backend, version=version)
    with made(folder), alone(folder):
        append_samples(folder / SAMPLES_FILE, [r.sample for r in found.results if r.sample])
        if not (folder / RUN_FILE).exists():
            write_run_info(folder, _run_info(group, found, options))
        return write_together(folder, {MESSAGES_FILE: table, **contents}, force=options.force)


def _profile(group: Group, found: Found, options: Options, report: Report) -> dict[str, str]:
    """The profile's file name and its text, which reads as a profile; empty if there is none."""
    base = base_profile(options.gpu, group.device)
    if base is None:
        return {}
    fitted = [p for p in found.points if p.dtype == found.dtype]
    measured = Measured(
        n_workers=group.n_workers, backend=group.backend, torch_version=torch.__version__,
        device_name=found.device_name, date=_today(), n_points=len(fitted),
        largest_bytes=max(p.message_bytes for p in fitted),
        remark=noise(found.points) if spread_of(found.points) >= NOISY_SPREAD else None,
    )  # fmt: skip
    profile, path = base
    text = calibrated_text(profile, path, entry_of(report.fit, measured), found.link)
    trial = options.output / f".{calibrated_name(path)}.new"
    write_whole(trial, text, force=True)
    try:
        validate(HardwareProfile, read_yaml(trial), trial)
    finally:
        trial.unlink(missing_ok=True)
    return {calibrated_name(path): text}


def _inputs(group: Group, found: Found, options: Options) -> dict[str, object]:
    return {
        "n_workers": group.n_workers, "backend": group.backend, "device": found.device_name,
        "torch": torch.__version__, "dtype": found.dtype, "model_dim": options.model_dim,
        "batch_size": options.batch_size, "query_tokens": options.query_tokens,
        "n_repeats": options.n_repeats,
        "estimator": "median" if group.on_gpu else "minimum",
        "load_average": found.load_before, "load_average_end": load_average(), "date": _today(),
        "command": options.command,
    }  # fmt: skip


def _remarks(group: Group, options: Options) -> tuple[str, ...]:
    n_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    crowded = f"{group.n_workers} workers share {n_cores} cores: times include waiting for one"
    is_crowded = not group.on_gpu and 0 < n_cores < group.n_workers
    no_profile = "no shipped profile is of this GPU and no --gpu was given: no profile was written"
    return (
        "attention runs from fetching to merging; caches are not flushed between its repeats",
        "by_token splits the rows of every tensor; each GPU answers for all heads over its tokens",
        *((crowded,) if is_crowded else ()),
        *(() if base_profile(options.gpu, group.device) else (no_profile,)),
    )


def _run_info(group: Group, found: Found, options: Options) -> RunInfo:
    """Provenance for the kernel fit; peaks of one worker while the others wait."""
    watch = stopwatch_of(group.device)
    rates = [measured_peaks(group.device, (found.dtype,), watch) for _ in range(N_YARDSTICKS)]
    facts = describe(group.device) | yardsticks(rates)
    facts |= {"load_average": found.load_before, "load_average_end": load_average()}
    return RunInfo(
        device="cuda" if group.on_gpu else "cpu", threads=1, date=_today(), seed=options.seed,
        command=options.command[:2000], cache_state="cold",
        notes=(f"{group.n_workers} workers at once; peaks of one worker while others wait",),
        **facts,
    )  # fmt: skip


def _today() -> str:
    return dt.date.today().isoformat()
