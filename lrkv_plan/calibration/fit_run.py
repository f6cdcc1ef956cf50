"""From a run's folder to constants with verdicts: what ``calibrate fit`` and ``run`` end with."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lrkv_plan.calculators.kernel_time import FORMS
from lrkv_plan.calibration.crossings import TimedCrossing, timed_crossings
from lrkv_plan.calibration.decode_fit import PathFit, Scale, fit_path
from lrkv_plan.calibration.decode_samples import read_samples
from lrkv_plan.calibration.device_profiles import measured_profile, profile_of_device, scale_for
from lrkv_plan.calibration.points import (
    MeasuredPoint,
    control_spread,
    estimator,
    measured_points,
    noise,
)
from lrkv_plan.calibration.run_info import (
    LARGEST_EXCESS,
    RUN_FILE,
    SAMPLES_FILE,
    RunInfo,
    largest_share,
    read_run_info,
)
from lrkv_plan.calibration.samples import regular_bytes
from lrkv_plan.errors import CalibrationError, SpecError, UsageError
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.loader import find_hardware, load_all_hardware, validate
from lrkv_plan.specs.strict_files import read_text

MAX_ERROR = 0.15  # held-out median above which a fit is refused
NOISE_LIMIT = 0.05  # median split-half instability above which a run is noisy
Key = tuple[str, str]  # path, dtype


@dataclass(frozen=True, kw_only=True)
class FitResult:
    """A run's points, the fits of its paths, and what may be trusted.

    ``profile`` is what the fitted shares refer to: one from a file with that ``profile_text``, or
    (None) one made of the run's own measured bandwidth and peaks. ``not_fitted`` maps (path,
    dtype) to the reason.
    """

    folder: Path
    info: RunInfo
    profile: HardwareProfile
    profile_text: str | None
    points: tuple[MeasuredPoint, ...]
    fits: tuple[PathFit, ...]
    not_fitted: dict[Key, str]
    crossings: tuple[TimedCrossing, ...]
    noise: float | None
    control_spread: float | None
    max_error: float
    noise_limit: float

    @property
    def estimator(self) -> str:
        """Name of the statistic of the repeats that is a point's time."""
        return estimator(self.info.device)[0]

    @property
    def is_noisy(self) -> bool:
        """Whether the run's points do not repeat well enough to be fitted."""
        return self.noise is None or self.noise > self.noise_limit

    def impossible(self, fit: PathFit) -> list[str]:
        """Each share of the path that no machine can reach, with its value and the limit.

        A cold call cannot read faster than memory, none can compute faster than the peak. Where
        caches were left hot, a cached set is read from them, and its bandwidth may be any.
        """
        own = self.profile_text is None
        peak = fit.scale.peak_name
        limits = {
            "beta": largest_share(self.info) if own else 1 + LARGEST_EXCESS,
            "phi": largest_share(self.info, peak) if own else 1 + LARGEST_EXCESS,
        }
        units = {
            "beta": f"{fit.scale.bandwidth / 1e9:,.4g} GB/s",
            "phi": f"{fit.scale.peak / 1e9:,.4g} GFLOP/s",
        }
        if fit.cache_state != "cold":
            del limits["beta"]
        return [
            f"{name} {fit.fit.constants[name]:.3g} of {units[name]}, at most {limit:.3g}"
            for name, limit in limits.items()
            if fit.fit.constants[name] > limit
        ]

    @property
    def is_impossible(self) -> bool:
        """Whether a share shows that what all shares refer to was measured too low."""
        return any(self.impossible(fit) for fit in self.fits)

    def verdict(self, fit: PathFit) -> str:
        """``accepted``, or why not.

        ``noisy``; ``impossible`` (a share above what the machine can do); ``false yardstick``
        (another path's share shows that the measured rates are too low); ``not judged``; ``poor``
        (held-out error).
        """
        if self.is_noisy:
            return "noisy"
        if self.impossible(fit):
            return "impossible"
        if self.profile_text is None and self.is_impossible:
            return "false yardstick"
        if fit.overall.median is None:
            return "not judged"
        return "poor" if fit.overall.median > self.max_error else "accepted"

    @property
    def accepted(self) -> tuple[PathFit, ...]:
        """Fits that may go into a profile unforced."""
        return tuple(f for f in self.fits if self.verdict(f) == "accepted")

    @property
    def refusal(self) -> str | None:
        """Why the fit is refused, in one line; None where every path is accepted."""
        forced = f"`lrkv-plan calibrate fit {shlex.quote(str(self.folder))} --force` writes"
        if self.is_noisy:
            seen = "cannot be told" if self.noise is None else f"is {self.noise:.1%}"
            return (
                f"the run was noisy: its median split-half instability {seen}, at most "
                f"{self.noise_limit:.0%} is fitted; on a quiet machine, `calibrate run` with the "
                f"same options and --resume adds rounds; {forced} a labelled profile; both keep "
                "the samples"
            )
        if self.is_impossible:
            found = [
                f"{f.path} {f.dtype} {share}" for f in self.fits for share in self.impossible(f)
            ]
            more = f" and {len(found) - 3} more" if len(found) > 3 else ""
            return (
                f"{'; '.join(found[:3])}{more}: nothing exceeds a machine's own rates, so the "
                "machine was probably loaded while they were measured (or the profile states them "
                f"too low); measure on a quiet machine, or {forced} a labelled profile"
            )
        poor = [
            f"{f.path} {f.dtype} {self.verdict(f)}"
            + ("" if f.overall.median is None else f" ({f.overall.median:.1%})")
            for f in self.fits
            if f not in self.accepted
        ]
        poor += [f"{path} {dtype} not fitted" for path, dtype in self.not_fitted]
        if not poor:
            return None
        return (
            f"{len(poor)} of {len(self.fits) + len(self.not_fitted)} paths refused: "
            f"{', '.join(poor)}; held-out median error may be at most {self.max_error:.0%} "
            f"(--max-error), {forced} them with a label"
        )


def fit_run(
    source: Path,
    *,
    gpu: str | Path | None = None,
    max_error: float = MAX_ERROR,
    noise_limit: float = NOISE_LIMIT,
    forms: Sequence[str] = FORMS,
    spec_dir: Path | None = None,
    seed: int = 0,
) -> FitResult:
    """Fit every path of a run.

    Parameters
    ----------
    source : the run's folder, or its samples file.
    gpu : name or file of the profile whose bandwidth and peaks the shares refer to; when None the
        shipped one of the device's name, or for a CPU and an unknown GPU what the run measured.
    max_error : held-out median error above which a path is refused. [share]
    noise_limit : median split-half instability above which the run is. [share]
    forms : forms to choose from.
    spec_dir : a folder of profiles searched before the shipped ones.
    seed : of the bootstrap.

    Returns
    -------
    FitResult: verdicts included; nothing is written, and a bad fit does not raise.

    Raises
    ------
    CalibrationError
        If files are missing or invalid, hold several devices, or nothing can be fitted.
    """
    folder, path = (source, source / SAMPLES_FILE) if source.is_dir() else (source.parent, source)
    points = measured_points(read_samples(path))
    if not points:
        raise CalibrationError(f"{path}: holds no samples; `lrkv-plan calibrate run` makes them")
    info = _info(folder, path, points)
    profile, text = _profile(info, gpu, spec_dir)
    groups: dict[Key, list[MeasuredPoint]] = defaultdict(list)
    for point in points:
        groups[point.sample.path, point.sample.dtype].append(point)
    fits: list[PathFit] = []
    not_fitted: dict[Key, str] = {}
    for key, members in sorted(groups.items()):
        scale: Scale = scale_for(profile, key[1])
        try:
            fits.append(fit_path(members, scale, forms=forms, seed=seed))
        except CalibrationError as error:
            not_fitted[key] = str(error)
    if not fits:
        raise CalibrationError(f"{path}: nothing can be fitted: {'; '.join(not_fitted.values())}")
    predicted = {e.point.sample.point: e.predicted_s for fit in fits for e in fit.errors}
    return FitResult(
        folder=folder, info=info, profile=profile, profile_text=text, points=tuple(points),
        fits=tuple(fits), not_fitted=not_fitted,
        crossings=tuple(timed_crossings(points, predicted, seed)), noise=noise(points),
        control_spread=control_spread(points), max_error=max_error, noise_limit=noise_limit,
    )  # fmt: skip


def require_scipy() -> None:
    """Raise ``CalibrationError`` with the way to install scipy if it is missing."""
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise CalibrationError(
            f"a fit needs scipy ({error}): pip install 'lrkv-plan[calibrate]'"
        ) from None


def holds_decode_samples(path: Path) -> bool:
    """Whether the file's first line names the columns of ``decode_samples``.

    Raises
    ------
    CalibrationError
        If the file cannot be read.
    """
    try:
        start = regular_bytes(path, 0, at_most=10_000).decode("utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CalibrationError(f"{path}: cannot be read: {reason}; check the path") from None
    header = start.splitlines()[:1]
    return {"point", "repeats_s"} <= set("".join(header).strip().split(","))


def _info(folder: Path, path: Path, points: Sequence[MeasuredPoint]) -> RunInfo:
    """``run.json``, or what the samples say themselves where there is none."""
    names = sorted({p.sample.device_name for p in points})
    if len(names) > 1:
        raise CalibrationError(f"{path}: holds samples of several devices: {', '.join(names)}")
    if (folder / RUN_FILE).exists():
        return read_run_info(folder)
    first = points[0].sample
    told = {
        "device": first.device, "device_name": first.device_name or None,
        "threads": first.threads, "cache_state": first.cache_state,
        "notes": (f"no {RUN_FILE} beside the samples: software, date and command are unknown",),
    }  # fmt: skip
    try:
        return validate(RunInfo, told, path)
    except SpecError as error:
        raise CalibrationError(str(error)) from None


def _profile(
    info: RunInfo, gpu: str | Path | None, spec_dir: Path | None
) -> tuple[HardwareProfile, str | None]:
    """The profile that shares refer to, and its file's text; None if the run measured it."""
    if gpu is None and info.device == "cuda" and info.device_name:
        found = profile_of_device(info.device_name, load_all_hardware(spec_dir))
        gpu = found.name if found else None
    if gpu is None:
        if spec_dir is not None and info.device == "cpu":
            raise UsageError(
                f"--spec-dir {spec_dir}: no profile is looked up, since the shares refer to what "
                "this run measured; --gpu names one that they are to refer to"
            )
        return measured_profile(info), None
    profile, path = find_hardware(gpu, spec_dir=spec_dir)
    return profile, read_text(path)
