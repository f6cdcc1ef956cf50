"""The cheapest way is what trying every way finds."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.errors import PlanError, RequirementError
from lrkv_plan.latency.sensitivity import Constant, factors_drawn, sensitivity
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.cheapest import Way, Wish, cheapest_way
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_named
from lrkv_plan.serving.load import LatencyTarget, admitted_by, timed_step
from lrkv_plan.specs.deployment import EngineSettings, Parallelism

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b")
GPUS = ("h100-sxm", "h200", "b200", "l40s", "mi300x", "a100-sxm-80gb")


def deployment(gpu: str, context: int, engine: str = "vllm", kv_dtype: str = "bf16") -> Deployment:
    return Deployment(
        engine=engine_named(engine), hardware=lrkv_plan.load_gpu(gpu),
        settings=EngineSettings(context_tokens=context, kv_dtype=kv_dtype),
    )  # fmt: skip


def by_trying(model: Any, options: list[Deployment], wish: Wish, most: int) -> float:
    """The least cost over every combination of sizes, each asked for itself."""
    powers = [2**k for k in range(most.bit_length())]
    best = math.inf
    combined = itertools.product(options, powers, (1, 2, 4, 8), powers, powers, powers)
    for one, tp, pp, dp, ep, dcp in combined:
        if tp * pp * dp > most or (not model.has_experts and dp * ep > 1):
            continue
        if ep not in ((1, tp * dp) if dp == 1 else (tp * dp,)):
            continue
        try:
            parallel = Parallelism(tp_size=tp, pp_size=pp, dp_size=dp, ep_size=ep, dcp_size=dcp)
            whole = Deployment(
                engine=one.engine, hardware=one.hardware, settings=one.settings, parallel=parallel
            )
            row = capacity_row(model, whole)
            served = row.total_sequences
            if wish.target is not None:
                step = timed_step(model, whole, wish.target)
                load = admitted_by(step, row, whole, wish.target)
                served = 0 if load is None else load.sequences
        except PlanError:
            continue
        n_gpus = 0 if not served else -(-wish.n_sequences // served) * parallel.n_gpus
        if served and n_gpus <= most:
            best = min(best, (one.usd_per_gpu_hour or math.inf) * n_gpus)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_trying_every_way_finds_none_that_is_cheaper(seed: int) -> None:
    draw = random.Random(seed)
    model = lrkv_plan.load_model(draw.choice(MODELS))
    gpu, context = draw.choice(GPUS), draw.choice([1_024, 8_192, 32_768])
    options = [
        deployment(gpu, context, kv_dtype=one) for one in draw.choice([["bf16"], ["bf16", "fp8"]])
    ]
    tpot = draw.choice([None, 0.01, 0.03, 0.1])
    wish = Wish(
        n_sequences=draw.choice([1, 7, 64, 300]), most_gpus=16,
        target=None if tpot is None else LatencyTarget(tpot_s=tpot),
    )  # fmt: skip
    found = cheapest_way(model, options, wish)
    expected = by_trying(model, options, wish, 16)
    if not isinstance(found, Way):
        assert expected == math.inf, found.reason
        return
    assert found.cost == pytest.approx(expected)
    assert found.row.total_sequences >= wish.n_sequences
    if wish.target is not None:
        assert found.load is not None
        assert found.load.tpot_s <= wish.target.tpot_s
        assert found.load.sequences >= wish.n_sequences


def test_worked_by_hand() -> None:
    # 64 users of 32k tokens are 256 GiB of cache at 131,072 B a token: 4 GiB each. One H200 holds
    # 110.6 GiB, 27 of them: three at $4.59 an hour are the fewest.
    answer = lrkv_plan.best("llama-3.1-8b", users=64, context_tokens="32k", gpu="h200")
    row = answer.rows[0]
    assert (row["n_gpus"], row["max_sequences"], row["usd_per_hour"]) == (
        3,
        27,
        pytest.approx(13.77),
    )
    assert "3 x H200 (3 replicas of TP 1), $13.77 an hour" in answer.verdict


def test_a_mixture_of_671b_takes_16_h100() -> None:
    (row,) = lrkv_plan.capacity(
        "deepseek-v3", gpu="h100-sxm", min_gpus=True, sequences=80, context_tokens="32k"
    ).rows
    assert (row["n_gpus"], row["total_sequences"] >= 80) == (16, True)


def test_rows_stand_cheapest_first_and_say_what_rules_others_out() -> None:
    answer = lrkv_plan.best(
        "llama-3.1-70b", users=64, context_tokens="32k", tpot_ms=30, gpu="h100-sxm,h200,l40s,t4"
    )
    assert [row["gpu"] for row in answer.rows] == ["h200", "h100-sxm", "l40s", "t4"]
    costs = [row["usd_per_hour"] for row in answer.rows[:2]]
    assert costs == sorted(costs)
    assert all("GPUs, more than 64" in row["refused"] for row in answer.rows[2:])
    assert answer.rows[0]["launch"].startswith("vllm serve meta-llama/Llama-3.1-70B")
    assert answer.table.also["sensitivity"]


def test_none_will_do() -> None:
    with pytest.raises(RequirementError, match="no way serves 64 users: l4"):
        lrkv_plan.best("llama-3.1-70b", users=64, context_tokens="32k", tpot_ms=5, gpu="l4")
    with pytest.raises(RequirementError, match="costs at least"):
        lrkv_plan.best("llama-3.1-8b", users=64, gpu="h200", budget_usd_hour=1)
    with pytest.raises(RequirementError, match=r"one user takes .* ms a token, more than asked"):
        lrkv_plan.best("llama-3.1-8b", users=1, gpu="l40s", tpot_ms=0.5)


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"gpu": "8xh100-sxm"}, "how many is searched"), ({"users": 0}, "users"),
        ({"accepted_tokens": 2}, "are of times"), ({"draws": 0}, "draws"),
        ({"gpu": "h100-sxm,h200", "draws": 10**9}, "draws 1000000000: from 1 to"),
        ({"max_gpus": "many"}, "max_gpus"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        lrkv_plan.best("llama-3.1-8b", **{"users": 64, "gpu": "h200", **told})


def test_stated_sizes_are_kept() -> None:
    row = lrkv_plan.best("llama-3.1-8b", users=64, gpu="h200", tp_size=4, pp_size=2).rows[0]
    assert (row["tp_size"], row["pp_size"], row["n_gpus"]) == (4, 2, 8)


def test_families_are_told_apart_and_their_quality_is_not_judged() -> None:
    answer = lrkv_plan.best("llama-3.1-8b", users=8, gpu="h200", families=True, tpot_ms=50)
    assert {"gqa:8", "mqa", "lrkv:16", "mha"} <= {row["attention"] for row in answer.rows}
    assert any("not judged here" in note.text for note in answer.notes)
    assert answer.rows[0]["launch"] is None


def test_gpus_without_a_price_stand_after_all_others() -> None:
    answer = lrkv_plan.best("llama-3.1-8b", users=8, gpu="gb10,h200")
    assert [row["gpu"] for row in answer.rows] == ["h200", "gb10"]
    assert answer.rows[1]["usd_per_hour"] is None
    assert any("no hourly price is known of gb10" in note.text for note in answer.notes)


def test_the_command_answers_in_its_first_line() -> None:
    done = CliRunner().invoke(app, [
        "best", "llama-3.1-8b", "--users", "64", "--context-tokens", "32k", "--gpu", "h200,b200",
        "--kv-dtype", "bf16,fp8",
    ])  # fmt: skip
    assert done.exit_code == 0
    assert done.stdout.startswith("The cheapest way for 64 users of 32k tokens: ")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert CliRunner().invoke(app, ["best", "llama-3.1-8b"]).exit_code == 2


def test_draws_are_seeded_and_reach_the_band_s_ends() -> None:
    constants = [Constant(name="a", low=0.5, high=4.0)]
    one, other = (factors_drawn(constants, 40_000, 3)["a"] for _ in range(2))
    assert (one == other).all()
    ordered = sorted(one)
    assert ordered[2_000] == pytest.approx(0.5, rel=0.03)  # the 5th percentile
    assert ordered[38_000] == pytest.approx(4.0, rel=0.05)
    assert ordered[20_000] == pytest.approx(1.0, rel=0.03)


def test_a_winner_that_nothing_uncertain_touches_always_wins() -> None:
    import numpy as np

    found = sensitivity(
        [Constant(name="a", low=0.5, high=2.0)],
        lambda f: np.stack([0 * f["a"] + 1, 0 * f["a"] + 2]), n_draws=50,
    )  # fmt: skip
    assert (found.winner, found.share, found.shares) == (0, 1.0, (1.0, 0.0))
    assert found.one_at_a_time[0].low_winner == found.one_at_a_time[0].high_winner == 0


def test_what_may_be_slower_is_ahead_less_often() -> None:
    told = {"users": 64, "context_tokens": "32k", "tpot_ms": 30, "gpu": "mi300x,h200,b200"}
    answer = lrkv_plan.best("llama-3.1-70b", **told)
    shares = [row["ahead_share"] for row in answer.rows]
    assert sum(shares) == pytest.approx(1)
    assert 0.05 < shares[0] < 0.95
    again = lrkv_plan.best("llama-3.1-70b", **told)
    assert [row["ahead_share"] for row in again.rows] == shares
