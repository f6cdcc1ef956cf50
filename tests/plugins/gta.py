"""GTA, grouped-tied attention (arXiv:2505.21487), as another package would add it: one file.

One row per group of heads is key and value; the last ``rope_dim`` scalars of a key are replaced by
a rotary key that all heads share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import model_validator
from typing_extensions import Self, override

from lrkv_plan.attention.families.grouped import query_and_output
from lrkv_plan.attention.family import Family, Kernel, Planned
from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.spec import AttentionSpec, Backbone, divisors_of
from lrkv_plan.errors import SpecError
from lrkv_plan.schema import HeadCount, Width


class TiedSpec(AttentionSpec):
    """``n_kv_heads`` tied rows; ``rope_dim`` is half a head unless stated."""

    family: Literal["gta"] = "gta"
    n_kv_heads: HeadCount
    head_dim: Width
    rope_dim: Width

    text_argument = "n_kv_heads"
    size_name = "n_kv_heads"
    size_fields = ("n_kv_heads",)
    backbone_fields = frozenset({"n_heads", "head_dim"})

    @model_validator(mode="after")
    def _heads_agree(self) -> Self:
        if self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads {self.n_kv_heads} does not divide {self.n_heads} heads")
        return self

    @override
    def backbone(self) -> Backbone:
        return Backbone(self.n_heads, self.head_dim, self.head_dim, self.rope_dim)

    @override
    def label(self) -> str:
        usual = self.rope_dim == self.head_dim // 2
        return f"gta:{self.n_kv_heads}" + ("" if usual else f",rope_dim={self.rope_dim}")

    @override
    def sizes(self, model_dim: int) -> Sequence[int]:
        return divisors_of(self.n_heads)

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        if "n_kv_heads" not in fields:
            raise SpecError("gta needs its number of tied rows: write for example gta:4")
        heads, width = backbone.n_heads, backbone.head_dim
        if backbone.v_head_dim != width:
            raise SpecError(f"a tied row is {width} wide, but values {backbone.v_head_dim}")
        return cls(**{"n_heads": heads, "head_dim": width, "rope_dim": width // 2, **fields})


def tied_layout(spec: TiedSpec, model_dim: int) -> AttentionLayout:
    """Layout of GTA: G d_h + d_R scalars, d (G d_h + d_R) weights, T 2 H d_h multiply-adds."""
    rows, width, rope = spec.n_kv_heads, spec.head_dim, spec.rope_dim
    role = WeightRole.KEY_VALUE
    return AttentionLayout(
        label=spec.label(),
        n_heads=spec.n_heads,
        cached=(
            CachedTensor(
                name="tied", width=width, copies_per_layer=rows, sharding=Sharding.BY_COPY
            ),
            CachedTensor(
                name="rope_key", width=rope, copies_per_layer=1, sharding=Sharding.REPLICATED
            ),
        ),
        weights=(
            *query_and_output(spec, model_dim, width, width),
            WeightMatrix(
                name="tied", rows=model_dim, cols=rows * width, role=role, units=rows,
                makes_rows=True,
            ),
            WeightMatrix(
                name="rope_key", rows=model_dim, cols=rope, role=role, makes_rows=True
            ),
        ),
        work=(
            DecodeWork(
                path="tied", kernel="gta_tied", per_token=2 * spec.n_heads * width, per_step=0
            ),
        ),
    )  # fmt: skip


def one_row(backbone: Backbone) -> TiedSpec:
    """GTA with one tied row, whose sizes give the others."""
    return TiedSpec.on_backbone(backbone, "gta", {"n_kv_heads": 1})


FAMILIES = (
    Family(
        names=("gta",),
        spec_class=TiedSpec,
        build=tied_layout,
        kernels=(
            Kernel(
                name="gta_tied",
                fallback="grouped",
                assumptions=(
                    "no public measurement of a GTA kernel here; constants are the grouped kernel's",
                    "a tied row that is read once serves as key and value (counted in the bytes)",
                ),
                bandwidth_left=(0.8, 1.0),
            ),
        ),
        planned=(Planned(role="GTA in the budget", design=one_row, in_budget=True),),
    ),
)
