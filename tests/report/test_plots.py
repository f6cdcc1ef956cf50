"""Drawing: the same bytes on every run, told apart in grey, and text drawn as written."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lrkv_plan.errors import UsageError
from lrkv_plan.report import panels
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.labels import Box, Label, places
from lrkv_plan.report.plots import DPI, SUFFIXES, WIDTHS_IN, drawn, picture

LINES = tuple(
    Series(
        name=f"design {k}", role=Role.LINE, x=(1024, 2048, 4096), y=(400 >> k, 200 >> k, 100 >> k),
        style=k, label=f"design {k}",
    )
    for k in range(5)
)  # fmt: skip


def figure(*series: Series, title: str = "A title", **axes: Any) -> Figure:
    x = Axis(key="context_tokens", label="Context, tokens", scale=axes.get("x_scale", "log2"))
    y = Axis(key="total_sequences", label="Sequences", scale=axes.get("y_scale", "log10"))
    panel = Panel(name="p", x=x, y=y, series=series, guides=axes.get("guides", ()))
    return Figure(kind="k", title=title, caption=title, inputs={}, panels=(panel,))


@pytest.mark.parametrize("width", WIDTHS_IN)
def test_each_suffix_gives_its_kind_of_file(width: str) -> None:
    starts = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for suffix in SUFFIXES:
        assert picture(figure(*LINES), suffix, width=width).startswith(starts[suffix])


@pytest.mark.parametrize("width", WIDTHS_IN)
def test_a_png_is_a_column_wide(width: str) -> None:
    pixels = struct.unpack(">I", picture(figure(*LINES), "png", width=width)[16:20])[0]
    assert pixels == round(WIDTHS_IN[width] * DPI)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_same_figure_gives_the_same_bytes(suffix: str) -> None:
    assert picture(figure(*LINES), suffix) == picture(figure(*LINES), suffix)


def test_two_processes_give_the_same_svg(tmp_path: Path) -> None:
    def run(name: str) -> bytes:
        path = tmp_path / name
        command = ["plot", "cache-vs-rank", "lrkv-paper-2.5b", "--budget", "50%", "-o", str(path)]
        subprocess.run([sys.executable, "-m", "lrkv_plan", *command], check=True)
        return path.read_bytes()

    one = run("one.svg")
    assert one == run("two.svg")
    assert b"2026" not in one.split(b"</metadata>")[0].split(b"<defs>")[0]


def test_a_matplotlibrc_does_not_change_the_picture() -> None:
    import matplotlib

    plain = picture(figure(*LINES), "svg")
    with matplotlib.rc_context({"lines.linewidth": 9, "font.size": 30}):
        assert picture(figure(*LINES), "svg") == plain
        assert matplotlib.rcParams["font.size"] == 30


def test_styles_differ_without_colour() -> None:
    assert len(set(panels.MARKERS)) == len(panels.MARKERS) == len(panels.COLORS)
    assert len(set(panels.DASHES)) == len(panels.DASHES) == len(panels.COLORS)
    sheet = drawn(figure(*LINES), "single")
    lines = [line for line in sheet.axes[0].get_lines() if line.get_marker() not in ("None", None)]
    looks = {(str(line._unscaled_dash_pattern), line.get_marker()) for line in lines}
    assert len(looks) == len(LINES)
    assert len(set(zip(panels.FILLS, panels.HATCHES, strict=True))) == 4
    assert len(set(panels.REGION_HATCHES)) == 2


def test_stacked_fills_differ_in_grey() -> None:
    def grey(color: str) -> float:
        red, green, blue = (int(color[k : k + 2], 16) for k in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    shades = [grey(color) for color in panels.FILLS]
    for (one, left), (other, right) in zip(
        zip(shades, panels.HATCHES, strict=True),
        list(zip(shades, panels.HATCHES, strict=True))[1:],
        strict=False,
    ):
        assert abs(one - other) > 25 or left != right


@pytest.mark.parametrize(
    "name",
    ["$x_{", "$x_{$", r"$\frac{1}{2}$", "<b>&amp;</b>", "a\x1b[31m\nb", r"\textbf{x}", "_^%#"],
)
def test_hostile_text_is_drawn_as_written(name: str) -> None:
    hostile = Series(
        name=name, role=Role.LINE, x=(1, 2), y=(1, 2), label=name,
    )  # fmt: skip
    point = Series(name=name, role=Role.POINTS, x=(1.5,), y=(1.5,), texts=(name,), style=1)
    guide = Guide(name=name, axis="y", value=1.2, label=name)
    told = figure(hostile, point, title=name, x_scale="linear", y_scale="linear", guides=(guide,))
    for suffix in SUFFIXES:
        assert picture(told, suffix)
    svg = picture(told, "svg").decode()
    assert "<b>" not in svg
    assert "\x1b" not in svg


@pytest.mark.parametrize("width", WIDTHS_IN)
@pytest.mark.parametrize("length", [20, 80, 400])
def test_long_names_leave_room_for_the_axes_without_a_warning(
    length: int, width: str, recwarn: pytest.WarningsRecorder
) -> None:
    name = "x" * length
    line = Series(name=name, role=Role.LINE, x=(1024, 2048), y=(1, 2), label=name)
    sheet = drawn(figure(line, title=name), width)
    assert sheet.axes[0].bbox.width > 0.4 * sheet.bbox.width
    assert not recwarn.list


def test_no_text_is_read_as_mathematics() -> None:
    import matplotlib

    from lrkv_plan.report.plots import _STYLE

    with matplotlib.rc_context(_STYLE):
        told = figure(Series(name="$a$", role=Role.LINE, x=(1, 2), y=(1, 2), label="$a$"))
        texts = drawn(told, "single").texts
        assert "$a$" in [text.get_text() for text in texts]
        assert not any(text.get_parse_math() for text in texts)


def test_values_that_a_log_axis_cannot_show_end_the_line() -> None:
    stops = Series(name="a", role=Role.LINE, x=(1024, 2048, 4096), y=(4, 1, 0), label="a")
    nothing = Series(name="b", role=Role.LINE, x=(1024, 2048), y=(0, 0), label="b")
    for series in ((stops,), (stops, nothing), (nothing,)):
        assert picture(figure(*series), "png")


def test_bars_and_regions_are_drawn() -> None:
    bars = tuple(
        Series(name=part, role=Role.STACK, x=(1.0, 2.0), y=("a", "b"), style=k)
        for k, part in enumerate(("attention", "weights"))
    )
    band = Series(
        name="step", role=Role.BAND, x=(2.0, 4.0), y=("a", "b"), low=(1.5, 3.0), high=(3.0, 6.0),
        texts=("2 ms", "4 ms"),
    )  # fmt: skip
    stacked = figure(*bars, band, x_scale="linear", y_scale="category")
    assert picture(stacked, "png")
    region = Series(
        name="b faster", role=Role.REGION, x=(1, 2, 4), y=(None,) * 3, low=(8, 4, None),
        high=(16, 16, None), style=1, label="b faster",
    )  # fmt: skip
    edge = Series(name="boundary", role=Role.BOUNDARY, x=(1, 2, 4), y=(8, 4, None))
    assert picture(figure(region, edge, y_scale="log2"), "png")


def test_points_stand_on_the_row_of_their_category_with_their_value_before_them() -> None:
    points = [
        Series(name=name, role=Role.POINTS, x=(value,), y=(name,), texts=(f"at {value}",))
        for name, value in (("one", 0.9), ("two", 0.8))
    ]
    axes = drawn(figure(*points, x_scale="linear", y_scale="category"), "single").axes[0]
    markers = [line for line in axes.lines if line.get_marker() == "o"]
    assert [(line.get_xdata()[0], line.get_ydata()[0]) for line in markers] == [(0.9, 0), (0.8, 1)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["one", "two"]
    renderer = axes.figure.canvas.get_renderer()
    for text, line in zip(axes.texts, markers, strict=True):
        at = axes.transData.transform((line.get_xdata()[0], line.get_ydata()[0]))[0]
        assert text.get_window_extent(renderer).x1 < at
    assert axes.get_legend() is None


def test_unknown_suffixes_and_widths_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="png, svg, pdf"):
        picture(figure(*LINES), "gif")
    with pytest.raises(UsageError, match="single, double"):
        picture(figure(*LINES), "png", width="wide")


ROOM = Box(0, 0, 400, 300)
POINTS = st.lists(
    st.tuples(st.floats(50, 350), st.floats(50, 250)), min_size=1, max_size=6, unique=True
)


@settings(deadline=None)
@given(POINTS)
def test_few_labels_stay_in_the_room_and_off_each_other(points: list[tuple[float, float]]) -> None:
    labels = [Label(x, y, 40, 12) for x, y in points]
    boxes = places(labels, points, ROOM, gap=5)
    for index, box in enumerate(boxes):
        assert box.sticks_out(ROOM) == 0
        for other in boxes[:index]:
            assert box.overlap(other) < 1e-6  # of a square pixel: touching edges may round


def test_names_at_line_ends_spread_up_and_down() -> None:
    boxes = places([Label(100, 100, 40, 12, is_end=True) for _ in range(3)], [], ROOM, gap=5)
    assert all(box.left > 100 for box in boxes)
    assert not any(a.overlap(b) for i, a in enumerate(boxes) for b in boxes[:i])
