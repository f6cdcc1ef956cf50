"""config.json -> ModelSpec: find the language model, describe its layers, group equal ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lrkv_plan.errors import SpecError
from lrkv_plan.specs.explain import explain
from lrkv_plan.specs.huggingface.attention import (
    HEAD_KEYS,
    LATE_KEYS,
    GuessError,
    attention_of,
    switch,
)
from lrkv_plan.specs.huggingface.encoder_decoder import decoder_of, is_encoder_decoder
from lrkv_plan.specs.huggingface.feed_forward import feed_forwards_of
from lrkv_plan.specs.huggingface.fields import MAX_WIDTH, Fields
from lrkv_plan.specs.huggingface.layers import Layer, layers_of, window_of
from lrkv_plan.specs.huggingface.model_types import (
    UNCOUNTED_KEYS,
    UNSUPPORTED_KEYS,
    UNSUPPORTED_TYPES,
    ModelType,
    model_type_of,
)
from lrkv_plan.specs.huggingface.nesting import HIDDEN_KEYS, language_part
from lrkv_plan.specs.huggingface.puzzle import puzzle_layers
from lrkv_plan.specs.huggingface.recurrent import state_of
from lrkv_plan.specs.huggingface.unread import check_unread
from lrkv_plan.specs.huggingface.whole_model import model_name, source_of, whole_model
from lrkv_plan.specs.model import LayerGroup, ModelSpec

_ATTENDING = ("full", "sliding", "chunked", "parallel")


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
    described = _described(whole_file, fields, known)
    whole = whole_model(fields, known)
    parts = [*described.pop("uncounted_parts"), *known.uncounted, *towers]
    if known.bias_key and not fields.has(known.bias_key):
        parts.append(f"biases of query, key and value, if {known.bias_key}, which is not stated")
    if known.extra_positions is not None and whole["position_embeddings"] is None:
        parts.append("learned position embeddings, whose number is not stated")
    check_unread(whole_file, fields)
    try:
        return ModelSpec.model_validate(
            {
                "name": model_name(config, path),
                "source": source_of(path),
                **whole,
                **described,
                "uncounted_parts": tuple(parts),
                "remarks": tuple(fields.remarks),
            }
        )
    except ValidationError as error:
        raise SpecError(f"{path}: {explain(error)}") from None


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
    groups, order = _grouped(fields, rows)
    return {
        "model_dim": hidden,
        "layers": groups,
        "layer_order": order if len(groups) > 1 else None,
        "uncounted_parts": _uncounted(fields, known, groups),
    }


def _rows(fields: Fields, known: ModelType, hidden: int) -> list[dict[str, Any]]:
    """One ``LayerGroup`` input per layer."""
    layers = layers_of(fields, known)
    mixers = _mixers(fields, known, {layer.mixer for layer in layers}, hidden)
    blocks = feed_forwards_of(fields, known, layers, hidden)
    return [
        {"count": 1, **_layer(mixers[layer.mixer], layer), "feed_forward": block}
        for layer, block in zip(layers, blocks, strict=True)
    ]


def _mixers(
    fields: Fields, known: ModelType, names: set[str], hidden: int
) -> dict[str, dict[str, Any]]:
    """``LayerGroup`` keys of each mixer. Attention comes last, when all other keys were taken."""
    mixers: dict[str, dict[str, Any]] = {
        name: {"state": state_of(fields, name, hidden), **window_of(fields, name)}
        for name in sorted(names)
    }
    for name, group in mixers.items():
        if name in _ATTENDING:
            group |= attention_of(fields, known, name, hidden)
    return mixers


def _layer(mixer: dict[str, Any], layer: Layer) -> dict[str, Any]:
    group = dict(mixer)
    if not layer.has_index:
        group.pop("index", None)
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
    recurrent = sum(group.count for group in groups if group.state)
    if recurrent:
        parts.append(f"weights of {recurrent} recurrent layers")
    if switch(fields, known.wide_qk_norm):
        parts.append("query and key norms that span all heads")
    if known.experts is not None and any(
        group.feed_forward is not None and group.feed_forward.kind == "experts" for group in groups
    ):
        parts.append(known.experts.uncounted)
    if not fields.flag("no_bias", default=True):
        parts.append("biases (no_bias is false)")
    parts += [part for key, part in UNCOUNTED_KEYS.items() if fields.value(key)]
    if fields.has("sparse_attention_config"):
        fields.assume(
            "sparse_attention_config: how index keys are stored is not public; they are not counted"
        )
    return tuple(dict.fromkeys(filter(None, parts)))
