"""Weights: by hand, against published counts, and the width that restores a total."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lrkv_plan.errors import RequirementError, SpecError
from lrkv_plan.memory.weights import (
    kv_params_ratio_to_mha,
    matched_feed_forward,
    parameter_count,
    weight_bytes_per_gpu,
)
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.design import swap_attention
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


def with_reuse(attention: dict[str, object], **changes: object) -> ModelSpec:
    """Two layers of their own and three that read the rows of another layer."""
    layers = [
        {"count": 2, "attention": attention, "feed_forward": {"kind": "none"}},
        {"count": 3, "attention": attention, "feed_forward": {"kind": "none"}, "reuses_cache": True},
    ]  # fmt: skip
    return make_model(
        attention, layers=layers, model_dim=64, vocab_size=100, tied_embeddings=True,
        norms={"per_mixer": 0, "per_feed_forward": 0, "final": False}, **changes,
    )  # fmt: skip


def test_layers_that_reuse_a_cache_make_no_rows_and_have_no_weights_for_them() -> None:
    # transformers modeling_gemma4: a shared layer has q_proj, q_norm and o_proj, nothing else.
    attention = {
        "family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 16, "qkv_bias": True,
        "qk_norm": True,
    }  # fmt: skip
    count = parameter_count(with_reuse(attention))
    assert count.kv_params == 2 * 2 * 64 * 32
    query_and_output = 2 * 64 * 64 + 64 + 16  # both matrices, the query's bias and norm
    key_and_value = 2 * 64 * 32 + 2 * 32 + 16  # both matrices, their biases, the key's norm
    assert count.attention_params == 5 * query_and_output + 2 * key_and_value


@pytest.mark.parametrize(
    ("text", "own", "kept"),
    [
        ("mha", 2 * 64 * 64, 0),
        ("lrkv:3", 2 * 64 * 16 + 2 * 4 * 3 * (64 + 16), 2 * 4 * 3 * 16),  # the bases read rows
        ("mla:24+8", 64 * 32 + 24 + 24 * 4 * 32, 24 * 4 * 32),  # the up projection reads rows
        ("mla:24+8,cached_form=heads", 64 * 32 + 24 + 24 * 4 * 32, 0),  # there it makes them
    ],
)
def test_what_reads_rows_stays_where_a_cache_is_reused(text: str, own: int, kept: int) -> None:
    model = swap_attention(with_reuse({"family": "mha", "n_heads": 4, "head_dim": 16}), text)
    assert parameter_count(model).kv_params == 2 * own + 3 * kept
    assert kv_params_ratio_to_mha(model) == Fraction(2 * own + 3 * kept, 2 * 2 * 64 * 64)


def test_weights_of_one_gpu_count_the_same_parameters_where_a_cache_is_reused() -> None:
    model = with_reuse({"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 16})
    held = weight_bytes_per_gpu(model, parallel=Parallelism(), weight_dtype="bf16").fullest
    assert held.total == 2 * parameter_count(model).model_params  # type: ignore[operator]
    assert held.attention == 2 * (5 * 2 * 64 * 64 + 2 * 2 * 64 * 32)
