"""Constants of layer operations from measured calls, and how well they predict shapes left out.

Least squares on log time with a soft-L1 loss and wide priors, as for attention kernels. A constant
that the calls do not narrow, or that leaves what hardware can do, is *not identified*: it is put
back to its prior and the rest fitted again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.calibration.fit import Prior, band
from lrkv_plan.latency import exchange, experts, products, recurrent
from lrkv_plan.latency.matrix import PRIORS as MATRIX_PRIORS
from lrkv_plan.latency.operands import OPERAND_FORMATS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lrkv_plan.calibration.layer_samples import (
        Constants,
        FloatArray,
        LayerSamples,
        SmallKernelSamples,
    )

MIN_ROWS = 8
N_FOLDS = 5
RESIDUAL_SCALE = 0.015  # relative errors beyond this count by their size, not its square
IDENTIFIED_BELOW = 0.5  # posterior over prior width
# Beyond these a fit has run off: starts and tau as factors on the prior, beta as it is.
PLAUSIBLE = {
    ("matrices", "t0_s"): (0.6, 8.0), ("matrices", "tau_s_per_element"): (0.05, 4.0),
    ("matrices", "beta"): (0.1, 1.1), ("experts", "t0_s"): (0.2, 8.0),
    ("experts", "beta"): (0.1, 1.2),
}  # fmt: skip
FREE = (0.0, float("inf"))


def priors_of(samples: LayerSamples) -> dict[str, Prior]:
    """Expected constants and their width in natural log units."""
    if samples.operation == "matrices":
        typical = MATRIX_PRIORS[samples.format]
        return {
            "t0_s": Prior(typical.t0_s, 0.7), "beta": Prior(typical.beta, 0.3),
            "phi": Prior(typical.phi, 0.4),
            "tau_s_per_element": Prior(typical.tau_s_per_element, 1.0),
        }  # fmt: skip
    if samples.operation == "experts":
        return {
            "t0_s": Prior(experts.PRIOR_T0_S, 0.8), "beta": Prior(experts.PRIOR_BETA, 0.3),
            "phi": Prior(experts.PRIOR_PHI, 0.8), "expert_s": Prior(5e-8, 1.5),
            "hot_beta": Prior(1.0, 1.0),
        }  # fmt: skip
    if samples.operation == "products":
        return {
            "t0_s": Prior(products.PRIOR_T0_S, 0.5), "head_s": Prior(products.PRIOR_HEAD_S, 3.0),
            "token_scale": Prior(products.PRIOR_TOKEN_SCALE, 3.0),
        }  # fmt: skip
    if samples.operation == "exchanges":
        return {"t0_s": Prior(exchange.PRIOR_T0_S, 1.0), "token_s": Prior(3e-7, 1.5)}
    return {
        "t0_s": Prior(recurrent.PRIOR_T0_S, 0.7), "beta": Prior(recurrent.PRIOR_BETA, 0.5),
        "conv_t0_s": Prior(recurrent.PRIOR_CONV_T0_S, 0.7),
        "conv_beta": Prior(recurrent.PRIOR_CONV_BETA, 0.7),
    }  # fmt: skip


def _is_known(samples: LayerSamples) -> bool:
    """Whether its format is one that a model may ask for."""
    return samples.operation not in ("matrices", "experts") or samples.format in OPERAND_FORMATS


@dataclass(frozen=True, kw_only=True)
class LayerFit:
    """Fitted constants, which of them the calls identify, and errors on shapes left out.

    ``left_out`` is ln(measured / predicted) of every row, by constants that its shape had no part
    in; NaN where too little is left to fit.
    """

    constants: dict[str, float]
    identified: tuple[str, ...]
    n_points: int
    left_out: FloatArray
    band90: tuple[float, float]
    median_error: float
    p90_error: float


def fit_layer(samples: LayerSamples) -> LayerFit | None:
    """Fit one group and judge it; None where its rows are too few."""
    import numpy as np

    usable = np.isin(samples.part, samples.fitted)
    if int(usable.sum()) < MIN_ROWS or not _is_known(samples):
        return None
    constants, identified = fit_rows(samples, usable)
    left_out = errors_left_out(samples, usable)
    judged = left_out[(samples.part == samples.judged) & np.isfinite(left_out)]
    if not len(judged):
        judged = left_out[usable & np.isfinite(left_out)]
    errors = np.abs(np.expm1(-judged)) if len(judged) else np.array([0.0])
    return LayerFit(
        constants=constants, identified=identified, n_points=int(usable.sum()), left_out=left_out,
        band90=band(judged), median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
    )  # fmt: skip


def folds_of(samples: LayerSamples) -> npt.NDArray[np.intp]:
    """The fold of each row: whole shapes together, one each where they are few."""
    import numpy as np

    _, index = np.unique(samples.shape, return_inverse=True)
    n_shapes = int(index.max()) + 1 if len(index) else 0
    n_folds = n_shapes if n_shapes <= 2 * N_FOLDS else N_FOLDS
    order = np.random.default_rng(1).permutation(n_shapes)
    return np.asarray(order[index.reshape(-1)] % max(n_folds, 1), dtype=np.intp)


def errors_left_out(samples: LayerSamples, usable: npt.NDArray[np.bool_]) -> FloatArray:
    """ln(measured / predicted) of every row, by a fit that its shape was left out of."""
    import numpy as np

    folds = folds_of(samples)
    found = np.full(len(samples.time_s), np.nan)
    for fold in np.unique(folds):
        out = folds == fold
        chosen = usable & ~out
        if int(chosen.sum()) < MIN_ROWS:
            continue
        constants, _ = fit_rows(samples, chosen)
        predicted = samples.predict(samples.model_of(constants), out)
        found[out] = np.log(samples.time_s[out] / predicted)
    return found


def fit_rows(
    samples: LayerSamples, rows: npt.NDArray[np.bool_]
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Constants of the rows of a mask, and which of them these identify."""
    priors = priors_of(samples)
    held: dict[str, float] = {}
    while True:
        free = [name for name in priors if name not in held]
        fitted, width = _solve(samples, rows, priors, free, held)
        lost = [
            name for name in free
            if not _is_plausible(samples.operation, name, fitted[name], priors[name])
        ]  # fmt: skip
        if not lost and free:  # else the one that is known least
            ratio = {name: width[name] / priors[name].width for name in free}
            least = max(free, key=lambda name: ratio[name])
            lost = [least] if ratio[least] > IDENTIFIED_BELOW else []
        if not lost or not free:
            return fitted, tuple(free)
        held |= {name: priors[name].value for name in lost}
        if len(held) == len(priors):
            return dict(held), ()


def _is_plausible(operation: str, name: str, value: float, prior: Prior) -> bool:
    low, high = PLAUSIBLE.get((operation, name), FREE)
    scale = 1.0 if name == "beta" else prior.value
    return low * scale <= value <= high * scale


def _solve(
    samples: LayerSamples, rows: npt.NDArray[np.bool_], priors: dict[str, Prior], free: list[str],
    held: Constants,
) -> tuple[dict[str, float], dict[str, float]]:  # fmt: skip
    """Constants by name, and the width that the rows leave to each free one."""
    import numpy as np
    from scipy.optimize import least_squares

    start = np.log([priors[name].value for name in free])
    prior_width = np.array([priors[name].width for name in free])
    measured = np.log(samples.time_s[rows])

    def named(point: Any) -> dict[str, float]:
        values = dict(zip(free, (float(v) for v in np.exp(point)), strict=True))
        return {name: values.get(name, held.get(name, 0.0)) for name in priors}

    def residuals(point: Any) -> Any:
        predicted = samples.predict(samples.model_of(named(point)), rows)
        scaled = (np.log(predicted) - measured) / RESIDUAL_SCALE
        soft = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        return np.concatenate([soft, (point - start) / prior_width])

    found = least_squares(residuals, start)
    # Rows of one shape err together: they count as one.
    rows_per_shape = int(rows.sum()) / len(np.unique(samples.shape[rows]))
    spread = float(np.mean(found.fun[: len(measured)] ** 2)) * rows_per_shape
    information = found.jac[: len(measured)].T @ found.jac[: len(measured)] / max(spread, 1e-6)
    covariance = np.linalg.inv(information + np.diag(prior_width**-2.0))
    width = dict(zip(free, (float(v) for v in np.sqrt(np.diag(covariance))), strict=True))
    return named(found.x), width


SMALL_PRIORS = {
    "t0_s": Prior(2e-6, 0.5), "width_s": Prior(1e-10, 1.5), "scalar_s": Prior(1e-12, 1.5),
}  # fmt: skip
SAMPLER_T0_S = 16e-6
LEAST_LAUNCH_S = 1.5e-6  # no fused kernel was faster


def fit_small_kernel(samples: SmallKernelSamples) -> LayerFit:
    """Constants of one kind of small kernel, with errors of models left out."""
    import numpy as np

    everything = np.ones(len(samples.time_s), dtype=bool)
    constants = _small_constants(samples, everything)
    left_out = np.zeros(len(samples.time_s))
    for model in np.unique(samples.model):
        out = samples.model == model
        found = _small_constants(samples, ~out) if (~out).any() else constants
        left_out[out] = np.log(samples.time_s[out] / _small_time(found, samples, out))
    errors = np.abs(np.expm1(-left_out))
    return LayerFit(
        constants=constants, identified=tuple(constants), n_points=len(left_out),
        left_out=left_out, band90=band(left_out), median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
    )  # fmt: skip


def _small_time(constants: Constants, samples: SmallKernelSamples, rows: Any) -> FloatArray:
    per_width = constants["width_s"] + constants["scalar_s"] * samples.tokens[rows]
    time_s: FloatArray = constants["t0_s"] + per_width * samples.width[rows]
    return time_s


def _small_constants(samples: SmallKernelSamples, rows: Any) -> dict[str, float]:
    import numpy as np
    from scipy.optimize import least_squares

    priors = dict(SMALL_PRIORS)
    if samples.kind == "sampler":
        priors["t0_s"] = Prior(SAMPLER_T0_S, 0.5)
    start = np.log([prior.value for prior in priors.values()])
    width = np.array([prior.width for prior in priors.values()])
    lowest = np.array([np.log(LEAST_LAUNCH_S), -np.inf, -np.inf])

    def residuals(point: Any) -> Any:
        constants = dict(zip(priors, np.exp(point), strict=True))
        off = np.log(_small_time(constants, samples, rows) / samples.time_s[rows]) / 0.1
        soft = np.sign(off) * np.sqrt(2 * (np.sqrt(1 + off**2) - 1))
        return np.concatenate([soft, (point - start) / width])

    found = least_squares(residuals, start, bounds=(lowest, np.inf))
    return dict(zip(priors, (float(v) for v in np.exp(found.x)), strict=True))
