"""A rank-one residual under quarter turns: by hand, and against the torch measure."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.auditing.quarter_turns import score, turned_residual

whole = st.integers(-50, 50)
bases = st.tuples(whole, whole).filter(any)


def test_a_quarter_turn_takes_the_first_axis_out_of_itself() -> None:
    # (1, 0) becomes (0, 1); e (1, 0) is nearest at e = 0, and misses all of it.
    one = turned_residual((1, 0), 1)
    assert (one.turned, one.nearest, one.lost_ratio) == ((0, 1), (0, 0), 1)
    assert (score(one.turned, (0, 1)), score(one.nearest, (0, 1))) == (1, 0)


def test_a_half_turn_is_minus_one_in_the_latent() -> None:
    one = turned_residual((3, 4), 2)
    assert (one.turned, one.nearest, one.lost_ratio) == ((-3, -4), (-3, -4), 0)


@given(basis=bases, turns=st.integers(0, 11))
def test_quarter_turns_lose_all_or_nothing_and_keep_the_length(
    basis: tuple[int, int], turns: int
) -> None:
    one = turned_residual(basis, turns)
    assert one.lost_ratio == turns % 2
    assert score(one.turned, (1, 0)) ** 2 + score(one.turned, (0, 1)) ** 2 == score(
        (Fraction(basis[0]), Fraction(basis[1])), basis
    )
    assert one.turned == turned_residual(basis, turns + 4).turned


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("basis", [(1, 0), (2, -3)])
def test_the_torch_measure_says_the_same(basis: tuple[int, int], turns: int) -> None:
    torch = pytest.importorskip("torch")
    from lrkv_plan.calibration.decode.rotary import rotation_pull_error

    columns = torch.tensor([[float(basis[0])], [float(basis[1])]])
    error = rotation_pull_error(columns, torch.tensor([turns * math.pi / 2]))
    assert error**2 == pytest.approx(float(turned_residual(basis, turns).lost_ratio), abs=1e-12)


def test_a_zero_basis_is_refused() -> None:
    with pytest.raises(ValueError, match="zero"):
        turned_residual((0, 0), 1)
