"""The attention of one layer of a config.json: heads, widths, MLA, index keys, cross-attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lrkv_plan.errors import SpecError
from lrkv_plan.huggingface.compressed import shared_row
from lrkv_plan.huggingface.fields import MAX_HEADS, MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Fields
from lrkv_plan.huggingface.model_type import ModelType, switch

HEAD_KEYS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEAD_KEYS = (
    "num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num",
    "num_attention_groups",
)  # fmt: skip
HEAD_DIM_KEYS = ("head_dim", "attention_head_dim", "kv_channels")

# Keys that one kind of layer reads before the common ones (MiMo-V2, Gemma 4).
_OWN_KEYS = {
    ("sliding", "heads"): ("swa_num_attention_heads", "num_sliding_attention_heads"),
    ("sliding", "kv_heads"): ("swa_num_key_value_heads",),
    ("sliding", "head_dim"): ("swa_head_dim",),
    ("sliding", "v_head_dim"): ("swa_v_head_dim",),
    ("full", "head_dim"): ("global_head_dim",),
}
# Keys that are read only after the heads of a layer are known.
LATE_KEYS = (
    *(key for keys in _OWN_KEYS.values() for key in keys), "v_head_dim",
    "num_global_key_value_heads", "attention_k_eq_v", "attention_other_setting", "index_head_dim",
    "index_kpool",
)  # fmt: skip
# Bytes of one sparse-index key beyond its fp8 scalars: one fp32 scale.
_INDEX_SCALE_BYTES = 4


class GuessError(SpecError):
    """A head count or width that is not stated, and that only a known type's code would settle."""


def attention_of(fields: Fields, known: ModelType, kind: str, hidden: int) -> dict[str, Any]:
    """The attention of a layer of that kind as ``LayerGroup`` keys: attention, and index if any.

    Raises
    ------
    SpecError
        If a head count or width is absent and the model type's code derives none.
    """
    if known.shared_row:
        return shared_row(fields, known, kind, hidden)
    if fields.has("kv_lora_rank"):
        found = {"attention": _latent(fields, known, hidden), **_index(fields, hidden)}
        return _gated(fields, known, found, hidden)
    other = fields.part("attention_other_setting") if kind == "sliding" else None
    own = other if other is not None else fields
    heads = _own(fields, kind, "heads") or own.needed(*HEAD_KEYS, most=MAX_HEADS)
    kv_heads = _own(fields, kind, "kv_heads") or _kv_heads(own, known, kind, heads)
    if kind == "sliding" and not fields.has(*_OWN_KEYS[kind, "kv_heads"]):
        kv_heads *= known.sliding_kv_factor
    head_dim = _own(fields, kind, "head_dim") or _head_dim(fields, known, hidden, heads)
    found = {"attention": grouped(fields, known, kind, heads, kv_heads, head_dim)}
    if kind == "full" and known.gated is not None:
        found |= _block_index(fields, hidden)
    return _gated(fields, known, found, hidden)


def _gated(fields: Fields, known: ModelType, found: dict[str, Any], hidden: int) -> dict[str, Any]:
    """The layer with the projection d x heads that gates each head's output, if its type has it."""
    if not switch(fields, known.head_gate):
        return found
    heads = found["attention"]["n_heads"]
    gate = {
        "name": "head_gate", "rows": hidden, "cols": heads, "units": heads, "reads": "hidden",
        "part": "attention", "plain": True,
    }  # fmt: skip
    return {**found, "weights": (*found.get("weights", ()), gate)}


def grouped(
    fields: Fields, known: ModelType, kind: str, heads: int, kv_heads: int, head_dim: int
) -> dict[str, Any]:
    """MHA, GQA or MQA with those heads, and the biases and norms of the model type."""
    value_dim = _own(fields, kind, "v_head_dim") or fields.integer("v_head_dim", most=MAX_WIDTH)
    return {
        "family": "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa",
        "n_heads": heads,
        "n_kv_heads": kv_heads,
        "head_dim": head_dim,
        "v_head_dim": value_dim or head_dim,
        "qkv_bias": switch(fields, known.qkv_bias),
        "output_bias": switch(fields, known.output_bias),
        "output_gate": switch(fields, known.output_gate),
        "qk_norm": kind == "cross" or switch(fields, known.qk_norm),
        "wide_qk_norm": switch(fields, known.wide_qk_norm),
        "sinks": _has_sinks(fields, known, kind),
        "value_from_key": kind == "full" and fields.flag("attention_k_eq_v"),
    }


def _has_sinks(fields: Fields, known: ModelType, kind: str) -> bool:
    if kind == "sliding" and switch(fields, known.sliding_sinks):
        return True
    return switch(fields, known.sinks)


def _own(fields: Fields, kind: str, what: str) -> int | None:
    keys = _OWN_KEYS.get((kind, what), ())
    return fields.integer(*keys, most=MAX_WIDTH)


def _head_dim(fields: Fields, known: ModelType, hidden: int, heads: int) -> int:
    if known.head_dim_key:
        return fields.needed(known.head_dim_key, most=MAX_WIDTH)
    stated = fields.integer(*HEAD_DIM_KEYS, most=MAX_WIDTH)
    if stated is not None:
        return stated
    name = fields.text("model_type")
    if not known.head_dim_is_quotient:
        raise GuessError(
            f"{fields.path}: {fields.prefix}head_dim: is missing, and hidden_size / "
            f"num_attention_heads would be a guess for model_type {name!r}; add it to the file"
        )
    if hidden % heads:
        raise SpecError(
            f"{fields.path}: {fields.prefix}head_dim: is missing, and {heads} heads do not divide "
            f"hidden_size {hidden}; add head_dim to the file"
        )
    fields.assume(
        f"head_dim: hidden_size / num_attention_heads = {hidden // heads}, as {name} computes it"
    )
    return hidden // heads


def _kv_heads(fields: Fields, known: ModelType, kind: str, heads: int) -> int:
    """KV heads: flags that fix the number first, then a stated number, then the type's default.

    Falcon-7b states both multi_query and 71 KV heads; its code reads the flag.
    """
    flagged = _flagged_kv_heads(fields, heads)
    if flagged is not None:
        return flagged
    if kind == "full" and fields.flag("attention_k_eq_v"):
        stated = fields.integer("num_global_key_value_heads", most=MAX_HEADS)
        if stated is not None:
            return stated
    decides = known.multi_query_decides and not fields.flag("new_decoder_architecture")
    stated = None if decides else fields.integer(*KV_HEAD_KEYS, most=MAX_HEADS)
    if stated is not None:
        return stated
    name = fields.text("model_type")
    if known.kv_heads_default_to_heads:
        fields.assume(f"num_key_value_heads: absent, so {heads} like the heads, as {name} reads it")
        return heads
    key = "multi_query" if decides else KV_HEAD_KEYS[0]
    raise GuessError(
        f"{fields.path}: {fields.prefix}{key}: is missing, and one KV head per head would be a "
        f"guess for model_type {name!r}; add it to the file"
    )


_ATTENTION_TYPES = ("multihead_attention", "multiquery_attention", "grouped_query_attention")


def _flagged_kv_heads(fields: Fields, heads: int) -> int | None:
    """The number that a flag fixes: multi_query, attention_head_type, MPT's attn_config."""
    if fields.flag("new_decoder_architecture"):
        fields.settle("multi_query")
        return None
    if fields.has("multi_query"):
        return 1 if fields.flag("multi_query") else heads
    head_type = fields.text("attention_head_type")
    if head_type is not None:
        if head_type not in ("multiquery", "multihead"):
            raise fields.error("attention_head_type", "must be multiquery or multihead")
        return 1 if head_type == "multiquery" else heads
    if fields.has("multi_query_attention"):
        if not fields.flag("multi_query_attention"):
            return heads
        return fields.needed("multi_query_group_num", most=MAX_HEADS)
    if fields.has("multi_query_group_num"):
        raise SpecError(
            f"{fields.path}: {fields.prefix}multi_query_attention: is missing; whether "
            "multi_query_group_num counts depends on it"
        )
    inner = fields.part("attn_config")
    return None if inner is None else _inner_kv_heads(inner, heads)


def _inner_kv_heads(inner: Fields, heads: int) -> int | None:
    kind = inner.text("attn_type")
    if kind is not None and kind not in _ATTENTION_TYPES:
        raise inner.error("attn_type", f"must be one of {', '.join(_ATTENTION_TYPES)}")
    if kind is None:
        return inner.integer("kv_n_heads", most=MAX_HEADS)
    if kind == "grouped_query_attention":
        return inner.needed("kv_n_heads", most=MAX_HEADS)
    return heads if kind == "multihead_attention" else 1


def _latent(fields: Fields, known: ModelType, hidden: int) -> dict[str, Any]:
    """MLA; without q_lora_rank (V2-Lite, Moonlight) the query has no latent.

    One latent serves every head, so KV heads and a common head width say nothing more. MiniCPM3
    states no width of a value: its code takes hidden_size / num_attention_heads.
    """
    fields.settle("num_key_value_heads", "head_dim", "qk_head_dim")
    heads = fields.needed(*HEAD_KEYS, most=MAX_HEADS)
    return {
        "family": "mla",
        "n_heads": heads,
        "latent_dim": fields.needed("kv_lora_rank", most=MAX_WIDTH),
        "rope_dim": fields.needed("qk_rope_head_dim", most=MAX_WIDTH, least=0),
        "nope_dim": fields.needed("qk_nope_head_dim", most=MAX_WIDTH),
        "v_head_dim": _value_dim(fields, known, hidden, heads),
        "query_latent_dim": fields.integer("q_lora_rank", most=MAX_WIDTH),
        "output_bias": switch(fields, known.output_bias),
        "output_gate": fields.flag("mla_use_output_gate") or switch(fields, known.output_gate),
    }


def _value_dim(fields: Fields, known: ModelType, hidden: int, heads: int) -> int:
    stated = fields.integer("v_head_dim", most=MAX_WIDTH)
    if stated is not None:
        return stated
    if not known.value_dim_is_quotient or hidden % heads:
        raise fields.missing("v_head_dim")
    fields.assume(f"v_head_dim: hidden_size / num_attention_heads = {hidden // heads}, as the code")
    return hidden // heads


def _index(fields: Fields, hidden: int) -> dict[str, Any]:
    """Keys of the sparse-attention index: fp8, with one scale per key; and its weights.

    Weights, with w the width and n the heads: queries q_lora x n w, key d x w with a norm 2 w, and
    a weight of each head d x n. Engines keep them whole on every GPU.

    ``index_kpool`` tokens (GLM-5.3) share one pooled key: 132 / 4 = 33 bytes per token and layer,
    as in the index cache of vLLM's glm5next.
    """
    width = fields.integer("index_head_dim", most=MAX_WIDTH)
    if width is None:
        return {}
    heads = fields.integer("index_n_heads", most=MAX_HEADS)
    query = fields.integer("q_lora_rank", most=MAX_WIDTH) or hidden
    row_bytes = width + _INDEX_SCALE_BYTES
    pool_tokens = fields.integer("index_kpool", most=MAX_WIDTH) or 1
    whole = row_bytes % pool_tokens == 0
    selected = fields.integer("index_topk", most=MAX_TOKENS)
    weights = () if heads is None else (
        {"name": "index_query", "rows": query, "cols": heads * width, "part": "index"},
        {"name": "index_key", "rows": hidden, "cols": width, "part": "index"},
        {"name": "index_key_norm", "rows": 2 * width, "part": "index"},
        {"name": "index_heads", "rows": hidden, "cols": heads, "part": "index", "plain": True},
        *(_index_pool(width, pool_tokens, hidden) if pool_tokens > 1 else ()),
    )  # fmt: skip
    return {
        **({} if selected is None else {"selected_tokens": selected}),
        **({"weights": weights} if weights else {}),
        "index": (
            {
                "name": "index_key",
                "bytes_per_copy": row_bytes // pool_tokens if whole else row_bytes,
                "tokens_per_row": 1 if whole else pool_tokens,
                "sharding": "replicated",
            },
        ),
    }


def _index_pool(width: int, tokens: int, hidden: int) -> tuple[dict[str, Any], ...]:
    """GLM-5.3: a gate d x w and positions p x w weigh the keys that share a row."""
    return (
        {"name": "index_pool_gate", "rows": hidden, "cols": width, "part": "index"},
        {"name": "index_pool_positions", "rows": tokens, "cols": width, "part": "index"},
    )


def _block_index(fields: Fields, hidden: int) -> dict[str, Any]:
    """MiniMax-M3: a few heads of one key choose blocks of tokens; keys are kept in 16 bit.

    Weights, with w the width and n the heads: queries d x n w, a key d x w, norms 2 w. Where the
    index has values too, d x w and n w x d more, and w scalars more a token. Key names of the
    checkpoint's file and of transformers; rows as SGLang keeps them (minimax_m3.py, 0.5.23).
    """
    stated = fields.part("sparse_attention_config")
    inner = fields if stated is None else stated
    width = inner.integer("sparse_index_dim", "index_head_dim", most=MAX_WIDTH)
    block = inner.integer("sparse_block_size", "index_block_size", most=MAX_TOKENS)
    if width is None or block is None:
        return {}
    heads = inner.needed("sparse_num_index_heads", "index_n_heads", most=MAX_HEADS)
    blocks = inner.needed("sparse_topk_blocks", "index_topk_blocks", most=MAX_TOKENS)
    has_values = _has_index_values(inner)
    rows = [
        ("index_query", hidden, heads * width), ("index_key", hidden, width),
        *([("index_value", hidden, width), ("index_output", heads * width, hidden)] * has_values),
    ]  # fmt: skip
    weights = [{"name": n, "rows": r, "cols": c, "part": "index"} for n, r, c in rows]
    weights.append({"name": "index_norms", "rows": 2 * width, "part": "index"})
    key = {
        "name": "index_key", "bytes_per_copy": 2 * width * (1 + has_values),
        "sharding": "replicated",
    }  # fmt: skip
    return {"selected_tokens": block * blocks, "weights": tuple(weights), "index": (key,)}


def _has_index_values(inner: Fields) -> bool:
    """Whether the sparse layers' indices have values: all or none."""
    key = "sparse_disable_index_value"
    disabled, sparse = inner.items(key), inner.items("sparse_attention_freq")
    if disabled is None or sparse is None:
        return False
    flags = {bool(d) for d, s in zip(disabled, sparse, strict=False) if s}
    if len(flags) > 1:
        raise inner.error(key, "some sparse layers have index values and some have none")
    return False in flags


@dataclass(frozen=True, kw_only=True)
class _Decoder:
    """Keys of one type; without ``head_dim`` the code divides d_model by the heads."""

    layers: str = "decoder_layers"
    heads: str = "decoder_attention_heads"
    width: str = "decoder_ffn_dim"
    head_dim: str | None = None
    encoder_tokens: str | None = None
    all_biases: bool = True
    key_bias: bool = True
    gated_key: str | None = None


_BART = _Decoder(encoder_tokens="max_position_embeddings")
_T5 = _Decoder(
    layers="num_decoder_layers", heads="num_heads", width="d_ff", head_dim="d_kv",
    all_biases=False, gated_key="feed_forward_proj",
)  # fmt: skip
_DECODERS = {
    "whisper": _Decoder(encoder_tokens="max_source_positions", key_bias=False),
    "bart": _BART, "mbart": _BART, "marian": _BART, "pegasus": _BART, "m2m_100": _BART,
    "t5": _T5, "mt5": _T5, "umt5": _T5,
}  # fmt: skip


def is_encoder_decoder(fields: Fields) -> bool:
    """Whether the file describes an encoder and a decoder that attends to it."""
    return fields.text("model_type") in _DECODERS or fields.flag("is_encoder_decoder")


def decoder_of(fields: Fields) -> dict[str, Any]:
    """``ModelSpec`` keys of the decoder.

    Raises
    ------
    SpecError
        If the model type is not known here, or a needed key is missing.
    """
    name = fields.text("model_type")
    keys = _DECODERS.get(name or "")
    if keys is None:
        known = ", ".join(_DECODERS)
        raise SpecError(
            f"{fields.path}: {fields.prefix}model_type: {name!r}: this encoder-decoder is not "
            f"known; known: {known}"
        )
    own = ("is_encoder_decoder", "num_layers", "num_hidden_layers", "scale_embedding")
    fields.settle(*own, *(key for key in fields.data if key.startswith("encoder_")))
    n_layers = fields.needed(keys.layers, most=MAX_LAYERS // 2)
    hidden = fields.needed("d_model", "hidden_size", most=MAX_WIDTH)
    attention, weights = _attention(fields, keys, hidden)
    encoder = None if keys.key_bias else _whisper_encoder(fields, hidden)
    tokens = fields.integer(keys.encoder_tokens, most=MAX_TOKENS) if keys.encoder_tokens else None
    return {
        "model_dim": hidden,
        "encoder_tokens": tokens,
        "layers": [
            {
                "count": n_layers, "attention": attention, "weights": weights,
                "feed_forward": _block(fields, keys),
            },
            {
                "count": n_layers, "attention": attention, "weights": weights,
                "cached_over": "encoder",
            },
        ],
        "layer_order": [0, 1] * n_layers,
        "encoders": () if encoder is None else ({"name": "encoder", "n_params": encoder},),
        "uncounted_parts": ("encoder weights",) if encoder is None else (),
    }  # fmt: skip


def _whisper_encoder(fields: Fields, hidden: int) -> int | None:
    """Two convolutions over the mel bins, positions, and layers with biases but for the keys.

    3 m d + d + 3 d d + d + 1,500 d + L (4 d d + 3 d + 2 d i + i + d + 4 d) + 2 d; None where the
    file leaves out a width.
    """
    layers = fields.integer("encoder_layers", most=MAX_LAYERS)
    width = fields.integer("encoder_ffn_dim", most=MAX_WIDTH)
    if layers is None or width is None:
        return None
    bins = fields.integer("num_mel_bins", most=MAX_WIDTH)
    tokens = fields.integer("max_source_positions", most=MAX_TOKENS)
    if bins is None:
        bins = 80
        fields.assume("num_mel_bins: absent, 80 in the code")
    if tokens is None:
        tokens = 1500
        fields.assume("max_source_positions: absent, 1,500 in the code")
    attention, block = 4 * hidden**2 + 3 * hidden, 2 * hidden * width + width + hidden
    convolutions = 3 * bins * hidden + 3 * hidden**2 + 2 * hidden
    ends = convolutions + tokens * hidden + 2 * hidden
    return ends + layers * (attention + block + 4 * hidden)


def _attention(
    fields: Fields, keys: _Decoder, hidden: int
) -> tuple[dict[str, Any], tuple[dict[str, Any], ...]]:
    """Self- and cross-attention alike, and its biases that a design has no field for."""
    heads = fields.needed(keys.heads, most=MAX_HEADS)
    if keys.head_dim is not None:
        head_dim = fields.needed(keys.head_dim, most=MAX_WIDTH)
    elif hidden % heads:
        raise fields.error(keys.heads, f"does not divide d_model {hidden}")
    else:
        head_dim = hidden // heads
        fields.assume(f"head_dim: d_model / {keys.heads} = {head_dim}, as the code computes it")
    attention = {
        "family": "mha", "n_heads": heads, "head_dim": head_dim, "output_bias": keys.all_biases,
        "qkv_bias": keys.all_biases and keys.key_bias,
    }  # fmt: skip
    bias = {
        "name": "query_value_bias", "rows": 2 * heads * head_dim, "units": heads,
        "part": "attention",
    }  # fmt: skip
    return attention, () if keys.key_bias else (bias,)


def _block(fields: Fields, keys: _Decoder) -> dict[str, Any] | None:
    width = fields.integer(keys.width, most=MAX_WIDTH)
    if width is None:
        fields.assume(f"feed_forward: left out, {keys.width} is not stated")
        return None
    gated = keys.gated_key is not None and "gated" in (fields.text(keys.gated_key) or "")
    return {"kind": "dense", "hidden_dim": width, "gated": gated, "bias": keys.all_biases}
