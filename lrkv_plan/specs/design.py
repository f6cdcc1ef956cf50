"""The designs of a model: swapped for another, and named."""

from __future__ import annotations

from lrkv_plan.attention.registry import parse_attention
from lrkv_plan.errors import SpecError, shown
from lrkv_plan.specs.model import ModelSpec


def swap_attention(model: ModelSpec, text: str) -> ModelSpec:
    """The same backbone with the design ``text`` in every attention layer.

    Windows, recurrent state and reused caches stay; sparse-index keys belong to the old design
    and go.

    Raises
    ------
    SpecError
        If the design does not fit one of the layer groups.
    """
    if not isinstance(model, ModelSpec):
        raise SpecError(f"model {shown(model)}: must be a ModelSpec, as load_model gives it")
    if not isinstance(text, str):
        raise SpecError(f"text {shown(text)}: must be a design, for example 'gqa:8'")
    designs = tuple(
        parse_attention(text, group.attention.backbone())
        for group in model.attention_groups
        if group.attention is not None
    )
    if not designs:
        raise SpecError(f"{model.name}: has no attention layers, so {text!r} changes nothing")
    return model.with_attention(designs)


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
