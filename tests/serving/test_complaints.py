"""Thirty-two public complaints about cache calculators, one test each: the fault this tool must not
have. The name ends in the issue; "wrong" figures are what was shown, worked out where that helps.
"""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from lrkv_plan import load_hardware, load_model
from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface import import_config
from lrkv_plan.memory.cache import bytes_per_token, cache_bytes
from lrkv_plan.serving.budget import MemoryBudget, budget_for
from lrkv_plan.serving.engine import engine_named, pool_of
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.model import ModelSpec

GIB, KIB = 2**30, 2**10
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256, "head_dim": 128,
}  # fmt: skip
DEEPSEEK_V4: dict[str, Any] = {
    **LLAMA, "model_type": "deepseek_v4", "num_hidden_layers": 61, "q_lora_rank": 1536,
    "o_lora_rank": 1024, "compress_ratios": [4, 128] * 30 + [4], "sliding_window": 128,
}  # fmt: skip


def imported(config: dict[str, Any], **changes: Any) -> ModelSpec:
    merged = {**config, **changes}
    return import_config({k: v for k, v in merged.items() if v is not None}, Path("m.json"))


def pool(model: ModelSpec | str, budget: float, engine: str, **told: Any) -> Pool:
    """The pool of one GPU with that budget in bytes; tp, dcp and the engine's settings by name."""
    spec = load_model(model) if isinstance(model, str) else model
    parallel = Parallelism(tp_size=told.pop("tp", 1), dcp_size=told.pop("dcp", 1))
    settings = EngineSettings(**{"context_tokens": 8192, **told})
    return pool_of(spec, (int(budget),), settings, engine=engine_named(engine), parallel=parallel)


def tokens_at(printed_gib: str, *args: Any, **told: Any) -> range:
    """Tokens at both ends of a printed budget, inclusive."""
    decimals = len(printed_gib.partition(".")[2])
    half = Fraction(1, 2 * 10**decimals)
    model, engine = args
    low, high = (
        pool(model, (Fraction(printed_gib) + sign * half) * GIB, engine, **told).kv_tokens
        for sign in (-1, 1)
    )
    return range(low, high + 1)


def budget(engine: str, model: str, gpu: str, **told: Any) -> MemoryBudget:
    settings = EngineSettings(
        context_tokens=told.pop("context_tokens", 8192),
        max_batched_tokens=told.pop("max_batched_tokens", 8192),
    )
    return budget_for(
        engine_named(engine), load_model(model), load_hardware(gpu),
        told.pop("parallel", Parallelism()), settings, **told,
    )  # fmt: skip


def test_01_gptq_int8_weights_leave_the_cache_at_2_bytes_vllm_22291() -> None:
    # wrong: 2 * 3584 * 28 * 8 = 1,605,632; right: 2 * 28 layers * 4 heads * 128 * 2 B
    model = imported(
        LLAMA, model_type="qwen2", hidden_size=3584, num_hidden_layers=28, num_attention_heads=28,
        num_key_value_heads=4, intermediate_size=18944, head_dim=None,
        quantization_config={"quant_method": "gptq", "bits": 8},
    )  # fmt: skip
    assert bytes_per_token(model) == 57_344
    assert any("quantized" in remark for remark in model.remarks)


def test_02_mla_is_one_latent_and_a_rotary_key_lmcache_694() -> None:
    # wrong: 2 * 61 * 512 * 2 = 124,928; right: 61 * (512 + 64) * 2
    assert bytes_per_token(load_model("deepseek-v3")) == 70_272


def test_03_heads_are_not_multiplied_by_the_hidden_size_vllm_fit_2() -> None:
    # wrong at 4 bits: 2 * 32 * 32 * 4096 * 4 / 8 = 4,194,304, eight times the bf16 cache
    assert bytes_per_token(load_model("llama-2-7b")) == 2 * 32 * 32 * 128 * 2 == 4_194_304 // 8
    assert bytes_per_token(load_model("llama-3.1-8b")) == 2 * 32 * 8 * 128 * 2


def test_04_key_value_heads_not_hidden_size_vllm_29736() -> None:
    # wrong: 2 * 4096 scalars per layer; right: 2 * 8 * 128 = 2048
    per_layer = Fraction(bytes_per_token(imported(LLAMA)), 32 * 2)
    assert per_layer == 2048 == 2 * 4096 // 4


def test_05_head_dim_is_read_not_divided_model_optimizer_2482() -> None:
    # wrong: 5120 / 32 = 160, 2880 / 64 = 45, 3840 / 16 = 240
    for name, head_dim in (("mistral-small-3.1-24b", 128), ("gpt-oss-20b", 64),
                           ("gemma-3-12b", 256)):  # fmt: skip
        widths = {group.attention.head_dim for group in load_model(name).attention_groups}  # type: ignore[union-attr]
        assert widths == {head_dim}
    for model_type in ("gemma3", "gpt_oss"):
        with pytest.raises(SpecError, match=r"head_dim: is missing.*would be a guess"):
            imported(LLAMA, model_type=model_type, head_dim=None, sliding_window=128)


def test_06_available_over_tokens_is_no_rate_of_a_hybrid_configiq_112() -> None:
    # 0.24 prints max_concurrency x max_model_len. Gemma 4 31B, 262,144 tokens, 8,192 batched: full
    # 262,144 / 32 = 8,192 blocks, five sliding groups of ceil((1,023 + 8,192) / 16) + 1 = 577:
    # 11,077 blocks of 10 * 16 * 16,384 B, over 262,144 tokens 110,770 B: the quoted 108.2 KiB.
    told = {"context_tokens": 262_144, "max_batched_tokens": 8192}
    held = pool("gemma-4-31b", 100 * GIB, "vllm@0.24.0", **told)
    assert round(100 * GIB / held.kv_tokens / KIB, 1) == 108.2
    assert held.bytes_per_token_per_gpu == 2 * (50 * 16 * 512 + 10 * 4 * 1024) == 901_120
    shorter = pool("gemma-4-31b", 100 * GIB, "vllm@0.24.0", **{**told, "context_tokens": 32_768})
    assert round(100 * GIB / shorter.kv_tokens / KIB, 1) != 108.2


def test_07_the_pool_shrank_not_the_rate_vllm_25350() -> None:
    # 48 layers * 4 heads * 128 * 2 * 1 B = 49,152; 221,000 tokens take 13,813 pages = 10.12 GiB
    told = {"kv_dtype": "fp8", "context_tokens": 221_000}
    held = pool("qwen3-30b-a3b", 5.59 * GIB, "vllm@0.10.2", **told)
    assert round(held.blocks_of(221_000) * held.block_bytes / GIB, 2) == 10.12
    # printed: "estimated maximum model length 122,080" for 5.59 GiB
    assert 122_080 in tokens_at("5.59", "qwen3-30b-a3b", "vllm@0.10.2", **told)
    short, long = (
        budget("vllm@0.10.2", "qwen3-30b-a3b", "h100-sxm", weight_bytes=29 * GIB,
               max_batched_tokens=n)
        for n in (8192, 221_000)
    )  # fmt: skip
    assert long.kv_bytes_per_gpu < short.kv_bytes_per_gpu


def test_08_tokens_of_a_hybrid_are_concurrency_times_length_vllm_38364() -> None:
    # 24.54 GiB printed 26,800 tokens before 0.21 (alvarobartt/hf-mem#61): 10,051 blocks of
    # 2,621,440 B // 6 groups * 16. From 0.21: 10,051 / 11,077 sequences of 262,144 tokens.
    told = {"context_tokens": 262_144, "max_batched_tokens": 8192}
    older = pool("gemma-4-31b", 24.54 * GIB, "vllm@0.20.0", **told)
    newer = pool("gemma-4-31b", 24.54 * GIB, "vllm@0.21.0", **told)
    assert older.n_blocks == newer.n_blocks == 10_051
    assert older.kv_tokens == 10_051 // 6 * 16 == 26_800
    assert newer.kv_tokens == 10_051 * 262_144 // 11_077


def test_09_deepseek_v4_is_not_counted_as_mha_vllm_44376() -> None:
    with pytest.raises(SpecError, match="qk_rope_head_dim: is missing"):
        imported(DEEPSEEK_V4)
    own = {"head_dim": 512, "qk_rope_head_dim": 64, "index_head_dim": 128, "index_n_heads": 64}
    model = imported(DEEPSEEK_V4, **own, o_groups=8)
    # One row of 512 for 4 tokens in 31 layers, for 128 in 30, and 128 of the window in all.
    rows = 61 * 128 + 31 * 250_000 + 30 * 7812
    assert cache_bytes(model, context_tokens=1_000_000).kv_bytes == rows * 1024
    with pytest.raises(SpecError, match=r"an engine's pool of them .* not modelled"):
        pool(model, 1e10, "vllm")


def test_10_log_figures_are_per_gpu_and_the_smallest_decides_vllm_13061() -> None:
    # 48 * 4 heads * 128 * 2 * 2 B on each of two GPUs. Wrong: 2 * 23.08 - 13.95 = 31.8 GiB in all;
    # 81,536 tokens are 7.46 GiB on the smaller rank, beside 8.69 GiB printed by the other.
    model = imported(
        LLAMA, model_type="qwen2", hidden_size=5120, num_hidden_layers=48, num_attention_heads=40
    )
    assert bytes_per_token(model, tp_size=2) == 98_304
    told = {"tp": 2, "context_tokens": 131_072}
    assert 81_536 in tokens_at("7.46", model, "vllm@0.7.2", **told)
    assert 81_536 not in tokens_at("8.69", model, "vllm@0.7.2", **told)
    left = budget(
        "vllm@0.7.2", "qwen3-8b", "rtx-4090", weight_bytes=int(13.9476 * GIB),
        utilisation=Fraction(98, 100), parallel=Parallelism(tp_size=2), max_batched_tokens=2048,
    )  # fmt: skip
    assert left.kv_bytes_per_gpu < 10 * GIB


def test_11_the_rule_depends_on_the_engine_version_vllm_49878() -> None:
    # 49.0 GiB were reserved for Gemma 4 31B with 32,768 batched tokens. Up to 0.25 a request takes
    # 8,192 + 5 (ceil((1,023 + 32,768) / 16) + 1) = 18,757 blocks, 45.8 GiB; from 0.26 a window
    # counts two batches in flight: 8,192 + 5 (ceil((1,023 + 65,536) / 16) + 1) = 28,997, 70.8 GiB.
    told = {"context_tokens": 262_144, "max_batched_tokens": 32_768}
    older, newer = (
        pool("gemma-4-31b", 49 * GIB, f"vllm@{version}", **told) for version in ("0.25.1", "0.26.0")
    )
    assert [held.blocks_of(262_144) for held in (older, newer)] == [18_757, 28_997]
    assert (older.max_sequences, newer.max_sequences) == (1, 0)
    needed = newer.blocks_of(262_144) * newer.block_bytes
    assert round(needed / (49 * GIB), 1) == 1.4  # "about 40 % more" than was reserved


def test_12_a_fork_may_keep_windows_in_full_ik_llama_cpp_1607() -> None:
    # Gemma 4 31B at 32,768: 10 global layers * 8,192 B * 32,768 cells, 50 sliding layers of 16,384 B
    # * pad256(1,024 + 512) cells; the fork keeps all 32,768 of them
    model, told = "gemma-4-31b", {"context_tokens": 32_768}
    mainline = pool(model, 80 * GIB, "llama.cpp", **told).blocks_of(32_768)
    fork = pool(model, 80 * GIB, "ik_llama.cpp", **told).blocks_of(32_768)
    assert mainline == 10 * 8192 * 32_768 + 50 * 16_384 * 1536
    assert fork == 10 * 8192 * 32_768 + 50 * 16_384 * 32_768


def test_13_draft_layers_are_the_drafts_own_tensorrt_llm_12571() -> None:
    # 576 fp8 + 132 of index key = 708 B per layer. Wrong: (61 + 61) * 708 = 86,376 ("86K");
    # right: (61 + 3) * 708 = 45,312 ("45K")
    held = pool("deepseek-v3.2", 80 * GIB, "trtllm", kv_dtype="fp8", draft_layers=3)
    assert held.bytes_per_token_per_gpu == 45_312


def test_14_falcon_180b_has_8_key_value_heads_tensorrt_llm_282() -> None:
    # wrong: 2 * 64 * 2048 * 14848 * 80 * 2 = 623 GB; right: 2 * 80 * 8 * 64 * 2 B per token
    model = load_model("falcon-180b")
    assert bytes_per_token(model) == 163_840
    assert cache_bytes(model, context_tokens=2048, batch_size=64).total == 20 * GIB


def test_15_the_pool_is_a_fraction_of_free_memory_tensorrt_llm_1400() -> None:
    # expected 1 to 2 GB; got 69.5 GB = 132,608 tokens * 524,288 B
    held = pool("llama-2-7b", 132_608 * 524_288, "trtllm@0.9")
    assert held.kv_tokens == 132_608
    assert round(held.n_blocks * held.block_bytes / 1e9, 1) == 69.5
    left = budget("trtllm@0.9", "llama-2-7b", "a100-sxm-80gb", utilisation=Fraction(9, 10))
    free = left.kv_bytes_per_gpu - left.deciding.bytes_of("outside the fraction")
    assert left.kv_bytes_per_gpu == pytest.approx(0.9 * free, rel=1e-9)
    assert left.kv_bytes_per_gpu > 50 * GIB


def test_16_mla_as_heads_must_be_asked_for_atom_1959() -> None:
    # Kimi-K3's configuration is not public here; Kimi-Linear has the same two forms.
    # latent 7 * 576 * 2 B; per head 7 * 32 * (192 + 128) * 2 B, 17.8 times as much
    model = load_model("kimi-linear-48b-a3b")
    per_head = [
        g.attention.model_copy(update={"cached_form": "heads"})  # type: ignore[union-attr]
        for g in model.attention_groups
    ]
    assert bytes_per_token(model) == 8_064
    assert bytes_per_token(model.with_attention(tuple(per_head))) == 143_360
    assert "cached_form=heads" in per_head[0].label()


def test_17_physical_size_not_virtual_kvcached_101() -> None:
    # gpt2, 248,479 tokens: 12 * 12 * 64 * 2 B = 18,432 for keys alone is 4.27 GiB; 7.99 was virtual
    key_bytes = 248_479 * Fraction(bytes_per_token(load_model("gpt2")), 2)
    assert round(key_bytes / GIB, 2) == Fraction(427, 100)
    assert pool("gpt2", 2 * 7.99 * GIB, "sglang").kv_tokens > 1.8 * 248_479


@pytest.mark.parametrize("layers", [48, 92])
def test_18_layers_are_read_from_the_file_xinfer_195(layers: int) -> None:
    # wrong: 64 * 4,096 = 256 KiB for either
    assert bytes_per_token(imported(LLAMA, num_hidden_layers=layers)) == layers * 4096


def test_19_no_figure_stands_in_for_deepseek_v4_sglang_37852() -> None:
    # the engine's own metric says 0 GB for its pools, so there is nothing to check a rule against
    with pytest.raises(SpecError, match="deepseek-v4"):
        load_model("deepseek-v4")


def test_20_a_fraction_below_the_weights_leaves_no_cache_inferencex_2128() -> None:
    # 125.65 GB of weights per H200, 137.90 GB free before they load: 0.88 leaves nothing, the engine
    # asks for 0.9113 = 125.65 / 137.90 rounded up, and 0.9335 with 3.07 GB of drafts
    told = {"weight_bytes": int(125.65 * GIB), "parallel": Parallelism(tp_size=8)}
    model, gpu = "deepseek-v3", "h200"
    short = budget("sglang", model, gpu, utilisation=Fraction(88, 100), **told)
    assert short.kv_bytes_per_gpu < 0
    assert any("nothing is left for the cache" in remark for remark in short.remarks)
    enough = budget("sglang", model, gpu, utilisation=Fraction(9335, 10_000), **told)
    assert enough.kv_bytes_per_gpu > 0
    # The least fraction that leaves something is weights over the memory free before the load;
    # ours assumes 137.63 GiB free where that machine had 137.90.
    memory, runtime = (short.deciding.bytes_of(name) for name in ("memory", "non-torch"))
    least = Fraction(int(125.65 * GIB), memory + runtime)
    assert float(least) == pytest.approx(0.9113, abs=0.002)
    for fraction, leaves in (
        (least - Fraction(1, 10**6), False),
        (least + Fraction(1, 10**6), True),
    ):
        left = budget("sglang", model, gpu, utilisation=fraction, **told).kv_bytes_per_gpu
        assert (left > 0) == leaves


def test_21_tensor_parallelism_does_not_divide_mla_vllm_26877() -> None:
    model = load_model("kimi-k2")
    assert bytes_per_token(model, tp_size=8) == bytes_per_token(model) == 70_272
    assert 715_072 in tokens_at("46.80", "kimi-k2", "vllm@0.11.1", tp=8)
    assert 5_721_088 in tokens_at("46.80", "kimi-k2", "vllm@0.11.1", tp=8, dcp=8)


@pytest.mark.parametrize(("context", "gb"), [(32_768, 0.99), (131_072, 3.00)])
def test_22_window_layers_cost_their_window_ollama_16958(context: int, gb: float) -> None:
    # 5 * 4,096 B * context + 25 * 8,192 B * pad256(1,024 + 512); wrong: 14.09 and 56.37 GB
    held = pool("gemma-4-26b-a4b", 80 * GIB, "llama.cpp", context_tokens=context)
    assert held.blocks_of(context) == 5 * 4096 * context + 25 * 8192 * 1536
    assert round(held.blocks_of(context) / 1e9, 2) == gb


def test_23_key_and_value_widths_and_a_compute_buffer_ollama_17201() -> None:
    # wrong: embedding / heads: 2048 / 16 = 128 for both; right: keys 128 + 64, values 128
    model = load_model("deepseek-v2-lite")
    heads = tuple(
        g.attention.model_copy(update={"cached_form": "heads"})  # type: ignore[union-attr]
        for g in model.attention_groups
    )
    assert bytes_per_token(model.with_attention(heads)) == 27 * 16 * (192 + 128) * 2
    # Qwen3-0.6B: 128, not 1024 / 16 = 64
    assert bytes_per_token(load_model("qwen3-0.6b")) == 28 * 8 * (128 + 128) * 2
    left = budget("llama.cpp", "qwen3-8b", "rtx-4090", context_tokens=32_768)
    assert left.deciding.bytes_of("compute buffer") < 0


@pytest.mark.parametrize(("name", "gib"), [("qwen3-30b-a3b", 3.0), ("qwen3-0.6b", 3.5)])
def test_24_parameters_do_not_tell_the_cache_ods_3324(name: str, gib: float) -> None:
    # wrong: 0.12 GB per billion at 32K, at most 3.5 GB: 3.5 (30B) and 0.07 (0.6B)
    # right: 48 * 4 * 256 * 2 * 32,768 and 28 * 8 * 256 * 2 * 32,768
    assert cache_bytes(load_model(name), context_tokens=32_768).total == gib * GIB


def test_25_gemma2_27b_by_heads_and_windows_gollama_117() -> None:
    # wrong: context * width * heads * weight bits; right: 16 * 128 * 2 * 2 = 8,192 B per layer, 23
    # layers of 8,192 tokens and 23 of 4,096
    model = imported(
        LLAMA, model_type="gemma2", hidden_size=4608, num_hidden_layers=46, num_attention_heads=32,
        num_key_value_heads=16, intermediate_size=36864, vocab_size=256_000, sliding_window=4096,
    )  # fmt: skip
    assert bytes_per_token(model) == 46 * 8192
    held = cache_bytes(model, context_tokens=8192)
    assert held.total == 23 * 8192 * (8192 + 4096)


def test_26_each_engine_means_something_else_by_its_fraction_aiconfigurator_1159() -> None:
    told = {"utilisation": Fraction(9, 10), "weight_bytes": 15 * GIB}
    vllm, sglang, trtllm = (
        budget(engine, "llama-3.1-8b", "h100-sxm", **told).deciding
        for engine in ("vllm@0.19.0", "sglang", "trtllm")
    )
    total = vllm.bytes_of("memory")
    tenth = total - int(total * Fraction(9, 10))
    # of the memory free before the load (0.25 GiB less here); activations live outside
    assert sglang.kv_bytes == pytest.approx(0.9 * (total - GIB / 4) - 15 * GIB, abs=1)
    runtime = vllm.bytes_of("activation peak") + vllm.bytes_of("non-torch")
    assert runtime < 0
    assert vllm.kv_bytes == total - tenth - 15 * GIB + runtime
    free = trtllm.kv_bytes - trtllm.bytes_of("outside the fraction")
    assert free < total - 15 * GIB
    assert trtllm.kv_bytes == pytest.approx(0.9 * free, rel=1e-9)


def test_27_index_keys_are_in_the_pool_sglang_11309() -> None:
    # wrong: 61 * 656 = 40,016 B, 54.52 GB; right: 61 * (656 + 132) = 48,068 B, 65.49 GB
    told = {"kv_dtype": "fp8_ds_mla", "page_tokens": 64}
    before = pool("deepseek-v3.2", 54.52 * GIB, "sglang@0.5.3", **told)
    after = pool("deepseek-v3.2", 54.52 * GIB, "sglang@0.5.4", **told)
    assert (before.bytes_per_token_per_gpu, after.bytes_per_token_per_gpu) == (40_016, 48_068)
    assert 1_462_784 in tokens_at("54.52", "deepseek-v3.2", "sglang@0.5.3", **told)
    assert 1_462_784 in tokens_at("65.49", "deepseek-v3.2", "sglang@0.5.4", **told)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "brand_new"])
def test_28_compressed_caches_are_refused_by_their_key_omlx_2626(model_type: str) -> None:
    # wrong: 84 KB per token from a fallback; 15.57 KB were measured
    with pytest.raises(SpecError, match=r"compress_ratios.*not supported.*not modelled"):
        imported(DEEPSEEK_V4, model_type=model_type)


def test_29_blocks_differ_by_group_so_blocks_times_block_is_not_tokens_vllm_51163() -> None:
    # Gemma 4 31B: sliding blocks of 16 tokens, full ones of 32, as a row is half as wide. The
    # smallest is reported; tokens are derived from the concurrency.
    held = pool("gemma-4-31b", 49 * GIB, "vllm@0.25.1", context_tokens=262_144)
    assert (held.block_tokens, held.n_groups) == (16, 6)
    assert held.kv_tokens == int(held.max_concurrency * 262_144)
    assert held.kv_tokens != held.n_blocks * held.block_tokens


def test_30_state_raises_the_block_to_528_vllm_metrics() -> None:
    # Qwen3.6-35B-A3B at TP4: (8 * 65,536 + 4 * 1,536 + 8 * 768) / (16 * 1,024) = 32.75 -> 33 * 16
    # (1 head of 256, keys and values, 2 B); the metrics endpoint says 16
    held = pool("qwen3.5-35b-a3b", 40 * GIB, "vllm@0.19.0", tp=4)
    assert held.block_tokens == 528
    assert any("528" in remark for remark in held.remarks)


def test_31_multi_query_overrules_the_stated_71_heads_falcon_7b() -> None:
    # wrong: 71 times 2 * 32 * 64 * 2 = 8,192 B
    model = imported(
        LLAMA, model_type="falcon", hidden_size=4544, num_attention_heads=71, head_dim=None,
        num_key_value_heads=71, multi_query=True, vocab_size=65_024,
    )  # fmt: skip
    assert bytes_per_token(model) == 8192


def test_32_weight_bits_are_not_cache_bits_llm_d_planner_205() -> None:
    # fp8 weights: 529,248 tokens at 64.61 GiB are 131,072 B per token, 2 bytes per scalar
    model = imported(LLAMA, quantization_config={"quant_method": "fp8"})
    assert bytes_per_token(model) == 131_072
    assert 529_248 in tokens_at("64.61", model, "vllm@0.19.0")


def test_every_complaint_has_its_test() -> None:
    numbers = [
        int(name[5:7]) for name in globals() if name.startswith("test_") and name[5].isdigit()
    ]
    assert sorted(numbers) == list(range(1, 33))
