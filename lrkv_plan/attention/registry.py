"""Attention families by name, their layouts, and ``--attention`` text: ``gqa:6``, ``mla:512+64``,
``lrkv:55,groups=2,position=rope_expand``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from lrkv_plan.attention.families.grouped import GroupedSpec, grouped_layout
from lrkv_plan.attention.families.latent import LatentSpec, latent_layout
from lrkv_plan.attention.families.low_rank import LowRankSpec, low_rank_layout
from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.attention.spec import AttentionSpec, Backbone, register_spec_class, spec_class
from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.schema import explain

Builder = Callable[[Any, int], AttentionLayout]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family's spec class and the function (spec, model_dim) -> layout."""

    spec_class: type[AttentionSpec]
    build: Builder


FAMILIES: dict[str, Family] = {}
BUILT_IN: tuple[tuple[str, type[AttentionSpec], Builder], ...] = (
    ("mha", GroupedSpec, grouped_layout),
    ("gqa", GroupedSpec, grouped_layout),
    ("mqa", GroupedSpec, grouped_layout),
    ("mla", LatentSpec, latent_layout),
    ("lrkv", LowRankSpec, low_rank_layout),
)


def register_family(name: str, spec_class: type[AttentionSpec], build: Builder) -> None:
    """Add a family; spec files, ``--attention`` and every calculator know it from now on.

    Raises
    ------
    SpecError
        If the name is not text, the class no ``AttentionSpec``, or ``build`` cannot be called.
    """
    if not isinstance(name, str) or not name:
        raise SpecError(f"name {shown(name)}: a family's name must be text")
    if not (isinstance(spec_class, type) and issubclass(spec_class, AttentionSpec)):
        raise SpecError(f"spec_class {shown(spec_class)}: must be a subclass of AttentionSpec")
    if not callable(build):
        raise SpecError(f"build {shown(build)}: must be a function (spec, model_dim) -> layout")
    FAMILIES[name] = Family(spec_class=spec_class, build=build)
    register_spec_class(name, spec_class)
    layout_of.cache_clear()


@lru_cache(maxsize=4096)
def layout_of(spec: AttentionSpec, model_dim: int) -> AttentionLayout:
    """The layout of one layer with that attention.

    Raises
    ------
    SpecError
        If the family has no builder.
    """
    family = FAMILIES.get(spec.family)
    if family is None:
        raise SpecError(f"attention family {spec.family!r} has no builder")
    return family.build(spec, model_dim)


for _name, _spec, _build in BUILT_IN:
    register_family(_name, _spec, _build)


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
