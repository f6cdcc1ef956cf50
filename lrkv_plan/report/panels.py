"""What one panel draws: lines, points, bars, bands and regions, in colours told apart by all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import one_line
from lrkv_plan.report.figures import Axis, Panel, Role, Series

if TYPE_CHECKING:
    Canvas = Any  # matplotlib's objects; it is imported only when something is drawn


INK, SOFT, FAINT = "#222222", "#6b6b6b", "#e4e4e4"


TITLE_SIZE, LABEL_SIZE, TICK_SIZE, CAPTION_SIZE = 8.0, 7.0, 6.5, 6.0


# Okabe and Ito's palette (jfly.uni-koeln.de/color), dark ones first; each with its own marker,
# dash and hatch.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")


MARKERS = ("o", "s", "^", "D", "v", "P", "X")


DASHES: tuple[Any, ...] = (
    "-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)), (0, (2, 2)),
)  # fmt: skip


FILLS = ("#0072B2", "#9fd3f2", "#E69F00", "#d9d9d9")


HATCHES = ("", "////", "....", "")


REGION_FILLS, REGION_HATCHES = ("#f3f3f3", "#b9ddf2"), ("", "////")


GAP_POINTS = 4.0


def text_size(sheet: Any, text: str, size: float, weight: str = "normal") -> tuple[float, float]:
    """Width and height of a text. [pixels]"""
    drawn = sheet.text(0, 0, text, fontsize=size, fontweight=weight)
    box = drawn.get_window_extent(sheet.canvas.get_renderer())
    drawn.remove()
    return box.width, box.height


def broken(name: str) -> str:
    """A long name on several lines, broken after commas."""
    name = one_line(name, limit=80)
    return name if len(name) <= 16 else name.replace(",", ",\n").replace("; ", ";\n")


def drawn_value(value: Any, axis: Axis) -> float:
    """A value in the axis's own unit; None is NaN, which leaves a gap."""
    return math.nan if value is None else float(value) * axis.factor


def draw_series(axes: Any, panel: Panel) -> None:
    """All series of a panel, in order."""
    drawers = {
        Role.LINE: _line, Role.POINTS: _points, Role.CEILING: _ceiling, Role.STACK: _stack,
        Role.BAND: _band, Role.REGION: _region, Role.BOUNDARY: _boundary,
    }  # fmt: skip
    if panel.y.scale == "category":
        names = categories(panel)
        axes.set_yticks(range(len(names)), [broken(name) for name in names])
        axes.set_ylim(-0.55, len(names) - 0.45)
    for series in panel.series:
        drawers[series.role](axes, panel, series)


def categories(panel: Panel) -> list[str]:
    """Names along a category axis, in order of first use."""
    return list(dict.fromkeys(str(y) for series in panel.series for y in series.y))


def positions(panel: Panel, series: Series) -> tuple[list[float], list[float]]:
    """Drawn coordinates of a series; what a log axis cannot show is NaN."""

    def on(values: Sequence[Any], axis: Axis) -> list[float]:
        if axis.scale == "category":
            names = categories(panel)
            return [float(names.index(str(value))) for value in values]
        found = [drawn_value(value, axis) for value in values]
        if axis.scale in ("log2", "log10"):
            return [value if value > 0 else math.nan for value in found]
        return found

    return on(series.x, panel.x), on(series.y, panel.y)


def _line(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    style = series.style % len(COLORS)
    few = len(x) <= 12
    if series.low:
        low, high = (
            [drawn_value(value, panel.y) for value in ends] for ends in (series.low, series.high)
        )
        axes.fill_between(x, low, high, color=COLORS[style], alpha=0.12, linewidth=0, zorder=1)
    axes.plot(
        x, y, color=COLORS[style], linestyle=DASHES[style],
        linewidth=0.7 if series.is_thin else 1.2,
        marker=MARKERS[style] if few and not series.is_thin else None, markersize=3,
        clip_on=False, zorder=3,
    )  # fmt: skip


def _points(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    style = series.style % len(COLORS)
    axes.plot(
        x, y, linestyle="none", marker=MARKERS[style], markersize=4, color=COLORS[style],
        markerfacecolor="white" if series.is_open else COLORS[style], markeredgewidth=0.9,
        clip_on=False, zorder=4,
    )  # fmt: skip


def _ceiling(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    axes.plot(x, y, color=SOFT, linewidth=1.3, linestyle=DASHES[series.style], zorder=2)


def _stack(axes: Any, panel: Panel, series: Series) -> None:
    names = categories(panel)
    before = panel.series[: panel.series.index(series)]
    starts = {
        name: sum(
            drawn_value(x, panel.x)
            for other in before if other.role is Role.STACK
            for x, y in zip(other.x, other.y, strict=True) if str(y) == name
        )
        for name in names
    }  # fmt: skip
    style = series.style % len(FILLS)
    axes.barh(
        [names.index(str(y)) for y in series.y],
        [drawn_value(x, panel.x) for x in series.x],
        left=[starts[str(y)] for y in series.y],
        height=0.62, color=FILLS[style], hatch=HATCHES[style], edgecolor=INK, linewidth=0.4,
        label=one_line(series.label or series.name), zorder=2,
    )  # fmt: skip


def _band(axes: Any, panel: Panel, series: Series) -> None:
    names = categories(panel)
    for x, y, low, high in zip(series.x, series.y, series.low, series.high, strict=True):
        middle, least, most = (drawn_value(value, panel.x) for value in (x, low, high))
        axes.errorbar(
            [middle], [names.index(str(y))], xerr=[[middle - least], [most - middle]],
            fmt="none", ecolor=INK, elinewidth=0.8, capsize=2, capthick=0.8, zorder=4,
        )  # fmt: skip


def _region(axes: Any, panel: Panel, series: Series) -> None:
    style = series.style % len(REGION_FILLS)
    looks = {
        "facecolor": REGION_FILLS[style], "hatch": REGION_HATCHES[style], "edgecolor": "#7fb5d5",
        "linewidth": 0, "zorder": 0.5 + 0.1 * style,
    }  # fmt: skip
    if style == 0:  # everywhere, under the other design's regions: no seams between columns
        axes.axhspan(drawn_value(panel.y.low, panel.y), drawn_value(panel.y.high, panel.y), **looks)
        return
    x = [drawn_value(value, panel.x) for value in series.x]
    low = [drawn_value(value, panel.y) for value in series.low]
    high = [drawn_value(value, panel.y) for value in series.high]
    axes.fill_between(x, low, high, **looks)


def _boundary(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    looks = {"linewidth": 0.8, "linestyle": (0, (3, 2))} if series.is_thin else {"linewidth": 1.4}
    axes.plot(x, y, color=INK, zorder=3, **looks)
