"""Parameters of a type's default configuration against the model that its published code makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

import lrkv_plan
from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface import import_config
from lrkv_plan.memory.cache import bytes_per_token, state_bytes_per_sequence
from lrkv_plan.memory.weights import parameter_count, weight_bytes_per_gpu
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import ExpertFeedForward
from tests.huggingface.test_huggingface import expanded

GOLDEN = Path(__file__).parent.parent / "golden" / "default_totals.yaml"


@pytest.mark.parametrize(
    "case", yaml.safe_load(GOLDEN.read_text(encoding="utf-8")), ids=lambda case: case["type"]
)
def test_defaults_have_the_parameters_that_the_code_makes(case: dict[str, Any]) -> None:
    model = import_config(expanded(case["config"]), Path("m.json"))
    counted = parameter_count(model)
    assert counted.missing == ()
    assert counted.model_params == case["params"]


SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 16, "vocab_size": 100, "tie_word_embeddings": True,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    **SMALL, "model_type": "nemotron_h", "hybrid_override_pattern": "*E", "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "moe_shared_expert_intermediate_size": 48,
}  # fmt: skip


def test_experts_of_a_latent_by_hand() -> None:
    """Nemotron-3-Super: 8 experts of two matrices 24 x 32, and 64 x 24 down and up."""
    plain = parameter_count(import_config(MIXTURE, Path("m.json")))
    model = import_config({**MIXTURE, "moe_latent_size": 24}, Path("m.json"))
    latent = parameter_count(model)
    assert (plain.idle_params, latent.idle_params) == (6 * 2 * 64 * 32, 6 * 2 * 24 * 32)
    assert plain.model_params is not None
    assert latent.model_params is not None
    experts = 8 * 2 * 32
    assert latent.model_params == plain.model_params - experts * (64 - 24) + 2 * 64 * 24
    block = model.layers[1].feed_forward
    assert isinstance(block, ExpertFeedForward)
    assert (block.routed_dim, block.expert_dim(64)) == (24, 24)


def test_windowed_layers_of_mimo_have_twice_the_kv_heads_unless_stated() -> None:
    """9 full layers of 4 heads 192 + 128, 39 with a window of 8, as transformers doubles them."""
    config = {
        **SMALL, "model_type": "mimo_v2_flash", "v_head_dim": 8, "sliding_window": 128,
        "layer_types": ["full_attention", "sliding_attention"],
    }  # fmt: skip
    kept = [g.attention for g in import_config(config, Path("m.json")).layers]
    assert [(a.n_kv_heads, a.sinks) for a in kept] == [(2, False), (4, True)]  # type: ignore[union-attr]
    stated = import_config({**config, "swa_num_key_value_heads": 1}, Path("m.json")).layers[1]
    assert stated.attention.n_kv_heads == 1  # type: ignore[union-attr]


def test_heads_by_layer_differ_between_kinds_alone() -> None:
    config = {
        **SMALL, "model_type": "laguna", "sliding_window": 8, "gating": True, "num_experts": 4,
        "layer_types": ["full_attention", "sliding_attention"], "num_experts_per_tok": 1,
        "num_attention_heads_per_layer": [4, 8], "mlp_layer_types": ["dense", "sparse"],
        "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8, "intermediate_size": 96,
    }  # fmt: skip
    model = import_config(config, Path("m.json"))
    assert [g.attention.n_heads for g in model.layers] == [4, 8]  # type: ignore[union-attr]
    gates = [w.n_params for g in model.layers for w in g.weights if w.name == "head_gate"]
    assert gates == [64 * 4, 64 * 8]
    same = {**config, "layer_types": ["sliding_attention"] * 2}
    with pytest.raises(SpecError, match=r"num_attention_heads_per_layer.*differ among themselves"):
        import_config(same, Path("m.json"))


def test_block_index_of_minimax_m3_by_hand() -> None:
    """Two heads of 8: queries 64 x 16, a key 64 x 8, norms 16; 16 bytes a token; 4 x 32 rows."""
    config = {
        **SMALL, "model_type": "minimax_m3", "intermediate_size": 32, "num_local_experts": 4,
        "num_experts_per_tok": 2, "moe_layer_freq": [0, 1], "dense_intermediate_size": 96,
        "shared_intermediate_size": 32,
        "sparse_attention_config": {
            "sparse_num_index_heads": 2, "sparse_index_dim": 8, "sparse_block_size": 32,
            "sparse_topk_blocks": 4, "sparse_attention_freq": [0, 1],
            "sparse_disable_index_value": [0, 1],
        },
    }  # fmt: skip
    dense, sparse = import_config(config, Path("m.json")).layers
    assert (dense.index, dense.selected_tokens, dense.weights) == ((), None, ())
    assert [one.bytes_per_copy for one in sparse.index] == [16]
    assert sparse.selected_tokens == 128
    assert sum(w.n_params for w in sparse.weights) == 64 * 16 + 64 * 8 + 16


def test_rwkv_keeps_two_shifted_rows_and_three_of_float32() -> None:
    config = {
        "model_type": "rwkv", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
        "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    model = import_config(config, Path("m.json"))
    assert model.attention_groups == ()
    assert state_bytes_per_sequence(model) == 3 * (2 * 64 * 2 + 3 * 64 * 4)


def test_layers_that_share_a_block_cache_apart_and_weigh_once() -> None:
    """Zamba2: two layers keep 2 x 4 heads of 32 each; one block of 128 x 3 x 128 and 128 x 64."""
    config = {
        "model_type": "zamba2", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
        "num_attention_heads": 4, "attention_head_dim": 32, "intermediate_size": 128,
        "layers_block_type": ["mamba", "hybrid", "hybrid"], "num_mem_blocks": 1,
        "adapter_rank": 8, "mamba_d_state": 4, "mamba_d_conv": 4, "mamba_headdim": 32,
        "n_mamba_heads": 4, "mamba_ngroups": 1, "tie_word_embeddings": True,
    }  # fmt: skip
    model = import_config(config, Path("m.json"))
    assert bytes_per_token(model) == 2 * 2 * 4 * 32 * 2
    counted = parameter_count(model)
    assert counted.attention_params == 128 * 3 * 128 + 128 * 64
    assert counted.feed_forward_params == 64 * 256 + 128 * 64
    whole = weight_bytes_per_gpu(model, parallel=Parallelism(), weight_dtype="bf16")
    assert whole.fullest.total == 2 * (counted.model_params or 0)
    with pytest.raises(SpecError, match="multiply the same attention matrices"):
        lrkv_plan.step_time(model, gpu="h100-sxm", weight_dtype="bf16")


def test_draft_layers_of_their_own_shape() -> None:
    """MiMo-V2's attend with a window and have a dense block; Ernie 4.5's are dense and lack a norm."""
    shared = {
        **SMALL, "num_nextn_predict_layers": 1, "intermediate_size": 96,
        "moe_intermediate_size": 8, "n_routed_experts": 4, "num_experts_per_tok": 1,
    }  # fmt: skip
    mimo = {
        **shared, "model_type": "mimo_v2_flash", "sliding_window": 8, "moe_layer_freq": [0, 1],
        "layer_types": ["sliding_attention", "full_attention"], "n_shared_experts": None,
    }  # fmt: skip
    module = import_config(mimo, Path("m.json")).mtp
    assert module is not None
    assert module.layers[0].window_tokens == 8
    # query and output 2 x 64 x 64, key and value 2 x 64 x 64, sinks; 3 x 64 x 96; 2 x 64 x 64
    held = 2 * 64 * 64 + 2 * 64 * 64 + 4 + 3 * 64 * 96 + 2 * 64 * 64 + 5 * 64
    assert parameter_count(import_config(mimo, Path("m.json"))).mtp_params == held
    ernie = {
        **shared, "model_type": "ernie4_5_moe", "moe_num_experts": 4, "moe_k": 1,
        "moe_layer_start_index": 1, "moe_num_shared_experts": 1, "n_routed_experts": None,
        "num_experts_per_tok": None,
    }  # fmt: skip
    held = 2 * 64 * 64 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64 * 64 + 4 * 64
    assert parameter_count(import_config(ernie, Path("m.json"))).mtp_params == held


def test_largest_images_by_hand() -> None:
    """Mistral-Small 55^2 of 2 x 2 patches, InternVL 13 tiles, Llama 4 17, Mllama 4, LLaVA 24^2."""
    text = {**SMALL, "model_type": "llama", "intermediate_size": 96}
    for name, vision, tokens in (
        ("mistral3", {"hidden_size": 1024, "image_size": 1540, "patch_size": 14}, 3025),
        ("internvl", {"image_size": [448, 448], "patch_size": [14, 14]}, 13 * 256),
        ("llama4", {"image_size": 336, "patch_size": 14}, 17 * 144),
        ("mllama", {"image_size": 560, "patch_size": 14}, 4 * 1601),
        ("llava", {"model_type": "clip_vision_model", "image_size": 336}, 576),
        ("llava", {"model_type": "pixtral"}, 4096),
    ):
        outer = {"model_type": name, "text_config": text, "vision_config": vision}
        media = import_config(outer, Path("m.json")).media
        assert media is not None
        assert (media.image_tokens, media.video_pair_tokens) == (tokens, None)


def test_longcat_attends_twice_a_layer() -> None:
    """What transformers allots less the matrices that its 256 idle experts would have."""
    config = {
        "model_type": "longcat_flash", "hidden_size": 6144, "num_layers": 28, "vocab_size": 131072,
        "num_attention_heads": 64, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
        "ffn_hidden_size": 12288, "expert_ffn_hidden_size": 2048, "n_routed_experts": 512,
        "moe_topk": 12, "zero_expert_num": 256, "tie_word_embeddings": False,
    }  # fmt: skip
    model = import_config(config, Path("m.json"))
    assert bytes_per_token(model) == 56 * (512 + 64) * 2
    idle = 28 * 256 * 2 * 2048 * 6144
    assert parameter_count(model).model_params == 741_053_606_912 - idle
