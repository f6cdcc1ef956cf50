"""The screen of ``inspect``: the rank that keeps a share of energy, and a plan's ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import lrkv_plan
from lrkv_plan.report.screen import draw
from lrkv_plan.report.tables import screen_of
from tests.checkpoint.synthetic import llama_folder, planted


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys whose residuals have rank 2 in one layer and 4 in the other; values of rank 2."""
    rng = np.random.default_rng(0)
    layers = {
        index: (rng.standard_normal((4, 8, 32)), planted(rng, 2, 8, 32, rank),
                planted(rng, 2, 8, 32, 2))
        for index, rank in enumerate((2, 4))
    }  # fmt: skip
    return llama_folder(tmp_path_factory.mktemp("screen") / "toy", layers)


def test_the_rank_that_keeps_the_share_comes_first_with_its_range(folder: Path) -> None:
    # From the mean of two heads each is half their difference away: twice the planted rank.
    answer = lrkv_plan.inspect(folder, energy=1, fit_ranks="none")
    assert screen_of(answer.table).verdict == (
        "Rank 8 (4 to 8) for keys and 4 for values keeps 100 % of the energy in the median layer; "
        "2 of 2 layers read.",
    )
    told = answer.explain(0)
    assert told.startswith("layer 0, key, mean base: rank 4 keeps 1 - ")
    assert " = 100 % >= 100 % > rank 3: " in told
    assert {row["model"] for row in answer.rows} == {answer.inputs["name"]}


def test_a_plan_comes_before_it_and_has_columns(folder: Path) -> None:
    answer = lrkv_plan.inspect(folder, budget="40%", fit_ranks="none")
    verdict = screen_of(answer.table).verdict
    assert verdict[0].startswith("In 40% of MHA's cache rank")
    text = draw(screen_of(answer.table))
    assert "key plan" in text
    assert "Next: lrkv-plan cache" in text
    ranks = [row["planned_rank"] for row in answer.rows if row["tensor"] in ("key", "value")]
    told = f"ranks of {min(ranks)} to {max(ranks)} lose" if len(set(ranks)) > 1 else "everywhere"
    assert told in verdict[0]


def test_the_next_command_plans_for_all_layers_with_the_given_options(folder: Path) -> None:
    screen = screen_of(lrkv_plan.inspect(folder, layers=[0], energy="95%").table)
    assert list(screen.following[0]) == [
        "lrkv-plan", "inspect", str(folder), "--energy", "95%", "--budget", "50%",
    ]  # fmt: skip


def test_layers_without_a_spectrum_are_named(tmp_path: Path) -> None:
    zero = np.zeros((2, 8, 32))
    made = llama_folder(tmp_path / "zero", {0: (np.ones((4, 8, 32)), zero, zero)})
    screen = screen_of(lrkv_plan.inspect(made).table)
    assert screen.verdict[0].startswith("No rank keeps 90 % of the energy")
    assert any("all weights are zero" in line for line in screen.foot)
