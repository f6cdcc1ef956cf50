"""Tensor-parallel placement against figures worked by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.placement import placements, try_placements
from lrkv_plan.specs.design import swap_attention
from tests.conftest import make_model

BASE = make_model({"family": "mha", "n_heads": 32, "head_dim": 128})


def test_a_replicated_shared_base_raises_the_aggregate() -> None:
    # 1/32 + 54/128 = 45.3125 %; over 4 GPUs 4/32 + 54/128 = 54.6875 %
    model = swap_attention(BASE, "lrkv:54")
    assert placements(model, tp_size=1)[0].aggregate_ratio_to_mha == Fraction(453_125, 10**6)
    replicated, by_token, gathered = placements(model, tp_size=4)
    assert replicated.aggregate_ratio_to_mha == Fraction(546_875, 10**6)
    # one GPU: 2 * 2 B * (128 + 8 * 54)
    assert replicated.cache_bytes_per_token_per_gpu == 4 * (128 + 8 * 54)
    assert replicated.replicated_bytes_per_token == 3 * 4 * 128
    assert by_token.cache_bytes_per_token_per_gpu == gathered.cache_bytes_per_token_per_gpu
    assert by_token.cache_bytes_per_token_per_gpu == Fraction(4 * (128 + 32 * 54), 4)
    # gathered: each GPU reads the three quarters of the base that it does not hold
    assert gathered.link_bytes_per_token_per_gpu == 4 * 128 * Fraction(3, 4)
    assert by_token.link_bytes_per_token_per_gpu == 0


def test_a_grouped_base_is_dealt_out_while_there_are_groups() -> None:
    model = swap_attention(BASE, "lrkv:54,groups=8")
    for tp_size in (1, 2, 4, 8):
        (only,) = placements(model, tp_size=tp_size)
        assert only.policy == "by_copy"
    # 16 GPUs, 8 groups: each group on two GPUs, P g' / H = 16/32
    assert placements(model, tp_size=16)[0].aggregate_ratio_to_mha == Fraction(1, 2) + Fraction(
        54, 128
    )


@pytest.mark.parametrize(
    ("text", "tp_size", "policies", "per_gpu"),
    [
        ("mha", 8, ["by_copy"], 4 * 4 * 128),
        ("gqa:8", 8, ["by_copy"], 4 * 128),
        ("gqa:8", 16, ["replicated", "by_token", "gathered"], 4 * 128),
        ("mqa", 2, ["replicated", "by_token", "gathered"], 4 * 128),
        ("mla:512+64", 8, ["replicated", "by_token", "gathered"], 2 * 576),
    ],
)
def test_policies_per_family(text: str, tp_size: int, policies: list[str], per_gpu: int) -> None:
    found = placements(swap_attention(BASE, text), tp_size=tp_size)
    assert [p.policy for p in found] == policies
    assert found[0].cache_bytes_per_token_per_gpu == per_gpu


def test_latent_over_eight_gpus_is_seven_eighths_repetition() -> None:
    replicated = placements(swap_attention(BASE, "mla:512+64"), tp_size=8)[0]
    assert replicated.replicated_share == Fraction(7, 8)


@pytest.mark.parametrize("tp_size", [3, 64])
def test_what_no_engine_runs_is_refused_with_its_reason(tp_size: int) -> None:
    with pytest.raises(PlacementError):
        placements(BASE, tp_size=tp_size)
    found, reason = try_placements(BASE, tp_size=tp_size)
    assert found == ()
    assert reason is not None
    assert "32 query heads" in reason
