"""Allocation rules by hand on small pools, and properties that hold for every engine."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrkv_plan
from lrkv_plan.errors import PlacementError, SpecError, UsageError
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.serving.engine import (
    built_in_engines,
    engine_named,
    pool_of,
    stage_models,
    stage_pools,
)
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import EngineSettings, Parallelism, parse_engine
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import SOURCE, make_model

# One layer of 2 KV heads of 16 in bf16: 2 * 2 * 16 * 2 = 128 bytes per token.
FULL = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 16}
PLAIN = make_model(FULL, n_layers=4)
ROW = 128


def pool(
    model: ModelSpec, budget: int, engine: str = "vllm", context: int = 100, **settings: Any
) -> Pool:
    sizes = {k: settings.pop(k) for k in list(settings) if k.endswith("_size")}
    return pool_of(
        model,
        (budget,) * sizes.get("pp_size", 1),
        EngineSettings(context_tokens=context, **settings),
        engine=engine_named(engine),
        parallel=Parallelism(**sizes),
    )


def test_uniform_blocks_by_hand() -> None:
    # A block: 16 tokens * 4 layers * 128 B = 8,192 B. 100,000 B hold 12; a request of 100 takes 7.
    got = pool(PLAIN, 100_000)
    assert (got.n_blocks, got.block_tokens, got.block_bytes) == (12, 16, 8_192)
    assert got.kv_tokens == int(Fraction(12, 7) * 100) == 171  # 0.21 and later
    assert pool(PLAIN, 100_000, "vllm@0.19").kv_tokens == 12 * 16
    assert got.max_concurrency == Fraction(12, 7)
    assert got.max_sequences == 1
    assert got.bytes_per_token_per_gpu == 4 * ROW
    # The request's 7 blocks hold 112 tokens of which 100 are used.
    assert got.waste_share == Fraction(12, 112)


def test_groups_are_the_whole_models_on_every_stage() -> None:
    # Windows and full layers 3:1, 12 layers: groups of 3, one full and three of windows. On a
    # stage of 7 are 6 windows, 2 of each group, and 1 full layer: blocks of 2 pages, not of 1.
    windows = {"attention": FULL, "window_tokens": 16, "window_kind": "sliding"}
    model = ModelSpec.model_validate(
        {"name": "toy", "source": SOURCE, "model_dim": 256,
         "layers": [{**windows, "count": 9}, {"attention": FULL, "count": 3}],
         "layer_order": [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1]}
    )  # fmt: skip
    parallel = Parallelism(pp_size=2, pp_layers=(7, 5))
    settings = EngineSettings(context_tokens=1600, max_batched_tokens=16)
    budgets = (100 * 16 * ROW,) * 2

    def pools(engine: str) -> list[tuple[int, int, int]]:
        found = stage_pools(
            model, budgets, settings, engine=engine_named(engine), parallel=parallel
        )
        return [(one.block_bytes, one.n_groups, one.n_blocks) for one in found if one is not None]

    page = 16 * ROW
    assert pools("vllm@0.19") == [(2 * page, 4, 50), (2 * page, 4, 50)]
    # Before, of the stage alone: 6 windows in groups of 1; 3 in two groups of 2, the full ones in one.
    assert pools("vllm@0.10") == [(page, 7, 100), (2 * page, 3, 50)]


@pytest.mark.parametrize(
    ("engine", "flag"),
    [("vllm", "disable_hybrid_kv_cache_manager"), ("sglang", "disable_hybrid_swa_memory")],
)
def test_windows_may_be_told_to_keep_every_token(engine: str, flag: str) -> None:
    windowed = make_model(FULL, n_layers=4, window_tokens=20, window_kind="sliding")
    got, plain = pool(windowed, 100_000, engine, **{flag: True}), pool(PLAIN, 100_000, engine)
    assert (got.n_blocks, got.max_sequences, got.kv_tokens) == (
        plain.n_blocks, plain.max_sequences, plain.kv_tokens,
    )  # fmt: skip
    assert got.kv_tokens != pool(windowed, 100_000, engine).kv_tokens


def test_v0_prints_tokens_over_length_and_ignores_windows() -> None:
    windowed = make_model(FULL, n_layers=4, window_tokens=20, window_kind="sliding")
    got = pool(windowed, 100_000, "vllm@0.6.3")
    assert got.engine.name == "vllm_v0"
    assert got.max_concurrency == Fraction(12 * 16, 100)
    assert got.kv_tokens == 192


def test_hybrid_groups_by_hand() -> None:
    # 2 full + 5 sliding layers: g = 2, groups 1 + 3, one padding layer. Block 16 * 2 * 128 = 4,096 B.
    layers = [
        {"count": 2, "attention": FULL},
        {"count": 5, "attention": FULL, "window_tokens": 32, "window_kind": "sliding"},
    ]
    model = make_model(FULL, layers=layers)
    got = pool(model, 410_000, "vllm@0.19", context=1000, max_batched_tokens=64)
    assert (got.n_groups, got.n_blocks) == (4, 100)
    # full ceil(1000/16) = 63; sliding ceil(min(31 + 64, 1000)/16) + 1 = 7, three groups.
    assert got.max_concurrency == Fraction(100, 63 + 3 * 7)
    assert got.kv_tokens == 100 // 4 * 16
    assert "1 padding layers beside 5 sliding layers (20.00%)" in got.remarks


def test_a_kind_within_a_quarter_is_padded_up_instead_of_split() -> None:
    layers = [
        {"count": 5, "attention": FULL},
        {"count": 6, "attention": FULL, "window_tokens": 32, "window_kind": "sliding"},
    ]
    assert pool(make_model(FULL, layers=layers), 10**6).n_groups == 2  # 6 < 1.25 * 5


def test_state_pages_raise_the_block() -> None:
    # State of 5,000 B; attention rows 128 B: 16 * ceil(5000 / 2048) = 48 tokens, 6,144 B pages.
    layers = [
        {"count": 1, "attention": FULL},
        {"count": 3, "state": [{"name": "ssm", "bytes_per_copy": 5_000}]},
    ]
    model = make_model(FULL, layers=layers)
    got = pool(model, 61_440, "vllm@0.19", context=480)
    assert (got.block_tokens, got.block_bytes, got.n_blocks) == (48, 6_144, 10)
    assert got.max_concurrency == Fraction(10, 10 + 3)
    cached = pool(model, 61_440, "vllm@0.19", context=480, prefix_cache=True)
    assert cached.max_concurrency == Fraction(10, 10 + 3 * 2)


def test_pages_of_two_widths_are_made_equal() -> None:
    wide = {**FULL, "head_dim": 32}
    layers = [
        {"count": 2, "attention": wide, "window_tokens": 64, "window_kind": "sliding"},
        {"count": 2, "attention": FULL},
    ]
    got = pool(make_model(FULL, layers=layers), 10**6, "vllm@0.19", context=320)
    # Page 16 * 256 = 4,096 B: the narrow layers' blocks hold 32 tokens.
    assert got.block_bytes == 2 * 4_096
    assert got.blocks_of(320) == 10 + (20 + 1)
    odd = [layers[0], {"count": 2, "attention": {**FULL, "head_dim": 24}}]
    with pytest.raises(PlacementError, match="cannot be made equal"):
        pool(make_model(FULL, layers=odd), 10**6)


def test_decode_context_parallel_multiplies_the_tokens() -> None:
    latent = {
        "family": "mla",
        "n_heads": 8,
        "latent_dim": 56,
        "rope_dim": 8,
        "nope_dim": 16,
        "v_head_dim": 16,
    }
    model = make_model(latent)
    one, four = (pool(model, 10**5, "vllm@0.19", tp_size=8, dcp_size=n) for n in (1, 4))
    assert one.n_blocks == four.n_blocks
    assert four.kv_tokens == 4 * one.kv_tokens


def test_the_smallest_pipeline_stage_decides() -> None:
    # 5 layers on 2 stages: the remainder goes before the last stage, 3 + 2.
    model = make_model(FULL, n_layers=5)
    assert [stage.n_layers for stage in stage_models(model, Parallelism(pp_size=2))] == [3, 2]
    settings = EngineSettings(context_tokens=100)
    args = {"engine": engine_named("vllm"), "parallel": Parallelism(pp_size=2)}
    got = pool_of(model, (60_000, 60_000), settings, **args)  # type: ignore[arg-type]
    assert got.n_blocks == 60_000 // (16 * 3 * ROW)
    got = pool_of(model, (60_000, 20_000), settings, **args)  # type: ignore[arg-type]
    assert got.n_blocks == 20_000 // (16 * 2 * ROW)


def test_sglang_counts_tokens_and_leaves_state_out() -> None:
    layers = [
        {"count": 4, "attention": FULL},
        {"count": 3, "state": [{"name": "ssm", "bytes_per_copy": 5_000}]},
    ]
    got = pool(make_model(FULL, layers=layers), 100_000, "sglang")
    assert got.kv_tokens == 100_000 // (4 * ROW)
    assert "15,000 B per sequence" in got.remarks[0]


def test_llama_cpp_reserves_whole_contexts() -> None:
    # 300 tokens are 512 cells; 512 * 4 * 128 = 262,144 B. Two sequences: 600 -> 768 cells.
    got = pool(PLAIN, 2 * 262_144, "llama.cpp", context=300)
    assert got.max_sequences == 3  # 900 -> 1,024 cells = 524,288 B
    assert got.kv_tokens == 900


def test_ideal_is_the_upper_bound_of_every_engine() -> None:
    best = pool(PLAIN, 10**6, "ideal", context=333).max_sequences
    assert best == 10**6 // (333 * 4 * ROW)
    for engine in built_in_engines():
        assert pool(PLAIN, 10**6, engine, context=333).max_sequences <= best


@pytest.mark.parametrize("engine", sorted(built_in_engines()))
@given(budget=st.integers(0, 10**8), context=st.integers(1, 5000))
def test_properties_of_every_engine(engine: str, budget: int, context: int) -> None:
    got = pool(PLAIN, budget, engine, context=context)
    held = got.max_sequences * got.blocks_of(context)
    if engine not in (
        "llama_cpp",
        "ik_llama_cpp",
        "ollama",
    ):  # cells of several sequences are padded together there
        assert held <= got.n_blocks
        assert got.n_blocks < held + got.blocks_of(context) or got.binds != "cache memory"
    assert 0 <= got.waste_share < 1
    more = pool(PLAIN, budget + 10**6, engine, context=context)
    assert more.max_sequences >= got.max_sequences
    lengths = np.arange(1, 40)
    assert got.blocks_of(lengths).tolist() == [got.blocks_of(int(n)) for n in lengths]


def test_low_rank_pages_show_their_padding() -> None:
    base = make_model({"family": "mha", "n_heads": 4, "head_dim": 16}, n_layers=2)
    stored = swap_attention(base, "lrkv:5,align=8")
    got = pool(stored, 10**6, context=16)
    # One page: 16 tokens * 2 layers * 2 B * 2 (16 + 4*8); payload 2 (16 + 4*5).
    assert got.block_bytes == 16 * 2 * 2 * 2 * (16 + 32) == 16 * bytes_per_token(stored)
    assert got.waste_share == Fraction(32 - 20, 48)


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("vllm", "vllm", None),
        ("vllm@0.11.0", "vllm", (0, 11, 0)),
        ("vLLM@v0.29.1rc1", "vllm", (0, 29, 1)),
        ("llama.cpp", "llama_cpp", None),
        ("tensorrt-llm@1.0", "tensorrt_llm", (1, 0)),
        ("vllm@0.7.3", "vllm_v0", (0, 7, 3)),
        ("trtllm@0.21", "tensorrt_llm", (0, 21)),
    ],
)
def test_engine_names(text: str, name: str, version: object) -> None:
    engine = engine_named(text)
    assert (engine.name, engine.version) == (name, version)


@pytest.mark.parametrize("text", ["vlm", "", "vllm@new", "vllm@", "a" * 100])
def test_unknown_engines_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="engine"):
        engine_named(text)
    assert parse_engine("vllm@0.10.2").at_least(0, 10)


def test_layers_that_store_alike_are_alike_whatever_their_payload() -> None:
    """Ranks 5 and 6 are both stored at 16: 8 full and 8 windowed layers, two groups of vLLM."""

    def layers(*counts_and_ranks: tuple[int, int]) -> ModelSpec:
        full = [
            {"count": n, "attention": {"family": "lrkv", "n_heads": 4, "head_dim": 16, "rank": r,
                                       "rank_alignment": 16}}
            for n, r in counts_and_ranks
        ]  # fmt: skip
        windowed = {**full[0], "count": 8, "window_tokens": 64, "window_kind": "sliding"}
        return ModelSpec.model_validate(
            {"name": "toy", "source": SOURCE, "model_dim": 64, "layers": [*full, windowed]}
        )

    def pool_of_10_mb(model: ModelSpec) -> Pool:
        engine, settings = engine_named("vllm@0.19.0"), EngineSettings(context_tokens=1000)
        return pool_of(model, (10**7,), settings, engine=engine, parallel=Parallelism())

    mixed = pool_of_10_mb(layers((3, 5), (5, 6)))
    alike = pool_of_10_mb(layers((8, 5)))
    assert mixed.n_groups == alike.n_groups == 2
    assert mixed.max_concurrency == alike.max_concurrency
    assert mixed.waste_share < alike.waste_share  # rank 6 fills more of its row


def test_a_model_that_keeps_nothing_has_no_pool() -> None:
    block = {"kind": "dense", "hidden_dim": 8, "gated": True}
    model = {
        "name": "blocks", "source": {"citation": "made up", "read_on": "2026-11-30"},
        "model_dim": 64, "layers": [{"count": 2, "feed_forward": block}],
    }  # fmt: skip
    with pytest.raises(SpecError, match="blocks: no layer keeps a cache or a state"):
        lrkv_plan.capacity(model, kv_memory="1 GiB")
