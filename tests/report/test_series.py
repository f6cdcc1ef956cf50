"""Series worked by hand, and rows that are the plotted points."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from lrkv_plan import load_hardware, load_model
from lrkv_plan.errors import UsageError
from lrkv_plan.latency.crossover import column_labels, map_columns
from lrkv_plan.latency.engine_step import EngineStep
from lrkv_plan.latency.faster_map import faster_map
from lrkv_plan.latency.kernel import KernelModel
from lrkv_plan.latency.step import StepModel, step_time
from lrkv_plan.latency.work import AttentionWork
from lrkv_plan.pages.pictures import (
    cache_vs_rank,
    capacity_vs_context,
    payload_vs_loss,
    rank_sweep,
    roofline,
)
from lrkv_plan.report.figures import Figure, Role, Series, figure_rows, figure_table
from lrkv_plan.report.series import crossovers
from lrkv_plan.report.series.steps import step_stack
from lrkv_plan.report.tables import Format, render
from lrkv_plan.specs.design import default_contexts, typed_designs
from tests.hand_steps import hand_step

PAPER = load_model("lrkv-paper-2.5b")
H100 = load_hardware("h100-sxm")


def one(figure: Figure, name: str, panel: int = 0) -> Series:
    (found,) = (series for series in figure.panels[panel].series if series.name == name)
    return found


def at(series: Series, x: Any) -> Any:
    return series.y[series.x.index(x)]


def hand_made(row_bytes: float, t0_s: float = 0.0, band: tuple[float, float] = (1, 1)) -> StepModel:
    """One layer on a GPU of 1 TB/s, whose attention reads ``row_bytes`` per cached token."""
    kernel = KernelModel(
        t0_s=t0_s, bytes_per_s=1e12, flops_per_s=1e18, band90=band, basis="datasheet",
        kernel="grouped", kv_dtype="bf16",
    )  # fmt: skip
    layer = AttentionWork(
        path="grouped", kernel="grouped", layers=1, n_heads=8, row_read_bytes=row_bytes,
    )  # fmt: skip
    engine = EngineStep(
        name="hand", kernels_of="hand", step_s=1e-4, sequence_s=2e-6, exchange_s=0.0
    )
    return hand_step((layer,), (kernel,), weight_bytes=1e10, engine=engine, band=(0.9, 1.1))


def crossover_map(columns: Any, labels: tuple[str, str], **told: Any) -> Figure:
    """The picture of solved columns."""
    return crossovers.crossover_map(faster_map(columns, **told), labels)


def test_cache_against_rank_is_one_over_heads_plus_rank_over_width() -> None:
    figure = cache_vs_rank(PAPER, heads=[6, 18, 32], budget="50%")
    for n_heads, rank in ((6, 46), (18, 55), (32, 54)):
        ratio = at(one(figure, f"{n_heads} heads"), rank)
        assert ratio == Fraction(1, n_heads) + Fraction(rank, 128)
    (guide,) = figure.panels[0].guides
    assert guide.value == Fraction(1, 2)


def test_marked_ranks_are_multiples_within_the_budget() -> None:
    figure = cache_vs_rank(PAPER, heads=[6, 18], budget="1/2", align=16)
    # 128 (1/2 - 1/6) = 42.7 -> 32; 128 (1/2 - 1/18) = 56.9 -> 48
    for n_heads, marked in ((6, (0, 16, 32)), (18, (0, 16, 32, 48))):
        dots = one(figure, f"{n_heads} heads, aligned ranks in the budget")
        assert dots.x == marked
        assert dots.texts[-1] == f"r {marked[-1]}"
        assert all(y <= Fraction(1, 2) for y in dots.y)


def test_a_budget_that_no_rank_meets_is_a_remark() -> None:
    figure = cache_vs_rank(PAPER, heads=[6, 18], budget="10%")  # 1/6 is more than 10 %
    assert "6 heads: no rank fits" in figure.remarks[0]
    assert [s.name for s in figure.panels[0].series] == [
        "6 heads", "18 heads", "18 heads, aligned ranks in the budget",
    ]  # fmt: skip


def test_a_budget_in_bytes_needs_one_head_count() -> None:
    with pytest.raises(UsageError, match="one head count"):
        cache_vs_rank(PAPER, heads=[6, 18], budget="80 KiB/token")
    figure = cache_vs_rank(PAPER, budget="gqa:6")
    assert figure.panels[0].guides[0].value == Fraction(1, 3)


def test_rank_sweep_holds_the_design_goldens() -> None:
    figure = rank_sweep(PAPER, context_tokens=8192)
    cache, weights, arithmetic = (one(figure, "lrkv", panel) for panel in range(3))
    assert at(cache, 55) == Fraction(559, 1152)  # 1/18 + 55/128
    # 1/18 + 55/128 (1 + 128/2304) = 0.50911
    assert float(at(weights, 55)) == pytest.approx(0.50911, abs=5e-6)
    assert at(arithmetic, 55) == 1 + Fraction(55, 128) + Fraction(55, 8192)


def test_rank_sweep_on_a_gpu_counts_sequences_as_stored() -> None:
    figure = rank_sweep(PAPER, context_tokens=1024, kv_memory=2**30)
    sequences = one(figure, "lrkv", 3)
    # rank 48: 2 * 2 * 18 * (128 + 18*48) = 71,424 B/token; 2**30 // (71,424 * 1024) = 14
    assert at(sequences, 48) == 14
    assert at(sequences, 33) == at(sequences, 48)  # stored at 48 too


def test_capacity_lines_stop_where_nothing_fits() -> None:
    figure = capacity_vs_context(
        PAPER, attention=["mha", "mqa"], engine="ideal", kv_memory=2**30,
        context_tokens=[1024, 4096, 8192],
    )  # fmt: skip
    # MHA: 165,888 B per token; 2**30 = 6,472 tokens
    assert one(figure, "mha").y == (6, 1, 0)
    assert one(figure, "mqa").y == (113, 28, 14)  # 9,216 B per token: 116,508 tokens
    assert figure_rows(figure)[2] == {
        "series": "mha", "context_tokens": 8192, "total_sequences": 0,
    }  # fmt: skip


def test_default_contexts_are_powers_of_two_up_to_the_maximum() -> None:
    assert default_contexts(PAPER) == [2**k for k in range(10, 18)]
    assert default_contexts(load_model("phi-3-mini-4k")) == [1024, 2048, 4096]


def test_roofline_places_designs_on_their_ceilings() -> None:
    placed = ["mha", "lrkv:55,position=rope_expand"]
    figure = roofline(PAPER, gpu=H100, attention=placed, context_tokens=8192)
    (mha,) = (s for s in figure.panels[0].series if s.name == "mha")
    assert mha.x[0] == pytest.approx(1.0, rel=1e-3)
    assert mha.y[0] == pytest.approx(3.35e12, rel=1e-3)  # 1 FLOP per byte at 3.35 TB/s
    tensor, plain = (s for s in figure.panels[0].series if "rope_expand" in s.name)
    assert tensor.y[0] == pytest.approx(tensor.x[0] * 3.35e12)
    assert plain.y[0] == pytest.approx(H100.peak_flops_per_s["fp32"])
    assert plain.is_open
    assert plain.facts["bound"] == "compute"
    ridges = [guide.value for guide in figure.panels[0].guides]
    assert ridges == [H100.peak_flops_per_s[u] / 3.35e12 for u in ("bf16", "fp32")]


def test_every_path_is_placed_when_asked() -> None:
    figure = roofline(PAPER, gpu=H100, attention="lrkv:55", context_tokens=8192, every_path=True)
    names = {s.name for s in figure.panels[0].series if s.role is Role.POINTS}
    assert names == {"lrkv:55, factored", "lrkv:55, materialised"}


def test_stacked_parts_add_up_to_the_step() -> None:
    models = [("small", hand_made(1000.0)), ("large", hand_made(4000.0))]
    timed = [(label, model, step_time(model, 1000, 100)) for label, model in models]
    figure = step_stack(timed, context_tokens=1000, batch_size=100)
    parts = [s for s in figure.panels[0].series if s.role is Role.STACK]
    assert [s.name for s in parts] == ["attention", "weights", "rest"]
    assert parts[0].x == pytest.approx((1e-4, 4e-4))  # 100 * 1000 * row bytes / 1e12
    assert parts[1].x == pytest.approx((0.01, 0.01))  # 1e10 B / 1e12 B/s
    assert parts[2].x == pytest.approx((3e-4, 3e-4))  # 100 us and 2 us for each of 100 sequences
    totals = [sum(part.x[i] for part in parts) for i in (0, 1)]
    band = one(figure, "step")
    assert band.x == pytest.approx(totals)
    rows = [row for row in figure_rows(figure) if row["series"] == "step"]
    assert rows[0]["low_time_s"] < rows[0]["time_s"] < rows[0]["high_time_s"]


def test_the_boundary_is_where_the_times_cross() -> None:
    # 2000 T B / 1e12 + 0 against 1000 T B / 1e12 + 1e-5: equal at T B = 1e4, the second from 10,001
    pair = (hand_made(2000.0), hand_made(1000.0, t0_s=1e-5))
    figure = crossover_map(
        [(b, pair) for b in (1, 2, 4)], ("a", "b"), over="batch_size", low=16, high=65_536
    )
    boundary = one(figure, "boundary")
    assert boundary.x == (1, 2, 4)
    assert boundary.y == (10_001, 5_001, 2_501)
    for batch, context in zip(boundary.x, boundary.y, strict=True):
        for tokens, faster in ((context - 2, 0), (context, 1)):
            times = [step_time(model, tokens, batch).step_s for model in pair]
            assert times[faster] < times[1 - faster]
    assert one(figure, "a faster").low == (16, 16, 16)
    assert one(figure, "a faster").high == boundary.y == one(figure, "b faster").low
    assert one(figure, "b faster").high == (65_536,) * 3


def test_a_boundary_leaves_through_the_end_that_it_went_beyond() -> None:
    pair = (hand_made(2000.0), hand_made(1000.0, t0_s=1e-5))  # crosses at 1e4 / B tokens
    columns = [(b, pair) for b in (1, 4, 64)]
    figure = crossover_map(columns, ("a", "b"), over="batch_size", low=1000, high=8000)
    assert list(zip(one(figure, "boundary").x, one(figure, "boundary").y, strict=True)) == [
        (1, None), (1, 8000), (4, 2501), (64, 1000), (64, None),
    ]  # fmt: skip
    rows = [row for row in figure_rows(figure) if row["series"] == "boundary"]
    assert [row["context_tokens"] for row in rows] == [8000, 2501, 1000]


def test_columns_without_a_change_meet_half_way() -> None:
    slow, fast = hand_made(2000.0), hand_made(1000.0)
    figure = crossover_map(
        [(8, (slow, fast)), (9, (fast, slow))], ("a", "b"), over="rank", low=16, high=64
    )
    boundary = one(figure, "boundary")
    assert (boundary.x[1:3], boundary.y[1:3]) == ((8.5, 8.5), (16, 64))
    region = one(figure, "b faster")
    assert (region.x, region.low, region.high) == (
        (8, 8.5, 8.5, 9), (16, 16, None, None), (64, 64, None, None),
    )  # fmt: skip


def test_bands_move_the_boundary_both_ways() -> None:
    first = hand_made(2000.0, band=(0.9, 1.1))
    second = hand_made(1000.0, t0_s=1e-5, band=(0.9, 1.1))
    figure = crossover_map(
        [(b, (first, second)) for b in (1, 2)], ("a", "b"), over="batch_size", low=1, high=65_536
    )
    # 0.9 * 2000 T = 1.1 (1000 T + 1e7): T = 15,714; 1.1 * 2000 T = 0.9 (1000 T + 1e7): T = 6,923
    assert one(figure, "boundary, a at best").y[0] == 15_715
    assert one(figure, "boundary, b at best").y[0] == 6_924


def test_a_map_needs_two_columns() -> None:
    with pytest.raises(UsageError, match="two values"):
        crossover_map(
            [(1, (hand_made(1.0), hand_made(2.0)))], ("a", "b"), over="rank", low=1, high=2
        )


def test_map_columns_take_each_rank() -> None:
    model = load_model("llama-2-7b")
    texts = ("mha", "lrkv:48,key_norm=rms_cached")
    pair = typed_designs(model, texts)
    columns = map_columns(pair, load_hardware("h200"), over="rank", at_most=3)
    assert [rank for rank, _ in columns] == [0, 1, 2, 3]
    read = [pair[1].work.attention[0].row_read_bytes for _, pair in columns]
    # 2 * (2 * 128 + 2 * 32 r + 32) bytes per row
    assert read == [2.0 * (256 + 64 * r + 32) for r in range(4)]
    assert column_labels(pair, "rank") == ("mha", "lrkv:r,key_norm=rms_cached")
    assert column_labels(pair, "batch_size") == texts
    with pytest.raises(UsageError, match="rank or batch_size"):
        map_columns(pair, load_hardware("h200"), over="tp_size")


def test_published_points_are_computed_where_they_can_be() -> None:
    figure = payload_vs_loss()
    large, small = figure.panels
    places = {s.name: (s.x[0], s.y[0]) for p in (large,) for s in p.series}
    assert places == {
        "MHA": (1, 2.389),
        "GQA-6": (Fraction(1, 3), 2.397),
        "MQA": (Fraction(1, 18), 2.408),
        "MLA": (Fraction(167, 1000), 2.392),
        "LRKV r 55": (Fraction(559, 1152), 2.376),
    }
    facts = {s.name: s.facts["ratio_is"] for s in large.series}
    assert [name for name, known in facts.items() if known == "printed"] == ["MLA"]
    sweep = {s.name: (s.x[0], s.y[0]) for s in small.series if s.role is Role.POINTS}
    assert sweep["MLA-384"] == (Fraction(1, 4), 2.894)  # 384 / (2 * 6 * 128)
    assert sweep["LRKV r 128"] == (Fraction(1, 6) + 1, 2.877)
    assert "GQA" not in sweep
    assert any("128M: GQA is left out" in remark for remark in figure.remarks)
    assert "single published run" in figure.caption


def test_unknown_scales_are_named() -> None:
    with pytest.raises(UsageError, match=r"known: 2\.5B, 128M"):
        payload_vs_loss(scale="7B")
    with pytest.raises(UsageError, match="no run's cache"):
        payload_vs_loss(scale=["1.2B"])


def test_rows_are_the_plotted_points() -> None:
    figure = cache_vs_rank(PAPER, heads=[6, 18], budget="50%")
    rows = figure_rows(figure)
    plotted = [
        (series.name, x, y)
        for series in figure.panels[0].series
        for x, y in zip(series.x, series.y, strict=True)
    ]
    assert [(r["series"], r["rank"], r["cache_ratio"]) for r in rows] == [
        *plotted, ("budget", None, Fraction(1, 2)),
    ]  # fmt: skip
    for output_format in Format:
        assert "18 heads" in render(figure_table(figure), output_format)
