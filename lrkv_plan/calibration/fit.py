"""Constants of the kernel model from measured calls: robust, weakly held, and honest about doubt.

Least squares on log time with a soft-L1 loss, so that every call counts by its relative error and
a few odd ones count little. Each constant has a wide prior. A constant that the calls do not narrow
to half of that prior is *not identified*: it is put back to the prior and the rest fitted again,
unless the calls exclude the prior's value (they may bound a constant from one side only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.kernel_time import (
    CHARGES_WORK_UNITS,
    FORMS,
    SUMS,
    KernelModel,
    kernel_time,
)
from lrkv_plan.errors import CalibrationError

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray, KernelSamples

MIN_POINTS = 8
RESIDUAL_SCALE = 0.03  # relative errors beyond this count less than quadratically
IDENTIFIED_BELOW = 0.5  # posterior over prior width
EXCLUDED_BY = 4.5  # rise of the half chi-square (3 sigma) by which calls exclude a value


@dataclass(frozen=True)
class Prior:
    """A constant's expected value and its width in natural log units."""

    value: float
    width: float


# Centres: CUDA-graph launches of 12-25 us; efficiencies between the worst and best public kernels.
PRIORS = {
    "t0_s": Prior(15e-6, 1.0),
    "beta": Prior(0.85, 0.5),
    "phi": Prior(0.6, 0.4),
    "work_unit_s": Prior(1e-9, 2.0),
    "full_work_units": Prior(132.0, 1.5),
}
_NAMES = {
    "base": ("t0_s", "beta", "phi"),
    "per_work_unit": ("t0_s", "beta", "phi", "work_unit_s"),
    "no_split": ("t0_s", "beta", "phi", "full_work_units"),
    "sum": ("t0_s", "beta", "phi"),
    "sum_per_work_unit": ("t0_s", "beta", "phi", "work_unit_s"),
}
PRIOR_WEIGHT = 1.0
NEAR_RIDGE = 0.1  # of the datasheet's ridge: below it arithmetic cannot be what is slow


@dataclass(frozen=True, kw_only=True)
class KernelFit:
    """Fitted constants by name, and which of them the calls identify."""

    form: str
    constants: dict[str, float]
    identified: tuple[str, ...]
    n_points: int

    def log_errors(self, samples: KernelSamples) -> FloatArray:
        """ln(measured / predicted) of each call."""
        import numpy as np

        return np.log(samples.time_s / predicted_s(self.form, self.constants, samples))


def predicted_s(form: str, constants: Mapping[str, Any], samples: KernelSamples) -> FloatArray:
    """Predicted seconds of each call; a row each where constants are columns."""
    model = KernelModel(
        t0_s=constants["t0_s"],
        bytes_per_s=constants["beta"] * samples.bandwidth,
        flops_per_s=constants["phi"] * samples.peak,
        form=form,
        work_unit_s=constants.get("work_unit_s", 0.0),
        full_work_units=constants.get("full_work_units", 1.0),
        band90=(1.0, 1.0), basis="measured", kernel="", kv_dtype="",
    )  # fmt: skip
    times: Any = kernel_time(model, samples.n_bytes, samples.flops, samples.work_units).time_s
    return times  # type: ignore[no-any-return]


def fit_kernel(
    samples: KernelSamples, form: str = "base", *, priors: Mapping[str, Prior] = PRIORS
) -> KernelFit:
    """The constants of ``form`` that describe the calls best.

    Parameters
    ----------
    samples
        Calls of one kernel, at least ``MIN_POINTS``.
    form
        One of ``kernel_time.FORMS``.
    priors
        Expected values and widths by name; those of GPUs' attention kernels if not given.

    Returns
    -------
    KernelFit: seconds and shares; what is not in ``identified`` is the prior's value.

    Raises
    ------
    CalibrationError
        If the form is unknown, there are too few calls, or nothing about them is identified.

    Notes
    -----
    Minimises sum rho(ln t_model - ln t_measured) + sum ((ln c - ln c_prior) / width)^2 with
    rho(z) = 2 s^2 (sqrt(1 + (z / s)^2) - 1) / s^2 and s = ``RESIDUAL_SCALE``
    (scipy.optimize.least_squares, loss soft_l1).
    """
    if form not in FORMS:
        raise CalibrationError(f"form {form!r}: known are {', '.join(FORMS)}")
    if len(samples) < MIN_POINTS:
        raise CalibrationError(f"{len(samples)} points are too few to fit; need {MIN_POINTS}")
    names = _NAMES[form]
    solved, cost = _solve(form, samples, names, _starts(form, samples, priors), priors)
    widths = posterior_widths(form, solved, samples, priors)
    free = list(names)
    for name in names:
        if widths[name] < IDENTIFIED_BELOW * priors[name].width or len(free) == 1:
            continue
        others = tuple(n for n in free if n != name)
        held, held_cost = _solve(form, samples, others, [solved], priors)
        if held_cost - cost < EXCLUDED_BY:
            free.remove(name)
            solved, cost = held, held_cost
    if all(widths[n] > IDENTIFIED_BELOW * priors[n].width for n in free):
        raise CalibrationError("the points identify no constant: all of one kind and size")
    return KernelFit(form=form, constants=solved, identified=tuple(free), n_points=len(samples))


def _starts(
    form: str, samples: KernelSamples, priors: Mapping[str, Prior]
) -> list[dict[str, float]]:
    """Starting points, since max() and min() leave several optima.

    The prior, with more and with less arithmetic where the calls come near the ridge; for
    ``no_split`` also a low and a high number of units.
    """
    import numpy as np

    start = {name: priors[name].value for name in _NAMES[form]}
    if form in SUMS:
        return [start]
    if form != "no_split":
        ridge = samples.peak / samples.bandwidth
        if float((samples.flops / samples.n_bytes).max()) < NEAR_RIDGE * ridge:
            return [start]
        return [start | {"phi": start["phi"] * factor} for factor in (0.5, 1.0, 2.0)]
    low, high = np.quantile(samples.work_units, (0.3, 0.9))
    return [start | {"full_work_units": float(units) + 1} for units in (low, high)]


def _solve(
    form: str,
    samples: KernelSamples,
    free: tuple[str, ...],
    starts: list[dict[str, float]],
    priors: Mapping[str, Prior],
) -> tuple[dict[str, float], float]:
    """Best constants, only ``free`` ones off their prior, and their half chi-square."""
    import numpy as np
    from scipy.optimize import least_squares

    names = _NAMES[form]
    held = {n: priors[n].value for n in names if n not in free}
    centres = np.log([priors[n].value for n in free])
    tightness = PRIOR_WEIGHT * RESIDUAL_SCALE / np.array([priors[n].width for n in free])
    measured = np.log(samples.time_s)

    def constants(logs: FloatArray) -> dict[str, float]:
        return held | dict(zip(free, np.exp(np.clip(logs, -60, 60)).tolist(), strict=True))

    def residuals(logs: FloatArray) -> FloatArray:
        predicted = predicted_s(form, constants(logs), samples)
        return np.concatenate((np.log(predicted) - measured, tightness * (logs - centres)))

    def slopes(logs: FloatArray) -> FloatArray:
        data = log_slopes(form, constants(logs), samples)
        return np.vstack((np.column_stack([data[n] for n in free]), np.diag(tightness)))

    best: Any = None
    for start in starts:
        logs = np.log([start[n] for n in free])
        found = least_squares(
            residuals, logs, jac=slopes, loss="soft_l1", f_scale=RESIDUAL_SCALE, max_nfev=60
        )
        best = found if best is None or found.cost < best.cost else best
    solved = constants(best.x)
    return {n: solved[n] for n in names}, float(best.cost) / RESIDUAL_SCALE**2


def log_slopes(
    form: str, constants: Mapping[str, Any], samples: KernelSamples
) -> dict[str, FloatArray]:
    """d ln t / d ln c of every constant, call by call; a row each where constants are columns."""
    import numpy as np

    memory = samples.n_bytes / (constants["beta"] * samples.bandwidth)
    compute = samples.flops / (constants["phi"] * samples.peak)
    occupancy = np.ones(len(samples))
    if form == "no_split":
        occupancy = np.minimum(1.0, samples.work_units / constants["full_work_units"])
    total = predicted_s(form, constants, samples)
    slower = np.maximum(memory, compute) / occupancy / total
    counts_both = form in SUMS
    slopes = {
        "t0_s": constants["t0_s"] / total,
        "beta": -memory / total if counts_both else np.where(memory >= compute, -slower, 0.0),
        "phi": -compute / total if counts_both else np.where(memory < compute, -slower, 0.0),
    }
    if form in CHARGES_WORK_UNITS:
        slopes["work_unit_s"] = constants["work_unit_s"] * samples.work_units / total
    if form == "no_split":
        slopes["full_work_units"] = np.where(occupancy < 1, slower, 0.0)
    return slopes


def posterior_widths(
    form: str, constants: dict[str, float], samples: KernelSamples, priors: Mapping[str, Prior]
) -> dict[str, float]:
    """Standard error of each constant's log, prior included; near the prior's width if unknown."""
    import numpy as np

    names = _NAMES[form]
    slopes = log_slopes(form, constants, samples)
    matrix = np.column_stack([slopes[n] for n in names])
    errors = np.log(samples.time_s / predicted_s(form, constants, samples))
    spread = max(RESIDUAL_SCALE, 1.4826 * float(np.median(np.abs(errors))))
    information = matrix.T @ matrix / spread**2
    information += np.diag([priors[n].width ** -2.0 for n in names])
    widths = np.sqrt(np.diag(np.linalg.inv(information)))
    return dict(zip(names, widths.tolist(), strict=True))
