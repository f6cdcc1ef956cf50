"""Shared key-value MQA: one row is the key and the value of every head (DeepSeek-V4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import model_validator
from typing_extensions import Self, override

from lrkv_plan.attention.family import Family, Kernel
from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.spec import AttentionSpec, Backbone
from lrkv_plan.errors import SpecError
from lrkv_plan.schema import Flag, HeadCount, Width, WidthOrZero


class SharedRowSpec(AttentionSpec):
    """One row of ``head_dim`` scalars, the last ``rope_dim`` of them rotary, read by all heads.

    Queries come from a latent of ``query_latent_dim``. The heads' outputs are mapped in
    ``output_groups`` groups to ``output_latent_dim`` scalars each, and those to the model's width.
    """

    family: Literal["shared_row"] = "shared_row"
    head_dim: Width
    rope_dim: WidthOrZero = 0
    query_latent_dim: Width | None = None
    output_groups: HeadCount | None = None
    output_latent_dim: Width | None = None
    sinks: Flag = False

    text_argument = "head_dim"
    backbone_fields = frozenset({"n_heads"})

    @model_validator(mode="after")
    def _widths_agree(self) -> Self:
        if self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim {self.rope_dim} exceeds head_dim {self.head_dim}")
        if (self.output_groups is None) != (self.output_latent_dim is None):
            raise ValueError("output_groups and output_latent_dim go together")
        if self.output_groups is not None and self.n_heads % self.output_groups:
            raise ValueError(f"output_groups {self.output_groups} do not divide {self.n_heads}")
        return self

    @override
    def backbone(self) -> Backbone:
        return Backbone(
            self.n_heads, self.head_dim, self.head_dim, None, False, self.output_bias, False,
            self.output_gate,
        )  # fmt: skip

    @override
    def label(self) -> str:
        return f"shared_row:{self.head_dim}" + self.stated("rope_dim")

    @classmethod
    @override
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        if "head_dim" not in fields:
            raise SpecError("shared_row needs the width of its row: write shared_row:512")
        kept = {
            "n_heads": backbone.n_heads, "output_bias": backbone.output_bias,
            "output_gate": backbone.output_gate,
        }  # fmt: skip
        return cls(**{**kept, **fields})


def shared_row_layout(spec: SharedRowSpec, model_dim: int) -> AttentionLayout:
    """Layout of attention whose one row is key and value.

    Notes
    -----
    Cache per row and layer, in scalars: d_h, whole on every GPU (transformers 5.24,
    modeling_deepseek_v4.py: one kv_proj d x d_h with a norm d_h). Queries d q + q + q H d_h, or
    d H d_h; output H d_h r + g r d with g groups of r, or H d_h d; sinks H.
    Decode, multiply-adds: rows x 2 H d_h.

    Examples
    --------
    >>> spec = SharedRowSpec(n_heads=64, head_dim=512, rope_dim=64)
    >>> shared_row_layout(spec, model_dim=4096).scalars_per_token()
    512
    """
    heads, width, rope = spec.n_heads, spec.head_dim, spec.rope_dim
    rows = [("key_value", width - rope, "key_value"), ("rope_key", rope, None)]
    role = WeightRole.KEY_VALUE
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=tuple(
            CachedTensor(
                name=name, width=n, copies_per_layer=1, sharding=Sharding.REPLICATED, row_of=row
            )
            for name, n, row in rows
            if n
        ),
        weights=(
            *_query(spec, model_dim),
            WeightMatrix(
                name="key_value", rows=model_dim, cols=width, role=role, makes_rows=True
            ),
            WeightMatrix(name="key_value_norm", rows=width, cols=1, role=role, makes_rows=True),
            *_output(spec, model_dim),
            *_sinks(spec),
        ),
        work=(
            DecodeWork(
                path="shared_row", kernel="shared_row", per_token=2 * heads * width, per_step=0
            ),
        ),
        has_latent_rows=True,
    )  # fmt: skip


def _sinks(spec: SharedRowSpec) -> tuple[WeightMatrix, ...]:
    one = WeightMatrix(
        name="sinks", rows=spec.n_heads, cols=1, role=WeightRole.OTHER, units=spec.n_heads
    )
    return (one,) if spec.sinks else ()


def _query(spec: SharedRowSpec, model_dim: int) -> tuple[WeightMatrix, ...]:
    role, units, cols = WeightRole.QUERY, spec.n_heads, spec.n_heads * spec.head_dim
    latent = spec.query_latent_dim
    if latent is None:
        return (WeightMatrix(name="query", rows=model_dim, cols=cols, role=role, units=units),)
    return (
        WeightMatrix(name="query_down", rows=model_dim, cols=latent, role=role),
        WeightMatrix(name="query_norm", rows=latent, cols=1, role=role),
        WeightMatrix(
            name="query_up", rows=latent, cols=cols, role=role, units=units, reads="query_latent"
        ),
    )


def _output(spec: SharedRowSpec, model_dim: int) -> tuple[WeightMatrix, ...]:
    role, inputs = WeightRole.OUTPUT, spec.n_heads * spec.head_dim
    groups, latent = spec.output_groups, spec.output_latent_dim
    if groups is None or latent is None:
        return (
            WeightMatrix(
                name="output", rows=inputs, cols=model_dim, role=role, units=spec.n_heads,
                reads="heads",
            ),
        )  # fmt: skip
    return (
        WeightMatrix(
            name="output_down", rows=inputs // groups, cols=latent, copies=groups, role=role,
            units=groups, reads="heads",
        ),
        WeightMatrix(
            name="output_up", rows=groups * latent, cols=model_dim, role=role, units=groups,
            reads="output_latent",
        ),
    )  # fmt: skip


# How its designs begin on a command line; read there without importing this file.
WRITTEN = ("shared_row:",)

FAMILIES = (
    Family(
        names=("shared_row",),
        spec_class=SharedRowSpec,
        build=shared_row_layout,
        kernels=(
            Kernel(
                name="shared_row",
                fallback="mla_absorbed",
                assumptions=(
                    "no public measurement of a kernel whose row is key and value: the constants "
                    "of absorbed MLA, which reads its latent as both, stand in",
                ),
            ),
        ),
    ),
)
