"""What a fitted run says: its points, the fits of its paths, and where designs cross."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from lrkv_plan.calibration.path_fit import PathFit
from lrkv_plan.calibration.run_record import LARGEST_EXCESS, RunInfo, largest_share
from lrkv_plan.calibration.samples import MeasuredPoint, estimator
from lrkv_plan.specs.hardware import HardwareProfile

Key = tuple[str, str]  # path, dtype


@dataclass(frozen=True, kw_only=True)
class Design:
    """One side of a comparison."""

    path: str
    attention: str


@dataclass(frozen=True, kw_only=True)
class TimedCrossing:
    """Crossings of two designs over the contexts that both were measured at.

    ``ratios`` are times of the first over the second at ``contexts``, with the 90 % interval of
    resampled repeats. ``measured`` and ``predicted`` are the contexts from which the other design
    is faster, by log-linear interpolation (empty: none in range; ``predicted`` None: no constants).
    ``crossing_share`` is the share of resamples that cross at all, and ``low``, ``high`` the 90 %
    interval of where those cross first.
    """

    first: Design
    second: Design
    dtype: str
    n_heads: int
    head_dim: int
    batch_size: int
    query_tokens: int
    contexts: tuple[int, ...]
    ratios: tuple[float, ...]
    ratios_low: tuple[float, ...]
    ratios_high: tuple[float, ...]
    predicted_ratios: tuple[float, ...] | None
    measured: tuple[float, ...]
    predicted: tuple[float, ...] | None
    crossing_share: float
    low: float | None
    high: float | None


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
