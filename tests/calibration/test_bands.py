"""Bands of left-out errors: how many rows count, and how wide that makes them."""

from __future__ import annotations

import numpy as np
import pytest

from lrkv_plan.calibration.fit import band, n_independent


def test_rows_that_err_together_count_once() -> None:
    # Two head configurations of three rows, no spread within: rho 1, 6 / (1 + 2 * 1) = 2.
    together = np.array([0.1, 0.1, 0.1, -0.1, -0.1, -0.1])
    assert n_independent(together, np.array([0, 0, 0, 1, 1, 1])) == 2
    # Same errors dealt out so that both configurations have mean 0.1/3 and -0.1/3: between
    # 3 * 2 * (0.1/3)^2 / 1 = 0.00667, total 6 * 0.01 = 0.06, within (0.06 - 0.00667) / 4 = 0.01333:
    # between is less than within, so rho is 0 and all six rows count.
    assert n_independent(together, np.array([0, 0, 1, 0, 1, 1])) == 6


def test_partly_together_by_hand() -> None:
    # Means 2 and -2, deviations +-1 within: between 4 * 2^2 * 2 / 1 = 32, within 8 / 6 = 4/3.
    errors = np.array([3.0, 1, 3, 1, -3, -1, -3, -1])
    rho = (32 - 4 / 3) / (32 + 3 * 4 / 3)
    assert n_independent(errors, np.repeat([0, 1], 4)) == pytest.approx(8 / (1 + 3 * rho))


def test_fewer_independent_rows_widen_the_band() -> None:
    errors = np.linspace(-1, 1, 201)
    plain, clustered = band(errors), band(errors, n_independent=20)
    # tails 0.05 - 0.45/201 and 0.05 - 0.45/20 of a uniform spread from -1 to 1
    assert np.log(plain) == pytest.approx(
        [-1 + 2 * (0.05 - 0.45 / 201), 1 - 2 * (0.05 - 0.45 / 201)]
    )
    assert np.log(clustered) == pytest.approx([-0.945, 0.945])
    assert band(errors, n_independent=4) == pytest.approx((np.exp(-1), np.exp(1)))
