"""A sweep's frontier, map and tornado: the right rows by hand, and drawn for every width and kind."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import UsageError
from lrkv_plan.report.figures import Figure, Role, figure_rows, figure_table
from lrkv_plan.report.plots import picture
from lrkv_plan.report.series import sweeps
from lrkv_plan.report.series.sweeps import frontier, heat_map, pareto_places, tornado

ROWS = [
    {"attention": "gqa:8", "total_sequences": 54, "tpot_s": 0.026, "tp_size": 1, "context_tokens": 8192},
    {"attention": "mqa", "total_sequences": 442, "tpot_s": 0.035, "tp_size": 1, "context_tokens": 8192},
    {"attention": "mha", "total_sequences": 13, "tpot_s": 0.027, "tp_size": 2, "context_tokens": 8192},
    {"attention": "mla", "total_sequences": 442, "tpot_s": 0.040, "tp_size": 2, "context_tokens": 2048},
    {"attention": "lrkv", "total_sequences": None, "tpot_s": None, "tp_size": 2, "context_tokens": 131_072},
]  # fmt: skip
USERS = ("more", "less")
MOVED = [
    {"name": "launch", "low": 0.029, "high": 0.031, "low_text": "4 us", "high_text": "9 us"},
    {"name": "bandwidth", "low": 0.036, "high": 0.027, "low_text": "0.7", "high_text": "0.95"},
]


def series_of(figure: Figure, role: Role) -> dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]:
    return {s.name: (s.x, s.y) for s in figure.panels[0].series if s.role is role}


POINTS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30)
BETTER = st.sampled_from([(a, b) for a in ("more", "less") for b in ("more", "less")])


@given(POINTS, BETTER)
def test_the_frontier_is_what_no_other_point_beats(
    points: list[tuple[int, int]], better: tuple[str, str]
) -> None:
    signs = [1 if one == "less" else -1 for one in better]
    keys = [(signs[0] * x, signs[1] * y) for x, y in points]

    def beaten(one: tuple[int, int]) -> bool:
        return any(o[0] <= one[0] and o[1] <= one[1] and o != one for o in keys)

    places = pareto_places(points, better)
    assert sorted(places) == [place for place, key in enumerate(keys) if not beaten(key)]
    assert [points[place][0] for place in places] == sorted(points[place][0] for place in places)


@pytest.mark.parametrize("frame", [ROWS, pd.DataFrame(ROWS)])
def test_a_frontier_by_hand(frame: Any) -> None:
    # mha has fewer users than gqa:8 and is slower; mla as many as mqa and slower; lrkv was refused.
    figure = frontier(frame, "total_sequences", "tpot_s", "attention", better=USERS)
    assert series_of(figure, Role.KEYED) == {"gqa:8": ((54,), (0.026,)), "mqa": ((442,), (0.035,))}
    assert series_of(figure, Role.CLOUD) == {"others": ((13, 442), (0.027, 0.04))}
    assert series_of(figure, Role.STEPS_BEFORE) == {"frontier": ((54, 442), (0.026, 0.035))}
    assert figure.caption == "2 of 4 rows are beaten by none; dots: 2 others"
    assert figure.remarks == ("1 rows without total_sequences or tpot_s are left out",)
    panel = figure.panels[0]
    assert (panel.x.label, panel.x.scale) == ("Users, more is better", "log10")
    assert (panel.y.label, panel.y.scale, panel.y.factor) == (
        "ms per token, less is better",
        "linear",
        1e3,
    )
    rows = figure_rows(figure)
    assert [row["series"] for row in rows if row["is_on_frontier"]] == ["gqa:8", "mqa"]
    assert len(rows) == 4


def test_less_of_both_steps_down_after_each_point() -> None:
    figure = frontier(ROWS, "tp_size", "tpot_s", better=("less", "less"))
    assert series_of(figure, Role.STEPS_AFTER) == {"frontier": ((1,), (0.026,))}


def test_a_large_cloud_is_thinned_evenly_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "MAX_CLOUD", 100)
    frame = pd.DataFrame({"n_gpus": range(1, 1002), "tpot_s": [float(n) for n in range(1, 1002)]})
    figure = frontier(frame, "n_gpus", "tpot_s", better=("less", "less"))
    (cloud,) = series_of(figure, Role.CLOUD).values()
    assert cloud[0] == tuple(range(2, 1002, 10))
    assert "1 of 1,001 rows are beaten by none; dots: 1,000 others, one in 10" in figure.caption


def test_more_hues_than_colours_leave_the_rest_as_others() -> None:
    frame = [{"n_gpus": n, "tpot_s": 20.0 - n, "gpu": f"gpu {n}"} for n in range(1, 10)]
    figure = frontier(frame, "n_gpus", "tpot_s", "gpu", better=("less", "less"))
    keyed = series_of(figure, Role.KEYED)
    assert list(keyed) == [f"gpu {n}" for n in range(1, 7)] + ["others"]
    assert keyed["others"][0] == (7, 8, 9)


def test_a_map_by_hand() -> None:
    figure = heat_map(ROWS, "context_tokens", "tp_size", "tpot_s", better="less")
    (cells,) = figure.panels[0].series
    # Larger sizes on top; 8k and TP 1 is the faster of two; a refused row and no row leave a gap.
    assert cells.x == ("2k", "8k", "128k", "2k", "8k", "128k")
    assert cells.y == ("2", "2", "2", "1", "1", "1")
    assert cells.values == (0.040, 0.027, None, None, 0.026, None)
    assert figure.title == "ms per token over context and TP"
    assert "hatched: no answer" in figure.caption
    assert figure_rows(figure)[1] == {
        "series": "tpot_s", "context_tokens": "8k", "tp_size": "2", "tpot_s": 0.027
    }  # fmt: skip
    assert len(figure_table(figure).rows) == 6


def test_a_cell_with_several_rows_needs_a_choice() -> None:
    with pytest.raises(UsageError, match="several rows with context_tokens 8192 and tp_size 1"):
        heat_map(ROWS, "context_tokens", "tp_size", "tpot_s")
    most = heat_map(ROWS, "context_tokens", "tp_size", "total_sequences", better="more")
    assert most.panels[0].series[0].values[4] == 442


def test_a_tornado_by_hand() -> None:
    figure = tornado(MOVED, outcome="tpot_s", base=0.030)
    low, high = figure.panels[0].series
    assert low.y == high.y == ("bandwidth", "launch")  # 9 ms wide, 2 ms wide
    assert (low.x, high.x) == ((0.036, 0.029), (0.027, 0.031))
    assert low.texts == ("0.7", "4 us")
    assert low.origin == figure.panels[0].guides[0].value == 0.030
    assert figure.caption.endswith("line: 30 as assumed")


FIGURES = {
    "frontier": lambda: frontier(ROWS, "total_sequences", "tpot_s", "attention", better=USERS),
    "map": lambda: heat_map(ROWS, "attention", "context_tokens", "tpot_s"),
    "one cell": lambda: heat_map(ROWS[:1], "attention", "tp_size", "tpot_s"),
    "tornado": lambda: tornado(MOVED, outcome="tpot_s", base=0.030),
    "one constant that moves nothing": lambda: tornado(
        [{"name": "launch", "low": 1, "high": 1}], outcome="n_gpus", base=1
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_each_is_drawn_the_same_twice(name: str) -> None:
    figure = FIGURES[name]()
    assert picture(figure, "svg") == picture(figure, "svg")
    assert picture(figure, "png", width="double").startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: frontier(ROWS, "users", "tpot_s", better=USERS), "users: no such column"),
        (lambda: frontier(pd.DataFrame(ROWS), "tpot_s", "ms", better=USERS), "ms: no such column"),
        (lambda: frontier(ROWS, "tpot_s", "tp_size", better=("up", "less")), "'more' or 'less' for x and"),
        (lambda: frontier(ROWS[4:], "tpot_s", "tp_size", better=USERS), "no row has both"),
        (lambda: frontier(ROWS, "attention", "tp_size", better=USERS), "no row has both"),
        (lambda: heat_map(ROWS, "tp_size", "attention", "tpot_s", better="up"), "'more', 'less' or None"),
        (lambda: heat_map(ROWS[4:], "tp_size", "attention", "tpot_s"), "no row has it"),
        (lambda: tornado([], outcome="tpot_s", base=1.0), "at least one constant"),
        (lambda: tornado([{"name": "a", "low": 1.0}], outcome="tpot_s", base=1.0), "lacks high"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_one_line(draw: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        draw()
