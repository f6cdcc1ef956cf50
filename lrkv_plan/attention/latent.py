"""MLA: multi-head latent attention (DeepSeek-V2, arXiv:2405.04434)."""

from __future__ import annotations

from lrkv_plan.attention.layout import (
    AttentionLayout,
    CachedTensor,
    DecodeWork,
    Sharding,
    WeightMatrix,
    WeightRole,
)
from lrkv_plan.attention.projections import output_weights
from lrkv_plan.specs.attention_families import LatentSpec


def latent_layout(spec: LatentSpec, model_dim: int) -> AttentionLayout:
    """Layout of MLA.

    Notes
    -----
    Cache per token and layer, in scalars: d_c + d_R. The latent is key and value at once and has no
    head to be dealt out by, so every tensor-parallel GPU keeps it whole.
    Weights of keys and values: d (d_c + d_R) + d_c H (d_nope + d_v) + d_c for the latent's norm.
    Decode, multiply-adds per layer with T cached tokens:
    absorbed H [T (2 d_c + d_R) + d_c (d_nope + d_v)];
    materialised H [T d_c (d_nope + d_v) + T (d_nope + d_R + d_v)], whose first term rebuilds keys
    and values once for all query tokens.

    Examples
    --------
    >>> spec = LatentSpec(
    ...     n_heads=128, latent_dim=512, rope_dim=64, nope_dim=128, v_head_dim=128)
    >>> latent_layout(spec, model_dim=7168).scalars_per_token()
    576
    """
    heads, latent, rope = spec.n_heads, spec.latent_dim, spec.rope_dim
    nope, value_dim = spec.nope_dim, spec.v_head_dim
    cached = [CachedTensor(name="latent", width=latent, copies_per_layer=1, sharding=_WHOLE)]
    if rope:
        cached.append(
            CachedTensor(name="rope_key", width=rope, copies_per_layer=1, sharding=_WHOLE)
        )
    key_value = WeightRole.KEY_VALUE
    weights = (
        *_query_weights(spec, model_dim),
        WeightMatrix(name="latent_down", rows=model_dim, cols=latent + rope, role=key_value),
        WeightMatrix(name="latent_norm", rows=latent, cols=1, role=key_value),
        WeightMatrix(
            name="latent_up", rows=latent, cols=heads * (nope + value_dim), role=key_value
        ),
        *output_weights(spec, model_dim, value_dim),
    )
    expand = heads * latent * (nope + value_dim)
    return AttentionLayout(
        label=spec.label(),
        n_heads=heads,
        cached=tuple(cached),
        weights=weights,
        work=(
            DecodeWork(path="absorbed", per_token=heads * (2 * latent + rope), per_step=expand),
            DecodeWork(
                path="materialised",
                per_token=heads * (nope + rope + value_dim),
                per_step=0,
                expand_per_token=expand,
            ),
        ),
    )


_WHOLE = Sharding.REPLICATED


def _query_weights(spec: LatentSpec, model_dim: int) -> tuple[WeightMatrix, ...]:
    """Query d x H (d_nope + d_R), or through a normalised latent of ``query_latent_dim``."""
    query_dim = spec.n_heads * (spec.nope_dim + spec.rope_dim)
    role, latent = WeightRole.QUERY, spec.query_latent_dim
    if latent is None:
        return (WeightMatrix(name="query", rows=model_dim, cols=query_dim, role=role),)
    return (
        WeightMatrix(name="query_down", rows=model_dim, cols=latent, role=role),
        WeightMatrix(name="query_norm", rows=latent, cols=1, role=role),
        WeightMatrix(name="query_up", rows=latent, cols=query_dim, role=role),
    )
