"""Keys of a config.json that nothing read: a note, or an error where they could decide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.huggingface.attention import is_encoder_decoder
from lrkv_plan.huggingface.fields import Fields, is_whole
from lrkv_plan.huggingface.model_types import MODEL_TYPES, is_known


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Seen in public configurations, where each decides which layers cache, or how much. None of them
# may be on a list below; in a message they come first.
DECIDING_KEYS = _words(
    """
    layer_types layers_block_type block_types _block_types layer_group_size layer_type_list
    hybrid_override_pattern hybrid_layer_pattern hybrid_layer_ids hybrid_pattern mixer_types
    attention_types attention_layers attn_type_list attn_types attn_layers attention_method
    attn_layer_indices attn_layer_idx attention_layers_idx attn_layer_period attn_layer_offset
    full_attn_idxs full_attention_idx full_attention_interval full_attention_layers
    full_attn_layers global_attn_idx global_attention_layers global_attn_every_n_layers
    dense_attention_every_n_layers global_attention_every_n_layers linear_layers mamba_layers
    linear_attn_config linear_attention_type linear_attention_config ssm_cfg mamba_config
    rwkv_config gla_config lightning_nh lightning_nkv lightning_head_dim group_norm_size
    sliding_window sliding_window_size sliding_windows sliding_window_layout
    sliding_window_layers sliding_window_pattern _sliding_window_pattern sliding_window_list
    attention_window_size attention_window window_size window_length window_attn_skip_freq
    local_attention_window local_attention local_attention_layers local_window_size
    loop_window_size loop_num num_loops swa_layers swa_head_dim swa_num_key_value_heads
    swa_num_attention_heads num_swa_attention_heads num_swa_key_value_heads attention_chunk_size
    blocksparse_block_size blocksparse_num_local_blocks blocksparse_vert_stride sparse_config
    sparse_attention_config sparse_layers nsa_config moba_config compress_ratios compress_ratio
    index_kpool index_head_dim indexer_types index_topk_freq index_topk_pattern
    mamba_step mamba_enabled mamba_d_state mamba_d_conv mamba_expand mamba_num_heads
    mamba_n_heads mamba_d_head mamba_head_dim mamba_dt_rank mamba_d_ssm mamba_n_groups
    ssm_state_size state_size state_dim conv_kernel conv_L_cache conv1d_width conv_window
    short_conv_kernel_size sconv_kernel_size lru_width d_state d_conv expand
    linear_num_key_heads linear_num_value_heads linear_key_head_dim linear_value_head_dim
    linear_conv_kernel_dim kda_layers recurrent_layers num_memory_tokens num_meta_tokens
    kv_lora_rank o_lora_rank qk_rope_head_dim hidden_size_per_head v_head_dim global_head_dim
    use_cla cla_share_factor cla_factor num_kv_shared_layers num_kv_reuse_layers
    kv_reuse_every_i_layer kv_reuse_group kv_sharing_layers share_kv num_shared_layers yoco
    num_yoco_layers cross_attention_layers cross_attn_layers cross_attention_freq
    add_cross_attention is_encoder_decoder num_query_heads num_attention_heads_per_layer
    num_key_value_heads_per_layer num_kv_heads_per_layer qkv_multipliers block_configs
    attention_other_setting attention_k_eq_v
    """
)

# Keys that change neither the cache nor the weights.
NEITHER = _words(
    """
    architectures auto_map model_type model_version transformers_version _name_or_path name
    _commit_hash _from_model_config _attn_implementation _attn_implementation_autoset
    attn_implementation attention_implementation attn_impl torch_dtype dtype params_dtype fp16
    bf16 fp32 torchscript use_bfloat16 use_cache cache_implementation onnx_safe is_decoder
    keys_to_ignore_at_inference finetuning_task task_specific_params problem_type id2label
    label2id num_labels return_dict return_dict_in_generate output_attentions
    output_hidden_states output_scores output_router_logits output_past chunk_size_feed_forward
    pruned_heads tie_encoder_decoder tf_legacy_loss language_model_only prefix license source
    max_length min_length max_new_tokens do_sample early_stopping num_beams num_beam_groups
    num_return_sequences diversity_penalty temperature top_k top_p typical_p repetition_penalty
    length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids
    suppress_tokens begin_suppress_tokens remove_invalid_values
    exponential_decay_length_penalty penalty_alpha generation_config sampler_seq_length
    num_logits_to_keep logits_to_keep pretraining_tp ep_size tp_size tensor_parallel
    tensor_parallel_degree sequence_parallel gradient_checkpointing use_recompute
    rope_theta rope_scaling rope_parameters rope_type rope_layout rope_interleave
    rope_interleaved rope_local_base_freq rope_ratio rope_base rope_pct rope_percent
    rope_traditional rope_freq_constant rope_position_scale rope_embedding_base
    rope_max_length rotary_pct rotary_percent rotary_dim rotary_base rotary_emb_base
    rotary_emb_fraction rotary_emb_scale_base rotary_emb_interleaved rotary rope use_rope
    no_rope use_rotary partial_rotary_factor partial_rotary_factors
    global_partial_rotary_factor yarn_only_types
    compress_rope_theta indexer_rope_interleave lightning_use_rope attn_use_rope
    position_embedding_type position_encoding pos_emb alibi alibi_bias_max alibi_scaling
    original_max_position_embeddings initial_context_length max_seq_length seq_length
    max_position_embeddings n_positions n_ctx model_max_length tokenizer_class
    max_sequence_length max_seq_len train_seq_length use_dynamic_ntk use_logn_attn
    use_mrope mrope_section mrope_interleaved rope_mscale mscale
    attn_scale attention_scale scale_embedding slow_but_exact attn_temperature_tuning
    floor_scale scale_attn_weights
    scale_attn_by_inverse_layer_idx reorder_and_upcast_attn softmax_scale clip_qkv qk_clip
    scale_attention_softmax_in_fp32 attention_softmax_in_fp32 attention_value_scale
    query_pre_attn_scalar query_scale logit_scale logits_scaling scale_emb scale_depth
    scale_embeddings dim_model_base mup_enabled mup_denominator mup_scale_emb mup_scale_width
    mup_use_scaling embeddings_scale_by_sqrt_dim embedding_scale normalize_embedding
    normalization_function norm_softmax final_w_init_variance_scale
    layernorm_compute_fp32 cross_layer_norm use_fp32_norm fp32_residual_connection
    apply_residual_connection_post_layernorm apply_query_key_layer_scaling
    attention_softmax_scale ignore_index
    n_group topk_group num_expert_group num_limited_groups topk_method scoring_func score_func
    score_function norm_topk_prob norm_expert_weight renormalize route_norm route_scale
    routed_scaling_factor norm_min seq_aux capacity_factor expert_capacity
    num_experts_in_group use_grouped_topk swiglu_limit swiglu_alpha swiglu_limits
    swiglu_limits_shared activation_situ_beta activation_situ_linear_beta gegelu_limit
    activation_sparsity_pattern index_share_for_mtp_iteration
    index_kpool_compress index_kpool_always_select_tail ffn_act_fn
    hc_eps hc_sinkhorn_iters use_bidirectional_attention use_unified_vision_chunk
    img_token_compression_config process_image_mode num_image_tokens im_end im_start
    classifier_proj_size
    median_filter_width num_mel_bins lambda_std_dev expert_selection_fn
    enable_moe_fp32_combine output_multiplier qk_scale_factor
    vision_config audio_config
    """
)

# Patterns of the same, matched against the whole of a key.
NEITHER_PATTERNS = re.compile(
    r"""
    \w*(?:_|^)(?:eps|epsilon|dropout|dropout_prob|dropout_p|dropout_rate|pdrop|layerdrop)
    | \w*_token(?:_id|_ids|_index)? | \w*_token_id_list | (?:bos|eos|pad|unk|sep|cls)_id
    | (?:\w+_)?(?:hidden_)?(?:act|activation)(?:_fn|_func|_function|_type|_name)?
    | \w*(?:initializer_range|initializer_factor|init_std|init_method|init_scheme|init_scale
        |init_device|init_config|variance_scale|initializer_cfg)
    | \w*(?:aux|z)_loss\w* | \w*_loss(?:_coef|_coeff|_weight|_alpha|_factor|_function|_type)?
    | \w*(?:soft_?cap|softcapping|soft_?capping)
    | (?:embedding|attention|attention_in|attention_out|residual|lm_head|key|logits?|mlp|ssm|ssm_in
        |ssm_out|mup|mup_\w+)_multipliers?
    | \w+_rope_theta | router_(?:jitter\w*|dtype|scaling\w*|score\w*|activation\w*)
    | moe_(?:router_(?:dtype|scaling_factor|score\w*|activation\w*|fusion|force\w*|bias_update\w*
        |topk_scaling\w*|load_balancing\w*|group_topk|num_groups|pre_softmax|padding\w*
        |enable_routed_scaling|logit_softcapping)|capacity\w*|token_\w+|drop\w*|random\w*
        |renormalize|norm_min|permute\w*|grouped_gemm|dropout\w*|routed_scaling_factor
        |primary_router_apply_softmax|enable_early_router|shared_expert_overlap|gate_act|use_aux_free
        |group|multimodal\w*|orthogonal\w*|sum_and_index\w*|dense_experts\w*|reverse\w*|use_hard\w*)
    | (?:vision|image|img|video|audio|speech|mm|media|vit|projector|multimodal|visual|siglip|clip
        |pixel|spatial|temporal_patch|downsample|talker|tts|codec|tokenizer)_\w+
    | \w*(?:vision|image|video|audio|projector)_(?:token|feature|hidden_act|bias|seq)\w*
    | summary_\w+ | recompute\w* | fused?_\w+
    | use_(?:flash|fused|triton|sdpa|torch|xformers
        |memory_efficient|gradient|deepspeed|apex|cuda|hf|auto)\w* | use_\w*kernels?
    | \w*_parallel_(?:size|degree) | (?:time|mask)_(?:mask|feature|time)_\w+
    """,
    re.VERBOSE,
)

# Keys that decide weights but leave the cache of every layer alone.
WEIGHTS_ONLY = _words(
    """
    vocab_size padded_vocab_size embedding_size vocab_size_multiple pad_vocab_size_multiple
    tie_word_embeddings tie_embedding_weights tie_embeddings weight_tying
    share_input_output_layers word_embed_proj_dim type_vocab_size
    intermediate_size intermediate_size_mlp dense_intermediate_size ffn_hidden_size ffn_dim
    n_inner d_ff ff_dim ff_intermediate_size expert_ffn_hidden_size expert_intermediate_size
    mlp_hidden_size mlp_ratio mlp_expansion_factor expansion_ratio ffn_mult ffn_multipliers
    ffn_dim_multiplier ffn_dim_divisor ffn_with_glu multiple_of ffn_config ff_factor
    mlp_bias bias use_bias use_biases add_bias_linear add_qkv_bias qkv_bias use_qkv_bias
    attention_bias attention_out_bias attention_qkv_bias attention_output_bias attn_bias
    attn_qkv_bias out_bias no_bias lm_head_bias enable_bias linear_bias proj_bias use_output_bias
    qk_norm use_qk_norm qk_layernorm qk_ln use_qk_layernorm qk_norm_type use_query_norm
    use_gemma_norm
    normalize_qk_projections query_norm key_norm use_norm norm_type normalization norm_head
    layernorm_type layer_norm_bias layer_norm_elementwise_affine rms_norm use_rmsnorm rmsnorm
    post_norm post_layer_norm use_post_norm use_pre_norm sandwich_norm do_layer_norm_before
    post_layer_norm post_layernorm parallel_attn use_parallel_residual parallel_residual
    new_decoder_architecture num_ln_in_parallel_attn non_parametric_layernorm
    output_gate attn_output_gate attention_output_gate use_output_gate use_attn_output_gate
    attn_use_output_gate use_head_wise_attn_gate use_attention_gate use_sandwich_norm
    _remove_final_layer_norm shared_expert_combination_strategy additional_vocab_size norm_after
    embedding_fraction learned_pos_emb use_output_norm attn_res_block_size
    use_attention_sinks attention_sinks add_full_attention_sink_bias
    add_swa_attention_sink_bias softmax_off_by_one
    num_experts num_local_experts n_routed_experts n_experts num_routed_experts moe_num_experts
    num_moe_experts num_experts_per_tok num_experts_per_token num_selected_experts
    experts_per_token top_k_experts n_shared_experts num_shared_experts num_shared_expert
    n_activated_experts n_shared_head
    output_gate_type share_expert_dim share_q_dim shared_intermediate_size
    shared_expert_intermediate_size
    routed_expert_hidden_size latent_moe_size latent_moe_use_norm expert_dtype
    decoder_sparse_step mlp_only_layers mlp_layer_types first_k_dense_replace num_dense_layers
    n_dense_layers
    expert_layer_period expert_layer_offset interleave_moe_layer_step use_mixed_mlp_moe
    use_moe enable_moe_block use_routing_bias use_expert_bias router_bias is_moe_layer
    num_hash_layers
    q_lora_rank index_n_heads use_double_wide_mlp block_ff_dim block_auto_adjust_ff_dim
    block_multiple_of block_ffn_dim_multiplier hidden_size_per_layer_input
    vocab_size_per_layer_input laurel_rank altup_active_idx altup_coef_clip
    altup_correct_scale altup_num_inputs hc_mult emb_neighbor_num emb_split_num
    num_nextn_predict_layers num_mtp_modules num_reward_heads quantization_config quantization
    compression_config use_stable_embedding scale_attn emb_layernorm position_embeddings
    learned_positions num_embeddings
    """
)
WEIGHTS_ONLY_PATTERNS = re.compile(
    r"""
    moe_\w+ | mtp_\w+ | use_(?:mtp|moe)\w* | \w*_(?:num|n)_experts\w* | num_experts_\w+ | eagle_\w+
    """,
    re.VERBOSE,
)

# Keys of recurrent and pooled layers that move no bytes once the type is known; in an unknown type
# they announce such layers.
DETAILS = _words(
    """
    chunk_size mamba_chunk_size expand mamba_expand mamba_hidden_act time_step_rank time_step_min
    time_step_max time_step_floor time_step_limit time_step_scale time_step_init_scheme
    residual_in_fp32 rescale_prenorm_residual use_conv_bias mamba_conv_bias mamba_proj_bias
    use_mamba_kernels mamba_norm_before_gate mamba_rms_norm mamba_use_mlp conv_bias conv_dim
    linear_silu group_norm_size linear_backend gate_lower_bound linear_lower_bound mla_use_nope
    mixer_rms_eps use_mambapy use_falcon_mambapy use_associative_scan rms_norm_before_gate
    use_bcdt_rms w_init_variance_scale
    vocab_size_per_layer_input block_dim block_norm_eps block_use_swiglu
    block_mlp_init_scale block_out_init_scale block_use_xavier_init conv_use_xavier_init
    conv_dim_out
    """
)


# Parts that are read for one purpose and describe nothing else of the language model.
_OPAQUE = ("quantization_config", "sparse_attention_config", "vision_config", "audio_config")
_MOST_NAMES = 8
_MOST_NAME_CHARS = 48
_MOST_KEYS = 100_000  # more keys than this are not a configuration

# An unread flag of these names that says false turns its feature off.
_SWITCHES = re.compile(r"(?:use|enable|add|with|has|is|do)_\w+|(?:\w+_)?bias|mamba_enabled|yoco")


def check_unread(config: Fields, fields: Fields) -> None:
    """Note the keys that nothing read; for an unknown model type, refuse those that could matter.

    Raises
    ------
    SpecError
        If the model type is not known here and a key could change what its layers cache.
    """
    unread = list(_unread(config, fields.prefix))
    name = fields.text("model_type")
    if is_known(name) or is_encoder_decoder(fields):
        noted = [key for key in unread if not _moves_nothing(key)]
        if noted:
            fields.assume(f"keys of the file that nothing here reads: {_names(noted)}")
        return
    deciding = [key for key in unread if not (_is_neither(key) or _is_weights_only(key))]
    if deciding:
        raise SpecError(_refusal(fields, name, deciding))


def _refusal(fields: Fields, name: str | None, keys: list[str]) -> str:
    one = len(keys) == 1
    type_is = "is missing" if name is None else f"{shown(name)}: is not known here"
    return (
        f"{fields.path}: {fields.prefix}model_type: {type_is}, and {_names(keys)} "
        f"{'is a key that' if one else 'are keys that'} could change what its layers cache"
        f"{did_you_mean(name or '', MODEL_TYPES)}; write the model as a YAML file instead "
        "(`lrkv-plan models show llama-3.1-8b` prints one to start from)"
    )


def _names(keys: list[str]) -> str:
    """A bounded list of key names, those that are known to decide the cache first."""
    ordered = sorted(keys, key=lambda key: _last(key) not in DECIDING_KEYS)
    cut = [_name(key) for key in ordered[:_MOST_NAMES]]
    more = len(keys) - len(cut)
    return ", ".join(cut) + (f" and {more:,} more" if more else "")


def _name(key: str) -> str:
    short = key if len(key) <= _MOST_NAME_CHARS else key[: _MOST_NAME_CHARS - 3] + "..."
    return short if short.isprintable() else shown(short)


def _unread(config: Fields, prefix: str) -> Iterator[str]:
    """Full names of the keys with a value that nothing took, in the order of the file.

    Parts that were read are entered; around a nested language model only the keys count that
    decide the cache, since the others describe its encoders.
    """
    stack: list[tuple[str, dict[str, Any]]] = [("", config.data)]
    seen = 0
    while stack:
        place, part = stack.pop()
        for key, value in part.items():
            seen += 1
            if seen > _MOST_KEYS:
                raise SpecError(f"{config.path}: has more than {_MOST_KEYS:,} keys")
            name = place + key
            if name in config.read:
                if isinstance(value, dict) and _is_entered(name, prefix):
                    stack.append((f"{name}.", value))
            elif not _is_off(key, value) and (name.startswith(prefix) or key in DECIDING_KEYS):
                yield name


def _is_entered(name: str, prefix: str) -> bool:
    """Whether a part that was read can hold keys of the language model."""
    inside = f"{name}.".startswith(prefix) or prefix.startswith(f"{name}.")
    return inside and _last(name) not in _OPAQUE


def _is_off(key: str, value: Any) -> bool:
    """Null and empty values state nothing; false turns a switch off, 0 a count of weights."""
    if value is False:
        return _SWITCHES.fullmatch(key[:200]) is not None
    if is_whole(value) and value == 0:
        return _is_weights_only(key)
    return value is None or (isinstance(value, str | list | dict) and not value)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_neither(name: str) -> bool:
    key = _last(name)
    if key in DECIDING_KEYS:
        return False
    return key in NEITHER or NEITHER_PATTERNS.fullmatch(key[:200]) is not None


def _moves_nothing(name: str) -> bool:
    """Whether a key of a known type changes neither cache nor weights of the model itself."""
    return _is_neither(name) or _last(name) in DETAILS or _last(name).startswith("mtp_")


def _is_weights_only(name: str) -> bool:
    key = _last(name)
    if key in DECIDING_KEYS:
        return False
    return key in WEIGHTS_ONLY or WEIGHTS_ONLY_PATTERNS.fullmatch(key[:200]) is not None
