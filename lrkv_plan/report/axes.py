"""Axes of a picture: colours that survive colour blindness, scales, ticks and their texts."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import one_line
from lrkv_plan.report.figures import Axis, Panel, Role

if TYPE_CHECKING:
    Canvas = Any  # matplotlib's objects; it is imported only when something is drawn
from lrkv_plan.report.panels import (
    FAINT,
    INK,
    LABEL_SIZE,
    SOFT,
    TICK_SIZE,
    broken,
    categories,
    drawn_value,
)


def draw_axes(axes: Any, panel: Panel, n_rows: int, n_columns: int) -> None:
    """Limits, ticks and guide lines."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_linewidth(0.6)
        axes.spines[side].set_color(SOFT)
    axes.tick_params(labelsize=TICK_SIZE, width=0.6, length=2.5, color=SOFT, labelcolor=INK, pad=2)
    axes.minorticks_off()
    sheet_width, sheet_height = axes.figure.get_size_inches()
    has_cells = any(s.role is Role.CELLS for s in panel.series)
    if panel.x.scale == "category":
        _name_columns(axes, panel, sheet_width / n_columns - 1.2)
    else:
        _set_axis(axes, "x", panel.x, int((sheet_width / n_columns - 0.5) / 0.3))
    if panel.y.scale == "category":
        axes.tick_params(axis="y", length=0)
        axes.invert_yaxis()
    else:
        most = min(8, int((sheet_height / n_rows - 0.8) / 0.22))
        _set_axis(axes, "y", panel.y, most)
    axes.set_xlabel(one_line(panel.x.label), fontsize=LABEL_SIZE, color=INK, labelpad=2)
    if has_cells:
        _draw_shades(axes, panel)
    has_region = any(s.role is Role.REGION for s in panel.series)
    if not has_region and panel.y.scale != "category":
        axes.grid(visible=True, axis="y", color=FAINT, linewidth=0.5, zorder=0)
        axes.set_axisbelow(True)
    for guide in panel.guides:
        axis = panel.x if guide.axis == "x" else panel.y
        line = axes.axvline if guide.axis == "x" else axes.axhline
        at = drawn_value(guide.value, axis)
        line(at, color=SOFT, linewidth=0.8, linestyle=(0, (4, 2)), zorder=1.5)


def _name_columns(axes: Any, panel: Panel, width_in: float) -> None:
    """Names under columns, aslant where they are too wide, and not all where they are too many."""
    names = categories(panel, "x")
    column_in = width_in / len(names)
    is_wide = 0.055 * max(map(len, names)) > column_in
    stride = max(1, math.ceil((0.16 if is_wide else 0.0) / column_in))
    slant: Any = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if is_wide else {}
    axes.set_xticks(range(0, len(names), stride), [broken(n) for n in names[::stride]], **slant)
    axes.set_xlim(-0.5, len(names) - 0.5)
    axes.tick_params(axis="x", length=0)


def _draw_shades(axes: Any, panel: Panel) -> None:
    """The key of a panel's cells beside it, with ticks as on an axis."""
    assert panel.value is not None, "cells have values"
    for spine in axes.spines.values():
        spine.set_visible(False)
    (mesh,) = axes.collections
    key = axes.figure.colorbar(mesh, ax=axes, fraction=0.06, pad=0.02, aspect=16)
    key.outline.set_visible(False)
    key.minorticks_off()
    low, high = mesh.norm.vmin, mesh.norm.vmax
    ticks = _ticks(panel.value, low, high, 7)
    decimals = max((_decimals(tick) for tick in ticks), default=0)
    key.set_ticks(ticks, labels=[tick_text(t, panel.value.scale, decimals) for t in ticks])
    key.ax.tick_params(
        labelsize=TICK_SIZE, width=0.6, length=2.5, color=SOFT, labelcolor=INK, pad=2
    )


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
