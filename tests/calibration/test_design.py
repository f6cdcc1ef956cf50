"""The plan of points identifies the constants and keeps what judges them apart."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.calibration.decode.paths import PATHS, paths_for
from lrkv_plan.calibration.design import (
    CROSSING,
    CROSSING_HEADS,
    SCALES,
    SERIES,
    PlannedPoint,
    planned_points,
    why_no_design,
)
from lrkv_plan.errors import UsageError


def runs_here(path: str) -> bool:
    if path not in PATHS:
        return False
    return path in {p.name for p in paths_for(planned_points("cpu", ["fp32"], [path])[0].spec())}


EVERY = [path for path in SERIES if runs_here(path)]


def points_of(path: str, device: str = "cpu") -> list[PlannedPoint]:
    return planned_points(device, ["fp32"], [path])


def cache_bytes(point: PlannedPoint) -> int:
    layout = layout_of(point.spec(), point.n_heads * point.head_dim)
    return layout.scalars_per_token() * point.batch_size * point.context_tokens * 4


@pytest.mark.parametrize("device", SCALES)
def test_no_point_is_planned_twice_and_the_order_is_repeatable(device: str) -> None:
    points = planned_points(device, ["fp32", "bf16"], EVERY, seed=3)
    assert len({p.name for p in points}) == len(points)
    assert points == planned_points(device, ["fp32", "bf16"], EVERY, seed=3)
    assert points != planned_points(device, ["fp32", "bf16"], EVERY, seed=4)


@pytest.mark.parametrize("path", EVERY)
def test_every_planned_point_runs_on_its_path(path: str) -> None:
    for point in points_of(path):
        assert path in {p.name for p in paths_for(point.spec())}, point


@pytest.mark.parametrize("path", EVERY)
def test_held_out_widths_heads_and_contexts_are_never_fitted(path: str) -> None:
    points, series = points_of(path), SERIES[path]
    fitted = [p for p in points if p.role == "fit"]
    roles = Counter(p.role for p in points)
    assert not {p.attention for p in fitted} & set(series.held_out_designs)
    assert series.held_out_heads not in {p.n_heads for p in fitted}
    unmeasured = {p.context_tokens for p in points if p.role == "context"}
    assert unmeasured, roles
    assert not unmeasured & {p.context_tokens for p in fitted}
    assert roles["fit"] >= 9
    assert roles["random"] >= 3
    assert roles["heads"] >= 3
    assert bool(roles["rank"]) == bool(series.held_out_designs)


@pytest.mark.parametrize("path", EVERY)
def test_bytes_reach_from_below_a_cache_to_far_above(path: str) -> None:
    sizes = sorted(cache_bytes(p) for p in points_of(path) if p.role == "fit")
    assert sizes[0] < 2**20
    assert sizes[-1] / sizes[0] >= 16


def test_no_call_is_larger_than_one_crossing_sequence() -> None:
    # MHA, 16 heads of 128, 64 * 64 tokens, fp32: 2 * 16 * 128 * 4096 * 4 = 67,108,864 bytes
    assert max(cache_bytes(p) for p in points_of("grouped/plain")) == 67_108_864


def test_designs_to_be_compared_share_batch_heads_and_contexts() -> None:
    series = {}
    for path, texts in CROSSING.items():
        if path not in PATHS:
            continue
        for text in texts:
            series[path, text] = {
                p.context_tokens
                for p in points_of(path)
                if (p.attention, p.n_heads, p.batch_size) == (text, CROSSING_HEADS, 1)
                and p.role != "random"
            }
    contexts = {64 * 2**k for k in range(7)}
    assert all(found >= contexts for found in series.values()), series
    assert ("lrkv/factored", "lrkv:55") in series


def test_a_design_of_the_users_own_is_fitted() -> None:
    points = planned_points("cpu", ["fp32"], ["lrkv/factored"], attention=["lrkv:40"])
    assert "fit" in {p.role for p in points if p.attention == "lrkv:40"}


def test_a_design_goes_only_to_paths_that_run_it() -> None:
    rotated = "lrkv:40,position=rope_expand"
    asked = {"fp32": ["lrkv:40", rotated, "gqa:4"]}
    for path, own in (("lrkv/factored", "lrkv:40"), ("lrkv/rope_expand", rotated)):
        points = planned_points("cpu", list(asked), [path], attention=asked["fp32"])
        assert {p.attention for p in points} & set(asked["fp32"]) == {own}


def test_an_unknown_path_gets_a_hint() -> None:
    with pytest.raises(UsageError, match=r"lrkv/factord.*did you mean 'lrkv/factored'"):
        planned_points("cpu", ["fp32"], ["lrkv/factord"])


@pytest.mark.parametrize(
    ("design", "path"),
    [
        ("mha", "grouped/plain"), ("gqa:8", "grouped/plain"), ("gqa:32", "grouped/sdpa"),
        ("mqa", "grouped/sdpa"), ("mla:512+64", "mla/absorbed"), ("lrkv:55", "lrkv/factored"),
        ("lrkv:64,groups=8", "lrkv/materialised"), ("lrkv:40,position=rope_expand", "lrkv/rope_expand"),
    ],
)  # fmt: skip
def test_a_design_of_the_users_own_joins_the_heads_that_it_divides(design: str, path: str) -> None:
    for device in SCALES:
        points = planned_points(device, ["fp32"], [path], attention=[design])
        own = [p for p in points if p.attention == design]
        assert len(own) >= 3
        assert all(path in {q.name for q in paths_for(p.spec())} for p in points)
        roles = {p.role for p in points}
        assert {"fit", "context"} <= roles


def test_why_a_path_cannot_have_a_design() -> None:
    assert why_no_design("grouped/plain", "gqa:8") == ""
    assert why_no_design("lrkv/factored", "gqa:8") == "lrkv/factored runs other designs"
    assert "7 does not divide 32 heads" in why_no_design("grouped/plain", "gqa:7")
    assert why_no_design("grouped/plain", "gpa:8") == "family 'gpa' is unknown; did you mean 'gqa'?"
