"""One ``calibrate run``: a folder with ``run.json`` and ``samples.csv``, begun or gone on with."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lrkv_plan.calibration.decode.paths import PATHS, paths_for
from lrkv_plan.calibration.decode_samples import SampleFile
from lrkv_plan.calibration.design import SERIES, PlannedPoint, planned_points
from lrkv_plan.calibration.machine import (
    clock_hz,
    describe,
    load_average,
    measured_peaks,
    prepare_cpu,
    stopwatch_of,
)
from lrkv_plan.calibration.run import Measuring, Progress
from lrkv_plan.calibration.run_info import (
    RUN_FILE,
    SAMPLES_FILE,
    RunInfo,
    read_run_info,
    write_run_info,
)
from lrkv_plan.calibration.torch_gate import resolve_device, torch_dtype
from lrkv_plan.errors import CalibrationError, UsageError, did_you_mean

DEFAULT_DTYPES = {"cpu": ("fp32",), "cuda": ("bf16",)}
LOCK_FILE = ".running"


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run measures. Empty ``dtypes`` or ``paths`` mean the device's usual ones.

    Measuring ends at ``deadline`` on the clock of ``time.monotonic``; ``budget_s`` after the start
    if that is None.
    """

    device: str = "auto"
    dtypes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    budget_s: float = 60.0
    deadline: float | None = None
    seed: int = 0
    threads: int = 1
    cold: bool = True
    resume: bool = False
    force: bool = False
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What a session left on disk."""

    folder: Path
    n_points: int
    n_samples: int
    n_rounds: int  # that every point has
    n_unmeasured: int
    skipped: dict[str, str]


def run_session(options: RunOptions, folder: Path, progress: Progress) -> RunOutcome:
    """Measure into ``folder`` until the budget is spent.

    Parameters
    ----------
    options : ``budget_s`` counts from this call, probes included. [s]
    folder : created if missing; must hold no samples unless ``resume`` or ``force``.

    Raises
    ------
    UsageError
        If the folder is in use, or an option is unknown.
    CalibrationError
        If there is no such device, the folder cannot be written, or ``resume`` finds the samples
        of another plan or device.
    """
    begun = time.monotonic()
    device = resolve_device(options.device)
    chosen = _complete(options, device.type)
    notes = [prepare_cpu(chosen.threads)] if device.type == "cpu" else []
    points = planned_points(
        device.type, chosen.dtypes, chosen.paths, attention=chosen.attention, seed=chosen.seed
    )
    facts = describe(device)
    _check_folder(folder, chosen, points, str(facts.get("device_name", device.type)))
    with _alone(folder):
        watch = stopwatch_of(device)
        info = _begin(folder, chosen, device, facts | measured_peaks(device, chosen.dtypes, watch))
        file = SampleFile(folder / SAMPLES_FILE)
        measuring = Measuring(
            device=device, device_name=info.device_name or device.type,
            threads=chosen.threads if device.type == "cpu" else 0, stopwatch=watch, file=file,
            deadline=chosen.deadline or begun + chosen.budget_s, cold=chosen.cold, seed=chosen.seed,
            skipped=dict(info.skipped),
        )  # fmt: skip
        try:
            rounds = measuring.run(points, progress)
        finally:
            file.close()
            _end(folder, info, device, measuring, [watch.method, *notes])
    measured = {sample.point for sample in file.rows}
    return RunOutcome(
        folder=folder, n_points=len(points), n_samples=len(file.rows), n_rounds=rounds,
        n_unmeasured=len({p.name for p in points} - measured - set(measuring.skipped)),
        skipped=measuring.skipped,
    )  # fmt: skip


def _complete(options: RunOptions, kind: str) -> RunOptions:
    """Options with the device's usual formats and paths, each checked."""
    dtypes = options.dtypes or DEFAULT_DTYPES[kind]
    for dtype in dtypes:
        torch_dtype(dtype)
    known = [n for n in SERIES if n in PATHS and (kind == "cuda" or not PATHS[n].needs_cuda)]
    for path in options.paths:
        if path not in known:
            raise UsageError(
                f"--path {path!r} is unknown{did_you_mean(path, known)}; known: {', '.join(known)}"
            )
    paths = options.paths or tuple(p for p in known if _runs_here(p))
    if options.attention:
        paths = tuple(p for p in paths if _has_design(p, options.attention))
        if not paths:
            raise UsageError(
                f"--attention {', '.join(options.attention)}: no decode path runs it; "
                f"paths: {', '.join(known)}"
            )
    return replace(options, dtypes=tuple(dtypes), paths=paths)


def _runs_here(path: str) -> bool:
    """Whether the path runs the first design of its series on this machine."""
    (point, *_) = planned_points("cpu", ("fp32",), (path,))
    return path in {p.name for p in paths_for(point.spec())}


def _has_design(path: str, attention: Sequence[str]) -> bool:
    """Whether the path runs one of the user's designs."""
    return any(
        path in {p.name for p in paths_for(point.spec())}
        for point in planned_points("cpu", ("fp32",), (path,), attention=attention)
        if point.attention in attention
    )


def _check_folder(
    folder: Path, options: RunOptions, points: Sequence[PlannedPoint], device_name: str
) -> None:
    """Refuse to mix runs: what lies in the folder is gone on with, replaced, or left alone."""
    samples = folder / SAMPLES_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CalibrationError(f"{folder}: cannot be made: {error.strerror}") from None
    if not samples.exists():
        return
    if options.force and not options.resume:
        samples.unlink()
        (folder / RUN_FILE).unlink(missing_ok=True)
        return
    if not options.resume:
        raise UsageError(
            f"{samples} exists; --resume goes on with it, --force measures it anew, "
            "or choose another --output"
        )
    file = SampleFile(samples)
    file.close()
    strange = {s.point for s in file.rows} - {p.name for p in points}
    if strange:
        raise CalibrationError(
            f"{samples}: holds {len(strange)} points that this plan does not, such as "
            f"{min(strange)!r}: resume with the options of the first run"
        )
    others = {s.device_name for s in file.rows} - {device_name}
    if others:
        raise CalibrationError(
            f"{samples}: measured on {', '.join(sorted(others))}, not on {device_name}"
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder against a second run; the lock ends with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    with (folder / LOCK_FILE).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"{folder}: another run writes there; wait, or choose another"
            ) from None
        yield
        (folder / LOCK_FILE).unlink(missing_ok=True)


def _begin(
    folder: Path, options: RunOptions, device: torch.device, facts: dict[str, Any]
) -> RunInfo:
    """``run.json`` of a new run; of a resumed one the first run's, whose peaks stay the scale."""
    if options.resume and (folder / RUN_FILE).exists():
        return read_run_info(folder)
    info = RunInfo(
        device="cuda" if device.type == "cuda" else "cpu", threads=options.threads,
        date=datetime.date.today().isoformat(), command=options.command or None,
        seed=options.seed, budget_s=options.budget_s,
        cache_state="cold" if options.cold else "hot", **facts,
    )  # fmt: skip
    write_run_info(folder, info)
    return info


def _end(
    folder: Path, info: RunInfo, device: torch.device, measuring: Measuring, notes: Sequence[str]
) -> None:
    """Add what only the end knows: load, clock, points left out."""
    after = {
        "load_average_end": load_average(), "skipped": measuring.skipped,
        "notes": tuple(dict.fromkeys((*info.notes, *notes, *_clock_note(info, device)))),
    }  # fmt: skip
    write_run_info(folder, info.model_copy(update=after))


def _clock_note(info: RunInfo, device: torch.device) -> list[str]:
    """Says so if the clock fell by a tenth: a sign of throttling."""
    now = clock_hz(device)
    if now is None or info.clock_hz is None or now > 0.9 * info.clock_hz:
        return []
    return [f"the clock fell from {info.clock_hz / 1e9:.2f} to {now / 1e9:.2f} GHz during the run"]
