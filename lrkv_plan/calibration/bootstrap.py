"""How far fitted constants could have come out otherwise: percentile bootstrap over points.

All resamples are solved at once by damped Gauss-Newton steps, because hundreds of separate fits
of each path would take minutes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.calibration.fit import (
    PRIOR_WEIGHT,
    RESIDUAL_SCALE,
    KernelFit,
    Prior,
    log_slopes,
    predicted_s,
)

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray, KernelSamples

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
