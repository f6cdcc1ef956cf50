"""Constants of one decode path on one device from its fitted points, judged on the other points.

Only points of role ``fit`` reach the fit and the choice of form. The rest (random points, and a
rank, a head count and contexts that were not fitted) say how far predictions are off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lrkv_plan.calibration.fit import (
    MIN_POINTS,
    N_RESAMPLES,
    PRIORS,
    KernelFit,
    Prior,
    band,
    fit_kernel,
    intervals,
    n_independent,
    polished,
    resampled_logs,
)
from lrkv_plan.calibration.samples import ROLES, MeasuredPoint, as_arrays
from lrkv_plan.calibration.selection import GAIN, MIN_RICH_POINTS, WORST_ERROR, at_random
from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.kernel import COUNTS_WORK_UNITS, FORMS, KernelModel, kernel_time

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray, KernelSamples

N_FOLDS, N_FOLDINGS = 5, 3
SURE = 2.0  # standard errors


def best_form(
    samples: KernelSamples, priors: Mapping[str, Prior], forms: Sequence[str] = FORMS
) -> str:
    """The form with the least error on left-out fitted points.

    A form with a fourth constant needs ``MIN_RICH_POINTS`` points. It must lower the error of the
    best one of three by ``GAIN``, and by more than ``SURE`` standard errors over the points.

    Raises
    ------
    CalibrationError
        If no form of three constants can be fitted.
    """
    import numpy as np

    errors: dict[str, FloatArray] = {}
    for form in forms:
        if form in COUNTS_WORK_UNITS and len(samples) < MIN_RICH_POINTS:
            continue
        try:
            errors[form] = _left_out_errors(samples, form, priors)
        except CalibrationError:
            continue
    by_error = sorted(errors, key=lambda form: float(errors[form].mean()))
    plain = next((form for form in by_error if form not in COUNTS_WORK_UNITS), None)
    if plain is None:
        raise CalibrationError("the points identify no constant: all of one kind and size")
    best, other = errors[by_error[0]], errors[plain]
    gained = other - best
    surely = gained.mean() > SURE * gained.std() / np.sqrt(len(gained))
    return by_error[0] if best.mean() < GAIN * other.mean() and surely else plain


def _left_out_errors(samples: KernelSamples, form: str, priors: Mapping[str, Prior]) -> FloatArray:
    """|ln(measured / predicted)| of every point, capped, by constants fitted without it.

    A mean over ``N_FOLDINGS`` ways to fold. Which constants are identified is decided once.
    """
    import numpy as np

    fit = fit_kernel(samples, form, priors=priors)
    folds = [
        left_out
        for seed in range(N_FOLDINGS)
        for _, left_out in at_random(samples, min(N_FOLDS, len(samples) - MIN_POINTS), seed)
    ]
    if not folds:  # too few points to leave any out
        folds = [np.zeros(len(samples), dtype=bool)]
    weights = np.array([(~left_out).astype(float) for left_out in folds])
    logs = resampled_logs(fit, samples, priors, weights)
    total, times = np.zeros(len(samples)), np.zeros(len(samples))
    for left_out, found in zip(folds, logs, strict=True):
        judged = left_out if left_out.any() else ~left_out
        constants = fit.constants | dict(zip(fit.identified, np.exp(found).tolist(), strict=True))
        errors = replace(fit, constants=constants).log_errors(samples.where(judged))
        total[judged] += np.abs(errors).clip(max=WORST_ERROR)
        times[judged] += 1
    return total / times.clip(min=1)  # type: ignore[no-any-return]


HELD_OUT_ROLES = ROLES[1:]
REGIMES = ("memory", "compute", "work units", "fixed time")
# torch's eager kernels on a CPU take 50 to 300 us a call; a thin product reaches a fraction of
# the peak of a square one. On a GPU a graph replays a handful of kernels.
DEVICE_PRIORS: dict[str, dict[str, Prior]] = {
    "cpu": {
        "t0_s": Prior(120e-6, 1.0),
        "beta": Prior(0.7, 0.5),
        "phi": Prior(0.5, 0.7),
        "work_unit_s": Prior(2e-6, 2.0),
        "full_work_units": Prior(4.0, 1.5),
    },
    "cuda": PRIORS | {"t0_s": Prior(30e-6, 1.0), "beta": Prior(0.6, 0.5), "phi": Prior(0.3, 0.8)},
}


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What the fitted shares refer to: a bandwidth [B/s], a peak [FLOP/s] and the peak's name."""

    bandwidth: float
    peak: float
    peak_name: str


@dataclass(frozen=True, kw_only=True)
class RoleError:
    """|predicted / measured - 1| of the points of one role; None where there is none."""

    n: int
    median: float | None
    p90: float | None


@dataclass(frozen=True, kw_only=True)
class PointError:
    """Prediction beside measurement of one point, fitted or held out, and its parts. [s]"""

    point: MeasuredPoint
    predicted_s: float
    fixed_s: float
    units_s: float
    memory_s: float
    compute_s: float

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted_s / self.point.time_s - 1

    @property
    def regime(self) -> str:
        """The largest part of the predicted time: one of ``REGIMES``."""
        parts = (self.memory_s, self.compute_s, self.units_s, self.fixed_s)
        return REGIMES[parts.index(max(parts))]


@dataclass(frozen=True, kw_only=True)
class PathFit:
    """One (device, path, dtype): form, constants, intervals, and errors on what was held out."""

    path: str
    kernel: str
    device: str
    dtype: str
    cache_state: str
    scale: Scale
    fit: KernelFit
    intervals: dict[str, tuple[float, float]]
    errors: tuple[PointError, ...]
    overall: RoleError
    by_role: dict[str, RoleError]
    band90: tuple[float, float]

    def model(self) -> KernelModel:
        """The constants as the calculators take them."""
        return _model(
            self.fit, self.scale, band90=self.band90, kernel=self.kernel, kv_dtype=self.dtype,
            backend=f"torch/{self.path}",
        )  # fmt: skip


def fit_path(
    points: Sequence[MeasuredPoint],
    scale: Scale,
    *,
    forms: Sequence[str] = FORMS,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> PathFit:
    """Fit one path in one storage format on one device.

    Parameters
    ----------
    points : all points of the path; those of role ``fit`` are fitted.
    scale : what the shares refer to.
    forms : forms to choose from.

    Raises
    ------
    CalibrationError
        If the fitted points are too few, or all of one kind and size.
    """
    first = points[0].sample
    fitted = [p for p in points if p.is_fitted]
    if len(fitted) < MIN_POINTS:
        raise CalibrationError(
            f"{first.path} {first.dtype}: {len(fitted)} points to fit; need {MIN_POINTS}"
        )
    priors = DEVICE_PRIORS.get(first.device, DEVICE_PRIORS["cuda"])
    samples = as_arrays(fitted, bandwidth=scale.bandwidth, peak=scale.peak)
    form = best_form(samples, priors, forms)
    fit = polished(fit_kernel(samples, form, priors=priors), samples, priors)
    errors = _errors(points, fit, scale)
    held_out = [e for e in errors if not e.point.is_fitted]
    return PathFit(
        path=first.path, kernel=first.kernel, device=first.device, dtype=first.dtype,
        cache_state=first.cache_state, scale=scale, fit=fit,
        intervals=intervals(fit, samples, priors, n_resamples=n_resamples, seed=seed),
        errors=tuple(errors), overall=role_error(held_out),
        by_role={
            role: role_error([e for e in held_out if e.point.sample.role == role])
            for role in HELD_OUT_ROLES
        },
        band90=_band(held_out or errors),
    )  # fmt: skip


def _model(
    fit: KernelFit,
    scale: Scale,
    *,
    band90: tuple[float, float] = (1.0, 1.0),
    kernel: str = "",
    kv_dtype: str = "",
    backend: str = "",
) -> KernelModel:
    return KernelModel(
        t0_s=fit.constants["t0_s"],
        bytes_per_s=fit.constants["beta"] * scale.bandwidth,
        flops_per_s=fit.constants["phi"] * scale.peak,
        form=fit.form,
        work_unit_s=fit.constants.get("work_unit_s", 0.0),
        full_work_units=fit.constants.get("full_work_units", 1.0),
        band90=band90, basis="measured", kernel=kernel, kv_dtype=kv_dtype, backend=backend,
        identified=fit.identified,
    )  # fmt: skip


def _errors(points: Sequence[MeasuredPoint], fit: KernelFit, scale: Scale) -> list[PointError]:
    samples = as_arrays(points, bandwidth=scale.bandwidth, peak=scale.peak)
    model = _model(fit, scale)
    found = []
    for index, point in enumerate(points):
        units = float(samples.work_units[index])
        call = kernel_time(model, float(samples.n_bytes[index]), float(samples.flops[index]), units)
        found.append(
            PointError(
                point=point, predicted_s=float(call.time_s), memory_s=float(call.memory_s),
                compute_s=float(call.compute_s), fixed_s=model.t0_s,
                units_s=model.work_unit_s * units,
            )
        )  # fmt: skip
    return found


def role_error(errors: Sequence[PointError]) -> RoleError:
    """Median and 90th percentile of |error|."""
    import numpy as np

    sizes = np.array([abs(e.error) for e in errors])
    if not sizes.size:
        return RoleError(n=0, median=None, p90=None)
    return RoleError(
        n=len(sizes), median=float(np.median(sizes)), p90=float(np.quantile(sizes, 0.9))
    )


def _band(errors: Sequence[PointError]) -> tuple[float, float]:
    """Factors on a prediction that hold 90 % of the held-out measurements, drift left in.

    A measurement is one round of one point, at whatever speed the machine then ran. Points of one
    design and head count err together and count as fewer.
    """
    import numpy as np

    logs: FloatArray = np.array([np.log(e.point.time_s / e.predicted_s) for e in errors])
    shapes = [(e.point.sample.attention, e.point.sample.n_heads) for e in errors]
    index = np.array([sorted(set(shapes)).index(shape) for shape in shapes])
    rounds: FloatArray = np.array(
        [np.log(np.median(r) / e.predicted_s) for e in errors for r in e.point.raw_rounds_s]
    )
    return band(rounds, n_independent=n_independent(logs, index))
