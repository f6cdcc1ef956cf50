"""Figures as PNG, SVG or PDF, drawn by matplotlib at column width and the same on every run.

Everything is told apart by marker, dash or hatch as well as by colour, so that grey prints work.
Text is drawn as written: no mathtext.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import UsageError, one_line
from lrkv_plan.report.axes import draw_axes
from lrkv_plan.report.figures import Figure, Panel
from lrkv_plan.report.labels import KEYED, key_columns, place_labels, reserve
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
_KEY_LINE_IN = 0.16
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
        # names so long that no room is left for the axes: they stay where they are by default
        warnings.filterwarnings("ignore", message="constrained_layout not applied")
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
    sheet: Any = Sheet(figsize=(width_in, 9), dpi=DPI, facecolor="white", layout="constrained")
    FigureCanvasAgg(sheet)
    inner = width_in - 2 * _MARGIN_IN
    title = _wrapped(sheet, figure.title, TITLE_SIZE, inner, weight="bold")
    caption = _wrapped(sheet, figure.caption, CAPTION_SIZE, inner)
    heads = [_panel_head(sheet, panel, inner / n_columns - 0.3) for panel in figure.panels]
    key_lines = max(_key_lines(panel, inner / n_columns - 0.3) for panel in figure.panels)
    above_in = _LINE_IN * max(map(len, heads)) + _KEY_LINE_IN * key_lines
    row_in = _axes_height(figure, width, n_rows) + above_in + 0.46  # below: ticks, the x label
    sheet.set_size_inches(
        width_in, 0.14 * len(title) + _CAPTION_LINE_IN * len(caption) + n_rows * row_in + 0.12
    )
    left = _MARGIN_IN / width_in
    sheet.suptitle(
        "\n".join(title), x=left, ha="left", fontsize=TITLE_SIZE, fontweight="bold", color=INK
    )
    sheet.supxlabel("\n".join(caption), x=left, ha="left", fontsize=CAPTION_SIZE, color=INK)
    sheet.get_layout_engine().set(w_pad=_MARGIN_IN, h_pad=_MARGIN_IN, wspace=0.02, hspace=0.02)
    panels = []
    for index, (panel, head) in enumerate(zip(figure.panels, heads, strict=True)):
        axes = sheet.add_subplot(n_rows, n_columns, index + 1)
        draw_series(axes, panel)
        draw_axes(axes, panel, n_rows, n_columns)
        if head:
            above = 4 + 72 * _KEY_LINE_IN * _key_lines(panel, inner / n_columns - 0.3)
            axes.set_title("\n".join(head), loc="left", fontsize=LABEL_SIZE, color=INK, pad=above)
        reserved = reserve(axes, panel)
        for text in reserved:  # a longer name than half the column may cover something
            text.set_in_layout(text.get_window_extent().width < 0.5 * inner / n_columns * DPI)
        panels.append((axes, panel, reserved))
    sheet.draw_without_rendering()  # the layout
    sheet.set_layout_engine("none")
    for axes, panel, reserved in panels:
        place_labels(sheet, axes, panel, reserved)
    return sheet


def _axes_height(figure: Figure, width: str, n_rows: int) -> float:
    first = figure.panels[0]
    if first.y.scale == "category":
        bars = len({y for series in first.series for y in series.y})
        return 0.12 + 0.24 * bars
    if width == "double":
        return 2.6 if len(figure.panels) == 1 else 1.7
    return 2.1 if n_rows == 1 else 1.3


def _key_lines(panel: Panel, width_in: float) -> int:
    names = {s.label or s.name for s in panel.series if s.role in KEYED}
    return -(-len(names) // key_columns(panel, width_in))


def _panel_head(sheet: Canvas, panel: Panel, width_in: float) -> list[str]:
    """Lines above a panel: its title and what its y axis shows."""
    texts = [panel.title, panel.y.label]
    return [line for text in texts if text for line in _wrapped(sheet, text, LABEL_SIZE, width_in)]


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
