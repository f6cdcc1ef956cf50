"""Constants of the all-reduce model from measured message sizes; as robust as ``fit``.

Whether the group uses one path or two (one shot for small messages, two for large ones) is decided
by the error on sizes left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.allreduce_time import AllReduceModel, allreduce_time
from lrkv_plan.calibration.fit import IDENTIFIED_BELOW, MIN_POINTS, RESIDUAL_SCALE, Prior
from lrkv_plan.calibration.selection import GAIN
from lrkv_plan.errors import CalibrationError

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

PRIORS = {
    "t0_s": Prior(6e-6, 1.0),
    "link_efficiency": Prior(0.75, 0.5),
    "two_shot_s": Prior(5e-6, 1.0),
}
_NAMES = {False: ("t0_s", "link_efficiency"), True: ("t0_s", "link_efficiency", "two_shot_s")}


@dataclass(frozen=True, kw_only=True)
class AllReduceSamples:
    """Message sizes and times of one group. [bytes], [s], link per direction [bytes/s]"""

    message_bytes: FloatArray
    time_s: FloatArray
    n_gpus: int
    link_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class AllReduceFit:
    """Constants by name (``two_shot_s`` only for two paths), and errors of sizes left out."""

    constants: dict[str, float]
    identified: tuple[str, ...]
    left_out: FloatArray


def fit_allreduce(samples: AllReduceSamples, n_folds: int = 5) -> AllReduceFit:
    """The constants of one group, with one or two paths.

    Raises
    ------
    CalibrationError
        If there are fewer than ``MIN_POINTS`` message sizes.
    """
    if len(samples.time_s) < MIN_POINTS:
        raise CalibrationError(f"{len(samples.time_s)} points are too few; need {MIN_POINTS}")
    one = _judged(samples, False, n_folds)
    if samples.n_gpus == 2:  # both paths send the same
        return one
    two = _judged(samples, True, n_folds)
    return two if _cost(two.left_out) < GAIN * _cost(one.left_out) else one


def _judged(samples: AllReduceSamples, two_paths: bool, n_folds: int) -> AllReduceFit:
    import numpy as np

    fold = np.random.default_rng(0).permutation(len(samples.time_s)) % n_folds
    errors = np.empty(len(fold))
    for k in range(n_folds):
        constants, _ = _solve(samples, two_paths, fold != k)
        errors[fold == k] = log_errors(samples, constants)[fold == k]
    constants, identified = _solve(samples, two_paths, fold >= 0)
    return AllReduceFit(constants=constants, identified=identified, left_out=errors)


def log_errors(samples: AllReduceSamples, constants: dict[str, float]) -> FloatArray:
    """ln(measured / predicted) of each message."""
    import numpy as np

    model = AllReduceModel(
        n_gpus=samples.n_gpus, t0_s=constants["t0_s"],
        link_bytes_per_s=constants["link_efficiency"] * samples.link_bytes_per_s,
        two_shot_s=constants.get("two_shot_s"), band90=(1.0, 1.0), basis="measured",
    )  # fmt: skip
    predicted: Any = allreduce_time(model, samples.message_bytes).time_s
    errors: FloatArray = np.log(samples.time_s / predicted)
    return errors


def _solve(
    samples: AllReduceSamples, two_paths: bool, used: Any
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Constants from the ``used`` messages, and which of them those narrow."""
    import numpy as np
    from scipy.optimize import least_squares

    names = _NAMES[two_paths]
    centres = np.log([PRIORS[n].value for n in names])
    widths = np.array([PRIORS[n].width for n in names])

    def constants(logs: FloatArray) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    def residuals(logs: FloatArray) -> FloatArray:
        data = log_errors(samples, constants(logs))[used]
        return np.concatenate((data, RESIDUAL_SCALE * (logs - centres) / widths))

    found = least_squares(residuals, centres, loss="soft_l1", f_scale=RESIDUAL_SCALE)
    data = residuals(found.x)[: -len(names)]
    spread = max(RESIDUAL_SCALE, 1.4826 * float(np.median(np.abs(data))))
    slopes = np.column_stack([
        (residuals(found.x + step)[: -len(names)] - data) / 1e-4
        for step in 1e-4 * np.eye(len(names))
    ])  # fmt: skip
    information = slopes.T @ slopes / spread**2 + np.diag(widths**-2.0)
    after = np.sqrt(np.diag(np.linalg.inv(information)))
    known = (after < IDENTIFIED_BELOW * widths).tolist()
    identified = tuple(n for n, k in zip(names, known, strict=True) if k)
    return constants(found.x), identified


def _cost(errors: FloatArray) -> float:
    import numpy as np

    return float(np.abs(errors).mean())
