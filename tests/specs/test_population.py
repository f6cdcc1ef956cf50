"""What is kept of many requests answers as all of them would: pairs counted, first arrivals in order."""

from __future__ import annotations

import random
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.memory.population import PopulationAccount, account_population
from lrkv_plan.specs import population as kept
from lrkv_plan.specs.population import Gathering, LengthCounts, Population
from tests.oracle import population_count

PAGE = 16


def gathered(
    requests: list[tuple[int, int, int]], chunk: int, is_ordered: bool = True
) -> Population:
    """Requests (arrival, prompt, output) in chunks, with arrivals or as they stand."""
    gathering = Gathering("drawn")
    for first in range(0, len(requests), chunk):
        arrival, prompt, output = np.array(requests[first : first + chunk], np.int64).T
        gathering.add(prompt, output, arrival if is_ordered else None)
    return gathering.population("drawn")


def account(lengths: Any, n_blocks: int) -> PopulationAccount:
    return account_population(
        lengths, blocks_of=lambda tokens: -(-tokens // PAGE), n_blocks=n_blocks, block_bytes=4 * PAGE,
        payload_bytes_of=lambda tokens: 4 * tokens,
    )  # fmt: skip


def small(patch: pytest.MonkeyPatch, first: int = 8, pairs: int = 6, at_once: int = 5) -> None:
    """Bounds that a handful of requests exceeds."""
    patch.setattr(kept, "FIRST_KEPT", first)
    patch.setattr(kept, "MAX_PAIRS", pairs)
    patch.setattr(kept, "_SORTED_AT_ONCE", at_once)


REQUESTS = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 40), st.integers(0, 300)), min_size=1, max_size=60
).filter(lambda drawn: any(p + o for _, p, o in drawn))


@settings(max_examples=80)
@given(REQUESTS, st.integers(1, 20), st.sampled_from(["drawn", "up", "down"]), st.booleans())
def test_what_is_kept_equals_all_requests(
    requests: list[tuple[int, int, int]], chunk: int, order: str, has_times: bool
) -> None:
    if order != "drawn":
        requests.sort(reverse=order == "down")
    held = [one for one in requests if one[1] + one[2]]
    arrived = sorted(held, key=lambda one: one[0]) if has_times else held
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        found = gathered(requests, chunk, has_times)
        assert found.first_prompt_tokens.tolist() == [p for _, p, _ in arrived[:8]]
        assert found.first_output_tokens.tolist() == [o for _, _, o in arrived[:8]]
    tokens, counts = np.unique([p + o for _, p, o in held], return_counts=True)
    assert found.lengths.tokens.tolist() == tokens.tolist()
    assert found.lengths.counts.tolist() == counts.tolist()
    assert found.n_sequences == len(held)
    pairs = found.pairs
    least = pairs.output_step
    expected: dict[tuple[int, int], int] = {}
    for _, prompt, output in held:
        key = (prompt + output, output - output % least)
        expected[key] = expected.get(key, 0) + 1
    keys = zip(pairs.prompt_tokens + pairs.output_tokens, pairs.output_tokens, strict=True)
    counted = zip(((int(a), int(b)) for a, b in keys), pairs.counts.tolist(), strict=True)
    assert list(counted) == sorted(expected.items())
    assert (least > 1) == any("distinct pairs" in remark for remark in found.remarks)


@settings(max_examples=60)
@given(REQUESTS, st.integers(1, 20), st.integers(0, 400))
def test_the_account_of_what_is_kept_is_the_account_of_all(
    requests: list[tuple[int, int, int]], chunk: int, n_blocks: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small(patch, first=100)
        found = account(gathered(requests, chunk).lengths, n_blocks)
    arrived = sorted((one for one in requests if one[1] + one[2]), key=lambda one: one[0])
    lengths = [prompt + output for _, prompt, output in arrived]
    assert found == account(np.array(lengths), n_blocks)
    plain = population_count.account(
        lengths, n_blocks, 4 * PAGE, lambda tokens: -(-tokens // PAGE), lambda tokens: 4 * tokens
    )
    assert asdict(found) == plain


def test_a_pool_that_admits_more_than_was_kept_in_order_is_refused_or_holds_all() -> None:
    counted = LengthCounts(np.array([16, 160]), np.array([3, 1]), np.array([16, 16]))
    assert account(counted, 1).admitted_sequences == 1
    with pytest.raises(UsageError, match=r"first 2 sequences, the most that are kept.* of 4;"):
        account(counted, 2)  # the third may be the one of 10 blocks
    assert account(counted, 13).all_fit  # 3 + 10 blocks, in whatever order
    assert account(counted, 13).admitted_sequences == 4


def test_too_many_pairs_round_the_split_and_never_the_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Length 100 with outputs 0 to 7: over 3 pairs. Steps of 2 leave 4, steps of 4 leave 2 (0 and 4).
    small(monkeypatch, pairs=3)
    found = gathered([(i, 100 - i, i) for i in range(8)], chunk=3)
    assert found.pairs.output_step == 4
    assert found.pairs.output_tokens.tolist() == [0, 4]
    assert found.pairs.prompt_tokens.tolist() == [100, 96]
    assert found.pairs.counts.tolist() == [4, 4]
    assert (found.lengths.tokens.tolist(), found.lengths.counts.tolist()) == ([100], [8])
    assert found.remarks == (
        "over 3 distinct pairs of prompt and output: outputs are counted in steps of 4 tokens, up to "
        "3 too short and prompts as much too long; lengths, and all that is counted here, are exact",
    )


def test_too_many_lengths_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch)
    monkeypatch.setattr(kept, "MAX_LENGTHS", 50)
    assert gathered([(0, i, 0) for i in range(1, 51)], chunk=7).lengths.max_tokens == 50
    with pytest.raises(SpecError, match="drawn: over 50 distinct lengths, up to 51 tokens"):
        gathered([(0, i, 0) for i in range(1, 52)], chunk=7)


def test_many_requests_are_those_of_one_array(monkeypatch: pytest.MonkeyPatch) -> None:
    small(monkeypatch, first=20_000, pairs=10_000, at_once=15_000)
    dice = np.random.default_rng(0)
    prompt = dice.lognormal(8, 1, 100_000).astype(np.int64)
    output, arrival = dice.integers(0, 900, 100_000), dice.integers(0, 10**5, 100_000)
    gathering = Gathering("drawn")
    for first in range(0, 100_000, 7000):
        part = slice(first, first + 7000)
        gathering.add(prompt[part], output[part], arrival[part])
    found = gathering.population("drawn")
    ordered = (prompt + output)[np.argsort(arrival, kind="stable")]
    ordered = ordered[ordered > 0]
    for n_blocks in (10, 10**6, 10**9):
        assert account(found.lengths, n_blocks) == account(ordered, n_blocks)


def test_totals_beyond_2_to_the_53_are_exact() -> None:
    # 10**9 tokens, 2 * 10**9 times: 2 * 10**18 tokens, and one more sequence of 1.
    counted = LengthCounts(np.array([1, 10**9]), np.array([1, 2 * 10**9]), np.array([1]))
    found = account_population(
        counted, blocks_of=lambda t: t, n_blocks=0, block_bytes=1, payload_bytes_of=lambda t: t
    )
    assert found.total_tokens == found.allocated_bytes == 2 * 10**18 + 1
    assert (found.p50_tokens, found.n_sequences) == (10**9, 2 * 10**9 + 1)


def test_order_across_chunks_is_seen() -> None:
    dice = random.Random(0)
    times = [1, 2, 3, 2]
    for chunk in (1, 2, 3, 4):
        gathering = Gathering("drawn")
        for first in range(0, 4, chunk):
            part = np.array(times[first : first + chunk])
            gathering.add(part * 0 + 5, part * 0 + dice.randrange(9), part)
        assert not gathering.is_in_order
