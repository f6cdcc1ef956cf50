"""Weights per design, and how each placement policy spreads the cache over the GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.spec_views import DESIGN, at_least, listed, model_inputs
from lrkv_plan.report.tables import Column, Table, as_row, count, percent

if TYPE_CHECKING:
    from lrkv_plan.calculators.comparison import ParamsRow, ShardRow
    from lrkv_plan.specs.model import ModelSpec

_TP_SIZE = Column(key="tp_size", title="GPUs", text=count)


def params_table(model: ModelSpec, rows: Sequence[ParamsRow], match_params: bool) -> Table:
    """Weights per design."""
    flat = [as_row(row) for row in rows]
    matched = (
        Column(key="hidden_dims", title="matched width", text=lambda dims: listed(dims)),
        Column(key="width_change", title="change", text=lambda change: f"{change:+,}"),
        Column(key="remaining_difference", title="left over", text=lambda left: f"{left:+,}"),
    )
    missing = sorted({part for row in rows for part in row.missing})
    remarks = []
    if missing:
        remarks.append(f"the whole model is unknown: {', '.join(missing)} not stated in the spec")
    if model.uncounted_parts:
        remarks.append(f"not counted: {'; '.join(model.uncounted_parts)}")
    return Table(
        title=f"Weights of {model.name}",
        inputs={"model": model_inputs(model), "match_params": match_params},
        rows=flat,
        shown_rows=[
            {**row, "model_params": at_least(row["model_params"], model.uncounted_parts)}
            for row in flat
        ],
        columns=(
            DESIGN,
            Column(key="kv_params", title="K/V weights", text=count),
            Column(key="ratio_to_mha", title="of MHA", text=percent),
            Column(key="attention_params", title="attention", text=count),
            Column(key="feed_forward_params", title="feed-forward", text=count),
            Column(key="embedding_params", title="embeddings", text=count),
            Column(key="model_params", title="model"),
            *(matched if match_params else ()),
        ),
        remarks=(*remarks, *model.remarks),
    )


def shard_table(model: ModelSpec, rows: Sequence[ShardRow], inputs: dict[str, Any]) -> Table:
    """Cache per GPU and over the group, per placement policy."""
    return Table(
        title=f"Placement of {model.name}: {inputs['kv_dtype']}, bytes per cached token",
        inputs=inputs,
        rows=[_shard_row(row) for row in rows],
        columns=(
            DESIGN,
            _TP_SIZE,
            Column(key="policy", title="policy", is_number=False),
            Column(key="cache_bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="aggregate_bytes_per_token", title="B/token, all GPUs", text=count),
            Column(key="replicated_share", title="repeated", text=percent),
            Column(key="link_bytes_per_token_per_gpu", title="link B/token/GPU", text=count),
            Column(key="aggregate_ratio_to_mha", title="of MHA", text=percent),
        ),
        remarks=(
            *dict.fromkeys(
                f"refused: {row.attention}: {row.refused}" for row in rows if row.refused
            ),
            *_policy_remarks(rows),
            *model.remarks,
        ),
    )


def _shard_row(row: ShardRow) -> dict[str, Any]:
    placement = row.placement
    flat = {"model": row.model, "attention": row.attention, "tp_size": row.tp_size}
    if placement is None:
        return {**flat, "policy": "refused", "refused": row.refused}
    share = {"replicated_share": placement.replicated_share}
    return {**flat, **as_row(placement), **share, "refused": None}


def _policy_remarks(rows: Sequence[ShardRow]) -> Iterator[str]:
    from lrkv_plan.calculators.placement import POLICIES

    used = {row.placement.policy for row in rows if row.placement is not None}
    yield from (f"{policy}: {what}" for policy, what in POLICIES.items() if policy in used)
