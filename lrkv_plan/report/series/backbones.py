"""What the rank pictures share: a model's heads and widths, exact ratios, the rank axis."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.cache_bytes import ratio_to_mha
from lrkv_plan.errors import UsageError
from lrkv_plan.report.figures import Axis
from lrkv_plan.specs.attention import Backbone
from lrkv_plan.specs.attention_text import parse_attention, swap_attention
from lrkv_plan.specs.low_rank_options import LowRankOptions

if TYPE_CHECKING:
    from lrkv_plan.specs.model import ModelSpec

PLAIN = LowRankOptions()


def with_heads(model: ModelSpec, n_heads: int) -> ModelSpec:
    """The same backbone as MHA with that number of heads of the same width.

    Raises
    ------
    SpecError
        If the model has no attention layers.
    """
    designs = tuple(
        parse_attention("mha", group.attention.backbone()._replace(n_heads=n_heads))
        for group in model.attention_groups
        if group.attention is not None
    )
    return model.with_attention(designs)


def cache_ratio(model: ModelSpec, text: str, kv_dtype: str, tp_size: int) -> Fraction:
    """Cache bytes of that design over MHA's on the same backbone, exact."""
    ratio = ratio_to_mha(swap_attention(model, text), kv_dtype=kv_dtype, tp_size=tp_size)
    if ratio is None:
        raise UsageError(f"{model.name}: no layer keeps keys and values")
    return ratio


def _backbones(model: ModelSpec) -> Iterator[Backbone]:
    yield from (g.attention.backbone() for g in model.attention_groups if g.attention is not None)


def widest_rank(model: ModelSpec) -> int:
    """The largest rank: a head's width in the narrowest layer."""
    widths = [min(b.head_dim, b.v_head_dim) for b in _backbones(model)]
    if not widths:
        raise UsageError(f"{model.name}: has no attention layers, so a rank changes nothing")
    return min(widths)


def heads_of(model: ModelSpec) -> int:
    """Query heads, the most of any layer."""
    return max((b.n_heads for b in _backbones(model)), default=0)


def rank_axis(model: ModelSpec, alignment: int) -> Axis:
    """The x axis, with ticks at multiples of the alignment."""
    widest = widest_rank(model)
    step = next((n * alignment for n in (1, 2, 4, 8, 16, 32) if widest <= 8 * n * alignment), None)
    return Axis(key="rank", label="Rank per head", low=0, high=widest, step=step)


def shared_inputs(kv_dtype: str, tp_size: int, options: LowRankOptions) -> dict[str, Any]:
    """Inputs that both rank pictures state."""
    return {
        "kv_dtype": kv_dtype,
        "tp_size": tp_size,
        "n_shared_groups": options.n_shared_groups,
        "position": options.position,
        "rope_dim": options.rope_dim,
        "key_norm": options.key_norm,
    }


def variant_text(options: LowRankOptions) -> str:
    """The LRKV options that differ from plain ones."""
    return options.text(0).partition(",")[2]
