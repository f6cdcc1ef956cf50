"""MHA, GQA and MQA: one formula in which the number of key/value heads varies."""

from __future__ import annotations

from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.projections import query_and_output
from lrkv_plan.specs.attention_families import GroupedSpec


def grouped_layout(spec: GroupedSpec, model_dim: int) -> AttentionLayout:
    """Layout of MHA (G = H), GQA (1 < G < H) and MQA (G = 1).

    Notes
    -----
    Cache per token and layer, in scalars: G d_h + G d_v (Shazeer 2019, arXiv:1911.02150;
    Ainslie et al. 2023, arXiv:2305.13245). Weights of keys and values: d G (d_h + d_v).
    Decode, multiply-adds: T H (d_h + d_v), independent of G.

    Examples
    --------
    >>> spec = GroupedSpec(family="gqa", n_heads=128, n_kv_heads=8, head_dim=128)
    >>> grouped_layout(spec, model_dim=16384).scalars_per_token()
    2048
    """
    heads, kv_heads = spec.n_heads, spec.n_kv_heads
    key_dim, value_dim = spec.head_dim, spec.v_head_dim
    weights = (
        *query_and_output(spec, model_dim, key_dim, value_dim),
        *_key_and_value(spec, model_dim),
        *_vectors(spec),
    )
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=tuple(
            CachedTensor(name=n, width=w, copies_per_layer=kv_heads, sharding=Sharding.BY_COPY)
            for n, w in (("key", key_dim), ("value", value_dim))
        ),
        weights=weights,
        work=(
            DecodeWork(
                path="grouped",
                kernel="grouped",
                per_token=heads * (key_dim + value_dim),
                per_step=0,
            ),
        ),
    )


def _key_and_value(spec: GroupedSpec, model_dim: int) -> list[WeightMatrix]:
    """Key d x G d_h and value d x G d_v, dealt out by key/value head."""
    widths = {"key": spec.head_dim} | ({} if spec.value_from_key else {"value": spec.v_head_dim})
    return [
        WeightMatrix(
            name=name, rows=model_dim, cols=spec.n_kv_heads * width, role=WeightRole.KEY_VALUE,
            units=spec.n_kv_heads, makes_rows=True,
        )
        for name, width in widths.items()
    ]  # fmt: skip


def _vectors(spec: GroupedSpec) -> list[WeightMatrix]:
    """Biases and sinks, dealt out by head; query and key norms, whole on every GPU."""
    heads, kv_heads, key_dim = spec.n_heads, spec.n_kv_heads, spec.head_dim
    rows: list[tuple[bool, str, int, int | None, bool]] = [
        (spec.sinks, "sinks", heads, heads, False),
        (spec.qkv_bias, "query_bias", heads * key_dim, heads, False),
        (spec.qkv_bias, "key_value_bias", kv_heads * (key_dim + spec.v_head_dim), kv_heads, True),
        (spec.qk_norm, "query_norm", key_dim, None, False),
        (spec.qk_norm, "key_norm", key_dim, None, True),
    ]
    return [
        WeightMatrix(
            name=name, rows=size, cols=1, role=WeightRole.OTHER, units=units, makes_rows=makes
        )
        for present, name, size, units, makes in rows
        if present
    ]
