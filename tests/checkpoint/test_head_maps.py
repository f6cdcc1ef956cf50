"""Cosines and effective ranks of head maps against maps written out, and where they do not exist."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.checkpoint.head_maps import effective_rank, head_maps
from tests.checkpoint.synthetic import Array
from tests.drawing import drawn


def slow_maps(query: Array, key: Array) -> Array:
    """A_h = W_Q,h W_K,h^T in full, one row a head, each of length 1."""
    per_key = len(query) // len(key)
    rows = [
        (query[h].astype(float).T @ key[h // per_key].astype(float)).ravel()
        for h in range(len(query))
    ]
    return np.array([row / np.linalg.norm(row) for row in rows])


def slow_rank(rows: Array) -> float:
    energies = np.linalg.svd(rows, compute_uv=False) ** 2
    shares = energies[energies > 1e-14] / energies.sum()
    return math.exp(-sum(p * math.log(p) for p in shares))


@given(
    st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 3), st.integers(1, 6),
    st.integers(2, 20),
)  # fmt: skip
@settings(max_examples=drawn(40), deadline=None)
def test_gram_and_ranks_equal_those_of_full_maps(
    seed: int, n_keys: int, per_key: int, width: int, n_inputs: int
) -> None:
    rng = np.random.default_rng(seed)
    query = rng.standard_normal((n_keys * per_key, width, n_inputs))
    key = rng.standard_normal((n_keys, width, n_inputs))
    found, rows = head_maps(query, key), slow_maps(query, key)
    assert found.cosine == pytest.approx(rows @ rows.T, abs=1e-9)
    assert found.effective_rank == pytest.approx(slow_rank(rows), rel=1e-6)
    assert 1 - 1e-9 <= (found.effective_rank or 0) <= found.effective_rank_ceiling + 1e-9
    if len(query) > 1:
        centred = rows - rows.mean(axis=0)
        assert found.centred_effective_rank == pytest.approx(slow_rank(centred), rel=1e-6)
        assert (found.centred_effective_rank or 0) <= len(query) - 1 + 1e-9


def test_orthogonal_maps_reach_both_ceilings() -> None:
    # Head h reads input h alone: the maps have no common entry, G = I, JGJ has H - 1 ones.
    stack = np.eye(6)[:, None, :]
    found = head_maps(stack, stack)
    assert found.effective_rank == pytest.approx(6)
    assert found.centred_effective_rank == pytest.approx(5)
    assert (found.effective_rank_ceiling, found.centred_effective_rank_ceiling) == (6, 5)
    assert found.mean_cosine == 0


def test_identical_maps_are_undefined_when_centred() -> None:
    rng = np.random.default_rng(0)
    query = np.repeat(rng.standard_normal((1, 4, 32)), 6, axis=0)
    key = np.repeat(rng.standard_normal((1, 4, 32)), 6, axis=0)
    found = head_maps(query, key)
    assert found.centred_effective_rank is None
    assert "identical maps" in (found.undefined or "")
    assert found.effective_rank == pytest.approx(1, abs=1e-6)


def test_maps_that_differ_by_rotation_and_scale_are_identical() -> None:
    rng = np.random.default_rng(1)
    query, key = rng.standard_normal((2, 1, 4, 32))
    turn, _ = np.linalg.qr(rng.standard_normal((4, 4)))
    found = head_maps(
        np.concatenate([query, turn @ query, 3 * query]), np.concatenate([key, turn @ key, key])
    )
    assert found.max_cosine == pytest.approx(1)
    assert found.centred_effective_rank is None


def test_opposite_maps_are_defined() -> None:
    # Unit maps +a and -a: G = [[1, -1], [-1, 1]], both ranks are 1.
    key = np.random.default_rng(2).standard_normal((2, 3, 10))
    key[1] = key[0]
    query = np.stack([key[0], -key[0]])
    found = head_maps(query, key)
    assert found.mean_cosine == pytest.approx(-1)
    assert found.centred_effective_rank == pytest.approx(1)


def test_a_single_head_has_no_centred_rank_and_no_pair() -> None:
    one = np.random.default_rng(3).standard_normal((1, 3, 10))
    found = head_maps(one, one)
    assert found.centred_effective_rank is None
    assert found.mean_cosine is None
    assert "single map" in (found.undefined or "")


def test_zero_maps_are_left_out_and_named() -> None:
    rng = np.random.default_rng(4)
    query, key = rng.standard_normal((2, 4, 3, 20))
    query[1] = 0
    found = head_maps(query, key)
    assert (found.n_heads, found.n_maps, found.centred_effective_rank_ceiling) == (4, 3, 2)
    assert (found.undefined or "") == "zero maps, left out: 1 of 4"
    assert 1 not in (found.closest_heads or ())
    assert head_maps(0 * query, key).effective_rank is None


def test_heads_that_share_a_key_are_compared_by_their_queries() -> None:
    # One key head of orthonormal rows: <A_i, A_j> = <Q_i, Q_j>.
    rng = np.random.default_rng(5)
    query = rng.standard_normal((4, 3, 12))
    key = np.linalg.qr(rng.standard_normal((12, 3)))[0].T[None]
    flat = query.reshape(4, -1) / np.linalg.norm(query.reshape(4, -1), axis=1, keepdims=True)
    assert head_maps(query, key).cosine == pytest.approx(flat @ flat.T, abs=1e-12)


def test_huge_and_tiny_heads_do_not_overflow() -> None:
    rng = np.random.default_rng(6)
    query, key = rng.standard_normal((2, 4, 3, 20)).astype(np.float32)
    scale = np.array([1e30, 1e-30, 1, 1e-10], np.float32)[:, None, None]
    assert head_maps(query * scale, key).cosine == pytest.approx(
        head_maps(query, key).cosine, abs=1e-6
    )


def test_equal_shares_give_their_count() -> None:
    assert effective_rank(np.array([0.0, 5.0, 5.0, 5.0, 5.0, -1e-18])) == pytest.approx(4)
