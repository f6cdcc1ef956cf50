"""``--attention`` and ``--budget`` text: what is understood and how the rest is refused."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.registry import parse_attention
from lrkv_plan.attention.spec import Backbone
from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.specs.budget import Budget, parse_budget
from lrkv_plan.specs.design import design_label, swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model

HEADS = Backbone(n_heads=18, head_dim=128, v_head_dim=128)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("mha", GroupedSpec(family="mha", n_heads=18, n_kv_heads=18, head_dim=128, v_head_dim=128)),
        ("GQA:6", GroupedSpec(family="gqa", n_heads=18, n_kv_heads=6, head_dim=128, v_head_dim=128)),
        ("mqa", GroupedSpec(family="mqa", n_heads=18, n_kv_heads=1, head_dim=128, v_head_dim=128)),
        (
            "mla:512+64",
            LatentSpec(
                n_heads=18, latent_dim=512, rope_dim=64, nope_dim=128, v_head_dim=128, head_dim=128
            ),
        ),
        ("lrkv:55", LowRankSpec(n_heads=18, head_dim=128, v_head_dim=128, key_rank=55, value_rank=55)),
        (
            "lrkv:55, groups=2,position=rope_expand,key_norm=rms_cached",
            LowRankSpec(
                n_heads=18, head_dim=128, v_head_dim=128, key_rank=55, value_rank=55,
                n_shared_groups=2, position="rope_expand", key_norm="rms_cached",
            ),
        ),
        (
            "lrkv:rank=55,value_rank=40",
            LowRankSpec(n_heads=18, head_dim=128, v_head_dim=128, key_rank=55, value_rank=40),
        ),
    ],
)  # fmt: skip
def test_designs_as_text(text: str, spec: object) -> None:
    assert parse_attention(text, HEADS) == spec


@pytest.mark.parametrize(
    "text",
    ["mha", "mqa", "gqa:6", "mla:512+64", "mla:512+64,query_latent_dim=1536", "lrkv:55",
     "lrkv:0", "lrkv:key_rank=64,value_rank=32", "lrkv:55,n_shared_groups=2",
     "lrkv:54,position=rope_rank,basis_spans_rotary_planes=true",
     "lrkv:55,position=rope_decoupled,rope_dim=64,key_norm=rms_cached,rank_alignment=16"],
)  # fmt: skip
def test_a_label_reads_back_to_its_design(text: str) -> None:
    spec = parse_attention(text, HEADS)
    assert spec.label() == text
    assert parse_attention(spec.label(), HEADS) == spec


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrvk:55", "did you mean 'lrkv'"),
        ("", "known: mha"),
        ("gqa", "gqa:8"),
        ("gqa:5", "does not divide 18 heads: 1, 2, 3, 6, 9, 18"),
        ("gqa:-2", "n_kv_heads"),
        ("mha:4", "mha has 18"),
        ("mla:512", "mla:512\\+64"),
        ("mla:512-64", "mla:512\\+64"),
        ("mla:0+64", "latent_dim"),
        ("lrkv", "lrkv:55"),
        ("lrkv:value_rank=3", "lrkv:55"),
        ("lrkv:129", "129 exceeds head_dim 128"),
        ("lrkv:5.5", "key_rank"),
        ("lrkv:55,groop=2", "did you mean 'groups'"),
        ("lrkv:55,groups=4", "does not divide"),
        ("lrkv:55,groups=2,groups=2", "twice"),
        ("lrkv:55,7", "key=value"),
        ("lrkv:55,position=rope", "rope_expand"),
        ("lrkv:55,position=rope_rank,basis_spans_rotary_planes=true", "55 is odd"),
        ("lrkv:54,position=rope_rank", "basis_spans_rotary_planes"),
        ("lrkv:55,position=rope_decoupled", "rope_dim 0"),
        ("lrkv:55,rope_dim=64", "others take none"),
        ("lrkv:99999999999999999999999", "key_rank"),
        ("lrkv:55,key_norm=[red]x[/red]", "rms_cached"),
    ],
)
def test_bad_designs_end_in_one_line(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        parse_attention(text, HEADS)
    assert "\n" not in str(caught.value)


def test_a_swap_takes_each_groups_own_heads() -> None:
    small = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 32}
    large = {"family": "gqa", "n_heads": 4, "n_kv_heads": 4, "head_dim": 64}
    model = make_model(
        small, layers=[{"count": 3, "attention": small}, {"count": 1, "attention": large}]
    )
    assert design_label(model) == "3x gqa:2 + 1x gqa:4"
    first, second = swap_attention(model, "lrkv:7").layers
    assert (first.attention.n_heads, second.attention.n_heads) == (8, 4)  # type: ignore[union-attr]
    with pytest.raises(SpecError, match="does not divide 4 heads"):
        swap_attention(model, "gqa:8")


def test_biases_and_norms_of_the_backbone_survive_a_swap(paper: ModelSpec) -> None:
    backbone = Backbone(18, 128, 128, qkv_bias=True, output_bias=True, qk_norm=True)
    there = parse_attention("lrkv:55", backbone)
    assert there.output_bias
    assert parse_attention("gqa:6", backbone).qkv_bias  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50%", {"share_of_mha": Fraction(1, 2)}),
        ("0.5", {"share_of_mha": Fraction(1, 2)}),
        ("1/3", {"share_of_mha": Fraction(1, 3)}),
        (" 33.3 % ", {"share_of_mha": Fraction(333, 1000)}),
        ("1/18+55/128", {"share_of_mha": Fraction(1, 18) + Fraction(55, 128)}),
        ("150%", {"share_of_mha": Fraction(3, 2)}),
        ("96 KiB/token", {"bytes_per_token": 98_304}),
        ("96KiB / token / GPU", {"bytes_per_token": 98_304, "per_gpu": True}),
        ("gqa:6", {"design": "gqa:6"}),
        ("mla:512+64", {"design": "mla:512+64"}),
        ("mqa", {"design": "mqa"}),
    ],
)
def test_budgets_as_text(text: str, expected: dict[str, object]) -> None:
    assert parse_budget(text) == Budget(text=text.strip(), **expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "half", "-1", "0", "0%", "1/0", "50", "96 KiB", "96/token", "gqu:6", "1//2", "nan"]
)
def test_bad_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"budget|not a size"):
        parse_budget(text)
