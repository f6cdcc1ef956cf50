"""Constants of the kernel model from measured calls: robust, weakly held, and honest about doubt.

Least squares on log time with a soft-L1 loss, so that every call counts by its relative error and
a few odd ones count little. Each constant has a wide prior. A constant that the calls do not narrow
to half of that prior is *not identified*: it is put back to the prior and the rest fitted again,
unless the calls exclude the prior's value (they may bound a constant from one side only).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.kernel import CHARGES_WORK_UNITS, FORMS, SUMS, KernelModel, kernel_time

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lrkv_plan.calibration.samples import FloatArray, KernelSamples


def band(
    log_errors: FloatArray, share: float = 0.9, n_independent: float | None = None
) -> tuple[float, float]:
    """Factors that hold ``share`` of exp(log_errors), with the n + 1 rule of small samples.

    ``n_independent`` is the n of that rule where rows err together; the number of rows if None.
    """
    import numpy as np

    n = n_independent or len(log_errors)
    tail = max(0.0, (1 - share) / 2 - share / 2 / n) if n else 0.0
    low, high = np.quantile(log_errors, (tail, 1 - tail)) if n else (0.0, 0.0)
    return float(np.exp(low)), float(np.exp(high))


def n_independent(log_errors: FloatArray, shape: npt.NDArray[np.intp]) -> float:
    """Rows that as many independent errors would be worth: n / (1 + (m - 1) rho).

    m is the mean number of rows per head configuration, rho the share of the variance that lies
    between configurations (one-way analysis of variance; Kish's design effect, Survey Sampling,
    1965, 5.4). Never fewer than the configurations.

    Examples
    --------
    >>> import numpy as np
    >>> n_independent(np.array([0.1, 0.1, 0.1, -0.1, -0.1, -0.1]), np.array([0, 0, 0, 1, 1, 1]))
    2.0
    """
    import numpy as np

    n, (n_rows, sums) = len(log_errors), (np.bincount(shape), np.bincount(shape, log_errors))
    n_rows, sums = n_rows[n_rows > 0], sums[n_rows > 0]
    k, m = len(n_rows), n / len(n_rows)
    if k < 2 or m <= 1:
        return float(n)
    means = sums / n_rows
    between = float((n_rows * (means - log_errors.mean()) ** 2).sum()) / (k - 1)
    total = float(((log_errors - log_errors.mean()) ** 2).sum())
    within = max(0.0, total - between * (k - 1)) / (n - k)
    spread = between + (m - 1) * within
    rho = min(1.0, max(0.0, (between - within) / spread)) if spread > 0 else 0.0
    return n / (1 + (m - 1) * rho)


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


N_RESAMPLES = 300
SHARE = 0.9
Z = 1.645  # of the normal distribution at SHARE, two-sided
_STEPS = 40


def intervals(
    fit: KernelFit,
    samples: KernelSamples,
    priors: Mapping[str, Prior],
    *,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """90 % interval of every identified constant.

    Parameters
    ----------
    fit : what ``fit_kernel`` found for ``samples``.
    priors : the priors that it was fitted with.
    seed : of the resamples.

    Notes
    -----
    Points are drawn with replacement as often as there are points, the form and the identified
    constants kept. Percentile intervals of few points are too narrow: logs are spread about their
    median by sqrt(m / (m - 1)) t / z, the correction of a mean of m values (t at m - 1 degrees
    of freedom over z, to first order 1 + (z^2 + 1) / 4 (m - 1)). m = (sum s^2)^2 / sum s^4 counts
    the points that a constant depends on, s being d ln t / d ln c.
    """
    import numpy as np

    n = len(samples)
    counts = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=n_resamples)
    logs = resampled_logs(fit, samples, priors, counts.astype(float))
    middle = np.median(logs, axis=0)
    logs = middle + (logs - middle) * _spread(fit, samples)
    low, high = np.quantile(logs, ((1 - SHARE) / 2, (1 + SHARE) / 2), axis=0)
    return {
        name: (float(np.exp(a)), float(np.exp(b)))
        for name, a, b in zip(fit.identified, low, high, strict=True)
    }


def _spread(fit: KernelFit, samples: KernelSamples) -> FloatArray:
    """The factor on the spread of each identified constant."""
    import numpy as np

    slopes = log_slopes(fit.form, fit.constants, samples)
    squares = np.stack([slopes[name] for name in fit.identified]) ** 2
    m = (squares.sum(1) ** 2 / (squares**2).sum(1)).clip(min=2.0)
    return np.sqrt(m / (m - 1)) * (1 + (Z**2 + 1) / 4 / (m - 1))  # type: ignore[no-any-return]


def polished(fit: KernelFit, samples: KernelSamples, priors: Mapping[str, Prior]) -> KernelFit:
    """The same fit solved so far that it does not depend on where the search began."""
    import numpy as np

    (logs,) = resampled_logs(fit, samples, priors, np.ones((1, len(samples))), tolerance=1e-10)
    return replace(
        fit,
        constants=fit.constants | dict(zip(fit.identified, np.exp(logs).tolist(), strict=True)),
    )


def resampled_logs(
    fit: KernelFit,
    samples: KernelSamples,
    priors: Mapping[str, Prior],
    counts: FloatArray,
    tolerance: float = 1e-4,
) -> FloatArray:
    """Logs of the identified constants, a row for each row of ``counts`` (points' weights).

    Solved until no log moves by ``tolerance``.
    """
    import numpy as np

    start = np.log([fit.constants[name] for name in fit.identified])
    logs = np.tile(start, (len(counts), 1))
    problem = _Problem(fit, samples, priors, counts)
    damping = np.full((len(counts), 1), 1e-3)
    cost, hessian, gradient = problem.at(logs)
    for _ in range(_STEPS):
        diagonal = np.einsum("rpp->rp", hessian)
        damped = hessian + np.einsum("rp,pq->rpq", damping * diagonal, np.eye(len(start)))
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        moved = problem.at(logs - step.clip(-2, 2))
        better = (moved[0] <= cost)[:, None]
        logs = np.where(better, logs - step.clip(-2, 2), logs)
        cost = np.where(better[:, 0], moved[0], cost)
        hessian = np.where(better[..., None], moved[1], hessian)
        gradient = np.where(better, moved[2], gradient)
        damping = np.where(better, damping / 5, damping * 5).clip(1e-9, 1e9)
        if float(np.abs(step).max()) < tolerance:
            break
    return logs


class _Problem:
    """The objective of ``fit_kernel`` with weighted points, for many weightings at once."""

    def __init__(
        self,
        fit: KernelFit,
        samples: KernelSamples,
        priors: Mapping[str, Prior],
        counts: FloatArray,
    ) -> None:
        import numpy as np

        self._fit, self._samples, self._counts = fit, samples, counts
        self._measured = np.log(samples.time_s)
        self._centres = np.log([priors[n].value for n in fit.identified])
        self._widths = np.array([priors[n].width for n in fit.identified])

    def at(self, logs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Cost, Gauss-Newton matrix and gradient, a row for each weighting.

        The loss is sum w 2 (sqrt(1 + z) - 1) with z = (r / s)^2, whose weight is 1 / sqrt(1 + z).
        """
        import numpy as np

        free = self._fit.identified
        constants: dict[str, Any] = dict(self._fit.constants)
        constants |= {n: np.exp(logs[:, [i]]) for i, n in enumerate(free)}
        predicted = predicted_s(self._fit.form, constants, self._samples)
        residual = (np.log(predicted) - self._measured) / RESIDUAL_SCALE
        slopes = log_slopes(self._fit.form, constants, self._samples)
        jacobian = np.stack([slopes[n] for n in free], axis=-1) / RESIDUAL_SCALE
        jacobian = np.broadcast_to(jacobian, (*residual.shape, len(free)))
        held = PRIOR_WEIGHT * (logs - self._centres) / self._widths
        root, held_root = np.sqrt(1 + residual**2), np.sqrt(1 + held**2)
        weight = self._counts / root
        cost = (2 * self._counts * (root - 1)).sum(1) + (2 * (held_root - 1)).sum(1)
        hessian = np.einsum("rnp,rn,rnq->rpq", jacobian, weight, jacobian)
        hardness = PRIOR_WEIGHT / self._widths**2 / held_root
        hessian = hessian + np.einsum("rp,pq->rpq", hardness, np.eye(len(free)))
        gradient = np.einsum("rnp,rn->rp", jacobian, weight * residual)
        return cost, hessian, gradient + PRIOR_WEIGHT * held / self._widths / held_root
