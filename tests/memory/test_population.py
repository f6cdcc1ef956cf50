"""Uneven sequences in a pool of blocks: golden numbers by hand, and a plain loop as oracle."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import UsageError
from lrkv_plan.memory.population import PopulationAccount, account_population


def account(lengths: Any, n_blocks: int = 10, page: int = 16, **changes: Any) -> PopulationAccount:
    """Pages of ``page`` tokens at 4 bytes a token."""
    rules: dict[str, Any] = {
        "blocks_of": lambda tokens: -(-tokens // page),
        "n_blocks": n_blocks,
        "block_bytes": 4 * page,
        "payload_bytes_of": lambda tokens: 4 * tokens,
    }
    return account_population(np.asarray(lengths), **(rules | changes))


def test_a_population_worked_by_hand() -> None:
    # Lengths 1, 100, 16, 17, 33 take 1, 7, 1, 2, 3 pages of 16: 14 pages of 64 bytes = 896.
    # 167 tokens hold 668 bytes; 228 of 896 are waste. Pages run 1, 8, 9, 11, 14: three fit 10.
    # The mean is 167 / 5 = 33.4, so 34 tokens, 3 pages: 10 // 3 = 3 fit by that estimate.
    assert account([1, 100, 16, 17, 33]) == PopulationAccount(
        n_sequences=5,
        total_tokens=167,
        mean_tokens=Fraction(167, 5),
        p50_tokens=17,  # rank ceil(2.5) = 3 of 1, 16, 17, 33, 100
        p95_tokens=100,  # rank ceil(4.75) = 5
        max_tokens=100,
        payload_bytes=668,
        allocated_bytes=896,
        waste_share=Fraction(228, 896),
        admitted_sequences=3,
        equal_length_sequences=3,
        equal_length_error=Fraction(0),
        all_fit=False,
        oversized_sequences=0,
    )


def test_the_order_of_arrival_decides_what_is_admitted() -> None:
    short_first, long_first = account([16] * 8 + [128]), account([128] + [16] * 8)
    assert (short_first.admitted_sequences, long_first.admitted_sequences) == (8, 3)
    # Mean 256 / 9 = 28.4, two pages: the estimate says 5 either way, 3/8 too few or 2/3 too many.
    assert short_first.equal_length_error == Fraction(5, 8) - 1
    assert long_first.equal_length_error == Fraction(5, 3) - 1


def test_a_sequence_larger_than_the_pool_blocks_the_queue() -> None:
    blocked = account([161, 1, 1])  # 11 pages of 10
    assert (blocked.admitted_sequences, blocked.oversized_sequences) == (0, 1)
    assert blocked.equal_length_error is None
    assert not blocked.all_fit
    assert account([1, 161, 1]).admitted_sequences == 1


def test_a_small_population_caps_the_error_of_the_estimate() -> None:
    few = account([16, 16], n_blocks=1000)
    assert few.all_fit
    assert few.equal_length_sequences == 1000
    assert few.equal_length_error == 0


def test_equal_lengths_in_whole_pages_waste_and_err_nothing() -> None:
    full = account([32] * 20, n_blocks=20)
    assert (full.waste_share, full.equal_length_error, full.admitted_sequences) == (0, 0, 10)


def test_an_exact_fit_is_admitted() -> None:
    assert account([160]).all_fit
    assert account([160, 1]).admitted_sequences == 1
    assert account([1], n_blocks=0).admitted_sequences == 0


LENGTHS = st.lists(st.integers(1, 5000), min_size=1, max_size=60)


@given(LENGTHS, st.integers(0, 3000), st.integers(1, 300))
def test_arrays_agree_with_a_plain_loop(lengths: list[int], n_blocks: int, page: int) -> None:
    got = account(lengths, n_blocks, page)
    used, admitted, blocks = 0, 0, [-(-length // page) for length in lengths]
    for block in blocks:
        if used + block > n_blocks:
            break
        used, admitted = used + block, admitted + 1
    assert got.admitted_sequences == admitted
    assert got.all_fit == (admitted == len(lengths))
    assert got.oversized_sequences == sum(block > n_blocks for block in blocks)
    assert got.allocated_bytes == sum(blocks) * 4 * page
    assert got.payload_bytes == 4 * sum(lengths)
    assert got.waste_share == 1 - Fraction(got.payload_bytes, got.allocated_bytes)
    mean = Fraction(sum(lengths), len(lengths))
    assert got.mean_tokens == mean
    equal = n_blocks // math.ceil(Fraction(math.ceil(mean), page))
    assert got.equal_length_sequences == equal
    if admitted:
        assert got.equal_length_error == Fraction(min(equal, len(lengths)), admitted) - 1
    ordered = sorted(lengths)
    for percent, tokens in ((50, got.p50_tokens), (95, got.p95_tokens), (100, got.max_tokens)):
        reached = [
            t for t in ordered if sum(u <= t for u in lengths) * 100 >= percent * len(lengths)
        ]
        assert tokens == reached[0]


@given(LENGTHS, st.integers(0, 3000))
def test_a_larger_pool_never_admits_fewer(lengths: list[int], n_blocks: int) -> None:
    smaller, larger = account(lengths, n_blocks), account(lengths, n_blocks + 1)
    assert smaller.admitted_sequences <= larger.admitted_sequences


def test_totals_are_exact_up_to_int64_and_refused_beyond() -> None:
    # (2**62 - 1) + 2**62 = 2**63 - 1 fits; one more token does not.
    rules: dict[str, Any] = {
        "page": 1,
        "block_bytes": 1,
        "payload_bytes_of": lambda tokens: tokens,
        "n_blocks": 2**63 - 1,
    }
    top = account([2**62 - 1, 2**62], **rules)
    assert (top.total_tokens, top.allocated_bytes, top.all_fit) == (2**63 - 1, 2**63 - 1, True)
    with pytest.raises(UsageError, match="overflow int64"):
        account([2**62, 2**62], **rules)
    with pytest.raises(UsageError, match="overflow int64"):
        account([2**62], page=1, block_bytes=4)


@pytest.mark.parametrize(
    ("lengths", "changes", "message"),
    [
        ([], {}, "population_lengths"),
        ([[1, 2]], {}, "one row"),
        ([0, 1], {}, "population_lengths: elements must be from 1"),
        ([1.5], {}, "not whole numbers"),
        ([1], {"n_blocks": -1}, "n_blocks -1"),
        ([1], {"n_blocks": 1.5}, "n_blocks 1.5"),
        ([1], {"n_blocks": np.array([1, 2])}, "n_blocks: must be one number"),
        ([1], {"block_bytes": 0}, "block_bytes 0"),
        ([1], {"blocks_of": lambda t: t * 0}, "blocks_of: elements must be from 1"),
        ([1], {"blocks_of": lambda t: t / 2}, "blocks_of: an array of float64"),
        ([1, 2], {"blocks_of": lambda t: t[:1]}, "blocks_of: must return one value for each of 2"),
        ([1], {"payload_bytes_of": lambda t: -t}, "payload_bytes_of"),
        ([1], {"payload_bytes_of": lambda t: t * 65}, "payload must fit its blocks"),
    ],
)
def test_what_cannot_be_accounted_is_refused(
    lengths: list[Any], changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        account(lengths, **changes)
