"""Every quantity against numbers worked by hand."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.auditing.quantities import LN_2, QUANTITIES, quantity_named
from lrkv_plan.errors import PlanError
from tests.auditing.conftest import Audited

PAPER = {"n_heads": 18, "head_dim": 128, "model_dim": 2304}
V3 = {"n_heads": 128, "head_dim": 128}

BY_HAND: list[tuple[str, dict[str, Any], Any]] = [
    # 1/18 + 55/128 = (64 + 495) / 1152
    ("cache_ratio", {**PAPER, "attention": "lrkv:55"}, Fraction(559, 1152)),
    # whole shared base on each of 4 GPUs: 4/32 + 54/128 = 0.546875
    ("cache_ratio", {"n_heads": 32, "head_dim": 128, "attention": "lrkv:54", "tp_size": 4}, Fraction(35, 64)),
    # 1 - 576/2048
    ("cache_saving", {**V3, "attention": "mla:512+64", "reference": "gqa:8"}, Fraction(1472, 2048)),
    ("cache_factor", {**V3, "attention": "gqa:8"}, 16),
    ("scalars_per_token_per_layer", {**V3, "attention": "mla:512+64"}, 512 + 64),
    ("bytes_per_token_per_layer", V3, 2 * 2 * 128 * 128),
    # llama-3.1-8b: 32 layers, 8 key/value heads of 128; the named model's own design
    ("bytes_per_token", {"model": "llama-3.1-8b"}, 2 * 2 * 32 * 8 * 128),
    ("bytes_per_token", {"model": "llama-3.1-8b", "tp_size": 4}, 2 * 2 * 32 * 2 * 128),
    ("cache_bytes", {**PAPER, "n_layers": 18, "context_tokens": 2048, "batch_size": 3}, 3 * 339_738_624),
    # floor(128 (1/2 - 1/18)) = floor(56.89); down to a multiple of 16
    ("rank_ceiling", {"n_heads": 18, "head_dim": 128, "budget": "1/2"}, 56),
    ("rank_ceiling", {"n_heads": 18, "head_dim": 128, "budget": "50%", "alignment": 16}, 48),
    ("padded_rank", {"rank": 55, "alignment": 16}, 64),
    ("kv_parameters", {**PAPER, "n_layers": 18}, 18 * 2 * 2304 * 18 * 128),
    # 1/18 + (55/128)(1 + 128/2304) = 128/2304 + 55 * 2432 / (128 * 2304)
    ("kv_parameter_ratio", {**PAPER, "attention": "lrkv:55"}, Fraction(128 * 128 + 55 * 2432, 128 * 2304)),
    ("block_parameters", {**PAPER, "n_layers": 18}, 12 * 2304**2 * 18),
    ("arithmetic_ratio", {**PAPER, "attention": "lrkv:55"}, 1 + Fraction(55, 128)),
    (
        "arithmetic_ratio",
        {**PAPER, "attention": "lrkv:55", "context_tokens": 2048},
        1 + Fraction(55, 128) + Fraction(55, 2048),
    ),
    # 2 FLOPs x 2 T d_h x H x N
    ("attention_flops_per_token", {**PAPER, "n_layers": 18, "context_tokens": 100}, 2 * 2 * 100 * 128 * 18 * 18),
    ("effective_rank_ceiling", {"n_heads": 6}, 5),
    ("effective_rank_ceiling", {"n_heads": 6, "centred": False}, 6),
    ("effective_rank_ceiling_share", {"n_heads": 18}, Fraction(17, 18)),
    ("total", {"values": [5, 4]}, 9),
    ("product", {"values": ["29.7 %", 50]}, Fraction(297, 20)),
    ("mean", {"values": ["29.7 %", "21.4 %", "24.5 %", "18.7 %"]}, Fraction(23575, 100_000)),
    ("smallest", {"values": [3, -1, 2]}, -1),
    ("largest", {"values": [3, -1, 2]}, 3),
    ("difference", {"value": "2.389", "reference": "2.376"}, Fraction(13, 1000)),
    ("relative_difference", {"value": 8, "reference": 10}, Fraction(-1, 5)),
    ("relative_decrease", {"value": 8, "reference": 10}, Fraction(1, 5)),
    ("ratio", {"value": "360.0", "reference": "648.0"}, Fraction(5, 9)),
    ("dot_product", {"left": ["1/4", "3/4"], "right": [2, 6]}, 5),
    # on a line: 1; symmetric about its mean: 0
    ("r_squared", {"left": [1, 2, 3], "right": [5, 7, 9]}, 1),
    ("r_squared", {"left": [1, 2, 3], "right": [1, 0, 1]}, 0),
    ("bits_per_byte", {"cross_entropy": 3, "bytes_per_token": 2}, Fraction(3, 2) / LN_2),
    (
        "bits_per_byte_by_reference",
        {"cross_entropy": 2, "reference_cross_entropy": 4, "reference_bits_per_byte": 1},
        Fraction(1, 2),
    ),
    ("training_steps", {"training_tokens": 1000, "batch_tokens": 300}, Fraction(10, 3)),
    ("training_flops", {"parameters": 10, "training_tokens": 7, "change": "-50 %"}, 6 * 10 * 7 // 2),
    # 1 - 0.75 * 1.2 / 0.9 = 0
    ("compute_saving", {"step_saving": 0.25, "change": 0.2, "reference_change": -0.1}, 0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "inputs", "value"), BY_HAND)
def test_quantity_equals_the_hand_calculation(
    name: str, inputs: dict[str, Any], value: Any
) -> None:
    quantity = quantity_named(name)
    assert quantity(quantity.inputs.model_validate(inputs)) == value


def test_every_quantity_is_worked_by_hand_and_states_its_equation() -> None:
    assert {name for name, _, _ in BY_HAND} == set(QUANTITIES)
    assert all(q.equation and q.source for q in QUANTITIES.values())


def test_ln_2_is_right_to_forty_digits() -> None:
    # ln 2 = sum 1 / (k 2^k); 200 terms leave less than 2^-200.
    series = sum((Fraction(1, k * 2**k) for k in range(1, 201)), start=Fraction(0))
    assert abs(series - LN_2) < Fraction(1, 10**40)


@given(st.integers(1, 16), st.integers(1, 64), st.data())
def test_ratio_saving_and_factor_are_one_fact(heads: int, width: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, width))
    inputs = {"n_heads": heads, "head_dim": width, "attention": f"lrkv:{rank}"}
    ratio, saving, factor = (
        QUANTITIES[name](QUANTITIES[name].inputs.model_validate(inputs))
        for name in ("cache_ratio", "cache_saving", "cache_factor")
    )
    assert ratio == Fraction(1, heads) + Fraction(rank, width)
    assert saving == 1 - ratio
    assert factor == 1 / ratio


@pytest.mark.parametrize(
    ("computes", "inputs", "words"),
    [
        ("cache_ration", {}, "did you mean 'cache_ratio'"),
        ("cache_ratio", {"n_head": 2}, "n_head: unknown key; did you mean 'n_heads'"),
        ("cache_ratio", {"n_heads": 2}, "head_dim missing"),
        ("cache_ratio", {"model": "llama-2-7b", "n_heads": 2}, "states its own n_heads"),
        ("cache_ratio", {**V3, "attention": "gka:2"}, "did you mean 'gqa'"),
        ("cache_ratio", {**V3, "kv_dtype": "bf61"}, "storage format 'bf61' is unknown"),
        ("cache_bytes", {**V3, "context_tokens": 1}, "n_layers missing"),
        ("ratio", {"value": 1, "reference": 0}, "reference is zero"),
        ("r_squared", {"left": [1, 1], "right": [1, 2]}, "spread of a list is zero"),
        ("dot_product", {"left": [1], "right": [1, 2]}, "left has 1 values, right has 2"),
        ("product", {"values": [1e29] * 4}, r"exceeds 10\*\*100"),
        ("rank_ceiling", {"n_heads": 2, "head_dim": 8, "budget": "1 %"}, "rank 0"),
        ("bytes_per_token_per_layer", {"model": "gemma-4-31b"}, "its layers differ"),
        ("cache_ratio", {"n_heads": 65_536, "head_dim": 4_194_304}, "less than or equal"),
    ],
)
def test_inputs_without_an_answer_say_why(
    audited: Audited, computes: str, inputs: dict[str, Any], words: str
) -> None:
    printed = "1 B" if "bytes" in computes else "1"
    with pytest.raises(PlanError, match=words):
        audited(computes, printed, inputs)
