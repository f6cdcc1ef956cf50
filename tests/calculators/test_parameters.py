"""Weights: by hand, against published counts, and the width that restores a total."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lrkv_plan.calculators.parameters import (
    kv_params_ratio_to_mha,
    matched_feed_forward,
    parameter_count,
)
from lrkv_plan.errors import RequirementError, SpecError
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model

TOY = make_model(
    {"family": "mha", "n_heads": 4, "head_dim": 16},
    layers=[{
        "count": 2,
        "attention": {"family": "mha", "n_heads": 4, "head_dim": 16},
        "feed_forward": {"kind": "dense", "hidden_dim": 100, "gated": True},
    }],
    model_dim=64, vocab_size=1000, tied_embeddings=False,
    norms={"per_mixer": 1, "per_feed_forward": 1},
)  # fmt: skip


def test_a_toy_model_by_hand() -> None:
    count = parameter_count(TOY)
    assert count.kv_params == 2 * 2 * 64 * 64
    assert count.attention_params == 2 * 4 * 64 * 64
    assert count.feed_forward_params == 2 * 3 * 64 * 100
    assert count.embedding_params == 2 * 1000 * 64
    assert count.norm_params == (2 * 2 + 1) * 64
    assert count.model_params == 32_768 + 38_400 + 128_000 + 320


def test_experts_by_hand() -> None:
    block = {
        "kind": "experts", "hidden_dim": 10, "n_experts": 8, "experts_per_token": 2,
        "shared_hidden_dim": 20, "gated": True, "router_bias": True, "shared_gate": True,
    }  # fmt: skip
    layer = {"count": 1, "feed_forward": block}
    model = TOY.model_validate({**TOY.model_dump(), "layers": [layer]})
    # 8 experts + one shared of width 20, router 64*8 + 8, gate 64
    expected = 8 * 3 * 64 * 10 + 3 * 64 * 20 + 64 * 8 + 8 + 64
    assert parameter_count(model).feed_forward_params == expected


def test_ratio_at_the_paper_width(paper: ModelSpec) -> None:
    # 1/18 + 55/128 (1 + 128/2304) = 50.911 %
    ratio = kv_params_ratio_to_mha(swap_attention(paper, "lrkv:55"))
    assert ratio == Fraction(1, 18) + Fraction(55, 128) * (1 + Fraction(128, 2304))
    assert f"{float(ratio):.5f}" == "0.50911"


def test_what_is_not_stated_is_named_and_the_total_unknown(paper: ModelSpec) -> None:
    count = parameter_count(paper)
    assert count.model_params is None
    assert set(count.missing) == {"feed_forward", "vocab_size", "tied_embeddings", "norms"}


def test_matched_width_restores_the_count_as_nearly_as_one_width_can() -> None:
    swapped = swap_attention(TOY, "mqa")
    # MQA saves 2 layers * 2 * 64 * (64 - 16) = 12,288; one width costs 2 * 3 * 64 = 384: 32 exactly
    matched = matched_feed_forward(TOY, swapped)
    assert (matched.attention_change, matched.width_change) == (-12_288, 32)
    assert matched.hidden_dims == (132,)
    assert matched.remaining_difference == 0
    odd = matched_feed_forward(TOY, swap_attention(TOY, "lrkv:3"))
    wider = odd.attention_change + odd.width_change * 384
    assert odd.remaining_difference == wider
    assert abs(wider) <= 192


def test_a_swap_that_adds_more_than_the_feed_forward_holds_is_refused() -> None:
    huge = swap_attention(TOY, "mla:4000+16")
    with pytest.raises(RequirementError, match="more than a feed-forward width"):
        matched_feed_forward(TOY, huge)


def test_matching_needs_a_feed_forward(paper: ModelSpec) -> None:
    with pytest.raises(SpecError, match="feed_forward is not stated"):
        matched_feed_forward(paper, swap_attention(paper, "lrkv:55"))
