"""What the published code of each ``model_type`` does where its config.json is silent.

One row per type, read in the modelling code of Hugging Face transformers 5.24; bailing_moe_linear
in that of vLLM, smallthinker in its authors' code for vLLM, internlm3, qwen and minimax_text_01 in
code that ships with their checkpoints; baichuan, chatglm, minicpm3, mpt and plamo2 are from memory
of such code, not read again. The totals of dbrx, dots.llm1, gpt-neo-1.3b, phi-3.5-moe, qwen-14b and
seed-oss-36b close to the last parameter, and so does what transformers makes of the defaults of a
hundred types (tests/golden/default_totals.yaml). A constant of the code that a cache depends on,
such as head_dim 256, is deliberately absent: the importer asks for the key instead.
"""

from __future__ import annotations

from dataclasses import replace

from lrkv_plan.huggingface.model_type import Experts, ModelType
from lrkv_plan.specs.model import Norms

RMS = Norms(per_mixer=1, per_feed_forward=1)
_SANDWICH = Norms(per_mixer=2, per_feed_forward=2)
_LAYER_NORM = Norms(per_mixer=1, per_feed_forward=1, bias=True)
_PARALLEL = Norms(per_mixer=1, per_feed_forward=0, bias=True)

UNKNOWN = ModelType()
_LLAMA = ModelType(
    head_dim_is_quotient=True, kv_heads_default_to_heads=True, gated=True, norms=RMS, tied=False
)
_STATED = replace(_LLAMA, head_dim_is_quotient=False, kv_heads_default_to_heads=False)
_MISTRAL = replace(_LLAMA, kv_heads_default_to_heads=False, window="every")
_QWEN2 = replace(_MISTRAL, qkv_bias=True, output_bias=False, window="upper")
_QWEN3 = replace(_STATED, qk_norm=True, window="upper")
_QWEN3_NEXT = replace(_STATED, qk_norm=True, output_gate=("attn_output_gate", True), mtp_copies=0)
_GEMMA2 = replace(_STATED, norms=_SANDWICH, tied=True, window="odd_full")
_GEMMA3 = replace(_GEMMA2, qk_norm=True, window="every_6th_full")
_GPT2 = ModelType(
    head_dim_is_quotient=True, kv_heads_default_to_heads=True, gated=False, norms=_LAYER_NORM,
    qkv_bias=True, output_bias=True, feed_forward_bias=True, tied=True, dense_factor=4,
    dense_width=("n_inner",), extra_positions=0,
)  # fmt: skip
_GPTJ = replace(
    _GPT2, qkv_bias=False, output_bias=False, norms=_PARALLEL, tied=False, head_bias=True,
    extra_positions=None,
)  # fmt: skip
_BLOOM = replace(
    _GPT2, norms=_LAYER_NORM.model_copy(update={"embedding": True}), extra_positions=None
)
_OPT = replace(
    _GPT2, dense_width=("ffn_dim",), dense_factor=None, qkv_bias=("enable_bias", True),
    output_bias=("enable_bias", True), feed_forward_bias=("enable_bias", True), extra_positions=2,
    default_positions=2048,
)  # fmt: skip
_NEOX = replace(
    _GPT2, qkv_bias=("attention_bias", True), output_bias=("attention_bias", True), tied=False,
    dense_width=("intermediate_size",), dense_factor=None, extra_positions=None,
)  # fmt: skip
_PHI = replace(
    _NEOX, qkv_bias=True, output_bias=True, norms=_PARALLEL, head_bias=True,
)  # fmt: skip
_FALCON = replace(
    _GPT2, kv_heads_default_to_heads=False, multi_query_decides=True, qkv_bias=("bias", False),
    output_bias=("bias", False), feed_forward_bias=("bias", False), norms=_PARALLEL,
    dense_width=("ffn_hidden_size",), extra_positions=None,
)  # fmt: skip
_MPT = replace(
    _GPT2, norms=RMS, dense_width=(), qkv_bias=False, output_bias=False,
    feed_forward_bias=False, extra_positions=None,
)  # fmt: skip
_BIGCODE = replace(_GPT2, kv_heads_default_to_heads=False, multi_query_decides=True)
_DEEPSEEK2 = replace(
    _STATED,
    experts=Experts(
        shared="n_shared_experts", shared_is_count=True, placed_by=("first_k_dense_replace",)
    ),
)
_V3_EXPERTS = Experts(
    shared="n_shared_experts", shared_is_count=True, router_bias=True,
    placed_by=("first_k_dense_replace", "mlp_layer_types"),
)  # fmt: skip
_DENSE_FIRST = ("first_k_dense_replace",)
_DEEPSEEK3 = replace(_DEEPSEEK2, experts=_V3_EXPERTS, mtp_copies=2)
_QWEN_EXPERTS = Experts(shared="shared_expert_intermediate_size", shared_gate=True)
_GRANITE_EXPERTS = Experts(width="intermediate_size", shared="shared_intermediate_size")
_OLMO2 = replace(_LLAMA, wide_qk_norm=True)
_DOTS = replace(_STATED, qk_norm=True, experts=replace(_V3_EXPERTS, placed_by=_DENSE_FIRST))
_ERNIE = replace(
    _STATED, qkv_bias=("use_bias", False), output_bias=("use_bias", False),
    feed_forward_bias=("use_bias", False), tied=True,
)  # fmt: skip
_MAMBA = ModelType(
    pattern="only_mamba", gated=False, norms=Norms(per_mixer=1, per_feed_forward=0), tied=True
)
_COHERE = replace(
    _LLAMA, norms=Norms(per_mixer=1, per_feed_forward=0), tied=True, qk_norm=False,
    wide_qk_norm=("use_qk_norm", False),
)  # fmt: skip

_MINIMAX_M3 = replace(
    _STATED, qk_norm=True, dense_width=("dense_intermediate_size",),
    defaults={"dense_intermediate_size": 12_288, "shared_intermediate_size": 3072},
    experts=Experts(
        width="intermediate_size", shared="shared_intermediate_size",
        router_bias=("use_routing_bias", True), placed_by=("moe_layer_freq", "mlp_layer_types"),
    ),
)  # fmt: skip
_ARIA = replace(
    _STATED,
    experts=Experts(
        width="intermediate_size", shared="moe_num_shared_experts", shared_is_count=True
    ),
)
_CODEGEN = replace(_GPTJ, qkv_bias=False, output_bias=False)
_SHARED_COUNT = Experts(
    shared="num_shared_experts", shared_is_count=True, router_bias=True,
    placed_by=("first_k_dense_replace", "mlp_layer_types"),
)  # fmt: skip
_STEP = replace(
    _STATED, qk_norm=True, head_gate=True, defaults={"share_expert_dim": 1280},
    experts=Experts(
        shared="share_expert_dim", router_bias=True,
        placed_by=("moe_layers_enum", "first_k_dense_replace", "mlp_layer_types"),
    ),
)  # fmt: skip
_MLLAMA = replace(
    _LLAMA,
    kv_heads_default_to_heads=False,
    pattern="cross_attention_layers",
    qkv_bias=False,
    output_bias=False,
    feed_forward_bias=False,
    image_rows=8,
)

MODEL_TYPES: dict[str, ModelType] = {
    "mllama": _MLLAMA,
    "mllama_text_model": _MLLAMA,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
    "ministral3": replace(_STATED, window="every"),
    "mixtral": replace(_MISTRAL, experts=Experts(width="intermediate_size")),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen2_5_omni": _QWEN2,
    "qwen2_moe": replace(_QWEN2, qkv_bias=("qkv_bias", True), experts=_QWEN_EXPERTS),
    "qwen3": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_moe": replace(_QWEN3, experts=Experts()),
    "qwen3_vl_moe": replace(_QWEN3, experts=Experts()),
    "qwen3_omni_moe": replace(_QWEN3, experts=Experts()),
    "qwen3_next": replace(_QWEN3_NEXT, experts=_QWEN_EXPERTS),
    "qwen3_5": _QWEN3_NEXT,
    "qwen3_5_moe": replace(_QWEN3_NEXT, experts=_QWEN_EXPERTS),
    "mimo": replace(_STATED, qkv_bias=True, output_bias=False, window="upper", mtp_copies=0),
    "mimo_v2_flash": replace(
        _STATED, mtp_copies=0, mtp_is_dense=True, mtp_has_window=True, sliding_kv_factor=2,
        sinks=("add_full_attention_sink_bias", False),
        sliding_sinks=("add_swa_attention_sink_bias", True),
        experts=Experts(router_bias=True, placed_by=("moe_layer_freq", "mlp_layer_types")),
    ),
    "gemma": replace(_STATED, tied=True),
    "gemma2": _GEMMA2,
    "gemma3": _GEMMA3,
    "gemma3n": replace(_GEMMA3, window="every_5th_full", additions=("altup",)),
    "gemma4": replace(
        _GEMMA3,
        must_state=("global_head_dim|per_layer_config",),
        experts=Experts(
            dense_beside=True, placed_by=("enable_moe_block",), norms=3, scales=True
        ),
    ),
    "gpt_oss": replace(
        _STATED, qkv_bias=("attention_bias", True), output_bias=("attention_bias", True),
        feed_forward_bias=True, window="odd_full",
        experts=Experts(width="intermediate_size", router_bias=True),
        sinks=True,
    ),
    "phi": _PHI,
    "phi3": replace(_LLAMA, window="every"),
    "gpt2": _GPT2,
    "gpt_bigcode": _BIGCODE,
    "gpt_neox": _NEOX,
    "gptj": _GPTJ,
    "opt": _OPT,
    "bloom": _BLOOM,
    "falcon": _FALCON,
    "RefinedWeb": replace(_FALCON, multi_query_decides=False),
    "RefinedWebModel": _FALCON,
    "mpt": _MPT,
    "baichuan": _LLAMA,
    "chatglm": replace(
        _STATED, qkv_bias=("add_qkv_bias", False), published={"add_qkv_bias": True},
        output_bias=("add_bias_linear", False),
        feed_forward_bias=("add_bias_linear", False), dense_width=("ffn_hidden_size",),
    ),
    "internlm2": replace(_LLAMA, qkv_bias=("bias", False), output_bias=("bias", False)),
    "olmo": replace(_LLAMA, norms=Norms(per_mixer=0, per_feed_forward=0, final=False)),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, window="every_4th_full"),
    "olmoe": replace(_OLMO2, experts=Experts(width="intermediate_size")),
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, wide_qk_norm=False, window="every_4th_full"),
    "exaone4": replace(_STATED, qk_norm=True, window="every_4th_full"),
    "glm4": replace(_STATED, output_bias=False, norms=_SANDWICH),
    "glm4_moe": replace(
        _STATED, output_bias=False, qk_norm=("use_qk_norm", False), experts=_V3_EXPERTS,
        published={"attention_bias": True}, mtp_copies=2,
    ),
    "glm4_moe_lite": _DEEPSEEK3,
    "deepseek_v2": _DEEPSEEK2,
    "deepseek_v3": _DEEPSEEK3,
    "kimi_k2": _DEEPSEEK3,
    "deepseek_v32": _DEEPSEEK3,
    "glm_moe_dsa": replace(_DEEPSEEK3, mtp_copies=0),
    "kimi_linear": replace(
        _DEEPSEEK3, experts=replace(_V3_EXPERTS, shared="num_shared_experts"), mtp_copies=None,
        additions=("attention_residual",),
    ),
    "minicpm3": replace(_LLAMA, value_dim_is_quotient=True, tied=True, feed_forward_bias=False),
    "minimax_m3": _MINIMAX_M3,
    "minimax_m3_vl": _MINIMAX_M3,
    "minimax": replace(_STATED, experts=Experts(width="intermediate_size")),
    "minimax_text_01": replace(_STATED, experts=Experts(width="intermediate_size")),
    "minimax_m2": replace(
        _STATED, wide_qk_norm=("use_qk_norm", True),
        experts=Experts(width="intermediate_size", router_bias=("use_routing_bias", True)),
    ),
    "llama4": replace(
        _STATED,
        dense_width=("intermediate_size_mlp",),
        experts=Experts(
            width="intermediate_size", shared="intermediate_size",
            placed_by=("interleave_moe_layer_step", "moe_layers"),
        ),
    ),
    "granite": _LLAMA,
    "granitemoe": replace(_LLAMA, experts=replace(_GRANITE_EXPERTS, shared=None)),
    "granitemoeshared": replace(_LLAMA, experts=_GRANITE_EXPERTS),
    "granitemoehybrid": replace(_LLAMA, experts=_GRANITE_EXPERTS),
    "jamba": replace(
        _MISTRAL, window="",
        experts=Experts(width="intermediate_size", placed_by=("expert_layer_period",)),
    ),
    "bamba": replace(_MISTRAL, window="", must_state=("attn_layer_indices|layer_types",)),
    "falcon_h1": _STATED,
    "lfm2": replace(
        _MISTRAL, window="", pattern="full_attn_idxs", qk_norm=True, tied=True,
        dense_width=("block_ff_dim", "intermediate_size"),
    ),
    "nemotron-nas": _LLAMA,
    "nemotron_h": replace(
        _STATED, gated=False,
        experts=Experts(shared="moe_shared_expert_intermediate_size", router_bias=True),
    ),
    "starcoder2": replace(
        _GPT2, kv_heads_default_to_heads=False, window="every", qkv_bias=("use_bias", True),
        output_bias=("use_bias", True), feed_forward_bias=("use_bias", True),
        dense_width=("intermediate_size",), dense_factor=None, extra_positions=None,
    ),
    "whisper": ModelType(norms=_LAYER_NORM, tied=True, extra_positions=0),
    "afmoe": replace(
        _STATED, pattern="global_attn_every_n_layers", qkv_bias=False, output_bias=False,
        qk_norm=True, output_gate=True, norms=_SANDWICH,
        experts=Experts(
            shared="num_shared_experts", shared_is_count=True, router_bias=True,
            placed_by=("num_dense_layers",),
        ),
    ),
    "bailing_hybrid": replace(
        _STATED, pattern="layer_group_size", head_gate=True, experts=_SHARED_COUNT
    ),
    "bailing_moe_linear": replace(
        _STATED, pattern="layer_group_size", qkv_bias=("use_qkv_bias", False),
        output_bias=("use_bias", False), qk_norm=("use_qk_norm", True),
        experts=Experts(
            shared="num_shared_experts", shared_is_count=True,
            router_bias=("moe_router_enable_expert_bias", False), placed_by=_DENSE_FIRST,
        ),
    ),
    "apertus": replace(
        _LLAMA, gated=False, qk_norm=True, feed_forward_bias=False,
        additions=("activation_scalars",),
    ),
    "arcee": replace(_LLAMA, gated=False),
    "dbrx": replace(
        _LLAMA, kv_heads_default_to_heads=False, must_state=("attn_config",), dense_width=(),
        experts=Experts(width="ffn_hidden_size", part="ffn_config"),
    ),
    "deepseek_v4": replace(
        _STATED, pattern="compress_ratios", shared_row=True, sinks=True,
        experts=replace(_V3_EXPERTS, placed_by=()), additions=("hyper_connections", "stream_head"),
    ),
    "dots1": _DOTS,
    "exaone": _LLAMA,
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": replace(
        _ERNIE, head_bias=("use_bias", False), mtp_copies=0, mtp_is_dense=True, mtp_norms=2,
        experts=Experts(
            shared="moe_num_shared_experts", shared_is_count=True, router_bias=True,
            placed_by=("moe_layer_start_index",),
        ),
    ),
    "glm5_next": replace(
        _DEEPSEEK3, must_state=("index_kpool", "layer_types"), mtp_copies=None,
        additions=("hyper_connections",),
    ),
    "glm": replace(_STATED, qkv_bias=("attention_bias", True), output_bias=False),
    "glm4v": replace(
        _LLAMA, kv_heads_default_to_heads=False, qkv_bias=True, output_bias=False,
        feed_forward_bias=False, norms=_SANDWICH,
    ),
    "glm4v_moe": replace(
        _STATED, qkv_bias=("attention_bias", True), output_bias=False, experts=_V3_EXPERTS
    ),
    "gpt_neo": replace(
        _GPT2, qkv_bias=False, pattern="attention_types", dense_width=("intermediate_size",)
    ),
    "hunyuan_v1_dense": replace(_LLAMA, qk_norm=True, feed_forward_bias=False),
    "internlm3": replace(
        _STATED, qkv_bias=("qkv_bias", False), output_bias=("bias", False),
        feed_forward_bias=("bias", False),
    ),
    "lfm2_moe": replace(
        _MISTRAL, window="", pattern="full_attn_idxs", qk_norm=True, tied=True,
        experts=Experts(router_bias=("use_expert_bias", True), placed_by=("num_dense_layers",)),
    ),
    "mamba": _MAMBA,
    "mamba2": replace(_MAMBA, tied=False),
    "falcon_mamba": replace(_MAMBA, tied=None),
    "ministral": _MISTRAL,
    "nemotron": replace(
        _LLAMA, gated=False, norms=_LAYER_NORM, output_bias=("attention_bias", False)
    ),
    "phimoe": replace(
        _MISTRAL, norms=_LAYER_NORM, head_bias=("lm_head_bias", False), feed_forward_bias=False,
        experts=Experts(width="intermediate_size"),
    ),
    "plamo2": replace(
        _STATED, head_dim_key="hidden_size_per_head", pattern="mamba_step", qkv_bias=False,
        output_bias=False, feed_forward_bias=False, wide_qk_norm=True, norms=_SANDWICH, tied=True,
    ),
    "qwen": replace(
        _LLAMA, head_dim_is_quotient=False, qkv_bias=True, output_bias=False,
        feed_forward_bias=False, dense_width_divisor=2,
    ),
    "recurrent_gemma": replace(
        _LLAMA, pattern="block_types", output_bias=True, feed_forward_bias=True, tied=True,
        dense_width_divisor=2,
    ),
    "seed_oss": replace(
        _STATED, qkv_bias=("attention_bias", True), output_bias=("attention_out_bias", False)
    ),
    "smallthinker": replace(
        _STATED, pattern="sliding_window_layout", qkv_bias=False, output_bias=False, tied=None,
        dense_width=(), experts=Experts(width="moe_ffn_hidden_size"),
    ),
    "stablelm": replace(
        _LLAMA, kv_heads_default_to_heads=False, qkv_bias=("use_qkv_bias", False),
        output_bias=False, feed_forward_bias=False, norms=_LAYER_NORM,
        one_norm_when="use_parallel_residual", wide_qk_norm=("qk_layernorm", False),
    ),
    "smollm3": replace(_MISTRAL, tied=True, window="upper"),
    "rwkv": replace(
        _MAMBA, pattern="only_rwkv", tied=None,
        norms=Norms(per_mixer=2, per_feed_forward=0, bias=True, embedding=True),
    ),
    "step3p5": _STEP,
    "step3p7": _STEP,
    "aria": _ARIA,
    "aria_text": _ARIA,
    "axk1": replace(_DEEPSEEK3, experts=replace(_V3_EXPERTS, norms=1), mtp_copies=None),
    "biogpt": replace(
        _GPT2, dense_width=("intermediate_size",), extra_positions=2, tied=None
    ),
    "bitnet": replace(_LLAMA, additions=("sub_norms",), tied=None),
    "codegen": _CODEGEN,
    "cohere2_moe": replace(
        _COHERE, wide_qk_norm=False, tied=None,
        experts=Experts(
            width="intermediate_size", shared="num_shared_experts", shared_is_count=True,
            placed_by=("mlp_layer_types",),
        ),
    ),
    "cwm": _STATED,
    "diffllama": replace(_LLAMA, additions=("differential",)),
    "exaone_moe": replace(
        _STATED, qk_norm=True, window="every_4th_full", experts=_SHARED_COUNT, mtp_copies=0
    ),
    "flex_olmo": replace(_OLMO2, experts=Experts(width="intermediate_size")),
    "granite_swa": replace(_LLAMA, sinks=True),
    "granitemoe_swa": replace(_LLAMA, sinks=True, experts=_GRANITE_EXPERTS),
    "helium": replace(_STATED, output_bias=False),
    "hy_v3": replace(_STATED, qk_norm=True, experts=_SHARED_COUNT),
    "hy_v4": replace(
        _DEEPSEEK3, output_gate=True, mtp_copies=None,
        additions=("paired_streams", "sinks", "stream_head"),
    ),
    "hyperclovax": replace(
        _STATED, norms=_SANDWICH, four_norms_when=("use_post_norm", True), tied=None
    ),
    "iquestcoder": _STATED,
    "jais2": replace(
        _STATED, gated=False, norms=_LAYER_NORM, qkv_bias=("attention_bias", True),
        output_bias=("attention_bias", True), feed_forward_bias=("mlp_bias", True),
    ),
    "kolibri1": replace(
        _STATED, qk_norm=True, norms=_SANDWICH,
        experts=Experts(shared="shared_expert_intermediate_size", router_bias=True),
    ),
    "lfm3": replace(
        _MISTRAL, window="", pattern="full_attn_idxs", qk_norm=True, tied=None, norms=_SANDWICH,
        four_norms_when=("use_sandwich_norm", True), head_gate=("use_attention_gate", True),
    ),
    "muse_glimmer": replace(_STATED, norms=_SANDWICH, output_gate=True),
    "laguna": replace(
        _STATED, qk_norm=True, head_gate=True,
        experts=Experts(
            shared="shared_expert_intermediate_size", router_bias=True,
            placed_by=("mlp_layer_types",),
        ),
    ),
    "lara_mini": replace(
        _STATED, qk_norm=True, tied=None, experts=Experts(shared="shared_expert_intermediate_size")
    ),
    "longcat_flash": replace(
        _STATED, pattern="two_blocks", dense_width=("ffn_hidden_size",),
        experts=Experts(width="expert_ffn_hidden_size", dense_beside=True, router_bias=True),
    ),
    "mellum": replace(_STATED, qk_norm=True, experts=Experts(placed_by=("mlp_layer_types",))),
    "mistral4": _DEEPSEEK2,
    "nanochat": replace(
        _LLAMA, gated=False, norms=Norms(per_mixer=0, per_feed_forward=0, final=False), tied=None,
        kv_heads_default_to_heads=False, feed_forward_bias=False,
    ),
    "olmo_hybrid": _OLMO2,
    "persimmon": replace(
        _NEOX, qkv_bias=True, output_bias=True, qk_norm=("qk_layernorm", True),
        additions=("qk_norm_bias",),
    ),
    "sarvam_mla": replace(_DEEPSEEK3, mtp_copies=None),
    "sarvam_moe": replace(
        _STATED, qk_norm=("use_qk_norm", True), experts=replace(_V3_EXPERTS, placed_by=_DENSE_FIRST)
    ),
    "solar_open": replace(_STATED, experts=replace(_V3_EXPERTS, placed_by=())),
    "vaultgemma": replace(_GEMMA2, norms=RMS),
    "xglm": replace(_OPT, qkv_bias=True, output_bias=True, feed_forward_bias=True,
                    extra_positions=None, default_positions=None),
    "youtu": _STATED,
    "zamba2": replace(
        _MAMBA, kv_heads_default_to_heads=True, pattern="", tied=None,
        must_state=("layers_block_type|layer_types",), head_dim_key="attention_head_dim",
        additions=("shared_block",), shares_weights=True,
    ),
}  # fmt: skip

# Types whose attention is not what their keys suggest; a figure would be wrong, so there is none.
UNSUPPORTED_TYPES = {
    "bert": "an encoder keeps no cache",
}
UNSUPPORTED_KEYS = {
    "compress_ratios": "caches compressed at a rate per layer are not modelled",
    "cross_attention_layers": "cross-attention to image tokens is not modelled",
    "use_cla": "cross-layer attention is not modelled: engines keep shared rows in every layer, "
    "the model's own code once",
}


def is_known(name: str | None) -> bool:
    """Whether the code of a type was read here."""
    return name is not None and name.removesuffix("_text") in MODEL_TYPES


def model_type_of(name: str | None) -> ModelType:
    """The row of a type; a ``_text`` suffix is ignored, an unknown type gives ``UNKNOWN``."""
    plain = (name or "").removesuffix("_text")
    return MODEL_TYPES.get(plain, UNKNOWN)
