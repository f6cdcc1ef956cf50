"""Weights of attention and of the whole model, and the feed-forward width that restores a total.

Counts what the spec states. What it does not state is named in ``missing`` and makes the total
unknown; parts outside the spec (vision towers, recurrent mixers) are the model's
``uncounted_parts``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.attention.families import layout_of
from lrkv_plan.attention.layout import WeightMatrix, WeightRole
from lrkv_plan.calculators.arguments import check_model
from lrkv_plan.calculators.cache_bytes import reference_mha
from lrkv_plan.errors import RequirementError, SpecError
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LayerGroup,
    ModelSpec,
    NoFeedForward,
)


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Weights by part. A part that the spec does not state is None and named in ``missing``."""

    kv_params: int
    attention_params: int
    feed_forward_params: int | None
    embedding_params: int | None
    norm_params: int | None
    missing: tuple[str, ...]

    @property
    def model_params(self) -> int | None:
        """All counted weights, or None if a part is missing."""
        parts = (self.feed_forward_params, self.embedding_params, self.norm_params)
        known = [part for part in parts if part is not None]
        return self.attention_params + sum(known) if len(known) == len(parts) else None


def parameter_count(model: ModelSpec) -> ParameterCount:
    """Weights of the model by part.

    Notes
    -----
    Keys and values per layer, as each family's builder states them: MHA 2 d H d_h; GQA
    2 d G d_h; LRKV 2 g d d_h + 2 H r (d + d_h); MLA d (d_c + d_R) + d_c H (d_nope + d_v) + d_c.
    Attention adds query, output, their biases and query/key norms. A layer that reuses another
    layer's cache has no weights that make rows: no key, value or down projection, no key norm; it
    keeps what reads rows (LRKV's bases, MLA's up projection). Embeddings: vocabulary x d,
    twice when untied. Feed-forward: three matrices d x width when gated, else two.

    Examples
    --------
    >>> from lrkv_plan import load_model, swap_attention
    >>> paper = load_model("lrkv-paper-2.5b")
    >>> parameter_count(paper).kv_params  # 18 * 2 * 2304 * 18 * 128
    191102976
    >>> parameter_count(swap_attention(paper, "lrkv:55")).kv_params  # 18*2*(2304*128 + 18*55*2432)
    97293312
    """
    check_model("model", model)
    missing: list[str] = []
    return ParameterCount(
        kv_params=kv_params(model),
        attention_params=sum(_attention_params(model, group) for group in model.layers),
        feed_forward_params=_feed_forward_params(model, missing),
        embedding_params=_embedding_params(model, missing),
        norm_params=_norm_params(model, missing),
        missing=tuple(missing),
    )


def attention_weights(group: LayerGroup, model_dim: int) -> tuple[WeightMatrix, ...]:
    """The attention weights of one layer of the group; none without attention."""
    if group.attention is None:
        return ()
    layout = layout_of(group.attention, model_dim)
    return layout.weights_held(reuses_cache=group.reuses_cache)


def kv_params(model: ModelSpec) -> int:
    """Weights of the key and value projections over all layers; biases are not counted here."""
    check_model("model", model)
    return sum(
        group.count * weight.n_params
        for group in model.layers
        for weight in attention_weights(group, model.model_dim)
        if weight.role is WeightRole.KEY_VALUE
    )


def kv_params_ratio_to_mha(model: ModelSpec) -> Fraction | None:
    """Key/value weights over MHA's on the same backbone: g/H + (r/d_h)(1 + d_h/d) for LRKV."""
    reference = kv_params(reference_mha(model))
    return Fraction(kv_params(model), reference) if reference else None


def _attention_params(model: ModelSpec, group: LayerGroup) -> int:
    weights = attention_weights(group, model.model_dim)
    return group.count * sum(weight.n_params for weight in weights)


def feed_forward_params(block: FeedForward, model_dim: int) -> int:
    """Weights of one feed-forward block.

    Dense: m d w, m = 3 if gated else 2, plus (m - 1) w + d biases. Experts: E routed blocks, the
    shared block, the dense block beside them, and a router d E with its optional bias and gate.
    """
    if isinstance(block, NoFeedForward):
        return 0
    if isinstance(block, DenseFeedForward):
        return _dense_params(model_dim, block.hidden_dim, block)
    routed = block.n_experts * _dense_params(model_dim, block.hidden_dim, block)
    others = sum(
        _dense_params(model_dim, width, block)
        for width in (block.shared_hidden_dim, block.dense_hidden_dim)
        if width
    )
    router = model_dim * block.n_experts + block.n_experts * block.router_bias
    return routed + others + router + model_dim * block.shared_gate


def _dense_params(model_dim: int, width: int, block: DenseFeedForward | ExpertFeedForward) -> int:
    n_inputs = 2 if block.gated else 1
    biases = n_inputs * width + model_dim if block.bias else 0
    return (n_inputs + 1) * model_dim * width + biases


def _feed_forward_params(model: ModelSpec, missing: list[str]) -> int | None:
    blocks = [(group.count, group.feed_forward) for group in model.layers if not _is_cross(group)]
    if any(block is None for _, block in blocks):
        missing.append("feed_forward")
        return None
    return sum(
        count * feed_forward_params(block, model.model_dim)
        for count, block in blocks
        if block is not None
    )


def _is_cross(group: LayerGroup) -> bool:
    """Cross-attention shares its layer with self-attention, whose group has the feed-forward."""
    return group.cached_over == "encoder"


def _embedding_params(model: ModelSpec, missing: list[str]) -> int | None:
    unknown = [key for key in ("vocab_size", "tied_embeddings") if getattr(model, key) is None]
    missing += unknown
    if model.vocab_size is None or unknown:
        return None
    tables = 1 if model.tied_embeddings else 2
    head_bias = model.vocab_size * model.head_bias
    positions = (model.position_embeddings or 0) * model.model_dim
    return tables * model.vocab_size * model.model_dim + head_bias + positions


def _norm_params(model: ModelSpec, missing: list[str]) -> int | None:
    norms = model.norms
    if norms is None:
        missing.append("norms")
        return None
    n_norms = norms.final + norms.embedding
    for group in model.layers:
        has_mixer = group.attention is not None or bool(group.state)
        has_block = group.feed_forward is not None and group.feed_forward.kind != "none"
        n_norms += group.count * (norms.per_mixer * has_mixer + norms.per_feed_forward * has_block)
    return n_norms * model.model_dim * (2 if norms.bias else 1)


@dataclass(frozen=True, kw_only=True)
class MatchedWidth:
    """Feed-forward widths that bring a swapped model nearest to the original's total."""

    width_change: int
    hidden_dims: tuple[int, ...]  # new widths, one per distinct old width
    attention_change: int  # parameters that the swap added (negative: saved)
    remaining_difference: int  # parameters above (+) or below (-) the original after rounding


def matched_feed_forward(original: ModelSpec, swapped: ModelSpec) -> MatchedWidth:
    """The feed-forward width that restores the original's parameter count after a swap.

    Notes
    -----
    One unit of width costs s = sum over layers of m d (per dense block or routed expert, m = 3 if
    gated else 2, plus biases). The change is round(-(P_swapped - P_original) / s), applied to
    every feed-forward width alike; |remaining| <= s / 2.

    Raises
    ------
    SpecError
        If the spec states no feed-forward.
    RequirementError
        If the swap adds more than the feed-forward blocks hold.
    """
    check_model("original", original)
    check_model("swapped", swapped)
    change = sum(_attention_params(swapped, g) for g in swapped.layers) - sum(
        _attention_params(original, g) for g in original.layers
    )
    blocks = [(g.count, g.feed_forward) for g in original.layers if not _is_cross(g)]
    if any(block is None for _, block in blocks):
        raise SpecError(
            f"{original.name}: feed_forward is not stated, so no width can restore the parameter "
            "count; add it to the model file"
        )
    slope = sum(count * _params_per_width(block, original.model_dim) for count, block in blocks)
    if slope == 0:
        raise SpecError(f"{original.name}: has no feed-forward block to widen")
    width_change = round(Fraction(-change, slope))
    widths = sorted({b.hidden_dim for _, b in blocks if b is not None and b.kind != "none"})
    if widths[0] + width_change < 1:
        raise RequirementError(
            f"{original.name}: the swap adds {change:,} parameters, more than a feed-forward width "
            f"of {widths[0]} can give back"
        )
    return MatchedWidth(
        width_change=width_change,
        hidden_dims=tuple(width + width_change for width in widths),
        attention_change=change,
        remaining_difference=change + width_change * slope,
    )


def _params_per_width(block: FeedForward | None, model_dim: int) -> int:
    if block is None or isinstance(block, NoFeedForward):
        return 0
    wider = block.model_copy(update={"hidden_dim": block.hidden_dim + 1})
    return feed_forward_params(wider, model_dim) - feed_forward_params(block, model_dim)
