"""Multiply-adds of a decode step's attention, over all layers, and their ratio to MHA's."""

from __future__ import annotations

from fractions import Fraction

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.memory.cache import reference_mha
from lrkv_plan.memory.exact import check_model, one_count
from lrkv_plan.specs.model import LayerGroup, ModelSpec


def attention_multiply_adds(model: ModelSpec, context_tokens: int, query_tokens: int = 1) -> int:
    """Multiply-adds of attention in one decode step of one sequence; one is 2 FLOPs.

    Each layer takes the first path of its layout: grouped, absorbed (MLA), factored or
    rope_expand (LRKV). A windowed layer scans min(T, window) tokens, a sparse one min(T, selected).
    Projections, softmax, rotations and the scores of a sparse index are not counted.
    """
    check_model("model", model)
    context_tokens = one_count("context_tokens", context_tokens, 0)
    query_tokens = one_count("query_tokens", query_tokens)
    return sum(
        group.count
        * layout_of(group.attention, model.model_dim)
        .work[0]
        .multiply_adds(min(context_tokens, group.most_rows or context_tokens), query_tokens)
        for group in _scanning(model)
        if group.attention is not None
    )


def arithmetic_ratio_to_mha(model: ModelSpec, context_tokens: int) -> Fraction | None:
    """Decode multiply-adds over MHA's on the same backbone at that context.

    For factored LRKV in all layers: 1 + r/d_h + r/T (review of arXiv:2601.11471v3, section 4).
    """
    check_model("model", model)
    context_tokens = one_count("context_tokens", context_tokens)
    if not _scanning(model):
        return None
    reference = attention_multiply_adds(reference_mha(model), context_tokens)
    return Fraction(attention_multiply_adds(model, context_tokens), reference)


def arithmetic_ratio_limit(model: ModelSpec) -> Fraction | None:
    """The ratio for long contexts, windows aside: per-token work only; 1 + r/d_h for LRKV."""

    def per_token(of: ModelSpec) -> int:
        works = (
            (group.count, layout_of(group.attention, of.model_dim).work[0])
            for group in _scanning(of)
            if group.attention is not None
        )
        return sum(count * (work.per_token + work.expand_per_token) for count, work in works)

    return Fraction(per_token(model), per_token(reference_mha(model))) if _scanning(model) else None


def _scanning(model: ModelSpec) -> list[LayerGroup]:
    """Layers that scan the context; those that reuse a cache scan it too."""
    return [g for g in model.attention_groups if g.cached_over == "context"]
