"""Model types with layer patterns, states and weights of their own, against figures worked by hand.

The configurations state public facts of the models named; totals are those of their checkpoints.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface import import_config
from lrkv_plan.memory.weights import parameter_count
from lrkv_plan.specs.model import FixedTensor, ModelSpec

# Layers, heads and widths; what a test adds is what it is about.
RING: dict[str, Any] = {
    "model_type": "bailing_moe_linear", "hidden_size": 2048, "num_hidden_layers": 20,
    "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 157184,
    "layer_group_size": 5,
}  # fmt: skip
SMALLTHINKER: dict[str, Any] = {
    "model_type": "smallthinker", "hidden_size": 2560, "num_hidden_layers": 52,
    "num_attention_heads": 28, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "sliding_window_size": 4096, "sliding_window_layout": [0, 1, 1, 1] * 13,
    "moe_num_primary_experts": 64, "moe_num_active_primary_experts": 6,
    "moe_ffn_hidden_size": 768,
}  # fmt: skip
RECURRENT_GEMMA: dict[str, Any] = {
    "model_type": "recurrent_gemma", "hidden_size": 2560, "num_hidden_layers": 26,
    "num_attention_heads": 10, "num_key_value_heads": 1, "intermediate_size": 15360,
    "vocab_size": 256000, "block_types": ["recurrent", "recurrent", "attention"],
    "attention_window_size": 2048, "conv1d_width": 4, "lru_width": 2560,
    "torch_dtype": "bfloat16",
}  # fmt: skip
AFMOE: dict[str, Any] = {
    "model_type": "afmoe", "hidden_size": 2048, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 200192,
    "global_attn_every_n_layers": 4, "sliding_window": 2048, "intermediate_size": 6144,
    "moe_intermediate_size": 1024, "num_experts": 128, "num_experts_per_tok": 8,
    "num_shared_experts": 1, "num_dense_layers": 2,
}  # fmt: skip
MAMBA: dict[str, Any] = {
    "model_type": "mamba", "hidden_size": 2048, "num_hidden_layers": 48, "state_size": 16,
    "conv_kernel": 4, "expand": 2, "intermediate_size": 4096, "vocab_size": 50280,
    "torch_dtype": "float32",
}  # fmt: skip
GLM_NEXT: dict[str, Any] = {
    "model_type": "glm5_next_text", "hidden_size": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 64, "vocab_size": 154880, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 256, "qk_rope_head_dim": 0, "v_head_dim": 256, "index_head_dim": 128,
    "index_n_heads": 32, "index_topk": 2048, "index_kpool": 4,
    "layer_types": (["linear_attention"] * 3 + ["indexed_attention"]) * 2,
    "linear_num_heads": 64, "linear_head_dim": 128, "linear_conv_kernel_dim": 4,
    "dtype": "bfloat16",
}  # fmt: skip


def imported(config: dict[str, Any], **changes: Any) -> ModelSpec:
    """The model of a config with keys changed; None removes a key."""
    merged = {**config, **changes}
    return import_config({k: v for k, v in merged.items() if v is not None}, Path("m.json"))


def kinds(model: ModelSpec) -> dict[tuple[str, int | None], int]:
    """Layers by family (or "state") and window."""
    found: dict[tuple[str, int | None], int] = {}
    for group in model.layers:
        name = group.attention.family if group.attention is not None else "state"
        found[name, group.window_tokens] = found.get((name, group.window_tokens), 0) + group.count
    return found


def bytes_per_token(model: ModelSpec) -> int:
    return 2 * sum(
        group.count * layout_of(group.attention, model.model_dim).scalars_per_token()
        for group in model.attention_groups
    )


def total_bytes(tensors: tuple[FixedTensor, ...]) -> int:
    return sum(tensor.copies * tensor.bytes_per_copy for tensor in tensors)


def test_ring_linear_is_full_in_the_last_layer_of_each_group() -> None:
    model = imported(RING)
    assert kinds(model) == {("state", None): 16, ("gqa", None): 4}
    assert model.layer_order == (0, 0, 0, 0, 1) * 4
    # 4 layers x 4 KV heads x 2 x 128 x 2 bytes
    assert bytes_per_token(model) == 8192
    # 16 heads x 128 x 128 in float32
    assert total_bytes(model.layers[0].state) == 16 * 128 * 128 * 4


def test_layers_beyond_the_last_whole_group_are_full() -> None:
    model = imported(RING, num_hidden_layers=22)
    assert model.layer_order is not None
    assert model.layer_order[-3:] == (1, 1, 1)


def test_smallthinker_windows_follow_its_layout() -> None:
    model = imported(SMALLTHINKER)
    assert kinds(model) == {("gqa", None): 13, ("gqa", 4096): 39}
    # 52 layers x 4 KV heads x 2 x 128 x 2 bytes; at 16k tokens 2,048 x (13 x 16,384 + 39 x 4,096)
    assert bytes_per_token(model) == 52 * 2048
    assert 2048 * (13 * 16_384 + 39 * 4_096) == 728 * 2**20


def test_smallthinker_experts_are_counted_under_their_own_names() -> None:
    block = imported(SMALLTHINKER).layers[0].feed_forward
    assert block is not None
    assert block.model_dump(include={"n_experts", "experts_per_token", "hidden_dim"}) == {
        "n_experts": 64, "experts_per_token": 6, "hidden_dim": 768,
    }  # fmt: skip


def test_recurrent_gemma_has_a_window_in_every_attention_layer() -> None:
    model = imported(RECURRENT_GEMMA)
    # 26 layers, the third of each three attends: 8
    assert kinds(model) == {("state", None): 18, ("mqa", 2048): 8}
    # one float32 scalar and 3 columns of 2 bytes for each of 2,560 channels
    assert total_bytes(model.layers[0].state) == 2560 * (4 + 3 * 2)
    block = model.layers[0].feed_forward
    assert block is not None
    assert block.model_dump()["hidden_dim"] == 15360 // 2


def test_afmoe_is_global_in_every_fourth_layer() -> None:
    model = imported(AFMOE)
    assert kinds(model) == {("gqa", 2048): 24, ("gqa", None): 8}
    assert [g.feed_forward.kind for g in model.layers if g.feed_forward] == [
        "dense", "experts", "experts",
    ]  # fmt: skip


def test_mamba_keeps_a_state_and_no_keys() -> None:
    model = imported(MAMBA)
    # 48 layers x 4,096 channels x (16 state scalars + 3 columns) x 4 bytes = 14.25 MiB
    assert 48 * total_bytes(model.layers[0].state) == 48 * 4096 * (16 + 3) * 4 == 14.25 * 2**20
    assert kinds(model) == {("state", None): 48}


@pytest.mark.parametrize("name", ["mamba", "falcon_mamba"])
def test_mamba_width_is_expand_times_hidden_where_none_is_stated(name: str) -> None:
    model = imported(MAMBA, model_type=name, intermediate_size=None, torch_dtype="bfloat16")
    assert total_bytes(model.layers[0].state) == 2 * 2048 * (16 + 3) * 2


def test_mamba2_state_by_head_and_columns_by_group() -> None:
    model = imported(
        MAMBA, model_type="mamba2", num_heads=64, head_dim=64, n_groups=1, state_size=128,
        intermediate_size=None, torch_dtype="bfloat16",
    )  # fmt: skip
    # 64 heads x 64 x 128 and 3 columns of 64 x 64 + 2 x 128 channels, 2 bytes each
    assert total_bytes(model.layers[0].state) == 2 * (64 * 64 * 128 + 3 * (4096 + 256))


def test_pooled_index_key_is_shared_by_its_tokens() -> None:
    model = imported(GLM_NEXT)
    (index,) = model.layers[1].index
    # (128 fp8 scalars + a 4-byte scale) / 4 tokens; 33 x 2 sparse layers
    assert index.bytes_per_copy == 33
    # 64 heads x 128 x 128 in float32, 3 columns of q, k and v in 2 bytes
    assert total_bytes(model.layers[0].state) == 64 * 128 * 128 * 4 + 3 * 3 * 64 * 128 * 2
    assert bytes_per_token(model) == 2 * 512 * 2


@pytest.mark.parametrize(
    ("changes", "with_index"),
    [
        ({}, 4),
        ({"indexer_types": ["full", "shared", "full", "shared"]}, 2),
        ({"index_topk_pattern": "FSSS"}, 1),
        ({"index_topk_freq": 2, "index_skip_topk_offset": 1}, 2),  # layers 0, 2
    ],
)
def test_shared_index_keeps_no_keys(changes: dict[str, Any], with_index: int) -> None:
    base = {**GLM_NEXT, "layer_types": None, "model_type": "glm_moe_dsa", "index_kpool": None}
    model = imported(base, num_hidden_layers=4, **changes)
    assert sum(group.count for group in model.layers if group.index) == with_index


def test_gpt_neo_alternates_local_and_global_layers_and_has_its_published_total() -> None:
    model = imported(
        {
            "model_type": "gpt_neo", "hidden_size": 2048, "num_layers": 24, "num_heads": 16,
            "attention_types": [[["global", "local"], 12]], "window_size": 256,
            "vocab_size": 50257, "max_position_embeddings": 2048, "intermediate_size": None,
        }
    )  # fmt: skip
    assert kinds(model) == {("mha", None): 12, ("mha", 256): 12}
    # 52,305 x 2,048 embeddings and positions; 24 x (4 d d + d + 8 d d + 5 d + 4 d); 2 d
    assert parameter_count(model).model_params == 1_315_575_808


def test_lfm2_convolutions_stand_between_the_listed_layers() -> None:
    model = imported(
        {
            "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 4,
            "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 65536,
            "conv_L_cache": 3, "full_attn_idxs": [2],
        }
    )  # fmt: skip
    assert kinds(model) == {("state", None): 3, ("gqa", None): 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**RING, "layer_group_size": None}, ["layer_group_size", "missing"]),
        ({**RECURRENT_GEMMA, "block_types": []}, ["block_types", "1 to 10,000 entries"]),
        ({**RECURRENT_GEMMA, "block_types": ["odd"]}, ["block_types[0]", "'odd'"]),
        ({**RECURRENT_GEMMA, "attention_window_size": None}, ["attention_window_size", "missing"]),
        ({**AFMOE, "global_attn_every_n_layers": None}, ["global_attn_every_n_layers", "missing"]),
        ({**GLM_NEXT, "index_kpool": None}, ["index_kpool", "missing"]),
        ({**MAMBA, "attention_layers_idx": [3]}, ["attention_layers_idx", "not modelled"]),
        ({**MAMBA, "state_size": None}, ["state_size", "missing"]),
        (
            {**MAMBA, "model_type": "bamba", "num_attention_heads": 8, "num_key_value_heads": 8},
            ["attn_layer_indices", "layer_types", "missing"],
        ),
    ],
)  # fmt: skip
def test_a_pattern_that_is_not_stated_is_an_error(
    changes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SpecError) as caught:
        imported(changes)
    for word in words:
        assert word in str(caught.value)


# Checkpoint totals as published; dbrx 40 x (64 x 128 d + d d + 16 x 3 d w + 16 d + 2 d) + d + 2 V d
TOTALS: dict[str, tuple[int, dict[str, Any]]] = {
    "dots.llm1": (142_774_381_696, {
        "model_type": "dots1", "hidden_size": 4096, "num_hidden_layers": 62,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128,
        "intermediate_size": 10944, "moe_intermediate_size": 1408, "n_routed_experts": 128,
        "n_shared_experts": 2, "num_experts_per_tok": 6, "first_k_dense_replace": 1,
        "vocab_size": 152064,
    }),
    "seed-oss-36b": (36_151_104_512, {
        "model_type": "seed_oss", "hidden_size": 5120, "num_hidden_layers": 64,
        "num_attention_heads": 80, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 27648, "vocab_size": 155136, "attention_bias": True,
    }),
    "dbrx": (131_596_523_520, {
        "model_type": "dbrx", "d_model": 6144, "n_heads": 48, "n_layers": 40,
        "vocab_size": 100352, "attn_config": {"kv_n_heads": 8},
        "ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4},
    }),
    "phi-3.5-moe": (41_873_153_344, {
        "model_type": "phimoe", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 6400,
        "num_local_experts": 16, "num_experts_per_tok": 2, "vocab_size": 32064,
        "attention_bias": True, "lm_head_bias": True, "sliding_window": 131072,
    }),
    "qwen-14b": (14_167_290_880, {
        "model_type": "qwen", "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 40, "kv_channels": 128, "intermediate_size": 27392,
        "vocab_size": 152064, "no_bias": True,
    }),
}  # fmt: skip


@pytest.mark.parametrize("name", TOTALS)
def test_model_types_have_their_published_totals(name: str) -> None:
    total, config = TOTALS[name]
    model = imported(config)
    assert parameter_count(model).model_params == total
    assert model.uncounted_parts == ()


def test_stablelm_without_second_norm_when_its_residual_is_parallel() -> None:
    stablelm = {
        "model_type": "stablelm", "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 13824,
        "vocab_size": 100352,
    }  # fmt: skip
    two, one = (imported(stablelm, use_parallel_residual=flag).norms for flag in (False, True))
    assert two is not None
    assert one is not None
    assert (two.per_feed_forward, one.per_feed_forward) == (1, 0)
    # 40 layers x 8 KV heads x 2 x 160 x 2 bytes
    assert bytes_per_token(imported(stablelm)) == 204_800


def odd_names(n: int) -> list[str]:
    """Spellings of a number of experts that no public file has."""
    draw = random.Random(35)
    heads = ["", "num_", "n_", "moe_", "routed_", "total_", "nr_of_", "router_", "ffn_", "sparse_"]
    tails = ["", "_num", "_count", "_total", "_per_layer", "_list", "s", "s_n", "s_number"]
    named = {draw.choice(heads) + "expert" + draw.choice(tails) for _ in range(40 * n)}
    return [*sorted(named)[:n], "moe", "moe_config", "MoE", "numExperts", "num_experts_", "moe-k"]


DENSE = {
    "llama": {"intermediate_size": 256},
    "qwen3": {"intermediate_size": 256, "head_dim": 16},
    "gpt2": {"n_inner": 256, "n_head": 4, "n_embd": 64, "n_layer": 2},
    "mamba": {"state_size": 4, "conv_kernel": 4, "expand": 2, "time_step_rank": 4},
    "gemma3": {"intermediate_size": 256, "head_dim": 16, "sliding_window": 8},
}  # fmt: skip


@pytest.mark.parametrize("key", odd_names(40))
def test_a_mixture_is_never_counted_without_its_experts(key: str) -> None:
    """Whatever the key of the experts is called, and wherever it stands."""
    small = {
        "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100, "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }  # fmt: skip
    for name, own in DENSE.items():
        dense = {"model_type": name, **small, **own}
        whole = parameter_count(imported(dense)).model_params
        assert whole is not None
        for value in (8, [8, 8], "many", {"count": 8}):
            for changes in ({key: value}, {"ffn": {"inner": {key: value}}}):
                model = imported(dense, **changes)
                assert all(group.feed_forward is None for group in model.layers)
                assert parameter_count(model).model_params is None
        for nothing in (None, 0, 1, False):
            assert parameter_count(imported(dense, **{key: nothing})).model_params == whole


@pytest.mark.parametrize("key", odd_names(20))
def test_a_mixture_type_without_a_known_count_has_no_total(key: str) -> None:
    for name, own in (
        ("mixtral", {"intermediate_size": 32}),
        ("qwen3_moe", {"moe_intermediate_size": 32, "intermediate_size": 64, "head_dim": 16}),
        ("deepseek_v3", {"moe_intermediate_size": 32, "n_shared_experts": 1}),
    ):
        config = {
            "model_type": name, "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
            "num_attention_heads": 4, "num_key_value_heads": 4, "num_experts_per_tok": 2,
            "kv_lora_rank": 8 if name == "deepseek_v3" else None, "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 4, "v_head_dim": 4, "first_k_dense_replace": 0, key: 64,
            **own,
        }  # fmt: skip
        if key != "num_experts":
            assert parameter_count(imported(config)).model_params is None


@pytest.mark.parametrize(
    ("name", "key"), [("glm4_moe", "attention_bias"), ("chatglm", "add_qkv_bias")]
)
def test_biases_that_every_checkpoint_states_count_where_a_file_is_trimmed(
    name: str, key: str
) -> None:
    base = {
        "model_type": name, "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
        "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16,
    }  # fmt: skip
    trimmed = imported(base)
    assert f"{key}: absent, true in the published checkpoints of {name}" in trimmed.remarks
    assert trimmed.layers[0].attention == imported(base, **{key: True}).layers[0].attention
    assert trimmed.layers[0].attention != imported(base, **{key: False}).layers[0].attention


def test_minicpm3_takes_the_width_of_a_value_from_the_heads() -> None:
    """2,560 / 40 = 64; 62 layers keep 256 + 32 scalars of 2 bytes."""
    model = imported(
        {
            "model_type": "minicpm3", "hidden_size": 2560, "num_hidden_layers": 62,
            "num_attention_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256,
            "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "intermediate_size": 6400,
            "vocab_size": 73448,
        }
    )  # fmt: skip
    assert bytes_per_token(model) == 62 * (256 + 32) * 2
    # a layer: query 2560 x 768 + 768 + 768 x 40 x 96, latent 2560 x 288 + 256 + 256 x 40 x 128,
    # output 40 x 64 x 2560, 3 x 2560 x 6400, two norms; a tied table, a last norm
    query, latent = 2560 * 768 + 768 + 768 * 40 * 96, 2560 * 288 + 256 + 256 * 40 * 128
    layer = query + latent + 40 * 64 * 2560 + 3 * 2560 * 6400 + 2 * 2560
    assert parameter_count(model).model_params == 62 * layer + 73448 * 2560 + 2560
    with pytest.raises(SpecError, match="v_head_dim: is missing"):
        imported({**GLM_NEXT, "v_head_dim": None})


def test_kimi_k3_gates_have_full_rank() -> None:
    """d P of a gate instead of d h + h P; its latent layers gate their output too."""
    base = {
        "model_type": "kimi_linear", "hidden_size": 512, "num_hidden_layers": 2,
        "num_attention_heads": 8, "kv_lora_rank": 64, "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16, "v_head_dim": 32, "vocab_size": 1000,
    }  # fmt: skip
    linear = {
        "num_heads": 8,
        "head_dim": 32,
        "short_conv_kernel_size": 4,
        "full_attn_layers": [2],
    }
    low = parameter_count(imported({**base, "linear_attn_config": linear}))
    gated = {**linear, "use_full_rank_gate": True}
    full = parameter_count(
        imported({**base, "mla_use_output_gate": True, "linear_attn_config": gated})
    )
    assert full.recurrent_params - low.recurrent_params == 512 * 256 - (512 * 32 + 32 * 256)
    assert full.attention_params - low.attention_params == 512 * 256


PLAMO2: dict[str, Any] = {
    "model_type": "plamo2", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 4, "hidden_size_per_head": 128,
    "intermediate_size": 16384, "vocab_size": 100000, "attention_window_size": 2048,
    "mamba_step": 2, "mamba_d_state": 64, "mamba_d_conv": 4, "mamba_num_heads": 64,
    "full_attention_idx": [3], "dtype": "bfloat16",
}  # fmt: skip


def test_plamo_2_attends_in_the_middle_of_every_step() -> None:
    """Of 32 layers the odd ones attend; one keeps every row, 15 a window of 2,048."""
    model = imported(PLAMO2)
    assert kinds(model) == {("state", None): 16, ("gqa", 2048): 15, ("gqa", None): 1}
    state = next(group.state for group in model.layers if group.state)
    # 64 heads x 128 x 64 and 3 columns of 64 x 128, in 16 bit
    held = sum(one.copies * one.bytes_per_copy for one in state)
    assert held == 2 * (64 * 128 * 64 + 3 * 64 * 128)
    # I = 8,192 and a time step of 4,096 / 16: 2 d I + 4 I + I (256 + 128) + 256 x 64 + 3 x 64 + 256
    # + 128 + I d
    inner, step = 64 * 128, 256
    mixer = 3 * 4096 * inner + inner * (4 + step + 128) + 64 * step + 3 * 64 + step + 128
    assert parameter_count(model).recurrent_params == 16 * mixer
    assert model.uncounted_parts == ()
    plain = imported(PLAMO2, mamba_enabled=False, attention_window_size=None)
    assert kinds(plain) == {("gqa", None): 32}
    short = imported(PLAMO2, num_hidden_layers=4, mamba_step=8, full_attention_idx=None)
    assert kinds(short) == {("state", None): 3, ("gqa", 2048): 1}


def test_plamo_2_without_a_step_is_an_error_that_names_it() -> None:
    with pytest.raises(SpecError, match="mamba_step: is missing"):
        imported(PLAMO2, mamba_step=None)
