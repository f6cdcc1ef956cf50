"""config.json -> ModelSpec: find the language model, describe its layers, group equal ones."""

from __future__ import annotations

import datetime as dt
import re
import warnings
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.huggingface.additions import add_to_layers, of_model, per_layer_table, unsized
from lrkv_plan.huggingface.attention import (
    HEAD_KEYS,
    LATE_KEYS,
    GuessError,
    attention_of,
    decoder_of,
    is_encoder_decoder,
)
from lrkv_plan.huggingface.encoders import encoders_of, image_tokens
from lrkv_plan.huggingface.feed_forward import feed_forwards_of, hash_layers
from lrkv_plan.huggingface.fields import (
    HIDDEN_KEYS,
    MAX_TOKENS,
    MAX_VOCABULARY,
    MAX_WIDTH,
    Fields,
    language_part,
)
from lrkv_plan.huggingface.layers import Layer, heads_of_kind, layers_of, window_of
from lrkv_plan.huggingface.media import media_of
from lrkv_plan.huggingface.model_type import ModelType, switch
from lrkv_plan.huggingface.model_types import (
    UNSUPPORTED_KEYS,
    UNSUPPORTED_TYPES,
    is_known,
    model_type_of,
)
from lrkv_plan.huggingface.puzzle import puzzle_layers
from lrkv_plan.huggingface.recurrent import recurrent_of
from lrkv_plan.huggingface.unread import check_unread
from lrkv_plan.schema import explain
from lrkv_plan.specs.model import (
    DenseFeedForward,
    DraftModule,
    HeldWeight,
    LayerGroup,
    ModelSpec,
    Norms,
)

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
    if context is None and known.default_positions is not None:
        context = known.default_positions
        fields.assume(f"max_position_embeddings: absent, {context:,} in the code")
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
    if known.four_norms_when and not switch(fields, known.four_norms_when):
        norms = norms.model_copy(update={"per_mixer": 1, "per_feed_forward": 1})
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
    if method == "fp8" and quantization.value("weight_block_size"):
        return "fp8_block"
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


_ATTENDING = ("full", "sliding", "chunked", "parallel", "cross", "csa", "hca")
# Of a layer that attends to an image: scalars by which its two outputs are added.
_CROSS = {
    "cached_over": "encoder", "weights": ({"name": "gates", "rows": 2, "part": "attention"},),
}  # fmt: skip


def import_config(config: dict[str, Any], path: Path) -> ModelSpec:
    """The model that a Hugging Face config.json describes.

    What the file leaves open and the code of its model type settles is listed in ``remarks``; what
    neither settles and the cache depends on is an error.

    Raises
    ------
    SpecError
        One line naming file, key, value and what is allowed.

    Examples
    --------
    >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
    ...          "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336}
    >>> model = import_config(llama, Path("llama.json"))
    >>> model.layers[0].attention.label(), model.remarks[0]
    ('gqa:8', 'head_dim: hidden_size / num_attention_heads = 128, as llama computes it')
    """
    whole_file = Fields(config, path)
    fields, towers = language_part(whole_file)
    _refuse_unsupported(fields)
    known = model_type_of(fields.text("model_type"))
    _fill_in(fields, known)
    described = _described(whole_file, fields, known)
    whole = whole_model(fields, known)
    encoders, towers = encoders_of(whole_file, towers, described["model_dim"])
    described["encoders"] = (*described.get("encoders", ()), *encoders)
    described.setdefault("encoder_tokens", image_tokens(whole_file))
    parts = [*described.pop("uncounted_parts"), *known.uncounted, *unsized(fields, known), *towers]
    if known.extra_positions is not None and whole["position_embeddings"] is None:
        parts.append("learned position embeddings, whose number is not stated")
    check_unread(whole_file, fields)
    _say_what_is_guessed(fields)
    try:
        return ModelSpec.model_validate(
            {
                "name": model_name(config, path),
                "source": source_of(path),
                **whole,
                **described,
                "media": media_of(whole_file),
                "uncounted_parts": tuple(parts),
                "remarks": tuple(fields.remarks),
            }
        )
    except ValidationError as error:
        raise SpecError(f"{path}: {explain(error)}") from None


def _fill_in(fields: Fields, known: ModelType) -> None:
    """Put in what a trimmed file leaves out and the code, or every published checkpoint, has."""
    name = fields.text("model_type")
    for values, where in (
        (known.defaults, f"in the code of {name}"),
        (known.published, f"in the published checkpoints of {name}"),
    ):
        for key, value in values.items():
            if not fields.has(key):
                fields.data = {**fields.data, key: value}
                told = str(value).lower() if isinstance(value, bool) else f"{value:,}"
                fields.assume(f"{key}: absent, {told} {where}")


def _say_what_is_guessed(fields: Fields) -> None:
    """Warn, and remark, that the layers of a type that is not known follow from their keys alone.

    Warns
    -----
    UserWarning
        So that no command and no caller takes such an answer for a known one.
    """
    name = fields.text("model_type")
    if is_known(name) or is_encoder_decoder(fields):
        return
    told = "model_type is missing" if name is None else f"model_type {shown(name)} is not known"
    text = (
        f"{told}: a layer without a stated window or state is counted as attending to its whole "
        "context; if its code does otherwise, the cache is wrong"
    )
    fields.assume(text)
    warnings.warn(f"{fields.path}: {text}", stacklevel=3)


def _described(whole_file: Fields, fields: Fields, known: ModelType) -> dict[str, Any]:
    """``ModelSpec`` keys of the layers, from a decoder or an encoder-decoder."""
    if is_encoder_decoder(fields):
        return decoder_of(fields)
    try:
        return _decoder_only(fields, known)
    except SpecError as error:
        # A type that is not known is told by its own keys rather than by what they stand for.
        if isinstance(error, GuessError) or not fields.has(*HEAD_KEYS):
            fields.settle(*LATE_KEYS)
            check_unread(whole_file, fields)
        raise


def _refuse_unsupported(fields: Fields) -> None:
    name = (fields.text("model_type") or "").removesuffix("_text")
    if name in UNSUPPORTED_TYPES:
        raise fields.error("model_type", f"not supported: {UNSUPPORTED_TYPES[name]}")
    for key, reason in UNSUPPORTED_KEYS.items():
        if key == model_type_of(name).pattern:
            continue
        if fields.value(key) not in (None, False, []):
            raise fields.error(key, f"not supported: {reason}")
    for key in model_type_of(name).must_state:
        spellings = key.split("|")
        if not fields.has(*spellings):
            raise fields.missing(*spellings)


def _decoder_only(fields: Fields, known: ModelType) -> dict[str, Any]:
    hidden = fields.needed(*HIDDEN_KEYS, most=MAX_WIDTH)
    if fields.has("block_configs"):
        rows = puzzle_layers(fields, known, hidden)
    else:
        rows = _rows(fields, known, hidden)
    weights = per_layer_table(fields, rows, hidden) + of_model(fields, known, len(rows), hidden)
    if known.image_rows:
        rows_of_images = {"name": "image_rows", "rows": known.image_rows, "cols": hidden}
        weights = (*weights, {**rows_of_images, "part": "embeddings"})
    groups, order = _grouped(fields, rows)
    return {
        "model_dim": hidden,
        "layers": groups,
        "layer_order": order if len(groups) > 1 else None,
        "weights": weights,
        "mtp": _draft_module(fields, known, groups, order, hidden),
        "uncounted_parts": _uncounted(fields, known, groups),
    }


def _rows(fields: Fields, known: ModelType, hidden: int) -> list[dict[str, Any]]:
    """One ``LayerGroup`` input per layer."""
    layers = layers_of(fields, known)
    mixers = _mixers(fields, known, layers, hidden)
    blocks = feed_forwards_of(fields, known, layers, hidden)
    rows = [
        {"count": 1, **_layer(mixers[layer.mixer], layer), "feed_forward": block}
        for layer, block in zip(layers, blocks, strict=True)
    ]
    add_to_layers(fields, known, rows, hidden)
    return rows


def _draft_module(
    fields: Fields, known: ModelType, groups: list[LayerGroup], order: list[int], hidden: int
) -> DraftModule | None:
    """Layers like the last that attends, each joined by 2 d d with three norms, or two.

    Some checkpoints store the embedding and the head again. Some types' draft layers attend as
    their windowed ones do, or have the dense feed-forward of their first layers.
    """
    n_layers = _draft_layers(fields)
    attending = [
        groups[i] for i in order
        if groups[i].attention is not None
        and (groups[i].window_tokens is not None or not known.mtp_has_window)
    ]  # fmt: skip
    dense = [g.feed_forward for g in groups if isinstance(g.feed_forward, DenseFeedForward)]
    if not n_layers or known.mtp_copies is None or not attending:
        return None
    if known.mtp_is_dense and not dense:
        return None
    weights = [
        {"name": "join", "rows": 2 * hidden, "cols": hidden, "copies": n_layers},
        {
            "name": "join_norms", "rows": known.mtp_norms * hidden, "copies": n_layers,
            "part": "norms",
        },
    ]  # fmt: skip
    tokens = fields.integer("vocab_size", most=MAX_VOCABULARY)
    if known.mtp_copies:
        if tokens is None:
            return None
        copies = known.mtp_copies * n_layers
        weights.append(
            {
                "name": "embedding_and_head", "rows": tokens, "cols": hidden, "copies": copies,
                "part": "embeddings",
            }
        )  # fmt: skip
    block = {"feed_forward": dense[0]} if known.mtp_is_dense else {}
    layer = attending[-1].model_copy(update={"count": n_layers, **block})
    return DraftModule(layers=(layer,), weights=tuple(HeldWeight(**one) for one in weights))


def _mixers(
    fields: Fields, known: ModelType, layers: list[Layer], hidden: int
) -> dict[str, dict[str, Any]]:
    """``LayerGroup`` keys of each mixer. Attention comes last, when all other keys were taken."""
    mixers: dict[str, dict[str, Any]] = {
        name: {**recurrent_of(fields, name, hidden), **window_of(fields, name)}
        for name in sorted({layer.mixer for layer in layers})
    }
    for name, group in mixers.items():
        if name in _ATTENDING:
            own = fields if known.gated is None else heads_of_kind(fields, layers, name)
            found = attention_of(own, known, name, hidden)
            if name == "cross":
                group |= _CROSS
            if known.shares_weights:
                group["shares_weights"] = True
            weights = (*group.get("weights", ()), *found.pop("weights", ()))
            group |= found | ({"weights": weights} if weights else {})
    return mixers


def _layer(mixer: dict[str, Any], layer: Layer) -> dict[str, Any]:
    group = dict(mixer)
    if not layer.chooses:
        group.pop("selected_tokens", None)
    if not layer.has_index:
        group.pop("index", None)
        kept = tuple(one for one in group.get("weights", ()) if one.get("part") != "index")
        group["weights"] = kept
    if layer.reuses_cache and "attention" in group:
        group["reuses_cache"] = True
    return group


def _grouped(fields: Fields, rows: list[dict[str, Any]]) -> tuple[list[LayerGroup], list[int]]:
    """Equal layers as groups in order of first appearance, and the group of each layer."""
    numbers: dict[LayerGroup, int] = {}
    seen: dict[str, int] = {}  # a row is validated once per distinct text
    order: list[int] = []
    for row in rows:
        text = repr(row)
        if text not in seen:
            try:
                group = LayerGroup.model_validate(row)
            except ValidationError as error:
                raise SpecError(f"{fields.path}: {explain(error)}") from None
            seen[text] = numbers.setdefault(group, len(numbers))
        order.append(seen[text])
    groups = [g.model_copy(update={"count": order.count(i)}) for g, i in numbers.items()]
    return groups, order


def _uncounted(fields: Fields, known: ModelType, groups: list[LayerGroup]) -> tuple[str, ...]:
    """Weights that the spec has no place for."""
    parts = []
    recurrent = sum(
        group.count for group in groups
        if group.state and group.update is None and group.tokens_per_row is None
    )  # fmt: skip
    if recurrent:
        parts.append(f"weights of {recurrent} recurrent layers")
    if known.experts is not None and any(
        group.feed_forward is not None and group.feed_forward.kind == "experts" for group in groups
    ):
        parts.append(known.experts.uncounted)
    if hash_layers(fields):
        parts.append("tables of the layers whose experts follow from the token")
    if not fields.flag("no_bias", default=True):
        parts.append("biases (no_bias is false)")
    return tuple(dict.fromkeys(filter(None, parts)))
