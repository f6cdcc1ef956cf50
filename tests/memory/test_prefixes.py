"""Sequences that begin alike: blocks held once, and what a cache finds again, by hand."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrkv_plan
from lrkv_plan.errors import SpecError
from lrkv_plan.memory.prefixes import PrefixAccount, account_prefixes
from lrkv_plan.specs.prefix_trace import PrefixTrace, block_tokens_of, read_prefixes

BLOCK = 4  # tokens of the pool's blocks and of an id


def trace(*requests: tuple[int, int, list[int]]) -> PrefixTrace:
    """Requests of (prompt, output, ids)."""
    counts = [len(ids) for _, _, ids in requests]
    return PrefixTrace(
        prompt_tokens=np.array([p for p, _, _ in requests]),
        output_tokens=np.array([o for _, o, _ in requests]),
        ids=np.array([one for _, _, ids in requests for one in ids], dtype=np.int64),
        starts=np.array([0, *np.cumsum(counts)]),
        block_tokens=BLOCK,
        is_whole=True,
    )


def account(found: PrefixTrace, n_blocks: int) -> PrefixAccount:
    return account_prefixes(
        found, n_blocks=n_blocks, block_bytes=10, blocks_of=lambda tokens: -(-tokens // BLOCK),
        prefix_blocks_of=lambda tokens: tokens // BLOCK, page_tokens=BLOCK,
    )  # fmt: skip


# Three requests of 9 + 1 tokens, 3 blocks each; the first two ids of all are alike.
ALIKE = trace((9, 1, [1, 2, 10]), (9, 1, [1, 2, 11]), (9, 1, [1, 2, 12]))


def test_blocks_in_common_are_held_once_by_hand() -> None:
    got = account(ALIKE, 5)
    assert got.admitted_sequences == 3  # 3 + 1 + 1 blocks; alone one fits in 5
    assert got.allocated_bytes == 50
    assert account(ALIKE, 4).admitted_sequences == 2
    assert account(ALIKE, 2).admitted_sequences == 0


def test_hits_are_prompt_tokens_found_again_by_hand() -> None:
    got = account(ALIKE, 5)
    assert got.unbounded_hit_rate == got.hit_rate == Fraction(8 + 8, 27)
    by_share = {one.pool_share: one.hit_rate for one in got.hit_rates}
    assert by_share[Fraction(1, 4)] == 0  # one block holds no request
    assert list(by_share) == [Fraction(1, 4), Fraction(1, 2), 1, 2, 4]


def test_the_least_recently_used_is_forgotten_by_hand() -> None:
    # Two prompts of 2 blocks that come again in turn: 6 blocks hold both, 5 forget the first's tail.
    a, b = (8, 1, [1, 2]), (8, 1, [3, 4])
    turns = trace(a, b, a, b)
    # The last token is computed: 4 of 8 tokens are found, one block.
    assert account(turns, 6).hit_rate == Fraction(4 + 4, 32)
    # 5 blocks: of a only its last two parts go (output, then block 2), so its first is found.
    assert account(turns, 4).hit_rate == Fraction(4 + 4, 32)
    assert account(turns, 3).hit_rate == 0  # one request fills the cache


def test_a_hit_ends_at_the_first_block_that_is_missing() -> None:
    got = account(trace((12, 1, [1, 2, 3]), (12, 1, [9, 2, 3])), 100)
    assert got.hit_rate == 0
    assert got.admitted_sequences == 2


def test_a_prompt_that_comes_again_whole_computes_its_last_block() -> None:
    same = (8, 0, [1, 2])
    got = account(trace(same, same), 3)
    assert got.unbounded_hit_rate == Fraction(4, 16)
    assert got.allocated_bytes == 10 * (2 + 1)


def test_a_request_larger_than_the_pool_runs_nowhere() -> None:
    got = account(trace((40, 1, list(range(10))), (9, 1, [0, 1, 50]), (9, 1, [0, 1, 51])), 4)
    assert got.admitted_sequences == 0
    assert got.hit_rate == Fraction(8, 58)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 9)), min_size=1, max_size=20
    ),
    st.integers(0, 40),
)
def test_sharing_never_holds_less_and_a_larger_cache_finds_no_less_in_all(
    drawn: list[tuple[int, int, int]], n_blocks: int
) -> None:
    requests = []
    for index, (family, n_alike, output) in enumerate(drawn):
        ids = [100 * family + k for k in range(n_alike)] + [10_000 + index]
        requests.append((len(ids) * BLOCK, output, ids))
    got = account(trace(*requests), n_blocks)
    sizes = np.array([-(-(p + o) // BLOCK) for p, o, _ in requests])
    alone = int(np.searchsorted(sizes.cumsum(), n_blocks, side="right"))
    assert got.admitted_sequences >= alone
    assert got.allocated_bytes <= 10 * int(sizes.sum())
    assert all(0 <= one.hit_rate <= got.unbounded_hit_rate for one in got.hit_rates)
    endless = account(trace(*requests), 10**6)
    assert endless.hit_rate == got.unbounded_hit_rate


def written(folder: Path, *requests: dict[str, Any]) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in requests))
    return path


def request(time: float, prompt: int, output: int, ids: Any) -> dict[str, Any]:
    return {"timestamp": time, "input_length": prompt, "output_length": output, "hash_ids": ids}


def test_a_trace_is_read_in_order_of_arrival(tmp_path: Path) -> None:
    found = read_prefixes(
        written(
            tmp_path, request(5, 1000, 3, [1, 2]), request(0, 0, 0, []), request(2, 600, 4, [1, 9])
        )
    )
    assert found is not None
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([600, 1000], [4, 3])
    assert (found.ids.tolist(), found.starts.tolist()) == ([1, 9, 1, 2], [0, 2, 4])
    assert (found.block_tokens, found.is_whole) == (512, True)


def test_packed_files_and_folders_are_read_too(tmp_path: Path) -> None:
    path = written(tmp_path, request(5, 1000, 3, [1, 2]))
    first = gzip.compress(path.read_bytes())
    path.unlink()
    (tmp_path / "b.jsonl.gz").write_bytes(first)
    (tmp_path / "a.jsonl").write_text(json.dumps(request(7, 600, 4, [1, 9])))
    found = read_prefixes(tmp_path)
    assert found is not None
    assert found.ids.tolist() == [1, 2, 1, 9]  # by arrival, over all files


def test_other_traces_name_no_prefixes(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,374,44\n")
    assert read_prefixes(path) is None
    plain = {"timestamp": 0, "input_length": 6, "output_length": 2}
    assert read_prefixes(written(tmp_path, plain)) is None


@pytest.mark.parametrize(
    ("prompts", "counts", "block"),
    [([7000, 7393], [14, 14], 512), ([1000, 33], [63, 3], 16), ([1000, 40], [62, 2], 16),
     ([100], [1], 512)],
)  # fmt: skip
def test_the_block_is_that_which_suits_all_prompts(
    prompts: list[int], counts: list[int], block: int
) -> None:
    assert block_tokens_of(Path("t"), np.array(prompts), np.array(counts)) == block


@pytest.mark.parametrize(
    ("ids", "message"),
    [("x", "must be a list"), ([1.5], "must be a list"), (None, "must be a list"),
     ([-1], "must be a list"), (list(range(90)), "no size of block makes")],
)  # fmt: skip
def test_ids_that_cannot_be_used_are_named(tmp_path: Path, ids: Any, message: str) -> None:
    path = written(tmp_path, request(0, 5000, 1, list(range(10))), request(1, 100, 1, ids))
    with pytest.raises(SpecError, match=message):
        read_prefixes(path)
    # The lengths are still answered for, and a note says what is not.
    found = lrkv_plan.capacity("llama-3.1-8b", kv_memory="10 GiB", trace=path)
    assert any("not counted" in str(note) for note in found.notes)
    assert "prefix_hit_rate" not in found.rows[0]


def test_capacity_says_how_many_run_with_and_without(tmp_path: Path) -> None:
    # Four requests of 13 blocks of 512 tokens in common: 463 + 55 + 63 + 72 blocks of 16 tokens.
    common = list(range(13))
    path = written(
        tmp_path,
        *(request(i, 7000 + 131 * i, 400 + i, [*common, 100 + i]) for i in range(4)),
    )
    found = lrkv_plan.capacity("llama-3.1-8b", kv_memory="1.5 GiB", trace=path)
    (row,) = found.rows
    assert row["population_admitted_sequences"] == 1
    assert row["prefix_admitted_sequences"] == 4
    assert row["prefix_allocated_bytes"] == (463 + 55 + 63 + 72) * 16 * 131_072
    assert row["prefix_hit_rate"] == pytest.approx(3 * 13 * 512 / 28_786)
    assert "With common prefixes held once 4 fit" in found.verdict
    alone = lrkv_plan.capacity("llama-3.1-8b", engine="llama_cpp", kv_memory="2 GiB", trace=path)
    assert "prefix_hit_rate" not in alone.rows[0]
    assert any("llama_cpp shares no prefixes here" in str(note) for note in alone.notes)
    assert "0.5 pools 0 %, 1 pools 69.4 %" in found.explain(0)
