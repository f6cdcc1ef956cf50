"""Query and output projections, which every family but MLA's low-rank query shares."""

from __future__ import annotations

from lrkv_plan.attention.layout import WeightMatrix, WeightRole
from lrkv_plan.specs.attention import AttentionSpec


def query_and_output(
    spec: AttentionSpec, model_dim: int, query_dim: int, value_dim: int
) -> tuple[WeightMatrix, ...]:
    """Query d x H d_q, and what ``output_weights`` gives."""
    query = WeightMatrix(
        name="query", rows=model_dim, cols=spec.n_heads * query_dim, role=WeightRole.QUERY,
        units=spec.n_heads,
    )  # fmt: skip
    return (query, *output_weights(spec, model_dim, value_dim))


def output_weights(spec: AttentionSpec, model_dim: int, value_dim: int) -> tuple[WeightMatrix, ...]:
    """Output H d_v x d, its bias, and a gate d x H d_v where the spec has one."""
    heads_dim = spec.n_heads * value_dim
    role, units = WeightRole.OUTPUT, spec.n_heads
    output = WeightMatrix(name="output", rows=heads_dim, cols=model_dim, role=role, units=units)
    weights = [output]
    if spec.output_bias:
        weights.append(
            WeightMatrix(name="output_bias", rows=model_dim, cols=1, role=WeightRole.OTHER)
        )
    if spec.output_gate:
        weights.append(
            WeightMatrix(name="output_gate", rows=model_dim, cols=heads_dim, role=role, units=units)
        )
    return tuple(weights)
