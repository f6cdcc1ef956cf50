"""Designs that are asked for, as models with a name: text is read once, objects stay objects."""

from __future__ import annotations

import pytest

import lrkv_plan
from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.errors import ArgumentError, SpecError
from lrkv_plan.questions.arguments import asked_designs, designs_of, low_rank_variant
from lrkv_plan.specs.design import first_backbone, layers_of, named_designs, typed_designs

LLAMA = lrkv_plan.load_model("llama-3.1-8b")


def test_without_any_the_own_design_is_named() -> None:
    assert named_designs(LLAMA) == designs_of(LLAMA, None) == [("gqa:8", LLAMA)]


def test_names_are_the_shortest_text_that_gives_the_design_again() -> None:
    asked = ["lrkv:54, groups=2", "gqa:4, head_dim=64"]  # no label says a head's width
    named = named_designs(LLAMA, asked)
    assert [label for label, _ in named] == ["lrkv:54,n_shared_groups=2", "gqa:4,head_dim=64"]
    assert [text for text, _ in typed_designs(LLAMA, asked)] == asked
    # 32 layers of 4 keys of 64 and 4 values of 128, two bytes each
    assert lrkv_plan.bytes_per_token(named[1][1]) == 32 * 4 * (64 + 128) * 2


def test_an_object_keeps_what_its_text_does_not_say() -> None:
    sinks = GroupedSpec(family="gqa", n_heads=32, n_kv_heads=4, head_dim=128, sinks=True)
    ((label, design),) = designs_of(LLAMA, sinks)
    assert label == sinks.text() == "gqa:4"
    assert all(isinstance(one, GroupedSpec) and one.sinks for one in layers_of(design))


def test_other_things_are_no_designs() -> None:
    with pytest.raises(ArgumentError, match="attention 8: must be text"):
        asked_designs(["gqa:8", 8])  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "lrkv:0"),
        ({"n_shared_groups": 2, "key_norm": "rms_cached"}, "lrkv:0,groups=2,key_norm=rms_cached"),
        ({"position": "rope_rank"}, "lrkv:0,position=rope_rank,basis_spans_rotary_planes=true"),
        (
            {"position": "rope_decoupled", "rope_dim": 64},
            "lrkv:0,position=rope_decoupled,rope_dim=64",
        ),
    ],
)
def test_a_variant_is_what_its_text_would_give(options: dict[str, object], text: str) -> None:
    variant = low_rank_variant(LLAMA, **options)  # type: ignore[arg-type]
    assert variant == lrkv_plan.parse_attention(text, first_backbone(LLAMA))
    assert variant.text() == text


def test_a_decoupled_variant_takes_the_rotary_width_of_the_model() -> None:
    deepseek = lrkv_plan.load_model("deepseek-v3")
    assert low_rank_variant(deepseek, position="rope_decoupled").rope_dim == 64
    with pytest.raises(SpecError, match="rope_dim 0 with position rope_decoupled"):
        low_rank_variant(deepseek, position="rope_decoupled", rope_dim=0)


def test_zero_is_a_width_and_a_number_of_encoder_rows() -> None:
    assert lrkv_plan.rank(LLAMA, budget="50%", rope_dim=0).rows == (
        lrkv_plan.rank(LLAMA, budget="50%").rows
    )
    plain = lrkv_plan.rank(LLAMA, budget="50%", mla_rope_dim=0).rows[0]
    assert plain["mla_attention"].endswith("+0")
    # 32 decoder layers of 100 rows, 2 * 1,280 scalars of two bytes; no encoder rows
    (row,) = lrkv_plan.cache("whisper-large-v3", context_tokens=100, encoder_tokens=0).rows
    assert row["cache_bytes"] == 32 * 100 * 2 * 1280 * 2
