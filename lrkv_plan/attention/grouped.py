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
    weights = [
        *query_and_output(spec, model_dim, key_dim, value_dim),
        WeightMatrix(
            name="key", rows=model_dim, cols=kv_heads * key_dim, role=WeightRole.KEY_VALUE
        ),
    ]
    if not spec.value_from_key:
        weights.append(
            WeightMatrix(
                name="value", rows=model_dim, cols=kv_heads * value_dim, role=WeightRole.KEY_VALUE
            )
        )
    if spec.sinks:
        weights.append(WeightMatrix(name="sinks", rows=heads, cols=1, role=WeightRole.OTHER))
    if spec.qkv_bias:
        bias_dim = heads * key_dim + kv_heads * (key_dim + value_dim)
        weights.append(WeightMatrix(name="qkv_bias", rows=bias_dim, cols=1, role=WeightRole.OTHER))
    if spec.qk_norm:
        weights.append(
            WeightMatrix(name="qk_norm", rows=2 * key_dim, cols=1, role=WeightRole.OTHER)
        )
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=tuple(
            CachedTensor(name=n, width=w, copies_per_layer=kv_heads, sharding=Sharding.BY_COPY)
            for n, w in (("key", key_dim), ("value", value_dim))
        ),
        weights=tuple(weights),
        work=(DecodeWork(path="grouped", per_token=heads * (key_dim + value_dim), per_step=0),),
    )
