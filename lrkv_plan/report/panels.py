"""One pair of axes: series drawn by their role, ticks as plain numbers, guide lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lrkv_plan.errors import one_line
from lrkv_plan.report.figures import Axis, Panel, Role, Series

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


def draw_axes(axes: Any, panel: Panel) -> None:
    """Limits, ticks and guide lines."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_linewidth(0.6)
        axes.spines[side].set_color(SOFT)
    axes.tick_params(labelsize=TICK_SIZE, width=0.6, length=2.5, color=SOFT, labelcolor=INK, pad=2)
    axes.minorticks_off()
    box = axes.get_position()
    sheet_width, sheet_height = axes.figure.get_size_inches()
    _set_axis(axes, "x", panel.x, int(box.width * sheet_width / 0.3))
    if panel.y.scale == "category":
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
    else:
        most = min(8, int(box.height * sheet_height / 0.22))
        _set_axis(axes, "y", panel.y, most)
    axes.set_xlabel(one_line(panel.x.label), fontsize=LABEL_SIZE, color=INK, labelpad=2)
    has_region = any(s.role is Role.REGION for s in panel.series)
    if not has_region and panel.y.scale != "category":
        axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.5, zorder=0)
        axes.set_axisbelow(True)
    for guide in panel.guides:
        axis = panel.x if guide.axis == "x" else panel.y
        line = axes.axvline if guide.axis == "x" else axes.axhline
        at = drawn_value(guide.value, axis)
        line(at, color=SOFT, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)


def _set_axis(axes: Any, which: str, axis: Axis, most: int) -> None:
    from matplotlib.ticker import FixedLocator, NullFormatter, NullLocator

    if axis.scale in ("log2", "log10"):
        axes.set(**{f"{which}scale": "log"})
    low, high = getattr(axes, f"get_{which}lim")()
    if axis.scale == "linear":  # markers and names keep clear of the frame
        low, high = low - 0.04 * (high - low), high + 0.04 * (high - low)
    low = low if axis.low is None else axis.low * axis.factor
    high = high if axis.high is None else axis.high * axis.factor
    if axis.scale in ("log2", "log10") and not 0 < low < high:
        low, high = 1.0, 10.0  # nothing that a logarithmic axis can show
    axes.set(**{f"{which}lim": (low, high)})
    handle = getattr(axes, f"{which}axis")
    ticks = _ticks(axis, low, high, most)
    handle.set_major_locator(FixedLocator(ticks))
    handle.set_minor_locator(NullLocator())
    handle.set_minor_formatter(NullFormatter())
    decimals = max((_decimals(tick) for tick in ticks), default=0)
    handle.set_major_formatter(lambda value, _: tick_text(value, axis.scale, decimals))


def _ticks(axis: Axis, low: float, high: float, most: int) -> list[float]:
    if axis.scale == "log2":
        first, last = math.ceil(math.log2(low) - 1e-9), math.floor(math.log2(high) + 1e-9)
        stride = max(1, -(-(last - first) // most))
        return [2.0**power for power in range(first, last + 1, stride)]
    if axis.scale == "log10":
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        steps = (1,) if last - first > 3 else (1, 3) if last - first > 2 else (1, 2, 5)
        wide = max(1, -(-(last - first) // most))
        found = [m * 10.0**p for p in range(first, last + 1, wide) for m in steps]
        return [value for value in found if low * 0.999 <= value <= high * 1.001]
    if axis.step is not None:
        step = axis.step * axis.factor
        while (high - low) / step > most:
            step *= 2
        n_ticks = int((high - low) / step + 1e-9) + 1
        return [low + index * step for index in range(n_ticks)]
    from matplotlib.ticker import MaxNLocator

    locator: Any = MaxNLocator(nbins=most - 1, steps=[1, 2, 2.5, 5, 10])
    slack = 1e-9 * (high - low)
    return [
        float(value)
        for value in locator.tick_values(low, high)
        if low - slack <= value <= high + slack
    ]


def tick_text(value: float, scale: str, decimals: int = 0) -> str:
    """A tick as plain text: powers of two as 8k and 1M, others with thousands separators.

    ``decimals`` are those of the whole linear axis; a logarithmic one shows what each value needs.

    Examples
    --------
    >>> tick_text(131072, "log2"), tick_text(10000, "log10"), tick_text(2.4, "linear", 2)
    ('128k', '10,000', '2.40')
    """
    if scale == "log2" and value >= 1024:
        for size, suffix in ((2**30, "G"), (2**20, "M"), (2**10, "k")):
            if value >= size:
                return f"{value / size:g}{suffix}"
    return f"{value:,.{decimals if scale == 'linear' else _decimals(value)}f}"


def _decimals(value: float) -> int:
    """Decimals that show a tick without loss, at most six."""
    return len(f"{abs(value):.6f}".rstrip("0").partition(".")[2])


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
        names = list(dict.fromkeys(str(y) for series in panel.series for y in series.y))
        axes.set_yticks(range(len(names)), [broken(name) for name in names])
        axes.set_ylim(-0.55, len(names) - 0.45)
    for series in panel.series:
        drawers[series.role](axes, panel, series)


def positions(panel: Panel, series: Series) -> tuple[list[float], list[float]]:
    """Drawn coordinates of a series; what a log axis cannot show is NaN."""

    def on(values: Sequence[Any], axis: Axis) -> list[float]:
        found = [drawn_value(value, axis) for value in values]
        if axis.scale in ("log2", "log10"):
            return [value if value > 0 else math.nan for value in found]
        return found

    return on(series.x, panel.x), on(series.y, panel.y)


def _line(axes: Any, panel: Panel, series: Series) -> None:
    x, y = positions(panel, series)
    style = series.style % len(COLORS)
    few = len(x) <= 12
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
    names = list(dict.fromkeys(str(y) for one in panel.series for y in one.y))
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
    names = list(dict.fromkeys(str(y) for one in panel.series for y in one.y))
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
