"""What a config.json says about the whole model: names, dtype, embeddings, remarks."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

from lrkv_plan.errors import shown
from lrkv_plan.specs.huggingface.attention import switch
from lrkv_plan.specs.huggingface.fields import MAX_TOKENS, MAX_VOCABULARY, MAX_WIDTH, Fields
from lrkv_plan.specs.huggingface.model_types import ModelType
from lrkv_plan.specs.model import Norms

_CONTEXT_KEYS = (
    "max_position_embeddings", "n_positions", "seq_length", "max_seq_len", "max_sequence_length",
    "model_max_length", "n_ctx", "max_target_positions",
)  # fmt: skip
_DRAFT_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8"}


def model_name(config: dict[str, Any], path: Path) -> str:
    """The last part of ``_name_or_path``, else the file's stem, or its folder's name."""
    stated = config.get("_name_or_path")
    tail = stated.rstrip("/").rpartition("/")[2] if isinstance(stated, str) else ""
    if not tail:
        tail = path.resolve().parent.name if path.stem == "config" else path.stem
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", tail).strip("-")[:200] or "model"


def source_of(path: Path) -> dict[str, Any]:
    """Where the figures come from: the file, read today."""
    return {"citation": f"imported from {path.name}", "read_on": dt.date.today()}


def whole_model(fields: Fields, known: ModelType) -> dict[str, Any]:
    """``ModelSpec`` keys outside the layers; what is not stated stays out."""
    _mention_quantization(fields)
    context = _context(fields)
    return {
        "vocab_size": _vocabulary(fields),
        "tied_embeddings": _tied(fields, known),
        "head_bias": switch(fields, known.head_bias),
        "position_embeddings": _positions(known, context),
        "max_context_tokens": context,
        "weight_dtype": _dtype(fields),
        "norms": _norms(fields, known),
        "draft_layers": _draft_layers(fields),
    }


def _context(fields: Fields) -> int | None:
    # These differ in meaning between types, so the first one counts and others may disagree.
    key = next((key for key in _CONTEXT_KEYS if fields.has(key)), None)
    return fields.integer(key, most=MAX_TOKENS) if key else None


def _vocabulary(fields: Fields) -> int | None:
    narrow = fields.integer("word_embed_proj_dim", most=MAX_WIDTH)
    if narrow is not None and narrow != fields.integer("hidden_size", most=MAX_WIDTH):
        fields.assume(f"vocab_size: left out, embeddings are {narrow} wide and projected")
        return None
    size = fields.integer("vocab_size", "padded_vocab_size", most=MAX_VOCABULARY)
    if size is None:
        fields.assume("vocab_size: not stated")
    return size


def _tied(fields: Fields, known: ModelType) -> bool | None:
    if fields.has("tie_word_embeddings"):
        return fields.flag("tie_word_embeddings")
    if known.tied is not None:
        name = fields.text("model_type")
        fields.assume(
            f"tie_word_embeddings: absent, {str(known.tied).lower()} in the code of {name}"
        )
    return known.tied


def _positions(known: ModelType, context: int | None) -> int | None:
    if known.extra_positions is None or context is None:
        return None
    return context + known.extra_positions


def _norms(fields: Fields, known: ModelType) -> Norms | None:
    """The type's norms; Falcon's number depends on its layout, OPT-350m has no last one."""
    norms = known.norms
    if norms is None:
        return None
    if fields.has("new_decoder_architecture", "parallel_attn"):
        two_inputs = fields.flag("new_decoder_architecture") and (
            fields.integer("num_ln_in_parallel_attn", most=2) != 1
        )
        if two_inputs or not fields.flag("parallel_attn", default=True):
            norms = norms.model_copy(update={"per_feed_forward": 1})
    if known.one_norm_when and fields.flag(known.one_norm_when):
        norms = norms.model_copy(update={"per_feed_forward": 0})
    if not fields.flag("do_layer_norm_before", default=True):
        norms = norms.model_copy(update={"final": False})
    return norms


def _dtype(fields: Fields) -> str | None:
    """The checkpoint's own weight format: what a quantization states, else the dtype."""
    quantised = _quantised_dtype(fields)
    if quantised is not None:
        return quantised
    stated = fields.text("torch_dtype", "dtype")
    if stated is not None and stated not in _DTYPES:
        fields.assume(f"weight_dtype: {stated[:40]!r} is not a known format")
    return _DTYPES.get(stated or "")


def _draft_layers(fields: Fields) -> int:
    key = next((key for key in _DRAFT_KEYS if fields.has(key)), None)
    return (fields.integer(key, most=1_000, least=0) or 0) if key else 0


def _quantised_dtype(fields: Fields) -> str | None:
    """The weight format that the quantization names without doubt; None for all others."""
    quantization = fields.part("quantization_config")
    if quantization is None:
        return None
    method = str(quantization.value("quant_method")).lower()
    if method in ("gptq", "awq"):
        return "int4" if quantization.value("bits") == 4 else None
    return method if method in ("fp8", "mxfp4") else None


def _mention_quantization(fields: Fields) -> None:
    quantization = fields.part("quantization_config")
    if quantization is None:
        return
    method = quantization.value("quant_algo") or quantization.value("quant_method")
    name = _quantised_dtype(fields)
    told = f"counted as {name}" if name else "counted in 16 bit unless --weight-dtype says more"
    fields.assume(
        f"weights are quantized ({str(method)[:40]}), {told}; that does not decide the cache's "
        "format"
    )
    proposed = (quantization.value(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo"))
    scheme = next(filter(None, proposed), None)
    if scheme is not None:
        fields.assume(f"the file proposes a cache format: kv_cache_scheme {shown(scheme)}")
