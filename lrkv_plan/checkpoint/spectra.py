"""How well a shared base plus rank-r residuals could stand for one layer's keys or values.

Errors are relative Frobenius norms over all heads, sqrt(sum_h ||W_h - base - L_h||^2 /
sum_h ||W_h||^2). They compare weights, not what a language model loses.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from lrkv_plan.checkpoint.tensors import Array

# Multiply-adds that one tensor's fit may take. At 32 heads of 128 and 4,096 inputs, which take
# 5.6e9 a step, it is 32 steps.
FIT_MULTIPLY_ADDS = 1.4e11
# An eigendecomposition of width w costs about 20 w^3 multiply-adds of a matrix product (measured).
_EIGEN_FACTOR = 20
# What a step of a tiny tensor costs all the same, in multiply-adds of a large one.
_STEP_OVERHEAD = 2e7
# Turns at one rank, and the part of the squared error below which a turn's gain ends them: where
# the ranks are chosen here, and where a person asks for them.
_AUTO_ALTERNATIONS, _AUTO_DECREASE = 12, 1e-6
MAX_ALTERNATIONS, _SMALL_DECREASE = 300, 1e-11


@dataclass(frozen=True)
class FitSchedule:
    """Ranks at which a base is fitted, ascending, and most alternations at each.

    They end sooner where one lowers the squared error by less than ``small_decrease`` of it.
    """

    ranks: tuple[int, ...]
    alternations: int
    small_decrease: float = _SMALL_DECREASE


@dataclass(frozen=True)
class Residuals:
    """Eigenvalues (ascending) and eigenvectors of every head's R_h^T R_h, R_h = W_h - base."""

    energies: Array  # (heads, width), squared singular values
    vectors: Array  # (heads, width, width)

    def discarded(self) -> Array:
        """Squared error at ranks 0 to width: what each head's smallest directions hold."""
        ascending = np.cumsum(np.clip(self.energies, 0, None).sum(axis=0))
        return np.concatenate([ascending[::-1], [0.0]])


@dataclass(frozen=True)
class FittedBase:
    """What a base fitted for ``rank`` discards at every rank, and how still the fit was.

    ``last_decrease`` is how far the last alternation lowered the relative error at ``rank``.
    """

    rank: int
    discarded: Array
    last_decrease: float
    n_alternations: int


def exact_from_rank(n_heads: int, width: int) -> int:
    """The smallest rank at which any weights at all are represented exactly.

    Notes
    -----
    Let the base copy floor(w / H) columns of each head, all different: what is left of a head has
    w - floor(w / H) columns. At that rank the cache holds w + H r >= H w scalars, no less than MHA.

    Examples
    --------
    >>> exact_from_rank(32, 128), exact_from_rank(1, 64)
    (124, 0)
    """
    return width - width // n_heads


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """What a person may fix of the fit: the ranks (None: every rank) and alternations at each."""

    ranks: tuple[int, ...] | None = None
    alternations: int = MAX_ALTERNATIONS

    def schedule(self, n_heads: int, width: int) -> FitSchedule:
        """These ranks, as far as the tensor has them and is not exact at them anyhow."""
        useful = range(1, exact_from_rank(n_heads, width))
        ranks = useful if self.ranks is None else sorted(set(self.ranks) & set(useful))
        return FitSchedule(tuple(ranks), self.alternations)


def fit_schedule(n_heads: int, width: int, n_inputs: int) -> FitSchedule:
    """Every rank where that is affordable, else evenly spaced ranks with two alternations each.

    Examples
    --------
    >>> fit_schedule(32, 128, 4096).ranks[:3], len(fit_schedule(8, 128, 1024).ranks)
    ((11, 22, 33), 111)
    """
    last = exact_from_rank(n_heads, width) - 1
    if last < 1:
        return FitSchedule((), 0)
    scalars = n_heads * width
    step = 2 * scalars * n_inputs * width + _EIGEN_FACTOR * scalars * width**2 + _STEP_OVERHEAD
    affordable = int(FIT_MULTIPLY_ADDS / step)
    spacing = ceil(width / max(8, affordable // 2)) if affordable < 2 * last else 1
    ranks = tuple(range(spacing, last + 1, spacing))
    turns = min(_AUTO_ALTERNATIONS, max(2, affordable // max(1, len(ranks))))
    return FitSchedule(ranks, turns, _AUTO_DECREASE)


def residuals(stack: Array, base: Array) -> Residuals:
    """Spectra of all heads around a base, in float64 whatever the stack is.

    Notes
    -----
    R^T R keeps half the digits of small singular values: squared errors are right to about
    1e-15 of the whole in a float64 stack, so relative errors to about 3e-8 where they vanish.
    """
    grams = np.empty((stack.shape[0], stack.shape[1], stack.shape[1]))
    base = base.astype(stack.dtype, copy=False)
    for head, weights in enumerate(stack):
        rest = weights - base
        grams[head] = rest @ rest.T
    energies, vectors = np.linalg.eigh(grams)
    return Residuals(energies, vectors)


def best_base(stack: Array, base: Array, around: Residuals, rank: int) -> Array:
    """The base that minimises the error while each residual keeps its row space.

    Notes
    -----
    With N_h projecting on the directions that head h discards, the error is
    sum_h ||(W_h - B) N_h||^2 and its minimum B = (sum_h W_h N_h) (sum_h N_h)^-1. This is where
    repeating B <- mean_h(W_h - L_h) ends for fixed row spaces of the L_h. Directions that no head
    discards keep the old base.
    """
    kept = around.vectors[:, :, : around.vectors.shape[2] - rank]
    outside = kept @ kept.transpose(0, 2, 1)
    total = outside.sum(axis=0)
    # (w, heads w) @ (heads w, inputs): symmetric N_h side by side.
    beside = outside.transpose(1, 0, 2).reshape(stack.shape[1], -1).astype(stack.dtype)
    wanted = (beside @ stack.reshape(-1, stack.shape[2])).astype(np.float64)
    shares, axes = np.linalg.eigh(total)
    used = shares > 1e-9 * shares[-1]
    inverse = (axes[:, used] / shares[used]) @ axes[:, used].T
    found: Array = base + inverse @ (wanted - total @ base)
    return found


def fitted_bases(
    stack: Array, mean: Array, around_mean: Residuals, schedule: FitSchedule, fast: Array
) -> Iterator[FittedBase]:
    """A base for each scheduled rank, each starting from the one before, the first near the mean.

    ``fast`` is the stack that alternations use, perhaps in float32; each result is evaluated on
    ``stack``.
    """
    whole = float(np.vdot(stack, stack))
    base = _tilted(mean, float(around_mean.discarded()[0]) / stack.size)
    around = residuals(fast, base)
    for rank in schedule.ranks:
        error = around.discarded()[rank]
        before = error
        steps = 0
        for steps in range(1, schedule.alternations + 1):
            if steps > 1:
                around = residuals(fast, base)
                before, error = error, around.discarded()[rank]
                if before - error <= schedule.small_decrease * before or error <= 1e-15 * whole:
                    break
            base = best_base(fast, base, around, rank)
        around = residuals(stack, base)
        before, error = error, around.discarded()[rank]
        fall = np.sqrt(max(before, 0.0) / whole) - np.sqrt(max(error, 0.0) / whole)
        yield FittedBase(rank, around.discarded(), max(0.0, float(fall)), steps)


def _tilted(mean: Array, residual_square: float) -> Array:
    """The mean, moved by a twentieth of a typical residual weight, the same way on every run.

    Exactly at the mean, heads that are copies of two have opposite residuals of one row space: the
    base then stays where it is, however much another would save.
    """
    chance = np.random.default_rng(0).standard_normal(mean.shape)
    tilted: Array = mean + 0.05 * np.sqrt(residual_square) * chance
    return tilted


def two_heads_discarded(around_mean: Residuals) -> Array:
    """Squared errors of the best base of two heads, at every rank.

    Notes
    -----
    With D = W_1 - W_2 and any L_1, L_2 of rank r, the best base leaves ||D - (L_1 - L_2)||^2 / 2,
    and L_1 - L_2 is any matrix of rank 2 r. The mean leaves as much at rank 2 r.
    """
    width = around_mean.energies.shape[1]
    at_double: Array = around_mean.discarded()[np.minimum(2 * np.arange(width + 1), width)]
    return at_double


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
