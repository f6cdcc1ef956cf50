"""One ``calibrate run``: a folder with ``run.json`` and ``samples.csv``, begun or gone on with.

A run that is to replace another one measures into a hidden folder inside; ``replace_run`` puts it
in the other's place once its results are there too, so that no sample goes before its successor
has come. Results of a run that was stopped lie in the hidden folder until it is gone on with.
"""

from __future__ import annotations

import datetime
import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lrkv_plan.calibration.decode.paths import known_paths, paths_for
from lrkv_plan.calibration.design import PlannedPoint, all_series, planned_points, why_no_design
from lrkv_plan.calibration.folder_lock import alone
from lrkv_plan.calibration.machine import (
    N_YARDSTICKS,
    PROBE_SECONDS,
    Stopwatch,
    clock_hz,
    describe,
    load_average,
    measured_peaks,
    prepare_cpu,
    stopwatch_of,
    threads_on,
)
from lrkv_plan.calibration.run import SLICE_S, Measuring, Progress
from lrkv_plan.calibration.run_record import (
    RUN_FILE,
    SAMPLES_FILE,
    RunInfo,
    read_run_info,
    write_run_info,
    yardsticks,
)
from lrkv_plan.calibration.samples import SampleFile
from lrkv_plan.calibration.torch_gate import resolve_device, torch_dtype
from lrkv_plan.errors import CalibrationError, PlanError, UsageError, did_you_mean, shown
from lrkv_plan.files import made

DEFAULT_DTYPES = {"cpu": ("fp32",), "cuda": ("bf16",)}


MIN_ROUNDS = 2  # with one, nothing says how well a point repeats


NEW_RUN = ".new-run-"  # and a number: a run that is to replace the one in the folder


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What a run measures. Empty ``dtypes`` or ``paths`` mean the device's usual ones.

    Measuring ends at ``deadline`` on the clock of ``time.monotonic``; ``budget_s`` after the start
    if that is None. ``threads`` are a CPU's; None is one. ``force`` begins a run that is to replace
    the one in the folder; with ``resume`` the last such run is gone on with, if there is one.
    """

    device: str = "auto"
    dtypes: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()
    budget_s: float = 60.0
    deadline: float | None = None
    seed: int = 0
    threads: int | None = None
    cold: bool = True
    resume: bool = False
    force: bool = False
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """What a session left on disk, in ``folder``: the one asked for, or the hidden one in it.

    ``needed_s`` is the time that ``MIN_ROUNDS`` rounds take, as far as this session tells.
    """

    folder: Path
    n_points: int
    n_samples: int
    needed_s: float
    n_rounds: int  # that every point has
    n_unmeasured: int
    skipped: dict[str, str]


def run_session(options: RunOptions, folder: Path, progress: Progress) -> RunOutcome:
    """Measure until the budget is spent.

    Parameters
    ----------
    options : ``budget_s`` counts from this call, yardsticks included. [s]
    folder : created if missing; must hold no samples unless ``resume`` or ``force``.

    Raises
    ------
    UsageError
        If the folder is in use, an option is unknown, cannot be honoured, or is another than the
        run's that is to be gone on with.
    CalibrationError
        If there is no such device, the folder cannot be written, the budget cannot hold
        ``MIN_ROUNDS`` rounds, or ``resume`` finds the samples of another plan or device.
    """
    begun = time.monotonic()
    device = resolve_device(options.device)
    chosen = _complete(options, device)
    points = planned_points(
        device.type, chosen.dtypes, chosen.paths, attention=chosen.attention, seed=chosen.seed
    )
    facts = describe(device)
    if not options.resume:
        _check_budget(chosen, len(points))
    with made(folder), alone(folder):
        place = _place(folder, chosen)
        with made(place):
            name = str(facts.get("device_name", device.type))
            earlier = _earlier(place, chosen, device, points, name) if chosen.resume else None
            return _measured(place, chosen, device, points, facts, earlier, begun, progress)


def replace_run(new: Path, folder: Path) -> list[Path]:
    """Put a finished run with its results in the place of the one in ``folder``.

    Returns
    -------
    The files, where they now lie. Earlier runs that were to replace it and were stopped go.

    Raises
    ------
    UsageError
        If another run writes there, or a file cannot be moved.
    """
    moved = []
    with alone(folder):
        try:
            for path in sorted(new.iterdir()):
                moved.append(path.replace(folder / path.name))
            for stopped in _new_runs(folder):
                if _number(stopped) <= _number(new):
                    for path in stopped.iterdir():
                        path.unlink()
                    stopped.rmdir()
        except OSError as error:
            raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    return moved


def _measured(
    place: Path,
    options: RunOptions,
    device: torch.device,
    points: Sequence[PlannedPoint],
    facts: dict[str, Any],
    earlier: RunInfo | None,
    begun: float,
    progress: Progress,
) -> RunOutcome:
    """The session in a folder that is held; what a failure leaves is whole, or goes."""
    notes = [prepare_cpu(options.threads or 1)] if device.type == "cpu" else []
    watch = stopwatch_of(device)
    started = time.monotonic()
    measured = _yardsticks(options, device, watch)
    yardsticks_s = time.monotonic() - started
    info = _begin(place, options, device, facts, measured, earlier)
    is_new = not (place / SAMPLES_FILE).exists()
    file = _opened(place, is_new)
    measuring = Measuring(
        device=device, device_name=info.device_name or device.type,
        threads=options.threads or 0, stopwatch=watch, file=file,
        deadline=(options.deadline or begun + options.budget_s) - yardsticks_s, cold=options.cold,
        seed=options.seed, skipped=dict(info.skipped),
    )  # fmt: skip
    started, before = time.monotonic(), len(file.rows)
    try:
        rounds = measuring.run(points, progress)
        per_sample_s = (time.monotonic() - started) / max(1, len(file.rows) - before)
        file.close()
        info = _with(info, [*measured, *_yardsticks(options, device, watch)], earlier)
    except BaseException as error:
        with suppress(PlanError):
            file.close()
        with suppress(PlanError):
            _end(place, info, device, measuring, [watch.method, *notes])
        if is_new and not file.rows:
            _forget(place)
        elif isinstance(error, CalibrationError):
            raise CalibrationError(f"{error}; once there is room, go on with --resume") from None
        raise
    _end(place, info, device, measuring, [watch.method, *notes])
    reached = {sample.point for sample in file.rows}
    return RunOutcome(
        folder=place, n_points=len(points), n_samples=len(file.rows), n_rounds=rounds,
        n_unmeasured=len({p.name for p in points} - reached - set(measuring.skipped)),
        skipped=measuring.skipped,
        needed_s=2 * yardsticks_s + MIN_ROUNDS * len(points) * per_sample_s,
    )  # fmt: skip


def _yardsticks(
    options: RunOptions, device: torch.device, watch: Stopwatch
) -> list[dict[str, Any]]:
    """The device's rates, several times: how well they repeat limits what shares may be."""
    return [measured_peaks(device, options.dtypes, watch) for _ in range(N_YARDSTICKS)]


def _opened(place: Path, is_new: bool) -> SampleFile:
    try:
        return SampleFile(place / SAMPLES_FILE)
    except CalibrationError:
        if is_new:
            _forget(place)
        raise


def _forget(place: Path) -> None:
    """Remove the files of a run that has measured nothing."""
    for name in (SAMPLES_FILE, RUN_FILE):
        with suppress(OSError):
            (place / name).unlink(missing_ok=True)


def _check_budget(options: RunOptions, n_points: int) -> None:
    """Refuse a budget that cannot hold the rounds, at the least time that a point takes."""
    formats = len({"fp32", *options.dtypes})
    probes_s = 2 * N_YARDSTICKS * (1 + formats) * PROBE_SECONDS
    needed_s = MIN_ROUNDS * n_points * SLICE_S
    if options.budget_s < needed_s:
        raise CalibrationError(too_short(options.budget_s, n_points, needed_s + probes_s))


def too_short(budget_s: float, n_points: int, needed_s: float) -> str:
    """Why a run of that budget says nothing.

    Examples
    --------
    >>> too_short(3.0, 276, 9.2)
    'a budget of 3s is too short for two rounds: 276 points measured twice take at least about 10s'
    """
    return (
        f"a budget of {budget_s:.4g}s is too short for two rounds: {n_points} points measured "
        f"twice take at least about {math.ceil(needed_s)}s"
    )


def _complete(options: RunOptions, device: torch.device) -> RunOptions:
    """Options with the device's usual formats, paths and threads, each checked."""
    kind = device.type
    dtypes = tuple(dict.fromkeys(options.dtypes or DEFAULT_DTYPES[kind]))
    for dtype in dtypes:
        torch_dtype(dtype)
    paths_by_name = known_paths()
    runnable = {n for n, p in paths_by_name.items() if kind == "cuda" or not p.needs_cuda}
    known = [name for name in all_series() if name in runnable]
    for path in options.paths:
        if path not in known:
            raise UsageError(
                f"--path {shown(path)} is unknown{did_you_mean(path, known)}; known: "
                f"{', '.join(known)}"
            )
    paths = tuple(dict.fromkeys(options.paths)) or tuple(p for p in known if _runs_here(p))
    if options.attention:
        paths = _paths_of(options, paths)
    return replace(options, dtypes=dtypes, paths=paths, threads=threads_on(device, options.threads))


def _paths_of(options: RunOptions, paths: Sequence[str]) -> tuple[str, ...]:
    """The paths that run one of the user's designs.

    Raises
    ------
    UsageError
        If a design runs on none of them, or a path that was asked for runs no design.
    """
    runs = {p: [d for d in options.attention if not why_no_design(p, d)] for p in paths}
    for design in options.attention:
        if not any(design in designs for designs in runs.values()):
            reasons = dict.fromkeys(filter(None, (why_no_design(p, design) for p in paths)))
            raise UsageError(f"--attention {shown(design)}: no path runs it: {'; '.join(reasons)}")
    idle = [path for path in options.paths if not runs[path]]
    if idle:
        raise UsageError(
            f"--path {idle[0]}: runs no design of --attention {', '.join(options.attention)}"
        )
    return tuple(path for path in paths if runs[path])


def _runs_here(path: str) -> bool:
    """Whether the path runs the first design of its series on this machine."""
    (point, *_) = planned_points("cpu", ("fp32",), (path,))
    return path in {p.name for p in paths_for(point.spec())}


def _place(folder: Path, options: RunOptions) -> Path:
    """Where the samples go: the folder, or one in it while they are to replace others.

    Raises
    ------
    UsageError
        If there are samples, and nobody said what to do with them.
    """
    samples = folder / SAMPLES_FILE
    if not samples.exists():
        return folder
    if options.force:
        new = _new_runs(folder)
        if options.resume:
            return new[-1] if new else folder
        return folder / f"{NEW_RUN}{1 + max(map(_number, new), default=0)}"
    if not options.resume:
        raise UsageError(
            f"{samples} exists; --resume goes on with it, --force measures anew and replaces it "
            "at the end, or choose another --output"
        )
    return folder


def _new_runs(folder: Path) -> list[Path]:
    """Runs that are to replace the folder's own, the oldest first."""
    found = (path for path in folder.glob(f"{NEW_RUN}*") if path.is_dir() and _number(path))
    return sorted(found, key=_number)


def _number(path: Path) -> int:
    found = re.fullmatch(re.escape(NEW_RUN) + r"([0-9]{1,9})", path.name)
    return int(found[1]) if found else 0


def _earlier(
    place: Path,
    options: RunOptions,
    device: torch.device,
    points: Sequence[PlannedPoint],
    device_name: str,
) -> RunInfo | None:
    """The run that is gone on with; None if the folder holds none yet. Refuses to mix runs."""
    info = read_run_info(place) if (place / RUN_FILE).exists() else None
    if info is not None:
        _check_same(place, options, device, info)
    path = place / SAMPLES_FILE
    if not path.exists():
        return info
    file = SampleFile(path)
    file.close()
    strange = {s.point for s in file.rows} - {p.name for p in points}
    if strange:
        raise CalibrationError(
            f"{path}: holds {len(strange)} points that this plan does not, such as "
            f"{min(strange)!r}: resume with the options of the first run"
        )
    others = {s.device_name for s in file.rows} - {device_name}
    if others:
        raise CalibrationError(
            f"{path}: measured on {', '.join(sorted(others))}, not on {device_name}"
        )
    return info


def _check_same(place: Path, options: RunOptions, device: torch.device, info: RunInfo) -> None:
    """Raise ``UsageError`` that names the option by which the run was begun otherwise."""
    on_cpu = device.type == "cpu"
    both: tuple[tuple[str, Any, Any], ...] = (
        ("--device", info.device, device.type),
        ("--seed", info.seed, options.seed),
        ("--dtype", info.dtypes, options.dtypes),
        ("--attention", info.attention, options.attention),
        ("--path", info.paths, options.paths),
        ("--threads", info.threads if on_cpu else None, options.threads),
        ("--hot", info.cache_state, "cold" if options.cold else "hot"),
    )
    for option, begun, now in both:
        if begun is not None and begun != now:
            raise UsageError(
                f"{option}: the run in {place} was begun with {_listed(begun)}, not "
                f"{_listed(now)}: resume it with the options of the first run"
            )


def _listed(value: object) -> str:
    return (", ".join(map(str, value)) or "none") if isinstance(value, tuple) else str(value)


def _begin(
    place: Path,
    options: RunOptions,
    device: torch.device,
    facts: dict[str, Any],
    measured: Sequence[dict[str, Any]],
    earlier: RunInfo | None,
) -> RunInfo:
    """``run.json`` of a new run; of a resumed one the first run's, with the yardsticks of both."""
    if earlier is not None:
        info = earlier
    else:
        info = RunInfo(
            device="cuda" if device.type == "cuda" else "cpu", threads=options.threads or None,
            date=datetime.date.today().isoformat(), command=options.command[:2000] or None,
            seed=options.seed, budget_s=options.budget_s, dtypes=options.dtypes,
            paths=options.paths, attention=options.attention,
            cache_state="cold" if options.cold else "hot", **facts,
        )  # fmt: skip
    info = _with(info, measured, earlier)
    write_run_info(place, info)
    return info


def _with(info: RunInfo, measured: Sequence[dict[str, Any]], earlier: RunInfo | None) -> RunInfo:
    """The run's record with all its yardsticks."""
    return info.model_copy(update=yardsticks(measured, earlier))


def _end(
    place: Path, info: RunInfo, device: torch.device, measuring: Measuring, notes: Sequence[str]
) -> None:
    """Add what only the end knows: load, clock, points left out."""
    after = {
        "load_average_end": load_average(), "skipped": measuring.skipped,
        "notes": tuple(dict.fromkeys((*info.notes, *notes, *_clock_note(info, device)))),
    }  # fmt: skip
    write_run_info(place, info.model_copy(update=after))


def _clock_note(info: RunInfo, device: torch.device) -> list[str]:
    """Says so if the clock fell by a tenth: a sign of throttling."""
    now = clock_hz(device)
    if now is None or info.clock_hz is None or now > 0.9 * info.clock_hz:
        return []
    return [f"the clock fell from {info.clock_hz / 1e9:.2f} to {now / 1e9:.2f} GHz during the run"]
