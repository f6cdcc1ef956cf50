"""The designs of a model: swapped for another, sized, and named."""

from __future__ import annotations

from collections.abc import Sequence

from lrkv_plan.attention.registry import parse_attention
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.errors import SpecError, UsageError, shown
from lrkv_plan.specs.model import ModelSpec

NamedDesign = tuple[str, ModelSpec]  # what it is called, and the model that has it


def swap_attention(model: ModelSpec, text: str | AttentionSpec) -> ModelSpec:
    """The same backbone with one design, given or as text, in every attention layer.

    Windows, recurrent state and reused caches stay; sparse-index keys belong to the old design
    and go.

    Raises
    ------
    SpecError
        If the design does not fit one of the layer groups.
    """
    if not isinstance(model, ModelSpec):
        raise SpecError(f"model {shown(model)}: must be a ModelSpec, as load_model gives it")
    if not isinstance(text, str | AttentionSpec):
        raise SpecError(f"text {shown(text)}: must be a design, for example 'gqa:8'")
    backbones = backbones_of(model)
    if not backbones:
        named = text if isinstance(text, str) else text.text()
        raise SpecError(f"{model.name}: has no attention layers, so {named!r} changes nothing")
    if isinstance(text, str):
        return model.with_attention(tuple(parse_attention(text, b) for b in backbones))
    return model.with_attention(tuple(text.moved_to(b) for b in backbones))


def layers_of(model: ModelSpec) -> list[AttentionSpec]:
    """The attention of each group of layers that attends."""
    return [g.attention for g in model.attention_groups if g.attention is not None]


def backbones_of(model: ModelSpec) -> list[Backbone]:
    """The backbone of each group of layers that attends."""
    return [layer.backbone() for layer in layers_of(model)]


def first_backbone(model: ModelSpec) -> Backbone:
    """The backbone on which a design for the whole model is stated.

    Raises
    ------
    SpecError
        If the model has no attention layers.
    """
    backbones = backbones_of(model)
    if not backbones:
        raise SpecError(f"{model.name}: no layer keeps keys and values, so a rank changes nothing")
    return backbones[0]


def widest_rank(model: ModelSpec) -> int:
    """The largest rank: a head's width in the narrowest layer. [scalars]

    Raises
    ------
    UsageError
        If the model has no attention layers.
    """
    widths = [min(b.head_dim, b.v_head_dim) for b in backbones_of(model)]
    if not widths:
        raise UsageError(f"{model.name}: has no attention layers, so a rank changes nothing")
    return min(widths)


def default_contexts(model: ModelSpec) -> list[int]:
    """Powers of two from 1,024 to the model's maximum, or to 131,072. [tokens]"""
    most = max(2048, model.max_context_tokens or 131_072)
    return [2**power for power in range(10, most.bit_length()) if 2**power <= most]


def sizes_of(model: ModelSpec) -> Sequence[int]:
    """Sizes that the model's design can take in all layers, ascending; none where they differ."""
    layers = layers_of(model)
    if not layers or len({type(layer) for layer in layers}) > 1:
        return ()
    return layers[0].common_sizes(layers, model.model_dim)


def with_size(model: ModelSpec, size: int) -> ModelSpec:
    """The model with another size (rank, KV heads, latent width) in every attention layer.

    Raises
    ------
    SpecError
        If a layer's backbone does not allow it.
    """
    return model.with_attention(tuple(layer.with_size(size) for layer in layers_of(model)))


def as_stored(model: ModelSpec, alignment: int) -> ModelSpec:
    """The model as an engine keeps it whose kernel wants rows of that multiple. [scalars]"""
    kept = [group.attention and group.attention.aligned(alignment) for group in model.layers]
    if all(one == group.attention for one, group in zip(kept, model.layers, strict=True)):
        return model
    groups = tuple(
        group if one is None else group.model_copy(update={"attention": one})
        for one, group in zip(kept, model.layers, strict=True)
    )
    return model.model_copy(update={"layers": groups})


def design_text(model: ModelSpec, size: int | str | None = None) -> str:
    """The one design of a model as one would type it, with another size where given."""
    return layers_of(model)[0].text(size)


def typed_designs(model: ModelSpec, asked: Sequence[str | AttentionSpec]) -> list[NamedDesign]:
    """The model with each design, called what was typed. Raises as ``swap_attention``."""
    return [
        (one if isinstance(one, str) else one.text(), swap_attention(model, one)) for one in asked
    ]


def named_designs(model: ModelSpec, asked: Sequence[str | AttentionSpec] = ()) -> list[NamedDesign]:
    """The model with each design, or with its own where none is asked, by their shortest names."""
    if not asked:
        return [(design_label(model), model)]
    return [(swapped_label(model, text, one), one) for text, one in typed_designs(model, asked)]


def swapped_label(model: ModelSpec, text: str, swapped: ModelSpec) -> str:
    """The shortest text that gives ``swapped`` on ``model`` again.

    ``text`` itself where a label leaves out what it changes, such as the head width.
    """
    label = design_label(swapped)
    try:
        is_whole = swap_attention(model, label) == swapped
    except SpecError:
        is_whole = False
    return label if is_whole else ",".join(part.strip() for part in text.split(","))


def design_label(model: ModelSpec) -> str:
    """The model's own design as text: ``gqa:8``, or ``50x gqa:16 + 10x gqa:4``."""
    layers: dict[str, int] = {}
    for group in model.attention_groups:
        if group.attention is not None:
            label = group.attention.label()
            layers[label] = layers.get(label, 0) + group.count
    if not layers:
        return "none"
    if len(layers) == 1:
        return next(iter(layers))
    return " + ".join(f"{count}x {label}" for label, count in layers.items())
