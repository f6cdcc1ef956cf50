"""How wide a band of left-out errors is where rows of one head configuration err together."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lrkv_plan.calibration.samples import FloatArray


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
