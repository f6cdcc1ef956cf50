"""Rank plans: within budget, no worse than one rank for all, optimal where that can be checked."""

from __future__ import annotations

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.checkpoint.inspection import LayerInspection, inspect_layers
from lrkv_plan.checkpoint.projections import AttentionLayers, attention_layers
from lrkv_plan.checkpoint.rank_plan import (
    RankChoices,
    RankPlan,
    greedy_ranks,
    plan_frame,
    rank_plan,
)
from lrkv_plan.checkpoint.spectra import FitOptions
from lrkv_plan.errors import PlanError, RequirementError, SpecError, UsageError
from lrkv_plan.loader import load_model
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.questions.arguments import low_rank_variant
from lrkv_plan.specs.model import model_to_yaml
from tests.checkpoint.synthetic import llama_folder, planted
from tests.drawing import drawn

N_HEADS, HEAD_DIM, WIDTH = 4, 8, 32
Inspected = tuple[AttentionLayers, list[LayerInspection]]


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    """Three layers of planted key ranks 1, 2, 3 and value ranks 2, 1, 4."""
    rng = np.random.default_rng(0)
    layers = {
        layer: (
            rng.standard_normal((N_HEADS, HEAD_DIM, WIDTH)),
            planted(rng, N_HEADS, HEAD_DIM, WIDTH, key_rank),
            planted(rng, N_HEADS, HEAD_DIM, WIDTH, value_rank),
        )
        for layer, (key_rank, value_rank) in enumerate([(1, 2), (2, 1), (3, 4)])
    }
    source = attention_layers(llama_folder(tmp_path_factory.mktemp("made") / "toy", layers))
    return source, inspect_layers(source, [0, 1, 2], options=FitOptions())


def planned(inspected: Inspected, budget: str, **options: object) -> RankPlan:
    source, layers = inspected
    return rank_plan(plan_frame(source, [0, 1, 2], budget=budget, **options), layers)  # type: ignore[arg-type]


def test_planted_ranks_are_planned_where_the_budget_is_their_sum(inspected: Inspected) -> None:
    # Shared rows 2 * 8 scalars in 3 layers, latents 4 * (1 + 2 + 2 + 1 + 3 + 4) = 52, bf16:
    # 2 * (48 + 52) = 200 B/token. MHA: 3 * 2 * 4 * 8 * 2 = 384.
    plan = planned(inspected, "200 B/token")
    assert [plan.ranks[layer, name] for layer in range(3) for name in ("key", "value")] == [
        1, 2, 2, 1, 3, 4,
    ]  # fmt: skip
    assert plan.bytes_per_token == 200
    assert plan.ratio_to_mha == Fraction(200, 384)
    # One rank for all: 2 * (48 + 24 r) <= 200 gives 2.
    assert plan.uniform_rank == 2
    assert plan.loss < 1e-10 < plan.uniform_loss


@pytest.mark.parametrize("budget", ["26%", "1/3", "45%", "0.6", "gqa:2", "130 B/token", "99%"])
@pytest.mark.parametrize("alignment", [1, 3])
def test_a_plan_keeps_to_its_budget_and_never_loses_to_one_rank(
    inspected: Inspected, budget: str, alignment: int
) -> None:
    plan = planned(inspected, budget, alignment=alignment)
    assert plan.bytes_per_token == bytes_per_token(plan.model) <= plan.budget_bytes_per_token
    assert plan.loss <= plan.uniform_loss
    assert all(rank % alignment == 0 for rank in plan.ranks.values())


def test_a_planned_model_is_a_model_file(inspected: Inspected, tmp_path: Path) -> None:
    plan = planned(
        inspected, "45%", design=low_rank_variant(inspected[0].model, position="rope_expand")
    )
    path = tmp_path / "plan.yaml"
    path.write_text(model_to_yaml(plan.model))
    model = load_model(path)
    assert model == plan.model
    assert model.n_layers == 3
    assert bytes_per_token(model) == plan.bytes_per_token
    assert "language-model loss not measured" in model.remarks[-1]


def test_rotated_latents_take_even_ranks(inspected: Inspected, tmp_path: Path) -> None:
    plan = planned(
        inspected, "50%", design=low_rank_variant(inspected[0].model, position="rope_rank")
    )
    assert all(rank % 2 == 0 for rank in plan.ranks.values())
    path = tmp_path / "plan.yaml"
    path.write_text(model_to_yaml(plan.model))
    assert load_model(path) == plan.model


@pytest.mark.parametrize(
    ("budget", "chosen", "error", "message"),
    [
        ("1%", [0, 1, 2], RequirementError, "smallest feasible budget is 1/4"),
        ("50%", [0, 2], UsageError, "leaves out 1"),
        ("lots", [0, 1, 2], UsageError, "budget 'lots'"),
    ],
)
def test_hopeless_plans_are_refused_before_any_work(
    inspected: Inspected, budget: str, chosen: list[int], error: type[PlanError], message: str
) -> None:
    with pytest.raises(error, match=message):
        plan_frame(inspected[0], chosen, budget=budget)


def choices_of(drawn: list[list[float]], price: int) -> dict[tuple[int, str], RankChoices]:
    return {
        (index, "key"): RankChoices(
            ranks=range(len(losses)),
            bytes_per_token=[Fraction(price * rank) for rank in range(len(losses))],
            losses=losses,
        )
        for index, losses in enumerate(drawn)
    }


def best_total(choices: dict[tuple[int, str], RankChoices], spare: int) -> float:
    """Least summed loss over all combinations of ranks."""
    return min(
        sum(c.losses[rank] for c, rank in zip(choices.values(), ranks, strict=True))
        for ranks in itertools.product(*(c.ranks for c in choices.values()))
        if sum(c.bytes_per_token[r] for c, r in zip(choices.values(), ranks, strict=True)) <= spare
    )


convex = st.lists(st.integers(0, 20), min_size=1, max_size=4).map(
    lambda gains: [float(sum(sorted(gains)[: len(gains) - k])) for k in range(len(gains) + 1)]
)


@given(st.lists(convex, min_size=1, max_size=4), st.integers(0, 40))
@settings(max_examples=drawn(80), deadline=None)
def test_greedy_is_optimal_for_falling_gains_at_one_price(
    drawn: list[list[float]], spare: int
) -> None:
    choices = choices_of(drawn, price=3)
    got = greedy_ranks(choices, Fraction(spare))
    assert 3 * sum(got.values()) <= spare
    assert sum(choices[p].losses[r] for p, r in got.items()) == best_total(choices, spare)


falling = st.lists(st.integers(0, 50), min_size=2, max_size=5).map(
    lambda losses: [float(loss) for loss in sorted(losses, reverse=True)]
)


@given(st.lists(falling, min_size=1, max_size=3), st.integers(0, 12))
@settings(max_examples=drawn(80), deadline=None)
def test_greedy_is_within_one_hull_step_of_the_best(drawn: list[list[float]], spare: int) -> None:
    choices = choices_of(drawn, price=1)
    got = greedy_ranks(choices, Fraction(spare))
    total = sum(choices[p].losses[r] for p, r in got.items())
    largest = max(losses[0] - losses[-1] for losses in drawn)
    assert sum(got.values()) <= spare
    assert best_total(choices, spare) <= total <= best_total(choices, spare) + largest


def test_latent_layers_have_no_plan(tmp_path: Path) -> None:
    from tests.checkpoint.test_projections import test_mla_maps_from_the_latent as make

    make(tmp_path)
    with pytest.raises(SpecError, match="no rank plan for MLA"):
        plan_frame(attention_layers(tmp_path), [0], budget="50%")
