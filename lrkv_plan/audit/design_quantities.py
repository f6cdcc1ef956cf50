"""Quantities of attention designs, each read off the calculators; no formula is written twice."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from lrkv_plan.attention.families import layout_of
from lrkv_plan.audit.inputs import (
    Backbone,
    Budgeted,
    Compared,
    Design,
    Heads,
    Held,
    Layered,
    Padded,
    Scanned,
    Work,
)
from lrkv_plan.audit.printed import Kind
from lrkv_plan.audit.registry import quantity
from lrkv_plan.calculators import cache_bytes as cache
from lrkv_plan.calculators import decode_work, parameters
from lrkv_plan.calculators import rank_ceiling as ceilings
from lrkv_plan.errors import SpecError
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.explain import explain
from lrkv_plan.specs.loader import load_model
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD

_LRKV = "arXiv:2601.11471v3, eq. 9"
_REVIEW = "review of arXiv:2601.11471v3, section 4"
_SOURCE = {"citation": "inputs of a claim", "read_on": "2026-11-30"}


@lru_cache(maxsize=256)
def _backbone(n_heads: int, head_dim: int, model_dim: int | None, n_layers: int) -> ModelSpec:
    """MHA layers with an ungated feed-forward of 4 d, the Transformer's own width."""
    width = model_dim or n_heads * head_dim
    layer = {
        "count": n_layers,
        "attention": {"family": "mha", "n_heads": n_heads, "head_dim": head_dim},
        "feed_forward": {"kind": "dense", "hidden_dim": 4 * width, "gated": False},
    }
    try:
        return ModelSpec.model_validate(
            {"name": "claim", "source": _SOURCE, "model_dim": width, "layers": [layer]}
        )
    except ValidationError as error:
        raise SpecError(explain(error, ModelSpec)) from None


@lru_cache(maxsize=32)
def _named(model: str) -> ModelSpec:
    return load_model(model)


def backbone_of(inputs: Backbone) -> ModelSpec:
    """The backbone that the inputs name or describe, with its own attention."""
    if inputs.model is not None:
        return _named(inputs.model)
    assert inputs.n_heads is not None, "checked by the inputs"
    assert inputs.head_dim is not None, "checked by the inputs"
    return _backbone(inputs.n_heads, inputs.head_dim, inputs.model_dim, inputs.n_layers or 1)


def _swapped(inputs: Any) -> ModelSpec:
    backbone = backbone_of(inputs)
    return swap_attention(backbone, inputs.attention) if inputs.attention else backbone


def _one_layer(inputs: Design) -> ModelSpec:
    """A single layer of the design. Raises ``SpecError`` where a model's layers differ."""
    model = _swapped(inputs)
    groups = {group.attention for group in model.attention_groups}
    if len(groups) != 1:
        raise SpecError(f"{model.name}: its layers differ, so no number holds per layer")
    layer = model.attention_groups[0].model_copy(update={"count": 1})
    return model.model_copy(update={"layers": (layer,), "layer_order": None})


def _bytes(inputs: Compared, attention: str | None) -> Fraction:
    heads = (inputs.model, inputs.n_heads, inputs.head_dim)
    return _bytes_on(heads, attention, inputs.kv_dtype, inputs.tp_size)


@lru_cache(maxsize=8192)
def _bytes_on(
    heads: tuple[str | None, int | None, int | None],
    attention: str | None,
    kv_dtype: str,
    tp_size: int,
) -> Fraction:
    """Bytes per token on a backbone; in a ratio, layers and model width cancel."""
    model, n_heads, head_dim = heads
    backbone = backbone_of(Backbone(model=model, n_heads=n_heads, head_dim=head_dim))
    design = swap_attention(backbone, attention) if attention else backbone
    return Fraction(cache.bytes_per_token(design, kv_dtype=kv_dtype, tp_size=tp_size))


@quantity(Compared, Kind.RATIO, "sum w_i c_i(P) of the design / of the reference", source=_LRKV)
def cache_ratio(inputs: Compared) -> Fraction:
    """Cache over that of the reference design; g/H + r/d_h for LRKV over MHA."""
    reference = _bytes(inputs, inputs.reference)
    if not reference:
        raise SpecError(f"reference {inputs.reference!r} caches nothing here")
    return _bytes(inputs, inputs.attention) / reference


@quantity(Compared, Kind.RATIO, "1 - cache_ratio", source=_LRKV)
def cache_saving(inputs: Compared) -> Fraction:
    """Share of the reference's cache that the design does without."""
    return 1 - cache_ratio(inputs)


@quantity(Compared, Kind.RATIO, "1 / cache_ratio", source=_LRKV)
def cache_factor(inputs: Compared) -> Fraction:
    """How many times smaller than the reference's the cache is."""
    ratio = cache_ratio(inputs)
    if not ratio:
        raise SpecError("the design caches nothing here")
    return 1 / ratio


@quantity(Design, Kind.COUNT, "sum w_i c_i", source="attention layouts")
def scalars_per_token_per_layer(inputs: Design) -> int:
    """Scalars that one layer keeps per token."""
    layer = _one_layer(inputs)
    attention = layer.layers[0].attention
    assert attention is not None, "it is one of the layers that attend"
    return layout_of(attention, layer.model_dim).scalars_per_token()


@quantity(Design, Kind.BYTES, "b sum w_i c_i(P)", source="attention layouts")
def bytes_per_token_per_layer(inputs: Design) -> Fraction:
    """Bytes that one layer keeps per token, on one GPU of ``tp_size``."""
    layer, gpus = _one_layer(inputs), inputs.tp_size
    return Fraction(cache.bytes_per_token(layer, kv_dtype=inputs.kv_dtype, tp_size=gpus))


@quantity(Layered, Kind.BYTES, "b N sum w_i c_i(P)", source=_LRKV)
def bytes_per_token(inputs: Layered) -> Fraction:
    """Bytes that one more token adds over all layers, on one GPU of ``tp_size``."""
    held = cache.bytes_per_token(_swapped(inputs), kv_dtype=inputs.kv_dtype, tp_size=inputs.tp_size)
    return Fraction(held)


@quantity(Held, Kind.BYTES, "b N B T sum w_i c_i(P)", source=_LRKV)
def cache_bytes(inputs: Held) -> Fraction:
    """Bytes of a batch of equal sequences, on one GPU of ``tp_size``."""
    held: Any = cache.cache_bytes(
        _swapped(inputs),
        context_tokens=inputs.context_tokens,
        batch_size=inputs.batch_size,
        kv_dtype=inputs.kv_dtype,
        tp_size=inputs.tp_size,
    ).total
    return Fraction(held)


@quantity(
    Budgeted, Kind.COUNT, "floor(d_h (c - P g'/H)), then down to the alignment", source=_REVIEW
)
def rank_ceiling(inputs: Budgeted) -> int:
    """Largest LRKV rank within a budget, a multiple of ``alignment``."""
    answer = ceilings.rank_ceiling(
        backbone_of(inputs), budget=inputs.budget, alignment=inputs.alignment,
        kv_dtype=inputs.kv_dtype, tp_size=inputs.tp_size,
    )  # fmt: skip
    return answer.aligned.value


@quantity(Padded, Kind.COUNT, "a ceil(r / a)", source=_REVIEW)
def padded_rank(inputs: Padded) -> int:
    """Width at which a kernel with that alignment stores a rank."""
    return -(-inputs.rank // inputs.alignment) * inputs.alignment


@quantity(Layered, Kind.COUNT, "N x (LRKV: 2 g d d_h + 2 H r (d + d_h))", source=_REVIEW)
def kv_parameters(inputs: Layered) -> int:
    """Weights of the key and value projections over all layers."""
    return parameters.kv_params(_swapped(inputs))


@quantity(Compared, Kind.RATIO, "g/H + (r/d_h)(1 + d_h/d) for LRKV over MHA", source=_REVIEW)
def kv_parameter_ratio(inputs: Compared) -> Fraction:
    """Key/value weights over those of the reference design."""
    reference = swap_attention(backbone_of(inputs), inputs.reference)
    return Fraction(parameters.kv_params(_swapped(inputs)), parameters.kv_params(reference))


@quantity(Layered, Kind.COUNT, "N (attention + feed-forward); 12 d^2 N for MHA with 4 d ungated")
def block_parameters(inputs: Layered) -> int:
    """Weights of attention and feed-forward in all layers, without embeddings and norms."""
    counted = parameters.parameter_count(_swapped(inputs))
    if counted.feed_forward_params is None:
        raise SpecError(f"model {inputs.model!r} does not state its feed-forward")
    return counted.attention_params + counted.feed_forward_params


@quantity(Work, Kind.RATIO, "1 + r/d_h + r/T for factored LRKV over MHA", source=_REVIEW)
def arithmetic_ratio(inputs: Work) -> Fraction:
    """Multiply-adds of a decode step's attention over MHA's."""
    model, context = _swapped(inputs), inputs.context_tokens
    ratio = (
        decode_work.arithmetic_ratio_limit(model)
        if context is None
        else decode_work.arithmetic_ratio_to_mha(model, context)
    )
    if ratio is None:
        raise SpecError("no layer scans the context")
    return ratio


@quantity(Scanned, Kind.COUNT, "2 N (T per_token + per_step)", source="attention layouts")
def attention_flops_per_token(inputs: Scanned) -> int:
    """FLOPs of attention in one decode step of one sequence, projections not counted."""
    work = decode_work.attention_multiply_adds(_swapped(inputs), inputs.context_tokens)
    return FLOPS_PER_MULTIPLY_ADD * work


@quantity(Heads, Kind.COUNT, "H - 1 centred, H otherwise", source="review, section 6: J 1 = 0")
def effective_rank_ceiling(inputs: Heads) -> int:
    """Largest effective rank of H head maps; centring removes one direction."""
    return inputs.n_heads - inputs.centred


@quantity(Heads, Kind.RATIO, "(H - 1) / H centred, 1 otherwise", source="review, section 6")
def effective_rank_ceiling_share(inputs: Heads) -> Fraction:
    """The ceiling as a share of H."""
    return Fraction(inputs.n_heads - inputs.centred, inputs.n_heads)
