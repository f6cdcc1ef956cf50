"""Which form, and one set of constants or several: decided by error on rows left out.

A cell is a range of shapes that gets its own constants, because an engine serves it with another
compiled kernel (one query head per cached head, a head width, a number of MLA heads). A richer form
or a finer split is taken only if it lowers the left-out error by ``GAIN``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from lrkv_plan.attention.registry import kernel_of
from lrkv_plan.calibration.fit import MIN_POINTS, KernelFit, band, fit_kernel, n_independent
from lrkv_plan.errors import CalibrationError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lrkv_plan.calibration.samples import FloatArray, KernelSamples

    Mask: TypeAlias = npt.NDArray[np.bool_]
    Fold: TypeAlias = tuple[Mask, Mask]  # rows to fit, rows to judge

OFFERED = ("base", "per_work_unit", "no_split")  # to GPU kernels, which overlap their copies
GAIN = 0.9  # left-out error of what is richer, over that of what is simpler
MIN_CELL_POINTS = 12
MIN_RICH_POINTS = 24  # for a fourth constant, and only where longer contexts can judge it
WORST_ERROR = 0.5  # a left-out log error counts at most this much when forms are compared
LONG_CONTEXT_TOKENS = 8192


@dataclass(frozen=True)
class Cell:
    """Shapes with their own constants; None means every shape."""

    query_heads: tuple[int, int] | None = None
    head_dims: tuple[int, ...] | None = None

    def holds(self, samples: KernelSamples) -> Mask:
        """Which calls have a shape of this cell."""
        import numpy as np

        inside = np.ones(len(samples), dtype=bool)
        if self.query_heads is not None:
            per_head = samples.query_heads_per_kv_head
            inside &= (per_head >= self.query_heads[0]) & (per_head <= self.query_heads[1])
        if self.head_dims is not None:
            inside &= np.isin(samples.head_dim, self.head_dims)
        return inside


@dataclass(frozen=True, kw_only=True)
class CellFit:
    """A cell's constants, and ln(measured / predicted) of its rows when they were left out."""

    cell: Cell
    fit: KernelFit
    left_out: FloatArray
    shape: npt.NDArray[np.intp]  # the head configuration of each left-out row

    @property
    def band90(self) -> tuple[float, float]:
        """Factors that hold 90 % of the left-out rows."""
        return band(self.left_out, n_independent=n_independent(self.left_out, self.shape))


def partitions(kernel: str, samples: KernelSamples) -> Iterator[tuple[Cell, ...]]:
    """Ways to split the shapes, the simplest first."""
    yield (Cell(),)
    calls = kernel_of(kernel).calls
    if calls is None:
        return
    ranges = calls.query_head_ranges
    yield tuple(Cell(query_heads=heads) for heads in ranges)
    dims = sorted({int(d) for d in samples.head_dim}) if calls.by_head_dim else []
    if len(dims) > 1:
        yield tuple(Cell(head_dims=(d,)) for d in dims)
        yield tuple(Cell(heads, (d,)) for heads in ranges for d in dims)


def by_head_configuration(samples: KernelSamples, n_folds: int = 4, seed: int = 0) -> list[Fold]:
    """Folds that leave whole head configurations out; random rows where there are too few."""
    import numpy as np

    which = shape_index(samples)
    n_shapes = int(which.max()) + 1
    if n_shapes < 3:
        return at_random(samples, n_folds, seed)
    order = np.random.default_rng(seed).permutation(n_shapes)
    return _folds(order[which] % n_folds, n_folds)


def shape_index(samples: KernelSamples) -> npt.NDArray[np.intp]:
    """A number for the head configuration of each call."""
    import numpy as np

    shapes = np.column_stack((samples.n_heads, samples.n_kv_heads, samples.head_dim))
    return np.unique(shapes, axis=0, return_inverse=True)[1].ravel()


def at_random(samples: KernelSamples, n_folds: int = 4, seed: int = 0) -> list[Fold]:
    """Folds of rows drawn without regard to shape; none if there are fewer than two."""
    import numpy as np

    if n_folds < 2:
        return []
    return _folds(np.random.default_rng(seed).permutation(len(samples)) % n_folds, n_folds)


def by_context(samples: KernelSamples, longest: float = LONG_CONTEXT_TOKENS) -> list[Fold]:
    """One fold: fit up to ``longest`` tokens, judge beyond; none if a side is too small."""
    short = samples.context_tokens <= longest
    usable = short.sum() >= MIN_POINTS and (~short).sum() >= 4
    return [(short, ~short)] if usable else []


def _folds(which: npt.NDArray[np.intp], n_folds: int) -> list[Fold]:
    masks = [which == k for k in range(n_folds)]
    return [(~m, m) for m in masks if m.any() and (~m).sum() >= MIN_POINTS]


def left_out_errors(samples: KernelSamples, form: str, folds: list[Fold]) -> FloatArray:
    """ln(measured / predicted) of every judged row, by constants fitted without it."""
    import numpy as np

    errors = [fit_kernel(samples.where(a), form).log_errors(samples.where(b)) for a, b in folds]
    return np.concatenate(errors) if errors else np.empty(0)


def best_cell(
    samples: KernelSamples, cell: Cell, forms: tuple[str, ...] = OFFERED
) -> CellFit | None:
    """The form for one cell; None where its rows are too few or say nothing."""
    import numpy as np

    inside = samples.where(cell.holds(samples))
    if len(inside) < MIN_CELL_POINTS:
        return None
    folds = by_head_configuration(inside)
    longer = by_context(inside, float(np.median(inside.context_tokens)))
    chosen: tuple[float, str, FloatArray] | None = None
    may_be_rich = len(inside) >= MIN_RICH_POINTS and bool(longer)
    for form in forms if may_be_rich else ("base",):
        try:
            errors = left_out_errors(inside, form, folds)
            cost = (_cost(errors) + _cost(left_out_errors(inside, form, longer))) / 2
        except CalibrationError:
            continue
        if errors.size and (chosen is None or cost < GAIN * chosen[0]):
            chosen = (cost, form, errors)
    if chosen is None:
        return None
    shape = shape_index(inside)
    return CellFit(
        cell=cell, fit=fit_kernel(inside, chosen[1]), left_out=chosen[2],
        shape=np.concatenate([shape[judged] for _, judged in folds]),
    )  # fmt: skip


def best_partition(
    kernel: str, samples: KernelSamples, forms: tuple[str, ...] = OFFERED, *, may_split: bool = True
) -> tuple[CellFit, ...]:
    """The cells for one group of calls, each with its form and constants.

    Raises
    ------
    CalibrationError
        If the calls are too few to be fitted and judged.
    """
    import numpy as np

    best: tuple[float, tuple[CellFit, ...]] | None = None
    for cells in partitions(kernel, samples):
        if best is not None and not may_split:
            break
        present = [cell for cell in cells if cell.holds(samples).any()]
        fits = [fit for cell in present if (fit := best_cell(samples, cell, forms)) is not None]
        if not present or len(fits) < len(present):
            continue
        cost = _cost(np.concatenate([fit.left_out for fit in fits]))
        if best is None or cost < GAIN * best[0]:
            best = (cost, tuple(fits))
    if best is None:
        raise CalibrationError(f"{len(samples)} points are too few to fit and judge")
    return best[1]


def predicted_log_errors(
    cells: tuple[CellFit, ...], samples: KernelSamples
) -> tuple[FloatArray, Mask]:
    """ln(measured / predicted) of rows the cells never saw, and which lie inside the band.

    Rows whose shape no cell holds are judged by the first cell.
    """
    import numpy as np

    errors, inside = np.full(len(samples), np.nan), np.zeros(len(samples), dtype=bool)
    for cell_fit in reversed(cells):
        mask = cell_fit.cell.holds(samples)
        if cell_fit is cells[0]:
            mask |= np.isnan(errors)
        part = cell_fit.fit.log_errors(samples.where(mask))
        low, high = cell_fit.band90
        errors[mask] = part
        inside[mask] = (np.exp(part) >= low) & (np.exp(part) <= high)
    return errors, inside


def judged(
    kernel: str,
    samples: KernelSamples,
    folds: list[Fold],
    *,
    forms: tuple[str, ...] = OFFERED,
    may_split: bool = True,
) -> tuple[FloatArray, Mask]:
    """Errors and band hits on rows that neither the choice of form nor the fit has seen.

    One element per call; NaN where no fold judges it, or its fold's other rows cannot be fitted.
    """
    import numpy as np

    errors, inside = np.full(len(samples), np.nan), np.zeros(len(samples), dtype=bool)
    for fitted, left_out in folds:
        try:
            cells = best_partition(kernel, samples.where(fitted), forms, may_split=may_split)
        except CalibrationError:
            continue
        errors[left_out], inside[left_out] = predicted_log_errors(cells, samples.where(left_out))
    return errors, inside


def _cost(log_errors: FloatArray) -> float:
    """Mean absolute log error, each capped so that a failed extrapolation does not rule alone."""
    import numpy as np

    return float(np.abs(log_errors).clip(max=WORST_ERROR).mean()) if log_errors.size else 0.0
