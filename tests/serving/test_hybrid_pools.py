"""States, drafters and windows in pools: what engines printed, and their rules by hand."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.serving.budget import BudgetInputs, budget_for
from lrkv_plan.serving.engine import engine_named, pool_of
from lrkv_plan.serving.engines import llama_cpp, sglang
from lrkv_plan.serving.pool import LayerKind, Pool, layer_kinds
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import GIB
from tests.conftest import make_model

FULL = {"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
# A 27B hybrid: 16 full layers of 4 heads of 256, 48 of gated DeltaNet (16 key heads, 48 value heads
# of 128, 4 columns), states in float32.
CONV_BYTES, STATE_BYTES = 3 * 10_240 * 2, 48 * 128 * 128 * 4
HYBRID_27B: list[dict[str, Any]] = [
    {"count": 16, "attention": {"family": "gqa", "n_heads": 24, "n_kv_heads": 4, "head_dim": 256}},
    {"count": 48, "state": [
        {"name": "conv", "bytes_per_copy": CONV_BYTES // 16, "copies": 16, "scalar_bytes": 2,
         "bytes_per_draft_token": 10_240 * 2 // 16},
        {"name": "recurrent", "bytes_per_copy": STATE_BYTES // 48, "copies": 48, "scalar_bytes": 4},
    ]},
]  # fmt: skip
DRAFTER = {"family": "gqa", "n_heads": 32, "n_kv_heads": 8, "head_dim": 128}


def hybrid() -> ModelSpec:
    return make_model(FULL, layers=HYBRID_27B)


def drafter(window: int | None) -> ModelSpec:
    kind = {} if window is None else {"window_tokens": window, "window_kind": "sliding"}
    return make_model(FULL, layers=[{"count": 5, "attention": DRAFTER, **kind}])


def pool(
    model: ModelSpec, budget: float, engine: str, *, tp: int = 1, dcp: int = 1, **told: Any
) -> Pool:
    settings = EngineSettings(**{"context_tokens": 8192, **told})
    return pool_of(
        model, (int(budget),), settings, engine=engine_named(engine),
        parallel=Parallelism(tp_size=tp, dcp_size=dcp),
    )  # fmt: skip


def inputs(model: ModelSpec, engine: str, *, tp: int = 1, **told: Any) -> BudgetInputs:
    return BudgetInputs(
        engine=engine_named(engine), model=model, hardware=lrkv_plan.load_gpu("h100-sxm"),
        parallel=Parallelism(tp_size=tp), settings=EngineSettings(context_tokens=8192, **told),
        utilisation=Fraction(9, 10), weight_bytes=GIB,
    )  # fmt: skip


# SGLang ------------------------------------------------------------------------------------------


def test_sglang_slots_of_the_printed_pool() -> None:
    # A public boot log of 0.5.21, TP 4, ratio 0.9, 53.38 GiB in all: 2,211 slots in 25.28 GiB and
    # 19,644,177 tokens of 1,536 B. 23 layers of Mamba-2: 64 heads x 64 x 128, 8 groups, 4 columns.
    model = lrkv_plan.load_model("nemotron-3-nano-30b-a3b")
    told = inputs(model, "sglang@0.5.21", tp=4)
    slot = sglang.slot_bytes(model, told)
    assert slot == 23 * (16 * 64 * 128 * 4 + 3 * (1024 + 2 * 2 * 128) * 2)
    rest = int(53.38 * GIB)
    slots = sglang.state_slots(rest, slot, told)
    assert abs(slots - 2_211) <= 1
    assert round((slots + 1) * slot / GIB, 2) == pytest.approx(25.28, abs=0.011)
    assert (rest - 2_212 * slot) / 1536 == pytest.approx(19_644_177, rel=3e-4)


def test_sglang_slots_by_hand() -> None:
    slot, rest = 100, 19_000  # at a ratio of 0.9: 9,000 B for states
    model = hybrid()
    assert sglang.state_slots(rest, slot, inputs(model, "sglang@0.5.9")) == 90
    assert sglang.state_slots(rest, slot, inputs(model, "sglang")) == 89  # one of padding
    # 4 drafted tokens, 5 slots a request: (9,000 - 500) / (100 x 1.8) = 47.2
    drafts = {"draft_layers": 1, "draft_tokens": 4}
    assert sglang.state_slots(rest, slot, inputs(model, "sglang", **drafts)) == 47
    even = inputs(model, "sglang", mamba_full_memory_ratio=Fraction(1))
    assert sglang.state_slots(rest, slot, even) == 94
    off = inputs(model, "sglang", disable_radix_cache=True, max_num_seqs=7)
    assert sglang.state_slots(rest, slot, off) == 7


def test_sglang_slots_cap_the_requests_that_run() -> None:
    # A public report: 40 slots with speculation run 8 requests.
    told = {"max_mamba_cache_size": 40}
    got = pool(hybrid(), 40 * GIB, "sglang", **told)
    assert (got.max_sequences, got.binds) == (8, "state slots")
    for strategy, running in (("no_buffer", 13), ("lazy", 10), ("extra_buffer", 8)):
        got = pool(hybrid(), 40 * GIB, "sglang", mamba_scheduler_strategy=strategy, **told)
        assert got.max_sequences == running
    assert pool(hybrid(), 40 * GIB, "sglang", disable_radix_cache=True, **told).max_sequences == 40
    assert pool(hybrid(), 40 * GIB, "sglang@0.5.9", **told).max_sequences == 13
    with pytest.raises(UsageError, match="known: no_buffer, lazy, extra_buffer"):
        pool(hybrid(), 40 * GIB, "sglang", mamba_scheduler_strategy="none", **told)


def test_sglang_takes_states_from_the_same_memory() -> None:
    # 360 slots of a public log: 50.77 + 0.99 GiB with the one of padding.
    model = hybrid()
    told = EngineSettings(context_tokens=3072, kv_dtype="fp8", max_mamba_cache_size=360)
    with_slots = budget_for(
        engine_named("sglang"), model, lrkv_plan.load_gpu("b200"), Parallelism(), told,
        weight_bytes=20 * GIB,
    )  # fmt: skip
    stage = with_slots.stages[0]
    assert -stage.bytes_of("state slots") == 361 * 48 * (CONV_BYTES + STATE_BYTES)
    assert -stage.bytes_of("state slots") / GIB == pytest.approx(50.77 + 0.99, abs=0.01)
    assert with_slots.state_slots == 360


def test_sglang_drafts_keep_states_until_they_are_accepted() -> None:
    told = EngineSettings(
        context_tokens=3072, max_mamba_cache_size=40, draft_layers=1, draft_tokens=4
    )
    stage = budget_for(
        engine_named("sglang"), hybrid(), lrkv_plan.load_gpu("b200"), Parallelism(), told,
        weight_bytes=20 * GIB,
    ).stages[0]  # fmt: skip
    slot = 48 * (CONV_BYTES + STATE_BYTES)
    assert -stage.bytes_of("draft states") == (8 + 1) * 4 * slot


def test_sglang_window_pool_follows_its_ratio() -> None:
    window = {"window_tokens": 128, "window_kind": "sliding"}
    model = make_model(
        FULL, layers=[{"count": 2, "attention": FULL}, {"count": 6, "attention": FULL, **window}]
    )
    row = 2 * 2 * 64 * 2
    for share, per_token in ((None, 2 + Fraction(48, 10)), (Fraction(1, 10), 2 + Fraction(6, 10))):
        got = pool(model, 10**8, "sglang", swa_full_tokens_ratio=share)
        assert got.kv_tokens == int(10**8 / (per_token * row))


# llama.cpp ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("drafts", "mib"), [(0, 149.62), (2, 448.88), (4, 748.12)])
def test_llama_cpp_keeps_a_whole_state_for_every_draft(drafts: int, mib: float) -> None:
    kinds = llama_cpp.kept_kinds(
        hybrid(), EngineSettings(context_tokens=32_768, draft_tokens=drafts)
    )
    held = sum(kind.count * kind.fixed_bytes for kind in kinds)
    assert held / 2**20 == pytest.approx(mib, abs=0.0051)


def test_llama_cpp_slots_of_their_own() -> None:
    swa = LayerKind(keeps="sliding", count=1, window_tokens=1024)
    full = LayerKind(keeps="full", count=1)
    shared = [llama_cpp.cells(kind, 4, 1000, 512) for kind in (full, swa)]
    apart = [llama_cpp.cells(kind, 4, 1000, 512, unified=False) for kind in (full, swa)]
    assert shared == [4096, 4096]  # pad256(4,000); no fewer than 4 x 1,024 + 512
    assert apart == [4 * 1024, 4 * 1024]
    assert llama_cpp.cells(full, 3, 300, 512) == 1024
    assert llama_cpp.cells(full, 3, 300, 512, unified=False) == 3 * 512
    model = make_model(FULL)
    both = (
        pool(model, 10**8, "llama_cpp", context_tokens=300, no_kv_unified=x) for x in (False, True)
    )
    assert next(both).max_sequences > next(both).max_sequences


# vLLM --------------------------------------------------------------------------------------------


def test_vllm_drafter_of_its_own_shape() -> None:
    # noonghunna/club-3090#1064, TP 4, fp8, 7 drafts, a 5-layer block drafter with windows of 2,048:
    # blocks of 1,648 tokens in groups of 5 layers, 4 x 319 + 10 x 9 + 13 = 1,379 a request.
    got = pool(
        hybrid(), 10.85 * GIB, "vllm@0.27.0", tp=4, kv_dtype="fp8", context_tokens=524_288,
        drafter=drafter(2048), draft_tokens=7, prefix_cache=True, max_batched_tokens=8192,
    )  # fmt: skip
    assert (got.block_tokens, got.n_groups) == (1648, 15)
    assert got.blocks_of(524_288) == 1_379
    assert abs(got.n_blocks - 2_760) <= 2  # 10.85 is rounded to 0.005
    assert int(Fraction(2_760, 1_379) * 524_288) == 1_049_336


@pytest.mark.parametrize(
    ("told", "need", "blocks", "printed"),
    [
        ({"draft_layers": 1, "draft_tokens": 3}, 175, 1_066, 1_559_405),
        ({"drafter": drafter(2048), "draft_tokens": 7}, 727, 3_284, 1_156_401),
    ],
    ids=["MTP", "DFlash"],
)
def test_vllm_need_of_a_request_on_an_h20(
    told: dict[str, Any], need: int, blocks: int, printed: int
) -> None:
    # vllm-project/recipes pull request 839: both printed, fp8 cache, 256,000 tokens.
    got = pool(
        hybrid(), 40 * GIB, "vllm@0.27.0", kv_dtype="fp8", context_tokens=256_000,
        prefix_cache=True, max_batched_tokens=8192, **told,
    )  # fmt: skip
    assert got.blocks_of(256_000) == need
    assert int(Fraction(blocks, need) * 256_000) == printed


def test_vllm_state_format_makes_shorter_blocks() -> None:
    plain, half = (
        pool(hybrid(), 10 * GIB, "vllm", mamba_ssm_cache_dtype=name) for name in (None, "bf16")
    )
    row = 2 * 4 * 256 * 2
    assert plain.block_tokens == 16 * -(-(CONV_BYTES + STATE_BYTES) // (16 * row))
    assert half.block_tokens == 16 * -(-(CONV_BYTES + STATE_BYTES // 2) // (16 * row))
    with pytest.raises(UsageError, match="16 or 32 bits"):
        pool(hybrid(), 10 * GIB, "vllm", mamba_ssm_cache_dtype="fp8")


def test_vllm_pads_kinds_within_a_half_from_0_20_on() -> None:
    window = {"window_tokens": 128, "window_kind": "sliding"}
    model = make_model(
        FULL, layers=[{"count": 10, "attention": FULL}, {"count": 13, "attention": FULL, **window}]
    )
    assert pool(model, 10**9, "vllm@0.19").n_groups == 1 + 2  # groups of 10
    assert pool(model, 10**9, "vllm@0.20").n_groups == 1 + 1  # groups of 13, 3 of padding


def test_vllm_shares_tokens_among_gpus_with_the_same_heads() -> None:
    model = make_model(FULL)
    one, two = (pool(model, 10**8, "vllm", tp=4, dcp=n) for n in (1, 2))
    assert two.kv_tokens == pytest.approx(2 * one.kv_tokens, rel=1e-3)
    with pytest.raises(PlacementError, match="2 key/value heads are on 2 of 4 GPUs"):
        pool(model, 10**8, "vllm", tp=4, dcp=4)
    with pytest.raises(PlacementError, match="no windows, states"):
        pool(hybrid(), 10**10, "vllm", tp=4, dcp=2)


def test_a_stated_number_of_sequences_caps_them() -> None:
    free = pool(make_model(FULL), 10**8, "vllm")
    capped = pool(make_model(FULL), 10**8, "vllm", max_num_seqs=3)
    assert free.max_sequences > 3
    assert (capped.max_sequences, capped.binds, capped.n_blocks) == (
        3,
        "most sequences allowed",
        free.n_blocks,
    )


def test_a_drafter_weighs_something() -> None:
    model = lrkv_plan.load_model("llama-3.1-8b")
    small = lrkv_plan.load_model("llama-3.2-1b")
    told = replace(inputs(model, "vllm"), weight_bytes=None)
    plain, drafted = (
        budget_for(
            told.engine, model, told.hardware, told.parallel, replace(told.settings, drafter=one)
        )
        for one in (None, small)
    )
    held = plain.stages[0].bytes_of("weights") - drafted.stages[0].bytes_of("weights")
    assert held == 2 * (1_235_814_400 - 128_256 * 2048)  # its layers; the embedding is shared


def test_layers_of_a_drafter_join_their_like() -> None:
    alike = make_model(FULL, n_layers=2)
    kinds = layer_kinds(make_model(FULL), EngineSettings(context_tokens=1, drafter=alike))
    assert [kind.count for kind in kinds] == [make_model(FULL).n_layers + 2]


# TensorRT-LLM ------------------------------------------------------------------------------------


def test_tensorrt_llm_shares_its_memory_with_encoder_rows() -> None:
    # 32 decoder layers of 20 heads of 64: 163,840 B a token in either pool; blocks of 64 tokens.
    model = lrkv_plan.load_model("whisper-large-v3")
    told = {"context_tokens": 448, "encoder_tokens": 1500}
    with pytest.raises(PlacementError, match="--cross-kv-cache-fraction"):
        pool(model, 10 * GIB, "tensorrt_llm@0.13.0", **told)
    got = pool(
        model, 10 * GIB, "tensorrt_llm@0.13.0", cross_kv_cache_fraction=Fraction(1, 2), **told
    )
    assert got.n_blocks == 512  # 5 GiB / (64 x 163,840 B)
    assert (got.max_sequences, got.binds) == (512 // 24, "encoder rows")


@pytest.mark.parametrize(
    "name", ["max_mamba_cache_size", "no_kv_unified", "cross_kv_cache_fraction"]
)
def test_settings_that_an_engine_does_not_read_are_refused(name: str) -> None:
    value = True if name.startswith("no") else "0.5" if "fraction" in name else 8
    with pytest.raises(UsageError, match="the rules of vllm do not use it"):
        lrkv_plan.capacity("llama-3.1-8b", gpu="h100-sxm", **{name: value})
