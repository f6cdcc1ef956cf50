"""The list of known families: name -> spec class and builder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from lrkv_plan.attention.grouped import grouped_layout
from lrkv_plan.attention.latent import latent_layout
from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.attention.low_rank import low_rank_layout
from lrkv_plan.errors import SpecError, shown
from lrkv_plan.specs.attention import AttentionSpec, register_spec_class
from lrkv_plan.specs.attention_families import GroupedSpec, LatentSpec, LowRankSpec

Builder = Callable[[Any, int], AttentionLayout]


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family's spec class and the function (spec, model_dim) -> layout."""

    spec_class: type[AttentionSpec]
    build: Builder


FAMILIES: dict[str, Family] = {}


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


register_family("mha", GroupedSpec, grouped_layout)
register_family("gqa", GroupedSpec, grouped_layout)
register_family("mqa", GroupedSpec, grouped_layout)
register_family("mla", LatentSpec, latent_layout)
register_family("lrkv", LowRankSpec, low_rank_layout)
