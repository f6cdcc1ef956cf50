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


SWING_FILLS, SWING_HATCHES = ("#9fd3f2", "#E69F00"), ("", "////")


CELL_COLORS = "cividis"  # even steps of lightness for all eyes, and in grey


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
        Role.BAND: _band, Role.REGION: _region, Role.BOUNDARY: _boundary, Role.CLOUD: _cloud,
        Role.KEYED: _points, Role.STEPS_AFTER: _steps, Role.STEPS_BEFORE: _steps,
        Role.CELLS: _cells, Role.SWING: _swing,
    }  # fmt: skip
    if panel.y.scale == "category":
        names = categories(panel)
        axes.set_yticks(range(len(names)), [broken(name) for name in names])
        beyond = 0.5 if panel.value is not None else 0.55
        axes.set_ylim(-beyond, len(names) - 1 + beyond)
    for series in panel.series:
        drawers[series.role](axes, panel, series)


def categories(panel: Panel, which: str = "y") -> list[str]:
    """Names along a category axis, in order of first use."""
    return list(dict.fromkeys(str(at) for s in panel.series for at in getattr(s, which)))


def positions(panel: Panel, series: Series) -> tuple[list[float], list[float]]:
    """Drawn coordinates of a series; what a log axis cannot show is NaN."""

    def on(values: Sequence[Any], axis: Axis) -> list[float]:
        if axis.scale == "category":
            names = categories(panel, "x" if axis is panel.x else "y")
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
        label=one_line(series.label or series.name) if series.role is Role.KEYED else None,
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


def _cloud(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    color = SOFT if series.is_open else COLORS[series.style % len(COLORS)]
    few = len(x) <= 300
    axes.plot(
        x, y, linestyle="none", marker="o", markersize=2.4 if few else 1.6, markeredgewidth=0,
        color=color, alpha=0.5 if few else 0.4, zorder=1.2, rasterized=not few,
    )  # fmt: skip


def _steps(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    where = "post" if series.role is Role.STEPS_AFTER else "pre"
    axes.step(x, y, where=where, color=INK, linewidth=0.9, zorder=2.5)


def _swing(axes: Any, panel: Panel, series: Series) -> None:
    names, base = categories(panel), drawn_value(series.origin, panel.x)
    style = series.style % len(SWING_FILLS)
    widths = [drawn_value(x, panel.x) - base for x in series.x]
    bars = axes.barh(
        [names.index(str(y)) for y in series.y], widths, left=base, height=0.62,
        color=SWING_FILLS[style], hatch=SWING_HATCHES[style],
        edgecolor=INK, linewidth=0.4, label=one_line(series.label or series.name), zorder=2,
    )  # fmt: skip
    widest = max(map(abs, widths)) or 1.0
    for bar, width in zip(bars, widths, strict=True):  # a shorter one to the same side stays seen
        bar.set_zorder(2.5 - 0.5 * abs(width) / widest)


def _cells(axes: Any, panel: Panel, series: Series) -> None:
    """Shades that grow lighter with the value; hatched where there is none."""
    from matplotlib.colors import LogNorm, Normalize

    assert panel.value is not None, "cells have values"
    columns, rows = categories(panel, "x"), categories(panel)
    shades = [[math.nan] * len(columns) for _ in rows]
    for x, y, value in zip(series.x, series.y, series.values, strict=True):
        shades[rows.index(str(y))][columns.index(str(x))] = drawn_value(value, panel.value)
    known = [value for row in shades for value in row if not math.isnan(value)]
    low, high = min(known), max(known)
    if low == high:
        low, high = (low / 2, high * 2) if low > 0 else (low - 1, high + 1)
    norm = (LogNorm if panel.value.scale.startswith("log") else Normalize)(low, high)
    axes.set_facecolor(FAINT)
    axes.patch.set(hatch="////", edgecolor=SOFT)
    edges = [[at - 0.5 for at in range(len(names) + 1)] for names in (columns, rows)]
    axes.pcolormesh(
        *edges, shades, cmap=CELL_COLORS, norm=norm, edgecolors="white", linewidth=0.4, zorder=1
    )
