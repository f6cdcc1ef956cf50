"""What worker 0 makes of the measurement: the fit, the report, and the files in the folder."""

from __future__ import annotations

import datetime as dt
import os
from dataclasses import replace

import torch

from lrkv_plan.calibration.folder_lock import alone
from lrkv_plan.calibration.machine import (
    N_YARDSTICKS,
    describe,
    load_average,
    measured_peaks,
    stopwatch_of,
)
from lrkv_plan.calibration.run_info import (
    RUN_FILE,
    SAMPLES_FILE,
    RunInfo,
    write_run_info,
    yardsticks,
)
from lrkv_plan.calibration.tensor_parallel import all_reduce
from lrkv_plan.calibration.tensor_parallel.arguments import Options
from lrkv_plan.calibration.tensor_parallel.group import Group
from lrkv_plan.calibration.tensor_parallel.local_samples import append_samples
from lrkv_plan.calibration.tensor_parallel.measure import Found
from lrkv_plan.calibration.tensor_parallel.profile import (
    Measured,
    base_profile,
    calibrated_name,
    calibrated_text,
    entry_of,
    model_of,
)
from lrkv_plan.calibration.tensor_parallel.report import (
    NOISY_SPREAD,
    Report,
    noise,
    spread_of,
    to_json,
    to_markdown,
)
from lrkv_plan.calibration.whole_folder import made, write_together
from lrkv_plan.errors import CalibrationError, UsageError
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.loader import validate
from lrkv_plan.specs.strict_files import read_yaml
from lrkv_plan.whole_files import write_whole

REPORT_FILES = ("tensor-parallel.md", "tensor-parallel.json")
MESSAGES_FILE = "allreduce.csv"


def check_output(options: Options, device: torch.device) -> None:
    """Make the folder; refuse to overwrite an earlier report.

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
    folder = options.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        there = [name for name in names if (folder / name).exists()]
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder}: cannot be made: {reason}") from None
    if there and not options.force:
        raise UsageError(
            f"{folder} holds {', '.join(there)}; --force overwrites, or choose another --output"
        )


def write(group: Group, found: Found, options: Options) -> Report:
    """Fit, then add the samples and write all other files together; worker 0 alone does it.

    Raises
    ------
    CalibrationError, UsageError
        If nothing can be fitted, or the folder cannot be written.
    """
    folder = options.output
    fit = all_reduce.fit_points(found.points, found.dtype, found.link.bytes_per_s)
    report = Report(
        inputs=_inputs(group, found, options), results=found.results, points=found.points, fit=fit,
        fit_dtype=found.dtype, link=found.link, model=model_of(fit, group.n_workers, found.link),
        refused=None, remarks=(noise(found.points), *_remarks(group, options)),
    )  # fmt: skip
    version = torch.__version__
    table = all_reduce.as_csv(
        found.points, gpu=found.device_name, backend=group.backend, version=version
    )
    contents: dict[str, str | bytes] = {MESSAGES_FILE: table}
    with made(folder), alone(folder):
        append_samples(folder / SAMPLES_FILE, [r.sample for r in found.results if r.sample])
        if not (folder / RUN_FILE).exists():
            write_run_info(folder, _run_info(group, found, options))
        try:
            contents |= _profile(group, found, options, report)
        except CalibrationError as error:
            report = replace(report, refused=str(error))
        contents |= dict(zip(REPORT_FILES, (to_markdown(report), to_json(report)), strict=True))
        write_together(folder, contents, force=options.force)
    return report


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
