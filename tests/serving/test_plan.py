"""The plan, admission by time, and comparisons along every variable."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan import load_hardware, load_model, swap_attention
from lrkv_plan.errors import PlacementError, RequirementError, UsageError
from lrkv_plan.latency.crossover import compare
from lrkv_plan.latency.engine_step import engine_step
from lrkv_plan.latency.step import step_model, step_time
from lrkv_plan.loader import load_all_hardware
from lrkv_plan.serving.answers import capacity_answers
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_named
from lrkv_plan.serving.load import LatencyTarget, Speculation, admission
from lrkv_plan.serving.plan import make_plan
from lrkv_plan.specs.deployment import EngineSettings, Parallelism
from lrkv_plan.specs.design import typed_designs

H200 = load_hardware("h200")
LLAMA8, LLAMA70 = load_model("llama-3.1-8b"), load_model("llama-3.1-70b")
RELATIVES = tuple(load_all_hardware())


def deployment(gpu: str = "h100-sxm", context: int = 8192, **changes: Any) -> Deployment:
    return Deployment(
        engine=engine_named("vllm"),
        settings=EngineSettings(context_tokens=context),
        hardware=load_hardware(gpu),
        **changes,
    )


# Llama-3.1-70B, TP 4, 8,192 tokens: one call on one H200 in us, rows of public tables of vLLM 0.24.0
# in bf16. Matrices (ai-dynamo/aiconfigurator 095f58a51c4c): where a shape is not in them, the rows
# on both sides of it; inputs x outputs. Attention (aiconfigurator-core 0.12.0, FA3): the row of the
# very shape at batch 128; of the same cached bytes at 32 (16 sequences, 16 heads on 4) and at 1 (2
# of 4,096, 12 heads on 2). All-reduce: the custom kernel under a graph, 16 KiB a token.
ROWS: dict[int, dict[str, tuple[float, ...]]] = {
    1: {"7168 and 10240 x 2560": (13.61, 17.36), "2048 x 8192": (10.97,),
        "8192 x 12288 and 16384": (58.41, 72.37), "5120 and 8192 x 8192": (22.60, 34.93),
        "8192 x 16384 and 51200": (72.37, 211.30), "attention": (16.347,),
        "all-reduce": (4.816,)},
    32: {"7168 and 10240 x 2560": (14.20, 18.20), "2048 x 8192": (11.05,),
         "8192 x 12288 and 16384": (54.35, 65.39), "5120 and 8192 x 8192": (25.44, 35.06),
         "8192 x 16384 and 51200": (65.39, 215.90), "attention": (76.128,),
         "all-reduce": (10.480,)},
    128: {"7168 and 10240 x 2560": (16.71, 21.48), "2048 x 8192": (11.49,),
          "8192 x 12288 and 16384": (59.28, 69.69), "5120 and 8192 x 8192": (27.14, 37.05),
          "8192 x 16384 and 51200": (69.69, 214.50), "attention": (256.389,),
          "all-reduce": (17.797,)},
}  # fmt: skip
# How far along from the first row to the second the shape lies, and how often a step calls it:
# 8,192 x 2,560; 2,048 x 8,192; 8,192 x 14,336; 7,168 x 8,192; 8,192 x 32,064; and two sums a layer.
CALLS = {
    "7168 and 10240 x 2560": (1024 / 3072, 80), "2048 x 8192": (0.0, 80),
    "8192 x 12288 and 16384": (2048 / 4096, 80), "5120 and 8192 x 8192": (2048 / 3072, 80),
    "8192 x 16384 and 51200": (15_680 / 34_816, 1), "attention": (0.0, 80),
    "all-reduce": (0.0, 160),
}  # fmt: skip


def of_tables(batch: int, *names: str) -> float:
    """Calls of a step at the tables' times, linear between two rows. [s]"""
    found = 0.0
    for name in names:
        rows, (along, calls) = ROWS[batch][name], CALLS[name]
        found += calls * (rows[0] + along * (rows[-1] - rows[0])) * 1e-6
    return found


@pytest.mark.parametrize("batch", [1, 32, 128])
def test_each_term_of_a_step_beside_the_tables_of_its_engine(batch: int) -> None:
    """Measured: attention -5.6, +2.1, +1.9 %; matrices -0.7, +3.9, +7.7 %; sums -2.3, -4.6, +2.2 %.

    Matrices are high at 128 tokens: the root of squares of memory and compute is, where both count.
    """
    step = step_time(step_model(LLAMA70, H200, tp_size=4, relatives=RELATIVES), 8192, batch)
    matrices = [name for name in CALLS if " x " in name]
    assert step.attention_s == pytest.approx(of_tables(batch, "attention"), rel=0.06)
    assert step.matrices_s == pytest.approx(of_tables(batch, *matrices), rel=0.08)
    assert step.all_reduce_s == pytest.approx(of_tables(batch, "all-reduce"), rel=0.05)


@pytest.mark.parametrize(
    ("batch", "silicon_ms", "roofline_ms"),
    [(1, 12.59, 7.40), (32, 18.23, 12.29), (128, 35.33, 27.43)],
)
def test_whole_step_beside_a_peers_measured_tables(
    batch: int, silicon_ms: float, roofline_ms: float
) -> None:
    """Llama-3.1-70B, TP 4, H200, 8,192 tokens; aiconfigurator 0.12.0 from measured tables.

    It sums operations; so do ours without what the engine adds, which is 0.4, 2.5 and 2.4 % more.
    """
    step = step_time(step_model(LLAMA70, H200, tp_size=4, relatives=RELATIVES), 8192, batch)
    assert step.step_s - step.engine_s == pytest.approx(silicon_ms / 1e3, rel=0.03)
    # Attention and four matrices of 80 layers, the vocabulary, 160 sums.
    engine, launches = engine_step(), 80 * 5 + 1 + 160
    added = engine.step_s + batch * engine.sequence_s - launches * engine.overlap_s
    assert step.engine_s == pytest.approx(added)
    assert step.low_s <= silicon_ms / 1e3 <= step.high_s
    # Their pure roofline has no efficiencies, fixed times or all-reduce.
    assert step.step_s > roofline_ms / 1e3
    assert step.overlap_s <= step.step_s


@pytest.mark.parametrize("batch", [1, 32, 128])
def test_the_page_on_this_step_has_todays_terms(batch: int) -> None:
    page = (Path(__file__).parents[2] / "docs" / "step-time.md").read_text(encoding="utf-8")
    whole, terms = (
        line.strip("| ").split(" | ")
        for line in page.splitlines()
        if line.startswith(f"| {batch} |")
    )
    step = step_time(step_model(LLAMA70, H200, tp_size=4, relatives=RELATIVES), 8192, batch)
    matrices = [name for name in CALLS if " x " in name]
    assert [float(one) for one in (whole[1], *whole[2].split(" to "), whole[3], whole[6])] == [
        pytest.approx(1e3 * float(seconds), abs=0.006)
        for seconds in (step.step_s, step.low_s, step.high_s, step.step_s - step.engine_s,
                        step.overlap_s)
    ]  # fmt: skip
    shown = [
        (step.attention_s, of_tables(batch, "attention")),
        (step.matrices_s, of_tables(batch, *matrices)),
        (step.all_reduce_s, of_tables(batch, "all-reduce")),
    ]
    for (ours, table), place in zip(shown, (1, 4, 7), strict=True):
        told = [float(one.removesuffix(" %")) for one in terms[place : place + 3]]
        assert told[:2] == pytest.approx([1e3 * float(ours), 1e3 * table], abs=0.006)
        assert told[2] == pytest.approx(100 * (float(ours) / table - 1), abs=0.06)
    assert [float(one) for one in terms[10:]] == [
        pytest.approx(1e3 * float(one), abs=0.006) for one in (step.small_kernels_s, step.engine_s)
    ]


def test_admission_is_the_smaller_of_fit_and_time() -> None:
    step = step_model(LLAMA8, H200)
    free = admission(step, context_tokens=8192, max_sequences=100, n_gpus=1, gpu_hour_usd=3.6)
    assert free is not None
    assert (free.sequences, free.binds) == (100, "memory")
    assert free.tokens_per_s == pytest.approx(100 / free.tpot_s)
    # 3.6 USD an hour are 1e-3 USD a second
    assert free.usd_per_million_tokens == pytest.approx(1e-3 * 1e6 / free.tokens_per_s)
    target = float(step_time(step, 8192, 40).step_s)
    tight = admission(step, context_tokens=8192, max_sequences=100, n_gpus=1, tpot_s=target)
    assert tight is not None
    assert (tight.sequences, tight.binds) == (40, "time")
    assert admission(step, context_tokens=8192, max_sequences=9, n_gpus=1, tpot_s=1e-4) is None
    assert admission(step, context_tokens=8192, max_sequences=0, n_gpus=1) is None


def test_speculation_divides_the_step_by_what_is_accepted() -> None:
    step = step_model(LLAMA8, H200)
    spec = Speculation(query_tokens=4, accepted_tokens=2.5)
    found = admission(step, context_tokens=8192, max_sequences=8, n_gpus=1, speculation=spec)
    assert found is not None
    assert found.tpot_s == pytest.approx(float(step_time(step, 8192, 8, 4).step_s) / 2.5)
    with pytest.raises(UsageError, match="accepted"):
        Speculation(query_tokens=2, accepted_tokens=3)


def test_a_plan_has_every_family_and_says_what_it_rests_on() -> None:
    plan = make_plan(LLAMA8, deployment(), target=LatencyTarget(relatives=RELATIVES))
    assert plan.rows[0].role == "own design"
    designs = ["gqa:8", "mha", "mqa", "mla:512+64", "lrkv:16", "lrkv:16,position=rope_expand"]
    assert [row.attention for row in plan.rows] == designs
    assert plan.budget == "gqa:8"
    assert plan.rows[0].against_own is None
    assert all(row.against_own is not None for row in plan.rows[1:])
    text = " ".join(plan.rests_on)
    assert "no public measurement of an LRKV kernel" in text
    assert plan.rows[-1].step.work.assumptions
    for row in plan.rows:  # each at its own full load
        assert row.load is not None
        assert row.load.step.low_s <= row.load.step.step_s <= row.load.step.high_s
        assert row.load.sequences == row.capacity.max_sequences


def test_with_a_stated_batch_a_row_that_does_not_hold_it_has_no_time() -> None:
    plan = make_plan(LLAMA8, deployment(), batch_size=32)
    held = {row.attention: row.capacity.max_sequences for row in plan.rows}
    assert held["mha"] == 13
    for row in plan.rows:
        if held[row.attention] < 32:
            assert row.load is None
        else:
            assert row.load is not None
            assert (row.load.batch_size, row.load.binds) == (32, "stated")
    tight = make_plan(LLAMA8, deployment(), batch_size=32, target=LatencyTarget(tpot_s=5e-3))
    assert tight.rows[0].load is not None
    assert not tight.rows[0].load.meets_target


def test_a_padded_rank_says_that_its_time_is_without_the_padding() -> None:
    # 32 layers, 32 heads: 2 * 2 * 32 * (128 + 32 * 16) = 81,920 B stored, with rank 8 49,152 B.
    said = (
        "lrkv:8: its rows are stored padded to a multiple of 16, 81,920 B a token and GPU, and "
        "timed as if they were not, 49,152 B: times are too low"
    )
    designs = typed_designs(LLAMA8, ["lrkv:8", "lrkv:32"])
    plan = make_plan(LLAMA8, deployment(), designs=designs)
    assert plan.limits == (f"{said}, and so is its share of MHA's cache",)
    assert make_plan(LLAMA8, deployment(rank_alignment=1), designs=designs).limits == ()
    (timed, whole) = capacity_answers(designs, [deployment()], target=LatencyTarget())
    assert (timed.limits, whole.limits) == ((said,), ())
    (untimed, _) = capacity_answers(designs, [deployment()])
    assert untimed.limits == ()
    told = {"gpu": "h100-sxm", "attention": "lrkv:8"}
    for answer in (
        lrkv_plan.plan("llama-3.1-8b", **told),
        lrkv_plan.capacity("llama-3.1-8b", tpot_ms=50, **told),
    ):
        assert any(note.kind == "limit" and note.text.startswith(said) for note in answer.notes)


def test_replicas_share_nothing() -> None:
    """8 GPUs at TP 1: eight times the users and tokens of one, at the same time and cost."""
    target = LatencyTarget()
    one = make_plan(LLAMA8, deployment(gpu_hour_usd=2.5), target=target)
    eight = make_plan(
        LLAMA8, deployment(n_gpus=8, gpu_hour_usd=2.5), target=target, is_layout_stated=True
    )
    first, all_eight = one.rows[0].load, eight.rows[0].load
    assert first is not None
    assert all_eight is not None
    assert (all_eight.sequences, all_eight.batch_size) == (8 * first.sequences, first.batch_size)
    assert all_eight.tokens_per_s == pytest.approx(8 * first.tokens_per_s)
    assert all_eight.usd_per_million_tokens == pytest.approx(first.usd_per_million_tokens)


def test_a_plan_keeps_the_layout_that_it_was_given() -> None:
    """Two stages hold half the layers each; two attention ranks hold all, for half the users."""
    one = make_plan(LLAMA8, deployment()).rows[0].load
    staged, ranked = (
        make_plan(LLAMA8, deployment(parallel=Parallelism(**{kind: 2})), is_layout_stated=True)
        for kind in ("pp_size", "dp_size")
    )
    assert staged.parallel.n_gpus == ranked.parallel.n_gpus == 2
    assert (staged.n_replicas, ranked.n_replicas) == (1, 1)
    # 131,072 B a token over two stages
    assert 2 * staged.rows[0].capacity.bytes_per_token_per_gpu == 131_072
    assert ranked.rows[0].capacity.bytes_per_token_per_gpu == 131_072
    two, ranks = staged.rows[0].load, ranked.rows[0].load
    assert one is not None
    assert two is not None
    assert ranks is not None
    # a dense model's ranks share nothing: twice the users of one GPU, at its time
    assert (ranks.sequences, ranks.tpot_s) == (2 * one.sequences, one.tpot_s)
    # half the weights a GPU leave more room; a token passes both stages with half the users each
    assert two.sequences == 125
    alone = step_time(step_model(LLAMA8, load_hardware("h100-sxm")), 8192, 63)
    assert two.tpot_s == pytest.approx(float(alone.step_s))
    assert any(note.startswith("pipeline stages: ") for note in staged.rests_on)


def test_a_plan_takes_the_smallest_group_that_holds_a_sequence() -> None:
    assert make_plan(LLAMA70, deployment("h200")).parallel.tp_size == 2
    with pytest.raises(RequirementError, match="up to TP 64"):
        make_plan(LLAMA70, deployment("l4", context=131_072 * 64))
    with pytest.raises(UsageError, match="--gpu"):
        make_plan(LLAMA8, replace(deployment(), hardware=None))


def test_of_given_gpus_the_layout_that_serves_most_is_chosen() -> None:
    """Weights once at TP 8 leave more room than twice at TP 4: 40 users against 26."""
    plan = make_plan(LLAMA70, deployment("h100-sxm", context=32_768, n_gpus=8))
    assert (plan.parallel.tp_size, plan.n_replicas) == (8, 1)
    assert plan.rows[0].capacity.total_sequences == 40
    assert plan.layout == "serves most sequences"
    narrow = deployment("h100-sxm", context=32_768, n_gpus=8, parallel=Parallelism(tp_size=4))
    stated = make_plan(LLAMA70, narrow, is_layout_stated=True)
    assert (stated.parallel.tp_size, stated.n_replicas, stated.layout) == (4, 2, None)
    assert stated.rows[0].capacity.total_sequences == 26


def test_gpus_that_are_no_whole_replica_are_said() -> None:
    plan = make_plan(LLAMA70, deployment("h200", n_gpus=7))
    assert plan.layout == f"serves most sequences; {7 - plan.n_gpus} of 7 GPUs idle"
    with pytest.raises(RequirementError, match="up to 1 GPUs"):
        make_plan(LLAMA70, deployment("h200", n_gpus=1))


def test_a_stated_size_is_honoured_or_refused() -> None:
    with pytest.raises(RequirementError, match="fits at TP 1"):
        make_plan(load_model("llama-3.1-405b"), deployment("h200"), is_layout_stated=True)
    four_of_two = deployment("h200", n_gpus=2, parallel=Parallelism(tp_size=4))
    with pytest.raises(PlacementError, match="use a multiple"):
        make_plan(LLAMA70, four_of_two, is_layout_stated=True)


def test_where_no_multiple_fits_rank_0_is_planned_once_and_the_largest_named() -> None:
    # TP 2: gqa:8 leaves 4 * 2 * 128 = 1024 scalars a layer and GPU; 2 (128 + 32 r) <= 1024: 12.
    plan = make_plan(LLAMA70, deployment("h200"))
    assert [row.attention for row in plan.rows][-2:] == ["mla:512+64", "lrkv:0"]
    assert (plan.ceiling.largest.value, plan.ceiling.aligned.value) == (12, 0)


def test_an_mha_model_is_planned_at_half_its_cache() -> None:
    plan = make_plan(load_model("llama-2-7b"), deployment(context=4096))
    assert plan.budget == "50%"
    # 128 (1/2 - 1/32) = 60, aligned to 48; GQA with half the heads
    assert [row.attention for row in plan.rows][-2:] == ["lrkv:48", "lrkv:48,position=rope_expand"]
    assert "gqa:16" in [row.attention for row in plan.rows]


POINT = {"context_tokens": 8192, "batch_size": 1, "query_tokens": 1, "tp_size": 1}


@pytest.mark.parametrize(
    "over", ["context_tokens", "batch_size", "query_tokens", "tp_size", "rank"]
)
def test_sides_show_the_change(over: str) -> None:
    texts = ("gqa:8", "lrkv:24" if over == "rank" else "mla:512+64")
    found = compare(typed_designs(LLAMA8, texts), H200, over=over, point=POINT, relatives=RELATIVES)
    by_place: dict[int, dict[str, float]] = {}
    for side in found.sides:
        family = side["design"].split(":")[0]
        by_place.setdefault(side["place"], {})[family] = side["step_s"]
    if over == "rank":
        assert found.sides[1]["design"] == "lrkv:0"  # the design timed, not the one asked with
    for crossing in found.crossover.crossings:
        families = [text.split(":")[0] for text in texts]
        before, after = families[crossing.faster_before], families[crossing.faster_after]
        assert by_place[crossing.at][after] < by_place[crossing.at][before]
        if crossing.at - 1 in by_place:
            assert by_place[crossing.at - 1][before] <= by_place[crossing.at - 1][after]


def test_along_the_rank_the_change_is_the_first_rank_that_is_slower() -> None:
    found = compare(
        typed_designs(LLAMA8, ["gqa:8", "lrkv:0"]),
        H200,
        over="rank",
        point={**POINT, "batch_size": 32},
    )
    (crossing,) = found.crossover.crossings

    def step(text: str) -> float:
        model = step_model(swap_attention(LLAMA8, text), H200)
        return float(step_time(model, 8192, 32).step_s)

    assert step(f"lrkv:{crossing.at - 1}") <= step("gqa:8") < step(f"lrkv:{crossing.at}")


def test_bad_comparisons_are_refused() -> None:
    pair = typed_designs(LLAMA8, ["mha", "mqa"])
    with pytest.raises(UsageError, match="did you mean 'batch_size'"):
        compare(pair, H200, over="batchsize", point=POINT)
    with pytest.raises(UsageError, match="lrkv:RANK"):
        compare(pair, H200, over="rank", point=POINT)
