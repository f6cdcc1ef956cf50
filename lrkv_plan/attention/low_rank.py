"""LRKV: a shared key and value projection plus a rank-r residual per head (arXiv:2601.11471v3)."""

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
from lrkv_plan.specs.attention_families import LowRankSpec


def low_rank_layout(spec: LowRankSpec, model_dim: int) -> AttentionLayout:
    """Layout of LRKV: W_h = W_S + U_h B_h^T for keys and for values (paper, eq. 2-5).

    Notes
    -----
    Cache per token and layer, in scalars: g (d_h + d_v) + H (r_K + r_V); at g = 1 and one rank
    2 (d_h + H r) (eq. 9). Residual rows are padded to ``rank_alignment``. ``rope_decoupled`` adds
    one shared rotary key of d_R, ``rms_cached`` one inverse RMS per head: b bytes in plain formats,
    2 in formats that keep scales of their own (``lrkv_plan.dtypes``).
    Weights of keys and values: g d (d_h + d_v) + H [r_K (d + d_h) + r_V (d + d_v)]; a decoupled
    rotary key adds d d_R, and H d d_R to the query.

    Examples
    --------
    >>> spec = LowRankSpec(n_heads=18, head_dim=128, rank=55)
    >>> low_rank_layout(spec, model_dim=2304).scalars_per_token()
    2236
    """
    return AttentionLayout(
        label=spec.label(),
        n_heads=spec.n_heads,
        cached=_cached(spec),
        weights=_weights(spec, model_dim),
        work=_work(spec),
    )


def _cached(spec: LowRankSpec) -> tuple[CachedTensor, ...]:
    groups, heads, align = spec.n_shared_groups, spec.n_heads, spec.rank_alignment
    rows = [
        ("shared_key", spec.head_dim, groups, Sharding.BY_COPY),
        ("shared_value", spec.v_head_dim, groups, Sharding.BY_COPY),
        ("private_key", spec.key_rank, heads, Sharding.BY_COPY),
        ("private_value", spec.value_rank, heads, Sharding.BY_COPY),
        ("rope_key", spec.rope_dim, 1, Sharding.REPLICATED),
        ("key_scale", int(spec.key_norm == "rms_cached"), heads, Sharding.BY_COPY),
    ]
    return tuple(
        CachedTensor(
            name=name,
            width=_padded(width, align) if name.startswith("private") else width,
            payload_width=width,
            copies_per_layer=copies,
            sharding=sharding,
        )
        for name, width, copies, sharding in rows
        if width
    )


def _padded(rank: int, alignment: int) -> int:
    return -(-rank // alignment) * alignment


def _weights(spec: LowRankSpec, model_dim: int) -> tuple[WeightMatrix, ...]:
    heads, groups, role = spec.n_heads, spec.n_shared_groups, WeightRole.KEY_VALUE
    weights = [*query_and_output(spec, model_dim, spec.head_dim + spec.rope_dim, spec.v_head_dim)]
    for name, width, rank in (
        ("key", spec.head_dim, spec.key_rank),
        ("value", spec.v_head_dim, spec.value_rank),
    ):
        weights += [
            WeightMatrix(
                name=full, rows=rows, cols=cols, copies=copies, role=role, units=copies,
                makes_rows=makes,
            )
            for full, rows, cols, copies, makes in (
                (f"shared_{name}", model_dim, width, groups, True),
                (f"{name}_down", model_dim, rank, heads, True),
                (f"{name}_basis", width, rank, heads, False),
            )
        ]  # fmt: skip
    if spec.rope_dim:
        weights.append(
            WeightMatrix(
                name="rope_key", rows=model_dim, cols=spec.rope_dim, role=role, makes_rows=True
            )
        )
    if spec.qk_norm:
        weights += [
            WeightMatrix(
                name=name, rows=spec.head_dim, cols=1, role=WeightRole.OTHER, makes_rows=makes
            )
            for name, makes in (("query_norm", False), ("key_norm", True))
        ]
    return tuple(weights)


def _work(spec: LowRankSpec) -> tuple[DecodeWork, ...]:
    """Decode paths, multiply-adds per layer (one head's in brackets).

    factored: H [T (d_h + r_K + d_R + d_v + r_V) + r_K d_h + r_V d_v] (eq. 6-7).
    rope_expand: keys are rebuilt and rotated tile by tile, H [T r_K d_h] once for all query tokens,
    then scored at full width: H [T (d_h + d_v + r_V) + r_V d_v]. The rotation itself is not a
    multiply-add and is not counted here.
    materialised: keys and values rebuilt, H [T (r_K d_h + r_V d_v)], then plain attention.
    """
    heads, key_dim, value_dim = spec.n_heads, spec.head_dim, spec.v_head_dim
    key_rank, value_rank, rope = spec.key_rank, spec.value_rank, spec.rope_dim
    value_scan = value_dim + value_rank
    rebuild_keys, value_map = key_rank * key_dim, value_rank * value_dim
    expanded = DecodeWork(
        path="rope_expand",
        kernel="low_rank_expand",
        per_token=heads * (key_dim + value_scan),
        per_step=heads * value_map,
        expand_per_token=heads * rebuild_keys,
        rebuilt_per_token=heads * key_dim,
    )
    factored = DecodeWork(
        path="factored",
        kernel="low_rank",
        per_token=heads * (key_dim + key_rank + rope + value_scan),
        per_step=heads * (rebuild_keys + value_map),
    )
    materialised = DecodeWork(
        path="materialised",
        kernel="low_rank_materialised",
        per_token=heads * (key_dim + rope + value_dim),
        per_step=0,
        expand_per_token=heads * (rebuild_keys + value_map),
        rebuilt_per_token=heads * (key_dim + value_dim),
    )
    first = expanded if spec.position == "rope_expand" else factored
    return (first, materialised)
