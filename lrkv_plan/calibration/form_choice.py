"""Which form describes a path: by error on fitted points left out in turn, and never by others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lrkv_plan.calculators.kernel_time import COUNTS_WORK_UNITS, FORMS
from lrkv_plan.calibration.bootstrap import resampled_logs
from lrkv_plan.calibration.fit import MIN_POINTS, Prior, fit_kernel
from lrkv_plan.calibration.selection import GAIN, MIN_RICH_POINTS, WORST_ERROR, at_random
from lrkv_plan.errors import CalibrationError

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
