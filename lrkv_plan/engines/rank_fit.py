"""The largest rank with which a number of sequences fits in a deployment, and what else does.

The same question as ``calculators.rank_ceiling``, with memory instead of bytes per token as the
budget: weights, pages, alignment and the engine's rules are part of the count.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from lrkv_plan.calculators.budget_fit import latent_bound_remark, widest_latent
from lrkv_plan.engines.advice import largest_design, largest_rank
from lrkv_plan.engines.deployment import Deployment
from lrkv_plan.engines.planning import CapacityRow, capacity_row
from lrkv_plan.errors import RequirementError
from lrkv_plan.specs.attention_families import divisors_of
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.low_rank_options import LowRankOptions
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class SequenceFit:
    """A design with which the sequences fit, and its capacity."""

    value: int
    text: str
    row: CapacityRow


@dataclass(frozen=True, kw_only=True)
class RankFit:
    """The largest rank, its largest aligned neighbour below, the next one, GQA and MLA.

    The latent is at most as wide as the model; a remark says where that bound decides.
    """

    n_sequences: int
    alignment: int
    largest: SequenceFit
    aligned: SequenceFit
    following: SequenceFit | None
    grouped: SequenceFit | None
    latent: SequenceFit | None
    remarks: tuple[str, ...] = ()


def rank_for_sequences(
    model: ModelSpec,
    deployment: Deployment,
    n_sequences: int,
    *,
    options: LowRankOptions | None = None,
    latent_rope_dim: int | None = None,
) -> RankFit:
    """The largest rank with which ``n_sequences`` of full length fit.

    The alignment is the deployment's: ranks in between are stored as the next multiple.

    Raises
    ------
    RequirementError
        If they do not even fit at rank 0; the message says how many do.
    PlacementError, SpecError, UsageError
        As ``capacity_row``.
    """
    variant, alignment = options or LowRankOptions(), deployment.rank_alignment

    def fit(value: int, text: str) -> SequenceFit:
        row = capacity_row(swap_attention(model, text), deployment)
        return SequenceFit(value=value, text=text, row=row)

    rank = largest_rank(model, deployment, variant, n_sequences)
    if rank is None:
        least = fit(0, variant.text(0)).row
        raise RequirementError(
            f"no rank fits {n_sequences:,} sequences of {deployment.settings.context_tokens:,} "
            f"tokens: at rank 0 {least.total_sequences:,} fit ({least.binds}); use more GPUs, a "
            "smaller cache format or a shorter context"
        )
    aligned = largest_rank(model, deployment, variant, n_sequences, step=alignment)
    assert aligned is not None, "rank 0 is a multiple of every alignment"
    following = rank + variant.rank_step
    backbones = [g.attention.backbone() for g in model.attention_groups if g.attention]
    heads = divisors_of(math.gcd(*(b.n_heads for b in backbones)))
    n_kv_heads = largest_design(model, deployment, heads, lambda n: f"gqa:{n}", n_sequences)
    rope = latent_rope_dim or backbones[0].rope_dim or max(2, backbones[0].head_dim // 2)
    most = widest_latent(model)

    def largest_latent(widths: range) -> int | None:
        return largest_design(model, deployment, widths, lambda n: f"mla:{n}+{rope}", n_sequences)

    latent = largest_latent(range(1, most + 1))
    is_bounded = latent == most and largest_latent(range(most + 1, most + 2)) is not None
    widest = min(min(b.head_dim, b.v_head_dim) for b in backbones)
    return RankFit(
        n_sequences=n_sequences,
        alignment=alignment,
        largest=fit(rank, variant.text(rank)),
        aligned=fit(aligned, variant.text(aligned)),
        following=fit(following, variant.text(following)) if following <= widest else None,
        grouped=None if n_kv_heads is None else fit(n_kv_heads, f"gqa:{n_kv_heads}"),
        latent=None if latent is None else fit(latent, f"mla:{latent}+{rope}"),
        remarks=(latent_bound_remark(model),) if is_bounded else (),
    )
