"""How well a shared base plus rank-r residuals could stand for one layer's keys or values.

Errors are relative Frobenius norms over all heads, sqrt(sum_h ||W_h - base - L_h||^2 /
sum_h ||W_h||^2). They compare weights, not what a language model loses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lrkv_plan.checkpoint.base_fit import (
    FitOptions,
    exact_from_rank,
    fit_schedule,
    fitted_bases,
    residuals,
    two_heads_discarded,
)
from lrkv_plan.checkpoint.tensors import Array

# Alternations run in float64 up to this many weights in a stack, then in float32.
_FLOAT64_SCALARS = 2**22


@dataclass(frozen=True, kw_only=True)
class ResidualSpectrum:
    """Relative errors at ranks 0 to width of one layer's keys or values.

    ``undefined`` says why there are none. ``fitted_errors`` is, at each rank, the least of the mean
    base's and of every fitted base's error; None where no fit was asked for.
    """

    n_heads: int
    width: int
    mean_errors: tuple[float, ...] = ()
    fitted_errors: tuple[float, ...] | None = None
    fit_ranks: tuple[int, ...] = ()
    n_alternations: int = 0  # most alternations at one rank
    last_decrease: float | None = None  # the most that a last alternation lowered an error
    undefined: str | None = None

    @property
    def best_errors(self) -> tuple[float, ...]:
        """The fitted errors, or the mean base's where nothing was fitted."""
        return self.mean_errors if self.fitted_errors is None else self.fitted_errors

    @property
    def planning_losses(self) -> tuple[float, ...]:
        """Squared errors for comparing ranks: smooth between the ranks where a base was fitted.

        ``fitted_errors`` is lowest at fitted ranks, which would draw every plan to them. Between
        two, the mean base's squared error is scaled by what fitting saved at both, interpolated.
        """
        best = np.square(self.best_errors)
        if not self.fit_ranks:
            return tuple(best.tolist())
        mean = np.square(self.mean_errors)
        nodes = [0, *self.fit_ranks]
        saved = [best[rank] / mean[rank] if mean[rank] > 0 else 1.0 for rank in nodes]
        between = mean * np.interp(np.arange(len(mean)), nodes, saved)
        return tuple(np.minimum.accumulate(np.minimum(best, between)).tolist())

    @property
    def base_energy_share(self) -> float | None:
        """The part of sum_h ||W_h||^2 that the mean base alone keeps."""
        return None if self.undefined else 1 - self.mean_errors[0] ** 2


def rank_keeping(errors: tuple[float, ...], energy: float) -> int | None:
    """The smallest rank that keeps this share of the energy, 1 - error^2 >= share.

    Examples
    --------
    >>> rank_keeping((0.8, 0.3, 0.0), 0.9)  # 1 - 0.3^2 = 0.91
    1
    """
    # A share of 1 asks for zero, which floating point reaches only up to rounding.
    rounding = 1e-12
    fits = (r for r, error in enumerate(errors) if 1 - error**2 >= energy - rounding)
    return next(fits, None)


def residual_spectrum(
    stack: Array, *, options: FitOptions | None = None, fit: bool = True
) -> ResidualSpectrum:
    """Spectra of one layer's keys or values around the mean and around fitted bases.

    Parameters
    ----------
    stack : W_h^T of every head, shape (heads, width, inputs).
    options : ranks and alternations of the fit; what is affordable when None.
    fit : False leaves the fit out.

    Notes
    -----
    For a fixed base the best rank-r residual of a head is the truncated SVD of W_h - base, and its
    squared error the sum of the discarded squared singular values (review of arXiv:2601.11471v3,
    section 2).
    """
    n_heads, width, _ = stack.shape
    largest = float(np.abs(stack).max()) if stack.size else 0.0
    if largest == 0:
        return ResidualSpectrum(n_heads=n_heads, width=width, undefined="all weights are zero")
    exact = _shorter(stack.astype(np.float64) / largest)
    whole = float(np.vdot(exact, exact))
    mean = exact.mean(axis=0)
    around_mean = residuals(exact, mean)
    squared = around_mean.discarded() / whole
    shape: dict[str, Any] = {"n_heads": n_heads, "width": width, "mean_errors": _relative(squared)}
    if not fit:
        return ResidualSpectrum(**shape)
    if n_heads == 2:
        best = _relative(two_heads_discarded(around_mean) / whole)
        return ResidualSpectrum(**shape, fitted_errors=best)
    schedule = (
        fit_schedule(n_heads, width, exact.shape[2])
        if options is None
        else options.schedule(n_heads, width)
    )
    fast = exact if exact.size <= _FLOAT64_SCALARS else exact.astype(np.float32)
    least, fall, turns = squared.copy(), 0.0, 0
    for found in fitted_bases(exact, mean, around_mean, schedule, fast):
        least = np.minimum(least, found.discarded / whole)
        fall, turns = max(fall, found.last_decrease), max(turns, found.n_alternations)
    least[exact_from_rank(n_heads, width) :] = 0.0
    return ResidualSpectrum(
        **shape, fitted_errors=_relative(least), fit_ranks=schedule.ranks, n_alternations=turns,
        last_decrease=fall,
    )  # fmt: skip


def _relative(squared: Array) -> tuple[float, ...]:
    return tuple(float(value) for value in np.sqrt(np.clip(squared, 0, None)))


def _shorter(stack: Array) -> Array:
    """The same heads in coordinates of their common span, where that is much narrower.

    With all W_h = Q R_h and Q orthonormal, every norm, mean and best base stays the same.
    """
    n_heads, width, n_inputs = stack.shape
    if 1.5 * n_heads * width > n_inputs:
        return stack
    triangle: Array = np.linalg.qr(stack.reshape(-1, n_inputs).T, mode="r")  # type: ignore[assignment]
    return np.ascontiguousarray(triangle.T).reshape(n_heads, width, -1)
