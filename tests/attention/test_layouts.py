"""DESIGN figures of each family's layout, worked by hand: cached scalars, weights, decode work."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lrkv_plan.attention.layout import AttentionLayout, WeightRole
from lrkv_plan.attention.registry import layout_of, parse_attention
from lrkv_plan.attention.spec import Backbone

PAPER = Backbone(n_heads=18, head_dim=128, v_head_dim=128)
DEEPSEEK = Backbone(n_heads=128, head_dim=128, v_head_dim=128)


def layout(text: str, backbone: Backbone = PAPER, model_dim: int = 2304) -> AttentionLayout:
    return layout_of(parse_attention(text, backbone), model_dim)


def kv_params(one: AttentionLayout) -> int:
    return sum(w.n_params for w in one.weights if w.role is WeightRole.KEY_VALUE)


@pytest.mark.parametrize(
    ("text", "scalars"),
    [
        ("mha", 2 * 18 * 128),
        ("gqa:6", 2 * 6 * 128),
        ("mqa", 2 * 128),
        ("mla:512+64", 512 + 64),
        ("lrkv:55", 2 * (128 + 18 * 55)),
        ("lrkv:0", 2 * 128),
        ("lrkv:55,groups=2", 2 * (2 * 128 + 18 * 55)),
        ("lrkv:55,align=64", 2 * (128 + 18 * 64)),
        ("lrkv:55,position=rope_expand", 2 * (128 + 18 * 55)),
        ("lrkv:55,position=rope_decoupled,rope_dim=64", 2 * (128 + 18 * 55) + 64),
        ("lrkv:55,key_norm=rms_cached", 2 * (128 + 18 * 55) + 18),
        ("lrkv:key_rank=64,value_rank=32", 128 + 18 * 64 + 128 + 18 * 32),
    ],
)
def test_cached_scalars_per_token(text: str, scalars: int) -> None:
    assert layout(text).scalars_per_token() == scalars


def test_large_head_example_bytes_per_token_and_layer() -> None:
    # H 128, d_h 128, BF16: 2*2*128*128; 2*2*8*128; 2*(512+64)
    by_family = [
        2 * layout(t, DEEPSEEK).scalars_per_token() for t in ("mha", "gqa:8", "mla:512+64")
    ]
    assert by_family == [65_536, 4_096, 1_152]
    assert 1 - Fraction(1_152, 65_536) == Fraction(982_421_875, 10**9)  # -98.2422 %
    assert 1 - Fraction(1_152, 4_096) == Fraction(71_875, 100_000)  # -71.875 %


def test_cached_key_scale_costs_half_a_scalar_in_head_dim() -> None:
    extra = layout("lrkv:55,key_norm=rms_cached").scalars_per_token() - 2 * (128 + 18 * 55)
    # b N B T H over 2 b N B T H d_h = 1 / (2 d_h) = 0.390625 %
    assert Fraction(extra, layout("mha").scalars_per_token()) == Fraction(1, 2 * 128)


def test_key_and_value_weights() -> None:
    assert kv_params(layout("mha")) == 2 * 2304 * 18 * 128
    assert kv_params(layout("gqa:6")) == 2 * 2304 * 6 * 128
    assert kv_params(layout("lrkv:55")) == 2 * 2304 * 128 + 2 * 18 * 55 * (2304 + 128)
    # g/H + (r/d_h)(1 + d_h/d) = 1/18 + 55/128 * 2432/2304 = 0.5091146
    ratio = Fraction(kv_params(layout("lrkv:55")), kv_params(layout("mha")))
    assert ratio == Fraction(1, 18) + Fraction(55, 128) * Fraction(2432, 2304)
    assert round(float(ratio), 5) == 0.50911


def test_latent_weights_of_deepseek_v3() -> None:
    # d (d_c + d_R) + d_c H (d_nope + d_v) + norm d_c
    expected = 7168 * 576 + 512 * 128 * 256 + 512
    assert kv_params(layout("mla:512+64", DEEPSEEK, 7168)) == expected
    # query: down 7168*1536, norm 1536, up 1536*128*(128+64)
    with_latent = layout("mla:512+64,query_latent=1536", DEEPSEEK, 7168)
    query = sum(w.n_params for w in with_latent.weights if w.role is WeightRole.QUERY)
    assert query == 7168 * 1536 + 1536 + 1536 * 128 * 192


def test_decoupled_rotary_key_widens_the_query() -> None:
    plain = layout("lrkv:55")
    decoupled = layout("lrkv:55,position=rope_decoupled,rope_dim=64")
    extra = sum(w.n_params for w in decoupled.weights) - sum(w.n_params for w in plain.weights)
    assert extra == 2304 * 64 + 18 * 2304 * 64


@pytest.mark.parametrize(("tokens", "query_tokens"), [(1, 1), (2048, 1), (8192, 4)])
def test_decode_arithmetic_per_head_and_step(tokens: int, query_tokens: int) -> None:
    t, q, r, d = tokens, query_tokens, 55, 128
    mha = layout("mha").work[0].multiply_adds(t, q)
    assert mha == 18 * q * 2 * t * d
    factored = layout("lrkv:55").work[0].multiply_adds(t, q)
    assert factored == 18 * q * (2 * t * (d + r) + 2 * r * d)
    # ratio 1 + r/d_h + r/T
    assert Fraction(factored, mha) == 1 + Fraction(r, d) + Fraction(r, t)


def test_rope_expand_rebuilds_keys_once_for_all_query_tokens() -> None:
    t, r, d = 1000, 55, 128
    work = layout("lrkv:55,position=rope_expand").work[0]
    assert work.path == "rope_expand"
    one = 18 * (t * r * d + t * (d + d + r) + r * d)
    assert work.multiply_adds(t, 1) == one
    assert work.multiply_adds(t, 3) == one + 2 * 18 * (t * (d + d + r) + r * d)


def test_decoupled_position_scans_its_rotary_key_per_head() -> None:
    t = 1000
    plain = layout("lrkv:55").work[0].multiply_adds(t)
    decoupled = layout("lrkv:55,position=rope_decoupled,rope_dim=64").work[0].multiply_adds(t)
    assert decoupled - plain == 18 * t * 64


def test_latent_decode_paths() -> None:
    absorbed, materialised = layout("mla:512+64", DEEPSEEK).work
    t = 4096
    assert absorbed.multiply_adds(t) == 128 * (t * (2 * 512 + 64) + 512 * 256)
    assert materialised.multiply_adds(t) == 128 * (t * 512 * 256 + t * (128 + 64 + 128))


@pytest.mark.parametrize(
    ("text", "backbone", "flops_per_byte"),
    [
        ("mha", PAPER, 1.0),  # 2/b
        ("lrkv:55", PAPER, 2.95),
        ("lrkv:55,position=rope_expand", PAPER, 59.2),
        ("mla:512+64", DEEPSEEK, 241.8),
    ],
)
def test_intensity_of_long_contexts(text: str, backbone: Backbone, flops_per_byte: float) -> None:
    one = layout(text, backbone)
    work = one.work[0]
    flops = 2 * (work.per_token + work.expand_per_token)
    assert flops / (2 * one.scalars_per_token()) == pytest.approx(flops_per_byte, rel=2e-3)
