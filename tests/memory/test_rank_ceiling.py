"""The rank solver: golden ceilings, and brute force over all ranks with an independent count."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest

from lrkv_plan.errors import PlacementError, RequirementError, SpecError, UsageError
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.memory.largest import bytes_per_token_at_ranks, rank_ceiling
from lrkv_plan.questions.arguments import low_rank_variant
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model

N_CASES = 10_000


@pytest.mark.parametrize(
    ("budget", "alignment", "rank", "aligned"),
    [
        ("1/2", 16, 56, 48),  # 128 (1/2 - 1/18) = 56.9
        ("50%", 8, 56, 56),
        ("0.5", 16, 56, 48),
        ("gqa:6", 16, 35, 32),  # 128 (1/3 - 1/18) = 35.6
        ("1/3", 16, 35, 32),
        ("1/18+55/128", 16, 55, 48),  # the budget that rank 55 takes to the byte
        ("1/18", 16, 0, 0),
        ("200%", 16, 128, 128),
    ],
)
def test_ceilings_of_the_paper_backbone(
    paper: ModelSpec, budget: str, alignment: int, rank: int, aligned: int
) -> None:
    answer = rank_ceiling(paper, budget=budget, alignment=alignment)
    assert (answer.largest.value, answer.aligned.value) == (rank, aligned)


def test_what_each_rank_really_takes(paper: ModelSpec) -> None:
    answer = rank_ceiling(paper, budget="1/2")
    assert answer.largest.ratio_to_mha == Fraction(1, 18) + Fraction(56, 128)
    assert answer.aligned.ratio_to_mha == Fraction(1, 18) + Fraction(48, 128)
    # Rank 56 stored at width 64 is over the budget: 55.56 %.
    assert answer.padded.ratio_to_mha == Fraction(1, 18) + Fraction(64, 128)
    assert answer.padded.spare_bytes_per_token_per_gpu < 0
    # Budget 18*2*2*18*128/2 = 82,944; rank 56 takes 2*2*18*(128+18*56) = 81,792.
    assert answer.largest.spare_bytes_per_token_per_gpu == 82_944 - 81_792
    # One more rank: 2*2*18*18 = 1,296 B, of which 1,152 were spare.
    assert answer.next_rank_price_bytes == 1_296
    assert answer.next_rank_shortfall_bytes == 144
    assert answer.largest.arithmetic_ratio_limit == 1 + Fraction(56, 128)
    assert answer.largest.arithmetic_ratio == 1 + Fraction(56, 128) + Fraction(56, 8192)


def test_what_else_fits_the_same_budget(paper: ModelSpec) -> None:
    answer = rank_ceiling(paper, budget="1/2")
    # GQA: 9 of 18 heads are exactly half. MLA: 2 d_h H / 2 = 2304 scalars, 64 of them rotary.
    assert answer.grouped is not None
    assert answer.latent is not None
    assert (answer.grouped.value, answer.grouped.ratio_to_mha) == (9, Fraction(1, 2))
    assert (answer.latent.value, answer.latent.text) == (2240, "mla:2240+64")


def test_a_latent_is_at_most_as_wide_as_the_model() -> None:
    # 4 heads of 64 in a model of 256: MHA keeps 512 scalars, so 90 % are 460.8 of latent and 8 of
    # rotary key: 452, wider than the hidden state that it would sum up.
    model = make_model({"family": "mha", "n_heads": 4, "head_dim": 64})
    bounded = rank_ceiling(model, budget="90%", latent_rope_dim=8)
    assert bounded.latent is not None
    assert bounded.latent.value == model.model_dim == 256
    (remark,) = bounded.remarks
    assert "beyond 256, the widest that compresses anything" in remark
    # 51 % are 261.12 scalars: 253 and the rotary key, where the budget decides.
    free = rank_ceiling(model, budget="51%", latent_rope_dim=8)
    assert free.latent is not None
    assert (free.latent.value, free.remarks) == (253, ())
    # Exactly the bound: 264 scalars of 512.
    exact = rank_ceiling(model, budget="264/512", latent_rope_dim=8)
    assert exact.latent is not None
    assert (exact.latent.value, exact.remarks) == (256, ())
    # Heads narrower than the model: 2 * 1 * 8 scalars of keys and values are the bound.
    narrow = make_model({"family": "mha", "n_heads": 1, "head_dim": 8})
    assert rank_ceiling(narrow, budget="200%", latent_rope_dim=0).latent.value == 16  # type: ignore[union-attr]


def test_a_budget_below_the_shared_base_names_the_smallest_feasible(paper: ModelSpec) -> None:
    with pytest.raises(RequirementError, match=r"1/18 = 5\.5556% of MHA"):
        rank_ceiling(paper, budget="5%")


def test_bytes_over_the_group_and_per_gpu(paper: ModelSpec) -> None:
    # 96 KiB = 98,304 B: (98,304 / 72 - 128) / 18 = 68.7
    assert rank_ceiling(paper, budget="96 KiB/token").largest.value == 68
    # On 2 GPUs the shared base is on both: each has 49,152 B: (49,152/72 - 128)/9 = 61.6
    assert rank_ceiling(paper, budget="96 KiB/token", tp_size=2).largest.value == 61
    assert rank_ceiling(paper, budget="48 KiB/token/gpu", tp_size=2).largest.value == 61


def test_tensor_parallelism_lowers_the_ceiling() -> None:
    # floor(d_h (c - P/H)) = floor(128 (1/2 - 4/32)) = 48, against 60 on one GPU
    model = make_model({"family": "mha", "n_heads": 32, "head_dim": 128})
    assert rank_ceiling(model, budget="1/2").largest.value == 60
    assert rank_ceiling(model, budget="1/2", tp_size=4).largest.value == 48
    with pytest.raises(PlacementError):
        rank_ceiling(model, budget="1/2", tp_size=5)


def test_options_are_paid_for(paper: ModelSpec) -> None:
    def ceiling(**options: object) -> int:
        variant = low_rank_variant(paper, **options)  # type: ignore[arg-type]
        return rank_ceiling(paper, budget="1/2", design=variant).largest.value

    assert ceiling(key_norm="rms_cached") == 56  # 1/256 of MHA: 128 (1/2-1/18-1/256) = 56.4
    assert ceiling(position="rope_decoupled", rope_dim=64) == 55  # 64/(2*18) = 1.8 ranks less
    assert ceiling(n_shared_groups=2) == 49  # 128 (1/2 - 2/18) = 49.8
    assert ceiling(position="rope_rank", n_shared_groups=2) == 48  # even


def test_every_layer_takes_the_same_rank() -> None:
    narrow = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 32}
    wide = {"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 64}
    layers = [{"count": 3, "attention": narrow}, {"count": 1, "attention": wide}]
    model = make_model(narrow, layers=layers)
    answer = rank_ceiling(model, budget="1/2")
    # MHA: 3*2*8*32 + 2*4*64 = 2048 scalars; base 3*2*32 + 2*64 = 320; per rank 3*2*8 + 2*4 = 56.
    assert answer.largest.value == (1024 - 320) // 56 == 12
    # The rank cannot exceed the narrowest head.
    assert rank_ceiling(model, budget="2").largest.value == 32


def test_bad_arguments_are_refused(paper: ModelSpec) -> None:
    with pytest.raises(UsageError, match="alignment"):
        rank_ceiling(paper, budget="1/2", alignment=0)
    with pytest.raises(SpecError, match="position"):
        low_rank_variant(paper, position="rotary")
    with pytest.raises(SpecError, match="no layer keeps"):
        rank_ceiling(make_model({}, layers=[{"count": 2}]), budget="1/2")


def test_ranks_as_an_array(paper: ModelSpec) -> None:
    ranks = np.arange(0, 129).reshape(3, 43)
    together = bytes_per_token_at_ranks(paper, ranks)
    assert together.shape == ranks.shape
    assert together.tolist() == (72 * (128 + 18 * ranks)).tolist()
    assert bytes_per_token_at_ranks(paper, 55) == 80_496


@pytest.mark.slow
def test_the_solver_agrees_with_brute_force_over_all_ranks() -> None:
    """Random heads, widths, budgets, alignments, options and GPUs; bytes counted apart."""
    random_state = random.Random(20_261_130)
    n_infeasible = 0
    for _ in range(N_CASES):
        n_heads = random_state.choice([1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 32, 40, 64, 128])
        head_dim = random_state.choice([8, 16, 40, 64, 80, 96, 128, 192, 256])
        n_layers = random_state.randint(1, 100)
        divisors = [g for g in range(1, n_heads + 1) if n_heads % g == 0]
        tp_size = random_state.choice(divisors)
        groups = random_state.choice([g for g in divisors if g % tp_size == 0 or tp_size % g == 0])
        alignment = random_state.choice([1, 2, 4, 7, 8, 16, 32, 64])
        position = random_state.choice(["none", "rope_expand", "rope_rank", "rope_decoupled"])
        rope_dim = random_state.choice([16, 64]) if position == "rope_decoupled" else 0
        key_norm = random_state.choice(["none", "rms_cached"])
        kv_dtype, scalar_bytes = random_state.choice([("bf16", 2), ("fp8", 1), ("fp32", 4)])
        budget = Fraction(random_state.randint(1, 130), random_state.choice([64, 100, 97, 128]))

        # One GPU's bytes per token for every rank, straight from the description.
        ranks = np.arange(0, head_dim + 1, 2 if position == "rope_rank" else 1)
        local_heads = n_heads // tp_size
        fixed = 2 * max(1, groups // tp_size) * head_dim + rope_dim
        fixed += local_heads * (key_norm == "rms_cached")
        held = n_layers * scalar_bytes * (fixed + 2 * local_heads * ranks)
        limit = budget * n_layers * scalar_bytes * 2 * local_heads * head_dim
        fits = ranks[held * limit.denominator <= limit.numerator].tolist()

        model = make_model(
            {"family": "mha", "n_heads": n_heads, "head_dim": head_dim}, n_layers=n_layers
        )
        design = low_rank_variant(
            model, n_shared_groups=groups, position=position, rope_dim=rope_dim, key_norm=key_norm
        )
        case = {
            "budget": str(budget),
            "alignment": alignment,
            "tp_size": tp_size,
            "kv_dtype": kv_dtype,
        }
        if not fits:
            n_infeasible += 1
            with pytest.raises(RequirementError):
                rank_ceiling(model, design=design, **case)  # type: ignore[arg-type]
            continue
        answer = rank_ceiling(model, design=design, **case)  # type: ignore[arg-type]
        step = math.lcm(alignment, 2 if position == "rope_rank" else 1)
        assert answer.largest.value == fits[-1]
        assert answer.aligned.value == max(r for r in fits if r % step == 0)
    assert n_infeasible > N_CASES // 50, "the cases must cover budgets that nothing fits"


@pytest.mark.parametrize(
    "kv_dtype", ["bf16", "int4", "nvfp4", "q8_0", "q4_0", "fp8_per_token_head"]
)
@pytest.mark.parametrize("budget", ["23%", "1/2", "gqa:6", "40 KiB/token", "95%"])
def test_the_inverse_is_the_tightest_in_every_format(
    paper: ModelSpec, kv_dtype: str, budget: str
) -> None:
    answer = rank_ceiling(paper, budget=budget, kv_dtype=kv_dtype)
    limit = answer.budget_bytes_per_token_per_gpu

    def held(rank: int) -> object:
        return bytes_per_token(swap_attention(paper, f"lrkv:{rank}"), kv_dtype=kv_dtype)

    rank = answer.largest.value
    assert held(rank) <= limit < held(rank + 1)  # type: ignore[operator]
