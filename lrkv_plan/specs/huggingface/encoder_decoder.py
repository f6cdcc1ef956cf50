"""Encoder-decoder models: each decoder layer has self-attention and cross-attention.

The spec holds them as two groups, so its layer count is twice the decoder's; a remark says so.
The encoder runs once per request and is an uncounted part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lrkv_plan.errors import SpecError
from lrkv_plan.specs.huggingface.fields import MAX_HEADS, MAX_LAYERS, MAX_TOKENS, MAX_WIDTH, Fields


@dataclass(frozen=True, kw_only=True)
class _Decoder:
    """Keys of one type; without ``head_dim`` the code divides d_model by the heads."""

    layers: str = "decoder_layers"
    heads: str = "decoder_attention_heads"
    width: str = "decoder_ffn_dim"
    head_dim: str | None = None
    encoder_tokens: str | None = None
    all_biases: bool = True
    gated_key: str | None = None


_BART = _Decoder(encoder_tokens="max_position_embeddings")
_T5 = _Decoder(
    layers="num_decoder_layers", heads="num_heads", width="d_ff", head_dim="d_kv",
    all_biases=False, gated_key="feed_forward_proj",
)  # fmt: skip
_DECODERS = {
    "whisper": _Decoder(encoder_tokens="max_source_positions"),
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
    attention = _attention(fields, keys, hidden)
    tokens = fields.integer(keys.encoder_tokens, most=MAX_TOKENS) if keys.encoder_tokens else None
    return {
        "model_dim": hidden,
        "encoder_tokens": tokens,
        "layers": [
            {"count": n_layers, "attention": attention, "feed_forward": _block(fields, keys)},
            {"count": n_layers, "attention": attention, "cached_over": "encoder"},
        ],
        "layer_order": [0, 1] * n_layers,
        "uncounted_parts": (
            "encoder weights",
            *(("biases of query, value and output",) if keys.all_biases else ()),
        ),
    }


def _attention(fields: Fields, keys: _Decoder, hidden: int) -> dict[str, Any]:
    heads = fields.needed(keys.heads, most=MAX_HEADS)
    if keys.head_dim is not None:
        head_dim = fields.needed(keys.head_dim, most=MAX_WIDTH)
    elif hidden % heads:
        raise fields.error(keys.heads, f"does not divide d_model {hidden}")
    else:
        head_dim = hidden // heads
        fields.assume(f"head_dim: d_model / {keys.heads} = {head_dim}, as the code computes it")
    return {"family": "mha", "n_heads": heads, "head_dim": head_dim}


def _block(fields: Fields, keys: _Decoder) -> dict[str, Any] | None:
    width = fields.integer(keys.width, most=MAX_WIDTH)
    if width is None:
        fields.assume(f"feed_forward: left out, {keys.width} is not stated")
        return None
    gated = keys.gated_key is not None and "gated" in (fields.text(keys.gated_key) or "")
    return {"kind": "dense", "hidden_dim": width, "gated": gated, "bias": keys.all_biases}
