"""The importer against real configurations, old spellings, and files that must be refused."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface import import_config
from lrkv_plan.loader import load_model
from lrkv_plan.memory.weights import parameter_count
from lrkv_plan.specs.model import ModelSpec
from tests.drawing import drawn

GOLDEN = Path(__file__).parent.parent / "golden" / "huggingface_configs.yaml"
CASES = yaml.safe_load(GOLDEN.read_text(encoding="utf-8"))
LLAMA: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 128256,
}  # fmt: skip


def expanded(value: Any) -> Any:
    """Write out the {times, of} notation of the golden file."""
    if isinstance(value, dict):
        return {key: expanded(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items: list[Any] = []
    for item in value:
        if isinstance(item, dict) and "times" in item:
            part = expanded(item["of"])
            items += (part if isinstance(part, list) else [part]) * item["times"]
        else:
            items.append(expanded(item))
    return items


def imported(**changes: Any) -> ModelSpec:
    """A Llama with keys changed; None removes a key."""
    merged = {**LLAMA, **changes}
    return import_config({k: v for k, v in merged.items() if v is not None}, Path("m.json"))


def self_attention(model: ModelSpec) -> list[Any]:
    return [g for g in model.attention_groups if g.cached_over == "context"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["model"])
def test_real_config_gives_the_right_bytes_per_token(case: dict[str, Any]) -> None:
    model = import_config(expanded(case["config"]), Path(f"{case['model']}.json"))
    groups = self_attention(model)
    assert sum(group.count for group in groups) == case["attention_layers"]
    assert case["bytes_per_token"] == 2 * sum(
        group.count * layout_of(group.attention, model.model_dim).scalars_per_token()
        for group in groups
        if not group.reuses_cache
    )


def test_golden_file_has_all_cases() -> None:
    assert len({case["model"] for case in CASES}) == 54


# Totals of the checkpoints as their publishers count them. Worked once by hand: Llama-2-7b
# 2 * 32000 * 4096 + 32 * (4 * 4096**2 + 3 * 4096 * 11008 + 2 * 4096) + 4096 = 6,738,415,616.
TOTALS = {
    "gpt2": 124_439_808, "qwen3-0.6b": 596_049_920, "gemma-3-1b": 999_885_952,
    "phi-2": 2_779_683_840, "phi-3-mini-4k": 3_821_079_552, "llama-2-7b": 6_738_415_616,
    "falcon-7b": 6_921_720_704, "qwen2.5-7b": 7_615_616_512, "gemma-2-9b": 9_241_705_984,
    "deepseek-v2-lite": 15_706_484_224, "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-32b": 32_762_123_264, "mixtral-8x7b": 46_702_792_704, "qwen2.5-72b": 72_706_203_648,
    "gpt-oss-20b": 20_914_757_184, "gpt-oss-120b": 116_829_156_672, "bloom": 176_247_271_424, "llama-3.1-405b": 405_853_388_800, "deepseek-v3": 671_026_419_200,
}  # fmt: skip


@pytest.mark.parametrize(("name", "total"), TOTALS.items())
def test_shipped_model_has_its_published_parameter_count(name: str, total: int) -> None:
    assert parameter_count(load_model(name)).model_params == total


@pytest.mark.parametrize(
    ("changes", "label", "head_dim"),
    [
        ({"head_dim": 96}, "gqa:8", 96),
        ({"num_key_value_heads": None}, "mha", 128),
        ({"num_key_value_heads": 1}, "mqa", 128),
        (
            {
                "model_type": "falcon", "hidden_size": 4544, "num_attention_heads": 71,
                "num_kv_heads": 71, "multi_query": True,
            },
            "mqa", 64,
        ),
        (
            {"model_type": "gpt_bigcode", "multi_query": False, "num_key_value_heads": None},
            "mha", 128,
        ),
    ],
)  # fmt: skip
def test_heads_are_read_as_the_models_code_reads_them(
    changes: dict[str, Any], label: str, head_dim: int
) -> None:
    attention: Any = imported(**changes).layers[0].attention
    assert (attention.label(), attention.head_dim) == (label, head_dim)


def test_assumptions_are_remarked() -> None:
    remarks = imported(num_key_value_heads=None).remarks
    assert "head_dim: hidden_size / num_attention_heads = 128, as llama computes it" in remarks
    assert any(remark.startswith("num_key_value_heads: absent") for remark in remarks)


def test_stated_values_leave_no_remark() -> None:
    assert imported(head_dim=128, tie_word_embeddings=False).remarks == ()


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        ({"model_type": "qwen2", "sliding_window": 4096}, {None: 32}),
        (
            {
                "model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True,
                "max_window_layers": 20,
            },
            {None: 20, 4096: 12},
        ),
        ({"model_type": "mistral", "sliding_window": 4096}, {4096: 32}),
        ({"model_type": "gemma2", "head_dim": 256, "sliding_window": 4096}, {4096: 16, None: 16}),
        (
            {
                "model_type": "cohere2", "sliding_window": 64, "sliding_window_pattern": 4,
                "num_hidden_layers": 6,
            },
            {64: 5, None: 1},
        ),
        (
            {
                "model_type": "exaone4", "head_dim": 128, "sliding_window": 64,
                "sliding_window_pattern": "LLLG",
            },
            {64: 24, None: 8},
        ),
        (
            {
                "model_type": "llama4", "head_dim": 128, "attention_chunk_size": 8192,
                "no_rope_layers": [0, 1] * 16,
            },
            {None: 16, 8192: 16},
        ),
        (
            {
                "model_type": "other", "head_dim": 128, "sliding_window": 64,
                "layer_types": ["sliding_attention", "full_attention"] * 16,
                "use_sliding_window": False,
            },
            {None: 32},
        ),
    ],
)  # fmt: skip
def test_windows_apply_to_the_right_layers(
    changes: dict[str, Any], windows: dict[int | None, int]
) -> None:
    found: dict[int | None, int] = {}
    for group in imported(**changes).layers:
        found[group.window_tokens] = found.get(group.window_tokens, 0) + group.count
    assert found == windows


def test_gemma2_starts_with_a_sliding_layer() -> None:
    model = imported(model_type="gemma2", head_dim=256, sliding_window=4096)
    assert model.layers[0].window_tokens == 4096
    assert model.layer_order is not None
    assert model.layer_order[:4] == (0, 1, 0, 1)


def test_last_layers_reuse_the_cache_of_others() -> None:
    model = imported(num_kv_shared_layers=12)
    assert [(g.count, g.reuses_cache) for g in model.layers] == [(20, False), (12, True)]


def test_sparse_index_key_is_fp8_with_one_scale() -> None:
    latent = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    model = imported(model_type="deepseek_v32", v_head_dim=128, index_head_dim=128, **latent)
    (index,) = model.layers[0].index
    assert (index.bytes_per_copy, index.copies, index.sharding) == (128 + 4, 1, "replicated")


def test_gated_delta_net_state() -> None:
    model = imported(
        model_type="qwen3_5", head_dim=256, full_attention_interval=4, linear_num_key_heads=16,
        linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128,
        linear_conv_kernel_dim=4, mamba_ssm_dtype="float32",
    )  # fmt: skip
    linear, full = model.layers
    assert (linear.count, full.count, full.state) == (24, 8, ())
    # 32 heads x 128 x 128 x 4 B; (2 * 16 * 128 + 32 * 128) channels x 3 columns x 2 B
    recurrent, *conv = linear.state
    assert recurrent.copies * recurrent.bytes_per_copy == 2_097_152
    assert sum(t.copies * t.bytes_per_copy for t in conv) == 8192 * 3 * 2
    assert model.uncounted_parts == ()


def test_nemotron_h_letters_are_separate_blocks() -> None:
    model = imported(
        model_type="nemotron_h", num_hidden_layers=4, hybrid_override_pattern="M-M*", n_groups=8,
        attention_head_dim=128, mamba_num_heads=64, mamba_head_dim=64, ssm_state_size=128,
        conv_kernel=4,
    )  # fmt: skip
    mamba, block, attending = model.layers
    assert (mamba.count, block.count, attending.count) == (2, 1, 1)
    assert [g.feed_forward.kind for g in model.layers if g.feed_forward] == [
        "none",
        "dense",
        "none",
    ]
    assert model.layer_order == (0, 1, 0, 2)


def test_puzzle_group_size_is_heads_per_kv_head() -> None:
    blocks = [
        {"attention": {"n_heads_in_group": 16}, "ffn": {"ffn_mult": 2.625}},
        {"attention": {"no_op": True}, "ffn": {"no_op": True}},
    ]
    model = imported(model_type="nemotron-nas", num_hidden_layers=2, block_configs=blocks)
    first, second = model.layers
    assert first.attention is not None
    assert first.attention.label() == "gqa:2"
    # int(2 * 2.625 * 4096 / 3) = 7168, already a multiple of 256
    assert first.feed_forward is not None
    assert first.feed_forward.model_dump()["hidden_dim"] == 7168
    assert second.attention is None


def test_experts_start_after_the_dense_layers() -> None:
    model = imported(
        model_type="glm4_moe", head_dim=128, first_k_dense_replace=3, n_routed_experts=64,
        num_experts_per_tok=4, moe_intermediate_size=1408, n_shared_experts=2,
    )  # fmt: skip
    kinds = [(g.count, g.feed_forward.kind) for g in model.layers if g.feed_forward]
    assert kinds == [(3, "dense"), (29, "experts")]
    assert model.layers[1].feed_forward.model_dump()["shared_hidden_dim"] == 2 * 1408  # type: ignore[union-attr]


def test_unknown_type_with_all_keys_has_a_cache_but_no_guessed_weights() -> None:
    model = imported(model_type="brand_new", head_dim=128)
    assert model.layers[0].feed_forward is None
    assert model.norms is None
    assert any("not known here" in remark for remark in model.remarks)


def test_nested_text_part_keeps_what_stands_outside() -> None:
    nested = {key: value for key, value in LLAMA.items() if key != "model_type"}
    config = {
        "model_type": "llava", "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "text_config": {**nested, "model_type": "llama"}, "vision_config": {"depth": 32},
        "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    model = import_config(config, Path("a/b/config.json"))
    assert (model.name, model.tied_embeddings, model.weight_dtype) == ("b", True, "fp8")
    assert model.uncounted_parts == ("vision encoder and projector",)
    assert any("quantized" in remark for remark in model.remarks)


@pytest.mark.parametrize(
    ("quantization", "weight_dtype"),
    [
        ({"quant_method": "mxfp4"}, "mxfp4"),
        ({"quant_method": "gptq", "bits": 4}, "int4"),
        ({"quant_method": "awq", "bits": 3}, "fp16"),  # no such format: the remark says so
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "fp16"),  # parts not stated
    ],
)
def test_weights_are_counted_as_quantised_where_the_format_is_plain(
    quantization: dict[str, object], weight_dtype: str
) -> None:
    model = imported(torch_dtype="float16", quantization_config=quantization)
    assert model.weight_dtype == weight_dtype
    told = "counted as" if weight_dtype != "fp16" else "unless --weight-dtype says more"
    assert any(told in remark for remark in model.remarks)


def test_cross_attention_is_a_group_over_the_encoder() -> None:
    config = {
        "model_type": "whisper", "d_model": 1280, "decoder_layers": 4,
        "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "max_source_positions": 1500,
    }  # fmt: skip
    model = import_config(config, Path("w.json"))
    assert [g.cached_over for g in model.layers] == ["context", "encoder"]
    assert model.encoder_tokens == 1500
    assert model.n_layers == 4


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_hidden_layers": 10**12}, ["num_hidden_layers", "1000000000000", "10,000"]),
        ({"num_hidden_layers": True}, ["num_hidden_layers", "True", "whole number"]),
        ({"num_attention_heads": -1}, ["num_attention_heads", "-1"]),
        ({"hidden_size": 4096.5}, ["hidden_size", "4096.5"]),
        ({"hidden_size": 0}, ["hidden_size", "from 1 to"]),
        ({"hidden_size": None}, ["hidden_size", "n_embd", "missing"]),
        ({"hidden_size": 4100}, ["head_dim", "32 heads do not divide", "4100"]),
        ({"n_layer": 31}, ["num_hidden_layers", "n_layer says 31"]),
        ({"num_key_value_heads": 5}, ["n_kv_heads", "5", "does not divide"]),
        ({"model_type": "gemma"}, ["head_dim", "guess", "'gemma'"]),
        ({"model_type": "brand_new"}, ["head_dim", "'brand_new'"]),
        ({"model_type": "mistral", "num_key_value_heads": None}, ["num_key_value_heads", "guess"]),
        ({"model_type": "gpt_bigcode"}, ["multi_query", "missing"]),
        ({"model_type": "brand_new", "head_dim": 64, "sliding_window": 9}, ["add layer_types"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "1 entries for 32 layers"]),
        ({"layer_types": ["odd"] * 32}, ["layer_types[0]", "'odd'", "full_attention"]),
        ({"kv_lora_rank": 512}, ["qk_rope_head_dim", "missing"]),
        ({"model_type": "bert"}, ["model_type", "not supported"]),
        ({"text_config": 3}, ["text_config", "must be a mapping"]),
        ({"vocab_size": "many"}, ["vocab_size", "'many'"]),
        ({"num_kv_shared_layers": 32}, ["num_kv_shared_layers", "from 0 to 31"]),
    ],
)
def test_bad_file_is_one_line_that_names_the_key(changes: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(SpecError) as caught:
        imported(**changes)
    message = str(caught.value)
    assert message.startswith("m.json: ")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_file_without_known_keys_says_what_was_looked_for() -> None:
    with pytest.raises(SpecError, match="num_hidden_layers, n_layer"):
        import_config({"answer": 42}, Path("x.json"))


_ODD = st.sampled_from(
    [
        None,
        -1,
        0,
        1.5,
        "",
        "auto",
        [],
        {},
        True,
        10**12,
        1e308,
        float("inf"),
        [None],
        ["x"],
        {"a": 1},
    ]
)


@settings(max_examples=drawn(300), deadline=None)
@given(case=st.sampled_from(CASES), odd=_ODD, data=st.data())
def test_odd_value_anywhere_gives_a_model_or_a_spec_error_quickly(
    case: dict[str, Any], odd: Any, data: st.DataObject
) -> None:
    config = json.loads(json.dumps(expanded(case["config"])))
    place = config
    key = data.draw(st.sampled_from(sorted(place)))
    while isinstance(place[key], dict) and data.draw(st.booleans()):
        place = place[key]
        key = data.draw(st.sampled_from(sorted(place)))
    place[key] = odd
    start = time.perf_counter()
    with contextlib.suppress(SpecError):
        import_config(config, Path("x.json"))
    assert time.perf_counter() - start < 5
