"""Parameters of imported configs against totals that hubs and publishers print, to the last one.

Shapes and totals are public facts of each model's card, config.json and safetensors header.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lrkv_plan.huggingface import import_config
from lrkv_plan.memory.cache import bytes_per_token, encoder_bytes_per_token
from lrkv_plan.memory.weights import parameter_count

QWEN_NEXT: dict[str, Any] = {
    "head_dim": 256, "vocab_size": 248320, "full_attention_interval": 4,
    "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "num_key_value_heads": 2,
    "mtp_num_hidden_layers": 1, "num_experts": 256, "num_experts_per_tok": 8,
}  # fmt: skip
QWEN_35B = {
    **QWEN_NEXT, "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40,
    "num_attention_heads": 16, "linear_num_value_heads": 32, "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}  # fmt: skip
QWEN25_VL: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "vision_config": {"depth": 32, "hidden_size": 1280},
    "tie_word_embeddings": False,
}  # fmt: skip
DEEPSEEK: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61,
    "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 129280,
    "num_nextn_predict_layers": 1,
}  # fmt: skip
GLM_5: dict[str, Any] = {
    "model_type": "glm_moe_dsa", "hidden_size": 6144, "num_hidden_layers": 78,
    "num_attention_heads": 64, "q_lora_rank": 2048, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "intermediate_size": 12288,
    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1,
    "num_experts_per_tok": 8, "first_k_dense_replace": 3, "vocab_size": 154880,
    "num_nextn_predict_layers": 1, "index_head_dim": 128, "index_n_heads": 32, "index_topk": 2048,
}  # fmt: skip
KIMI_LINEAR: dict[str, Any] = {
    "model_type": "kimi_linear", "hidden_size": 2304, "num_hidden_layers": 27,
    "num_attention_heads": 32, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 9216, "num_experts": 256,
    "num_experts_per_token": 8, "num_shared_experts": 1, "moe_intermediate_size": 1024,
    "first_k_dense_replace": 1, "vocab_size": 163840, "tie_word_embeddings": False,
    "linear_attn_config": {
        "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
    },
}  # fmt: skip
NEMOTRON: dict[str, Any] = {
    "model_type": "nemotron_h", "vocab_size": 131072, "n_groups": 8, "conv_kernel": 4,
    "tie_word_embeddings": False,
}  # fmt: skip
JAMBA: dict[str, Any] = {
    "model_type": "jamba", "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
    "vocab_size": 65536, "num_experts": 16, "num_experts_per_tok": 2, "attn_layer_period": 8,
    "attn_layer_offset": 4, "expert_layer_period": 2, "expert_layer_offset": 1,
    "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2, "mamba_dt_rank": 256,
}  # fmt: skip
MINIMAX: dict[str, Any] = {
    "model_type": "minimax", "hidden_size": 6144, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 9216, "num_local_experts": 32, "num_experts_per_tok": 2,
    "vocab_size": 200064, "attn_type_list": ([0] * 7 + [1]) * 10,
}  # fmt: skip
FALCON_H1: dict[str, Any] = {
    "model_type": "falcon_h1", "hidden_size": 1024, "num_hidden_layers": 36,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
    "intermediate_size": 2048, "vocab_size": 32784, "mamba_n_heads": 24, "mamba_d_head": 64,
    "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4,
}  # fmt: skip
GRANITE_H: dict[str, Any] = {
    "model_type": "granitemoehybrid", "hidden_size": 1536, "num_hidden_layers": 40,
    "num_attention_heads": 12, "num_key_value_heads": 4, "intermediate_size": 512,
    "num_local_experts": 64, "num_experts_per_tok": 6, "shared_intermediate_size": 1024,
    "layer_types": ["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
    "mamba_n_heads": 48, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_d_conv": 4,
    "mamba_n_groups": 1, "vocab_size": 100352, "tie_word_embeddings": True,
}  # fmt: skip
LFM2: dict[str, Any] = {
    "model_type": "lfm2", "hidden_size": 2048, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 12288,
    "block_auto_adjust_ff_dim": True, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0,
    "vocab_size": 65536, "full_attn_idxs": [2, 5, 8, 10, 12, 14],
}  # fmt: skip
MAMBA_14B: dict[str, Any] = {
    "model_type": "mamba", "hidden_size": 2048, "num_hidden_layers": 48, "intermediate_size": 4096,
    "state_size": 16, "conv_kernel": 4, "expand": 2, "time_step_rank": 128, "vocab_size": 50280,
}  # fmt: skip
FALCON_MAMBA: dict[str, Any] = {
    "model_type": "falcon_mamba", "hidden_size": 4096, "num_hidden_layers": 64,
    "intermediate_size": 8192, "state_size": 16, "conv_kernel": 4, "time_step_rank": 256,
    "vocab_size": 65024, "tie_word_embeddings": False,
}  # fmt: skip
MAMBA2: dict[str, Any] = {
    "model_type": "mamba2", "hidden_size": 2560, "num_hidden_layers": 64, "num_heads": 80,
    "head_dim": 64, "state_size": 128, "n_groups": 1, "conv_kernel": 4, "expand": 2,
    "vocab_size": 50288, "tie_word_embeddings": True,
}  # fmt: skip
OLMO: dict[str, Any] = {
    "model_type": "olmo3", "hidden_size": 5120, "num_hidden_layers": 64,
    "num_attention_heads": 40, "num_key_value_heads": 8, "intermediate_size": 27648,
    "vocab_size": 100278, "sliding_window": 4096,
}  # fmt: skip
WHISPER: dict[str, Any] = {
    "model_type": "whisper", "d_model": 1280, "decoder_layers": 32,
    "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "encoder_layers": 32,
    "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "num_mel_bins": 128,
    "max_source_positions": 1500, "max_target_positions": 448, "vocab_size": 51866,
}  # fmt: skip
GEMMA_3: dict[str, Any] = {
    "model_type": "gemma3",
    "text_config": {
        "model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256,
        "intermediate_size": 15360, "vocab_size": 262208, "sliding_window": 1024,
        "sliding_window_pattern": 6,
    },
    "vision_config": {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "patch_size": 14, "image_size": 896,
    },
}  # fmt: skip
MISTRAL_3: dict[str, Any] = {
    "model_type": "mistral3",
    "text_config": {
        "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 32768, "vocab_size": 131072,
    },
    "vision_config": {"hidden_size": 1024, "num_hidden_layers": 24, "patch_size": 14},
}  # fmt: skip
MIMO: dict[str, Any] = {
    "model_type": "mimo", "hidden_size": 4096, "num_hidden_layers": 36, "head_dim": 128,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 11008,
    "vocab_size": 151680, "num_nextn_predict_layers": 1, "use_sliding_window": False,
}  # fmt: skip
PIXTRAL: dict[str, Any] = {
    "model_type": "llava",
    "text_config": {
        "model_type": "mistral", "hidden_size": 5120, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 14336, "vocab_size": 131072,
    },
    "vision_config": {"model_type": "pixtral", "hidden_size": 1024, "patch_size": 16},
    "vision_feature_layer": -1,
}  # fmt: skip
QWEN3_VL_8B: dict[str, Any] = {
    "model_type": "qwen3_vl",
    "text_config": {
        "model_type": "qwen3_vl_text", "hidden_size": 4096, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "intermediate_size": 12288, "vocab_size": 151936,
    },
    "vision_config": {"depth": 27, "hidden_size": 1152, "deepstack_visual_indexes": [8, 16, 24]},
    "tie_word_embeddings": False,
}  # fmt: skip
QWEN2_VL_2B: dict[str, Any] = {
    "model_type": "qwen2_vl", "hidden_size": 1536, "num_hidden_layers": 28,
    "num_attention_heads": 12, "num_key_value_heads": 2, "intermediate_size": 8960,
    "vocab_size": 151936, "tie_word_embeddings": True, "use_sliding_window": False,
    "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4},
}  # fmt: skip
LLAMA_4_SCOUT: dict[str, Any] = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text", "hidden_size": 5120, "num_hidden_layers": 48,
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
        "attention_chunk_size": 8192, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
        "num_local_experts": 16, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1,
        "vocab_size": 202048,
    },
    "vision_config": {"hidden_size": 1408, "num_hidden_layers": 34, "intermediate_size": 5632},
}  # fmt: skip
INTERNVL_3: dict[str, Any] = {
    "model_type": "internvl_chat",
    "llm_config": {
        "model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18944,
        "vocab_size": 151674, "tie_word_embeddings": False, "use_sliding_window": False,
    },
    "vision_config": {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "patch_size": 14,
        "image_size": 448,
    },
}  # fmt: skip
MLLAMA: dict[str, Any] = {
    "model_type": "mllama",
    "text_config": {
        "model_type": "mllama_text_model", "hidden_size": 4096, "num_hidden_layers": 40,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38], "vocab_size": 128256,
    },
    "vision_config": {"image_size": 560},
}  # fmt: skip
GEMMA_4_31B: dict[str, Any] = {
    "model_type": "gemma4",
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 5376, "num_hidden_layers": 60,
        "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True,
        "intermediate_size": 21504, "vocab_size": 262144, "sliding_window": 1024,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10,
    },
    "vision_config": {"hidden_size": 1152, "num_hidden_layers": 27},
}  # fmt: skip


def qwen25(width: int, layers: int, heads: int, kv: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        **QWEN25_VL, "hidden_size": width, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": inner,
        "use_sliding_window": False, **more,
    }  # fmt: skip


def nemotron(width: int, pattern: str, heads: int, inner: int, **more: Any) -> dict[str, Any]:
    return {
        **NEMOTRON, "hidden_size": width, "hybrid_override_pattern": pattern,
        "num_hidden_layers": len(pattern), "num_attention_heads": heads, "num_key_value_heads": 8,
        "attention_head_dim": 128, "intermediate_size": inner, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "published"),
    [
        (MAMBA_14B, 1_372_178_432),  # state-spaces/mamba-1.4b-hf
        (FALCON_MAMBA, 7_272_665_088),  # tiiuae/falcon-mamba-7b
        (MAMBA2, 2_702_599_680),  # state-spaces/mamba2-2.7b
        (JAMBA, 51_570_323_328),  # ai21labs/Jamba-v0.1
        (MINIMAX, 456_089_655_296),  # MiniMaxAI/MiniMax-Text-01
        (FALCON_H1, 521_411_104),  # tiiuae/Falcon-H1-0.5B
        (GRANITE_H, 6_939_037_248),  # ibm-granite/granite-4.0-h-tiny
        (LFM2, 1_170_340_608),  # LiquidAI/LFM2-1.2B
        (KIMI_LINEAR, 49_122_681_728),  # moonshotai/Kimi-Linear-48B-A3B-Instruct
        (
            nemotron(  # nvidia/NVIDIA-Nemotron-Nano-9B-v2
                4480, "M-" * 25 + "MM****", 40, 15680, mamba_num_heads=128, mamba_head_dim=80,
                ssm_state_size=128,
            ),
            8_888_227_328,
        ),
        (OLMO, 32_233_522_176),  # allenai/Olmo-3-1125-32B
        (WHISPER, 1_543_490_560),  # openai/whisper-large-v3
        (GEMMA_3, 12_187_325_040),  # google/gemma-3-12b-pt
        (MISTRAL_3, 24_011_361_280),  # mistralai/Mistral-Small-3.1-24B
        (PIXTRAL, 12_682_739_712),  # mistral-community/pixtral-12b
        (LLAMA_4_SCOUT, 108_641_793_536),  # meta-llama/Llama-4-Scout-17B-16E-Instruct
        (MLLAMA, 10_670_220_835),  # meta-llama/Llama-3.2-11B-Vision
        (INTERNVL_3, 7_944_373_760),  # OpenGVLab/InternVL3-8B
        (QWEN3_VL_8B, 8_767_123_696),  # Qwen/Qwen3-VL-8B-Instruct
        (QWEN2_VL_2B, 2_208_985_600),  # Qwen/Qwen2-VL-2B-Instruct
        (qwen25(3584, 28, 28, 4, 18944, vocab_size=152064), 8_292_166_656),  # Qwen2.5-VL-7B
        (
            qwen25(2048, 36, 16, 2, 11008, vocab_size=151936, tie_word_embeddings=True),
            3_754_622_976,  # Qwen/Qwen2.5-VL-3B-Instruct
        ),
    ],
)  # fmt: skip
def test_a_config_has_its_published_total(config: dict[str, Any], published: int) -> None:
    model = import_config(config, Path("m.json"))
    counted = parameter_count(model)
    assert counted.missing == ()
    assert counted.model_params == published
    assert model.uncounted_parts == ()


def test_gemma_4_stores_its_head_again() -> None:
    """32,682,372,656 on the hub: less the second copy of its tied table."""
    counted = parameter_count(import_config(GEMMA_4_31B, Path("m.json")))
    assert counted.model_params == 32_682_372_656 - 262_144 * 5376
    assert counted.encoder_params == 575_741_232


@pytest.mark.parametrize(
    ("config", "language", "encoders", "mtp", "published"),
    [
        # deepseek-ai/DeepSeek-V3 without its 41,540,496 scales
        (DEEPSEEK, 671_026_419_200, 0, 13_463_426_304, 684_489_845_504),
        (GLM_5, 743_911_218_432, 0, 9_952_920_576, 753_864_139_008),  # zai-org/GLM-5
        # XiaomiMiMo/MiMo-7B-RL: 177,223,680 a layer, 2 x 4,096^2 and 3 x 4,096
        (MIMO, 7_622_619_136, 0, 210_790_400, 7_833_409_536),
        (
            {
                "model_type": "qwen3_5_moe", "text_config": QWEN_35B, "vision_config": {"depth": 27},
                "tie_word_embeddings": False,
            },
            34_660_610_688, 446_571_248, 844_640_768, 35_951_822_704,  # Qwen/Qwen3.5-35B-A3B
        ),
    ],
)  # fmt: skip
def test_draft_modules_and_encoders_stand_apart(
    config: dict[str, Any], language: int, encoders: int, mtp: int, published: int
) -> None:
    counted = parameter_count(import_config(config, Path("m.json")))
    assert (counted.language_params, counted.encoder_params) == (language, encoders)
    assert counted.mtp_params == mtp
    assert (counted.model_params or 0) + mtp == published


def test_mllama_keeps_the_tiles_of_an_image_in_layers_of_their_own() -> None:
    """32 layers keep the context; 8 keep 4 x ((560 / 14)^2 + 1) = 6,404 rows of an image."""
    model = import_config(MLLAMA, Path("m.json"))
    assert [(g.count, g.cached_over, g.shares_layer) for g in model.layers] == [
        (32, "context", False), (8, "encoder", False),
    ]  # fmt: skip
    assert (model.n_layers, model.encoder_tokens) == (40, 6404)
    assert bytes_per_token(model) == 32 * 2 * 8 * 128 * 2
    assert encoder_bytes_per_token(model) == 8 * 2 * 8 * 128 * 2
