"""``--attention`` text: ``gqa:6``, ``mla:512+64``, ``lrkv:55,groups=2,position=rope_expand``."""

from __future__ import annotations

import functools
from typing import Any

from pydantic import ValidationError

from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.specs.attention import AttentionSpec, Backbone, spec_class
from lrkv_plan.specs.explain import explain
from lrkv_plan.specs.model import ModelSpec


def parse_attention(text: str, backbone: Backbone) -> AttentionSpec:
    """The design that ``text`` names, on the heads of ``backbone``.

    Raises
    ------
    SpecError
        If the family or a key is unknown, or the design does not fit the backbone.

    Examples
    --------
    >>> paper = Backbone(n_heads=18, head_dim=128, v_head_dim=128)
    >>> parse_attention("lrkv:55,groups=2", paper).label()
    'lrkv:55,n_shared_groups=2'
    """
    if not isinstance(text, str):
        raise SpecError(f"text {shown(text)}: must be a design, for example 'gqa:8'")
    if not isinstance(backbone, Backbone):
        raise SpecError(f"backbone {shown(backbone)}: must be a Backbone (heads and widths)")
    family, _, rest = text.strip().partition(":")
    head, *option_texts = family.split(",")
    if option_texts:  # "mqa,output_bias=true": options without an argument
        family, rest = head, ",".join([*option_texts, rest]) if rest else ",".join(option_texts)
    cls = spec_class(family.lower())
    try:
        return _on_backbone(cls, family.lower(), rest, backbone)
    except ValidationError as error:
        raise SpecError(f"attention {shown(text)}: {explain(error, cls)}") from None
    except SpecError as error:
        raise SpecError(f"attention {shown(text)}: {error}") from None


@functools.lru_cache(maxsize=4096)  # searches for a rank ask for the same designs again
def _on_backbone(
    cls: type[AttentionSpec], family: str, rest: str, backbone: Backbone
) -> AttentionSpec:
    """The design, frozen, so that all who ask for it may share it."""
    return cls.on_backbone(backbone, family, _fields(cls, rest))


def _fields(cls: type[AttentionSpec], rest: str) -> dict[str, Any]:
    known = {*cls.model_fields, *cls.text_aliases, *filter(None, [cls.text_argument])}
    fields: dict[str, Any] = {}
    for position, part in enumerate(filter(None, (p.strip() for p in rest.split(",")))):
        key, equals, value = part.partition("=")
        if not equals:
            if position or cls.text_argument is None:
                raise SpecError(f"{shown(part)}: options are written key=value")
            key, value = cls.text_argument, part
        key = cls.text_aliases.get(key.strip(), key.strip())
        if key not in known or key == "family":
            names = ", ".join(sorted(known - {"family", "n_heads"}))
            raise SpecError(
                f"unknown option {shown(key)}{did_you_mean(key, known)}; known: {names}"
            )
        if key in fields:
            raise SpecError(f"{key} is given twice")
        fields[key] = _value(value.strip())
    return fields


def _value(text: str) -> Any:
    if text.isascii() and text.isdecimal() and len(text) < 20:
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)


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
