"""A prefix that all sequences have in common, by each engine's own blocks."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import PlacementError, PlanError

GIB = 2**30
TOKEN = 32 * 2 * 8 * 128 * 2  # bytes of llama-3.1-8b: 128 KiB


def held(engine: str = "vllm", model: str = "llama-3.1-8b", **told: Any) -> int:
    default = {"kv_memory": 10 * GIB, "context_tokens": 8192, "engine": engine}
    (row,) = lrkv_plan.capacity(model, **(default | told)).rows
    return int(row["max_sequences"])


def test_whole_blocks_are_held_once_by_hand() -> None:
    # 10 GiB are 5,120 blocks of 16 tokens; a sequence takes 512. 4,000 tokens are 250 blocks:
    # (5,120 - 250) / (512 - 250) = 18.6.
    assert held() == 10
    assert held(shared_prefix_tokens=4000) == 18
    # 4,007 tokens are 250 whole blocks too, 4,016 are 251: (5,120 - 251) / 261 = 18.66
    assert held(shared_prefix_tokens=4007) == held(shared_prefix_tokens=4000)
    # In blocks of 128 tokens 4,000 are 31: (640 - 31) / (64 - 31) = 18.45
    assert held(shared_prefix_tokens=4000, page_tokens=128) == 18


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    # All 8,192 tokens alike: 511 of 512 blocks are shared, (5,120 - 511) / 1
    assert held(shared_prefix_tokens=8192) == 5120 - 511


@pytest.mark.parametrize(
    ("engine", "page"),
    [("sglang", 1), ("tensorrt_llm", 32), ("lmdeploy", 64), ("tgi", 1), ("exllama", 256),
     ("paged", 16), ("ideal", 1)],
)  # fmt: skip
def test_engines_share_by_their_own_blocks(engine: str, page: int) -> None:
    shared = 4000 // page * page
    tokens = 10 * GIB // TOKEN
    assert held(engine, shared_prefix_tokens=4000) == (tokens - shared) // (8192 - shared)


@pytest.mark.parametrize("engine", ["llama_cpp", "ollama", "mlx", "vllm_v0"])
def test_engines_that_share_nothing_say_so(engine: str) -> None:
    with pytest.raises(PlanError, match="do not use it"):
        held(engine, shared_prefix_tokens=4000)


def test_what_the_engine_prints_does_not_know_of_it() -> None:
    told = {"kv_memory": 10 * GIB, "context_tokens": 8192}
    plain, shared = (
        lrkv_plan.capacity("llama-3.1-8b", **told, **more).rows[0]
        for more in ({}, {"shared_prefix_tokens": 4000})
    )
    assert shared["max_concurrency"] == plain["max_concurrency"] == 10
    assert shared["kv_tokens"] == plain["kv_tokens"]
    assert (shared["blocks_per_sequence"], shared["shared_prefix_blocks"]) == (512, 250)
    found = lrkv_plan.capacity("llama-3.1-8b", **told, shared_prefix_tokens=4000)
    assert "(5,120 - 250 in common) / (512 - 250) = 18.59" in found.explain(0)


def test_uneven_lengths_share_by_their_own_ids_only() -> None:
    with pytest.raises(PlanError, match="leave one of them out"):
        held(shared_prefix_tokens=100, length_percentiles="p50=2k,p95=8k", context_tokens=None)


def test_one_sequence_that_does_not_fit_shares_with_nobody() -> None:
    assert held(kv_memory=GIB // 2, shared_prefix_tokens=8000) == 0


def test_windows_are_each_sequences_own() -> None:
    # gemma-3-12b: 40 windows of 1,024 and 8 full layers, in groups of 8: 5 groups of windows and
    # one of full layers, in blocks of 16 tokens. Only the full group's 250 blocks are shared.
    (row,) = lrkv_plan.capacity(
        "gemma-3-12b", kv_memory=10 * GIB, context_tokens=8192, shared_prefix_tokens=4000,
        engine="vllm@0.19",
    ).rows  # fmt: skip
    (alone,) = lrkv_plan.capacity(
        "gemma-3-12b", kv_memory=10 * GIB, context_tokens=8192, engine="vllm@0.19"
    ).rows
    each = alone["n_blocks"] / alone["max_concurrency"]
    assert row["max_sequences"] == int((row["n_blocks"] - 250) / (each - 250))


def test_states_share_only_with_prefix_caching() -> None:
    told = {"shared_prefix_tokens": 4096, "kv_memory": 10 * GIB, "context_tokens": 32_768}
    with pytest.raises(PlacementError, match="--prefix-cache"):
        held(model="qwen3-next-80b-a3b", **told)
    shared = held(model="qwen3-next-80b-a3b", prefix_cache=True, **told)
    told["shared_prefix_tokens"] = 0
    assert shared > held(model="qwen3-next-80b-a3b", prefix_cache=True, **{
        k: v for k, v in told.items() if k != "shared_prefix_tokens"})  # fmt: skip


def test_sglang_without_its_tree_shares_nothing() -> None:
    with pytest.raises(PlacementError, match="--disable-radix-cache"):
        held("sglang", shared_prefix_tokens=100, disable_radix_cache=True)


def test_sglang_runs_so_many_requests_where_none_are_stated() -> None:
    # 81,920 tokens of 8 each would be 10,240 requests: at most 4,096 run.
    assert held("sglang", context_tokens=8) == 4096
    assert held("sglang", context_tokens=8, max_num_seqs=5000) == 5000


def test_the_verdict_says_what_is_in_common() -> None:
    text = lrkv_plan.capacity("llama-3.1-8b", gpu="h100-sxm", shared_prefix_tokens=4000).verdict
    assert "(4,000 in common)" in text
