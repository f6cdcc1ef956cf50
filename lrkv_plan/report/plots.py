"""Figures as PNG, SVG or PDF, drawn by matplotlib at column width and the same on every run.

Everything is told apart by marker, dash or hatch as well as by colour, so that grey prints work.
Text is drawn as written: no mathtext.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import UsageError, one_line
from lrkv_plan.report.axes import draw_axes
from lrkv_plan.report.figures import Figure, Panel, Role
from lrkv_plan.report.labels import end_label_width, place_labels
from lrkv_plan.report.panels import (
    CAPTION_SIZE,
    INK,
    LABEL_SIZE,
    TITLE_SIZE,
    draw_series,
    text_size,
)

if TYPE_CHECKING:
    Canvas = Any  # matplotlib's objects; it is imported only when something is drawn


SUFFIXES = ("png", "svg", "pdf")
WIDTHS_IN = {"single": 3.4, "double": 7.0}
DPI = 200
_MARGIN_IN = 0.06
_LINE_IN = 0.125  # a line of label text
_CAPTION_LINE_IN = 0.105
_METADATA = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "ModDate": None, "Creator": None, "Producer": None},
}
_STYLE: dict[str, Any] = {
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "DejaVu Sans",
    "font.size": LABEL_SIZE,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "lrkv-plan",
    "svg.fonttype": "path",
    "axes.unicode_minus": False,
    "path.simplify": True,
}


def picture(figure: Figure, suffix: str, *, width: str = "single") -> bytes:
    """The figure as the bytes of a file.

    Parameters
    ----------
    suffix : png, svg or pdf.
    width : single (3.4 inches) or double (7 inches).

    Raises
    ------
    UsageError
        If the suffix or the width is none of these.
    """
    check_suffix(suffix)
    if width not in WIDTHS_IN:
        raise UsageError(f"--width {width}: one of {', '.join(WIDTHS_IN)}")
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # a person's matplotlibrc does not change the picture
        settings: Any = matplotlib.rcParams
        settings.update(_STYLE)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        canvas = drawn(figure, width)
        canvas.savefig(buffer, format=suffix, dpi=DPI, metadata=_METADATA[suffix])
    return buffer.getvalue()


def check_suffix(suffix: str) -> None:
    """Raise ``UsageError`` unless a picture can have this suffix."""
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{'.' + suffix if suffix else 'no suffix'}: a picture ends in one of "
            f"{', '.join(SUFFIXES)}; for the plotted series give --format json or csv"
        )


def drawn(figure: Figure, width: str) -> Canvas:
    """The figure as a matplotlib figure of its final size, under the caller's settings."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Sheet

    width_in = WIDTHS_IN[width]
    n_columns = (figure.columns or len(figure.panels)) if width == "double" else 1
    n_rows = -(-len(figure.panels) // n_columns)
    sheet: Any = Sheet(figsize=(width_in, width_in), dpi=DPI, facecolor="white")
    FigureCanvasAgg(sheet)
    inner = width_in - 2 * _MARGIN_IN
    title = _wrapped(sheet, figure.title, TITLE_SIZE, inner, weight="bold")
    caption = _wrapped(sheet, figure.caption, CAPTION_SIZE, inner)
    heads = [_panel_head(sheet, panel, inner / n_columns - 0.1) for panel in figure.panels]
    head_lines = max(len(lines) for lines in heads)
    head_in = _LINE_IN * head_lines + 0.06 if head_lines else 0.0
    key_in = 0.16 if any(s.role is Role.STACK for p in figure.panels for s in p.series) else 0.0
    axes_in = _axes_height(figure, width, n_rows)
    top_in = _MARGIN_IN + 0.14 * len(title) + 0.05
    foot_in = 0.36  # tick labels and the x label
    bottom_in = _MARGIN_IN + _CAPTION_LINE_IN * len(caption) + 0.05
    row_in = head_in + key_in + axes_in + foot_in
    height_in = top_in + n_rows * row_in + bottom_in
    sheet.set_size_inches(width_in, height_in)
    _write(sheet, title, _MARGIN_IN, height_in - _MARGIN_IN, TITLE_SIZE, 0.14, weight="bold")
    _write(sheet, caption, _MARGIN_IN, bottom_in - 0.05, CAPTION_SIZE, _CAPTION_LINE_IN)

    column_in = inner / n_columns
    for index, (panel, head) in enumerate(zip(figure.panels, heads, strict=True)):
        row, column = divmod(index, n_columns)
        left_in = _MARGIN_IN + column * column_in
        base_in = height_in - top_in - (row + 1) * row_in + foot_in
        axes = sheet.add_axes((0.2, 0.2, 0.6, 0.6))
        _fit(sheet, axes, panel, (left_in, base_in, column_in, axes_in))
        _write(sheet, head, left_in, base_in + axes_in + key_in + head_in, LABEL_SIZE, _LINE_IN)
    return sheet


def _fit(
    sheet: Canvas, axes: Any, panel: Panel, place_in: tuple[float, float, float, float]
) -> None:
    """Draw a panel so that tick labels and names at line ends stay inside its column."""
    width_in, height_in = sheet.get_size_inches()
    left, base, column, tall = place_in
    named = end_label_width(sheet, panel) / DPI
    tick_width = 0.3

    def put(ticks_in: float) -> None:
        across = column - ticks_in - max(named, 0.1) - 0.06
        axes.set_position(
            ((left + ticks_in + 0.03) / width_in, base / height_in,
             max(0.5, across) / width_in, tall / height_in)
        )  # fmt: skip

    put(tick_width)
    draw_series(axes, panel)
    draw_axes(axes, panel)
    renderer = sheet.canvas.get_renderer()
    boxes = [
        label.get_window_extent(renderer) for label in axes.get_yticklabels() if label.get_text()
    ]
    put(max((box.width for box in boxes), default=0.0) / DPI + 0.07)
    room = (left * DPI, (left + column) * DPI)
    place_labels(sheet, axes, panel, room)


def _axes_height(figure: Figure, width: str, n_rows: int) -> float:
    first = figure.panels[0]
    if first.y.scale == "category":
        bars = len({y for series in first.series for y in series.y})
        return 0.12 + 0.24 * bars
    if width == "double":
        return 2.6 if len(figure.panels) == 1 else 1.7
    return 2.1 if n_rows == 1 else 1.3


def _panel_head(sheet: Canvas, panel: Panel, width_in: float) -> list[str]:
    """Lines above a panel: its title and what its y axis shows."""
    texts = [panel.title, panel.y.label]
    return [line for text in texts if text for line in _wrapped(sheet, text, LABEL_SIZE, width_in)]


def _write(
    sheet: Canvas,
    lines: Sequence[str],
    left_in: float,
    top_in: float,
    size: float,
    line_in: float,
    weight: str = "normal",
) -> None:
    width_in, height_in = sheet.get_size_inches()
    for index, line in enumerate(lines):
        sheet.text(
            left_in / width_in, (top_in - index * line_in) / height_in, line,
            ha="left", va="top", fontsize=size, fontweight=weight, color=INK,
        )  # fmt: skip


def _wrapped(
    sheet: Canvas, text: str, size: float, width_in: float, weight: str = "normal"
) -> list[str]:
    """The text in lines of at most that width; a longer word stands alone."""
    lines: list[str] = []
    for word in one_line(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_size(sheet, longer, size, weight)[0] <= width_in * DPI:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines
