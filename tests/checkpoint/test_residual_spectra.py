"""Residual spectra against slow float64 decompositions, and cases whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.checkpoint.spectra import (
    FitOptions,
    best_base,
    exact_from_rank,
    fit_schedule,
    fitted_bases,
    rank_keeping,
    residual_spectrum,
    residuals,
)
from tests.checkpoint.synthetic import Array, planted
from tests.drawing import drawn


def slow_errors(stack: Array, base: Array) -> list[float]:
    """Relative errors at every rank from full decompositions of W_h - base."""
    singular = [np.linalg.svd(w - base, compute_uv=False) for w in stack.astype(float)]
    width = stack.shape[1]
    total = float((stack.astype(float) ** 2).sum())
    return [
        float(np.sqrt(sum((s[rank:] ** 2).sum() for s in singular) / total))
        for rank in range(width + 1)
    ]


def slow_fit(stack: Array, base: Array, rank: int, turns: int) -> tuple[Array, list[float]]:
    """base <- mean(W_h - L_h), L_h the truncated SVD of W_h - base; the error after each turn."""
    total, errors = float((stack**2).sum()), []
    for _ in range(turns):
        rest = stack - base
        u, s, v = np.linalg.svd(rest, full_matrices=False)
        low = (u[:, :, :rank] * s[:, None, :rank]) @ v[:, :rank]
        errors.append(float(np.sqrt(((rest - low) ** 2).sum() / total)))
        base = (stack - low).mean(axis=0)
    return base, errors


def random_stack(seed: int, n_heads: int, width: int, n_inputs: int) -> Array:
    """Heads with a common part and a falling spectrum."""
    rng = np.random.default_rng(seed)
    scale = np.arange(1, width + 1)[:, None] ** -0.8
    private = rng.standard_normal((n_heads, width, width)) @ (
        scale * rng.standard_normal((n_heads, width, n_inputs))
    )
    return rng.standard_normal((1, width, n_inputs)) + private


shapes = st.tuples(st.integers(0, 10_000), st.integers(1, 5), st.integers(1, 8), st.integers(1, 40))


def test_two_heads_by_hand() -> None:
    # W_1 = diag(3, 1), W_2 = diag(1, 1): mean diag(2, 1), residuals +-diag(1, 0), |W|^2 = 12.
    # Rank 0 leaves 1 + 1 = 2 of 12, rank 1 nothing.
    stack = np.array([[[3.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    found = residual_spectrum(stack, fit=False)
    assert found.mean_errors == pytest.approx((np.sqrt(2 / 12), 0, 0), abs=1e-15)
    assert found.base_energy_share == pytest.approx(10 / 12)
    assert (rank_keeping(found.mean_errors, 0.8), rank_keeping(found.mean_errors, 0.9)) == (0, 1)


@given(shapes)
@settings(max_examples=drawn(30), deadline=None)
def test_mean_base_errors_equal_full_decompositions(shape: tuple[int, int, int, int]) -> None:
    stack = random_stack(*shape).astype(np.float32)
    found = residual_spectrum(stack, fit=False).mean_errors
    slow = slow_errors(stack, stack.astype(float).mean(axis=0))
    assert found == pytest.approx(slow, rel=1e-6, abs=1e-7)


# 15 inputs are short of heads x width = 18, 80 are far above it. From other seeds the two end in
# different local minima, or plain alternation has not ended after 400 turns.
@pytest.mark.parametrize(("seed", "n_inputs"), [(0, 15), (7, 15), (3, 80), (8, 80)])
def test_fitted_errors_equal_plain_alternation_run_to_its_end(seed: int, n_inputs: int) -> None:
    stack = random_stack(seed, 3, 6, n_inputs)
    base = stack.mean(axis=0)
    options = FitOptions(ranks=(1, 2), alternations=1000)
    found = residual_spectrum(stack, options=options)
    for rank in (1, 2):
        base, errors = slow_fit(stack, base, rank, 400)
        assert found.fitted_errors is not None
        assert found.fitted_errors[rank] == pytest.approx(errors[-1], rel=1e-6)
        assert errors[-1] < 0.995 * found.mean_errors[rank]


def test_the_closed_form_base_is_where_plain_alternation_ends_for_fixed_row_spaces() -> None:
    stack, rank = random_stack(5, 4, 6, 20), 2
    mean = stack.mean(axis=0)
    around = residuals(stack, mean)
    kept = around.vectors[:, :, -rank:]
    inside = kept @ kept.transpose(0, 2, 1)
    base = mean
    for _ in range(2000):
        base = (stack - inside @ (stack - base)).mean(axis=0)
    assert best_base(stack, mean, around, rank) == pytest.approx(base, abs=1e-9)


@given(shapes)
@settings(max_examples=drawn(25), deadline=None)
def test_no_turn_raises_the_error(shape: tuple[int, int, int, int]) -> None:
    stack = random_stack(*shape)
    n_heads, width, _ = stack.shape
    total = float((stack**2).sum())
    for rank in range(1, exact_from_rank(n_heads, width)):
        base = stack.mean(axis=0)
        around = residuals(stack, base)
        for _ in range(6):
            before = around.discarded()[rank]
            base = best_base(stack, base, around, rank)
            around = residuals(stack, base)
            assert around.discarded()[rank] <= before + 1e-12 * total


@given(shapes)
@settings(max_examples=drawn(25), deadline=None)
def test_errors_fall_with_rank_and_the_fit_never_loses_to_the_mean(
    shape: tuple[int, int, int, int],
) -> None:
    found = residual_spectrum(random_stack(*shape), options=FitOptions(alternations=4))
    assert found.fitted_errors is not None
    for errors in (found.mean_errors, found.fitted_errors):
        assert list(errors) == sorted(errors, reverse=True)
        assert errors[-1] == 0
    assert all(f <= m for f, m in zip(found.fitted_errors, found.mean_errors, strict=True))


@pytest.mark.parametrize("rank", [1, 3, 6])
def test_planted_rank_is_recovered(rank: int) -> None:
    stack = planted(np.random.default_rng(rank), 8, 16, 128, rank)
    found = residual_spectrum(stack, options=FitOptions())
    assert found.fitted_errors is not None
    assert found.fitted_errors[rank] < 1e-6
    assert found.fitted_errors[rank - 1] > 0.1
    assert rank_keeping(found.fitted_errors, 1 - 1e-9) == rank
    # The mean adds the other heads' residuals to each: it does not see the rank.
    assert found.mean_errors[rank] > 0.1


def test_planted_noise_is_measured_not_lost() -> None:
    # 1e-6 of the weights beside rank 2: a Gram in single precision could not show it.
    rng = np.random.default_rng(0)
    clean = planted(rng, 6, 12, 96, 2)
    noise = rng.standard_normal(clean.shape)
    noise *= 1e-6 * np.linalg.norm(clean) / np.linalg.norm(noise)
    found = residual_spectrum(clean + noise, options=FitOptions(ranks=(2,)))
    assert found.fitted_errors is not None
    assert 0.5e-6 < found.fitted_errors[2] < 1e-6


def test_any_weights_are_exact_from_the_stated_rank() -> None:
    # 4 heads of 8: each head's columns 2h and 2h + 1 stand in the base, 6 are left to a residual.
    stack = random_stack(11, 4, 8, 50)
    base = np.concatenate([stack[head, 2 * head : 2 * head + 2] for head in range(4)])
    assert exact_from_rank(4, 8) == 6
    assert slow_errors(stack, base)[6] < 1e-12
    found = residual_spectrum(stack)
    assert found.fitted_errors is not None
    assert found.fitted_errors[6] == 0 < found.fitted_errors[5] < found.mean_errors[6]


def test_float32_turns_agree_with_float64() -> None:
    stack = random_stack(2, 6, 12, 90)
    mean = stack.mean(axis=0)
    schedule = fit_schedule(6, 12, 90)
    around = residuals(stack, mean)
    pairs = zip(
        fitted_bases(stack, mean, around, schedule, stack),
        fitted_bases(stack, mean, around, schedule, stack.astype(np.float32)),
        strict=True,
    )
    total = float((stack**2).sum())
    for exact, fast in pairs:
        assert np.sqrt(fast.discarded[exact.rank] / total) == pytest.approx(
            np.sqrt(exact.discarded[exact.rank] / total), rel=1e-3
        )


def test_single_and_equal_heads_need_no_residual() -> None:
    one = residual_spectrum(np.random.default_rng(0).standard_normal((1, 6, 20)))
    same = residual_spectrum(np.repeat(np.random.default_rng(1).standard_normal((1, 6, 20)), 4, 0))
    for found in (one, same):
        assert max(found.mean_errors) < 1e-7
        assert rank_keeping(found.best_errors, 1.0) == 0


def test_zero_weights_are_undefined() -> None:
    found = residual_spectrum(np.zeros((4, 3, 5), np.float32))
    assert found.undefined == "all weights are zero"
    assert found.base_energy_share is None
    assert found.mean_errors == ()


@pytest.mark.parametrize("factor", [1e-30, 1e30])
def test_the_scale_of_the_weights_does_not_matter(factor: float) -> None:
    stack = random_stack(4, 3, 5, 30).astype(np.float32)
    plain = residual_spectrum(stack)
    scaled = residual_spectrum((stack * np.float32(factor)).astype(np.float32))
    assert scaled.fitted_errors == pytest.approx(plain.fitted_errors, rel=1e-4, abs=1e-7)


def test_schedule_of_a_large_layer_is_spaced_and_ends_below_exactness() -> None:
    schedule = fit_schedule(32, 128, 4096)
    assert schedule.ranks[-1] < exact_from_rank(32, 128) == 124
    assert len(schedule.ranks) >= 8
    assert schedule.alternations >= 2


def test_two_heads_have_the_best_base_in_closed_form() -> None:
    stack, rank = random_stack(6, 2, 8, 40), 3
    found = residual_spectrum(stack)
    assert found.fitted_errors is not None
    u, s, v = np.linalg.svd(stack[0] - stack[1], full_matrices=False)
    first = (u[:, :rank] * s[:rank]) @ v[:rank]
    second = -(u[:, rank : 2 * rank] * s[rank : 2 * rank]) @ v[rank : 2 * rank]
    base = (stack[0] - first + stack[1] - second) / 2
    left = sum(((w - base - low) ** 2).sum() for w, low in zip(stack, (first, second), strict=True))
    assert found.fitted_errors[rank] == pytest.approx(np.sqrt(left / (stack**2).sum()), rel=1e-9)
    assert found.fitted_errors[rank] == found.mean_errors[2 * rank]


def test_copies_of_two_heads_do_not_hold_the_fit_at_the_mean() -> None:
    two = random_stack(6, 2, 8, 40)
    best = residual_spectrum(two).fitted_errors
    found = residual_spectrum(np.repeat(two, 3, axis=0), options=FitOptions())
    assert best is not None
    assert found.fitted_errors is not None
    for rank in (1, 2):
        assert found.fitted_errors[rank] == pytest.approx(best[rank], rel=0.02)
        assert found.fitted_errors[rank] < 0.9 * found.mean_errors[rank]


def test_planning_losses_are_near_those_of_a_fit_at_every_rank() -> None:
    stack = np.random.default_rng(3).standard_normal((4, 16, 64))
    everywhere = residual_spectrum(stack, options=FitOptions(alternations=40)).fitted_errors
    spaced = residual_spectrum(stack, options=FitOptions(ranks=(4, 8), alternations=40))
    assert everywhere is not None
    losses = spaced.planning_losses
    for rank in range(9):
        assert losses[rank] <= spaced.best_errors[rank] ** 2
        assert losses[rank] == pytest.approx(everywhere[rank] ** 2, rel=0.03)
    # The bases fitted for 4 and 8 alone are far off between them.
    assert spaced.best_errors[6] ** 2 > 1.2 * everywhere[6] ** 2
    assert list(losses) == sorted(losses, reverse=True)


def test_planning_losses_are_the_errors_where_every_rank_is_fitted() -> None:
    found = residual_spectrum(random_stack(1, 3, 6, 30), options=FitOptions(alternations=5))
    squares = tuple(error**2 for error in found.best_errors)
    assert found.planning_losses[:4] == pytest.approx(squares[:4], rel=1e-12)
    mean_only = residual_spectrum(random_stack(1, 3, 6, 30), fit=False)
    assert mean_only.planning_losses == pytest.approx(tuple(e**2 for e in mean_only.mean_errors))
