"""Values and a key on panels whose rows are categories."""

from __future__ import annotations

from typing import Any

from lrkv_plan.errors import one_line
from lrkv_plan.report.figures import Panel, Role
from lrkv_plan.report.panels import (
    GAP_POINTS,
    INK,
    LABEL_SIZE,
    TICK_SIZE,
    categories,
    drawn_value,
    positions,
)


def bar_texts(axes: Any, panel: Panel) -> None:
    """Values after the whiskers of bars, and before single points."""
    names = categories(panel)
    for series in panel.series:
        if series.role is Role.POINTS:  # before the point: limits stand after it
            for x, y, text in zip(*positions(panel, series), series.texts, strict=True):
                axes.annotate(
                    one_line(text), (x, y), xytext=(-1.3 * GAP_POINTS, 0), va="center", ha="right",
                    textcoords="offset points", fontsize=LABEL_SIZE, color=INK,
                )  # fmt: skip
        if series.role is not Role.BAND:
            continue
        for high, y, text in zip(series.high, series.y, series.texts, strict=True):
            axes.annotate(
                one_line(text), (drawn_value(high, panel.x), names.index(str(y))),
                xytext=(GAP_POINTS, 0), textcoords="offset points", va="center",
                fontsize=LABEL_SIZE, color=INK, annotation_clip=False,
            )  # fmt: skip


def bar_key(sheet: Any, axes: Any, left: float) -> None:
    """What the parts of the bars are, in one row over them that starts at the picture's edge."""
    if not any(axes.get_legend_handles_labels()):
        return
    frame = axes.get_window_extent(sheet.canvas.get_renderer())
    axes.legend(
        ncols=4, loc="lower left", bbox_transform=sheet.transFigure,
        bbox_to_anchor=(left / sheet.bbox.width, (frame.y1 + 4) / sheet.bbox.height),
        frameon=False, borderpad=0, borderaxespad=0, fontsize=TICK_SIZE, handlelength=1.1,
        handleheight=0.8, handletextpad=0.4, columnspacing=0.9,
    )  # fmt: skip
