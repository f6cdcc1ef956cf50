"""A report as one HTML page: styles, script, pictures and data inline, nothing from a network.

Every text from a spec is escaped by the template engine; the page's own script is the only one
that its content policy lets run, and it looks values up in embedded data.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import __version__
from lrkv_plan.errors import one_line
from lrkv_plan.report.document import foundations, own_remarks
from lrkv_plan.report.explorer import EQUAL, PLANNED
from lrkv_plan.report.panels import COLORS, FAINT, FILLS, INK, REGION_FILLS, SOFT
from lrkv_plan.report.tables import plain_value
from lrkv_plan.report.verdict import PHRASES, verdict

if TYPE_CHECKING:
    from jinja2 import Environment

    from lrkv_plan.report.document import Document
    from lrkv_plan.report.explorer import GridDesign, Measure, SliderGrid

# Colours of the pictures, as custom properties that the page sets for light and dark.
_PROPERTIES = {
    color.lower(): f"var(--fig-{name})"
    for color, name in (
        ("#ffffff", "paper"), (INK, "ink"), (SOFT, "soft"), (FAINT, "faint"),
        *zip(COLORS, ("black", "blue", "vermillion", "green", "purple", "orange", "sky"),
             strict=True),
        (FILLS[1], "pale"), (FILLS[3], "grey"),
        (REGION_FILLS[0], "plain"), (REGION_FILLS[1], "tint"), ("#7fb5d5", "hatch"),
    )
}  # fmt: skip
_COLOR = re.compile(r"#[0-9a-fA-F]{6}\b")
_COMMENT = re.compile(r"<!--.*?-->\s*", re.DOTALL)
_METADATA = re.compile(r"<metadata>.*?</metadata>\s*", re.DOTALL)
_STYLE = re.compile(r"<style[^>]*>.*?</style>\s*", re.DOTALL)  # it would apply to the whole page
_SIZE = re.compile(r'\b(width|height)="([0-9.]+)pt"')


def inline_svg(drawn: bytes, prefix: str) -> str:
    """The ``<svg>`` element alone, its ids prefixed so that several can share a page.

    Parameters
    ----------
    drawn : what ``plots.picture`` gives for svg: all text is drawn as paths.
    prefix : letters and hyphens; unique on the page.
    """
    text = drawn.decode()
    text = text[text.index("<svg") :]
    text = _STYLE.sub("", _METADATA.sub("", _COMMENT.sub("", text)))
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r'href="#', f'href="#{prefix}-', text)
    text = text.replace("url(#", f"url(#{prefix}-")
    text = text.replace(' xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    text = text.replace("xlink:href", "href")
    text = _COLOR.sub(lambda found: _PROPERTIES.get(found[0].lower(), found[0]), text)
    head, closing, rest = text.partition(">")
    head = _SIZE.sub("", head) + ' aria-hidden="true" focusable="false"'
    return "\n".join(line.rstrip() for line in (head + closing + rest).strip().splitlines())


_TEMPLATES = Path(__file__).parent / "templates"
_LONGEST_TEXT = 4_000
ABSENT = "-"


def to_html(document: Document, drawn: Mapping[str, bytes]) -> str:
    """The page.

    Parameters
    ----------
    drawn : SVG of each part with a picture, by the part's key.
    """
    from markupsafe import Markup

    script = (_TEMPLATES / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    grid = document.grid
    text: str = (
        _environment()
        .get_template("report.html")
        .render(
            document=document,
            version=__version__,
            style=Markup((_TEMPLATES / "report.css").read_text(encoding="utf-8")),  # noqa: S704
            script=Markup(script),  # noqa: S704
            script_hash=Markup(f"sha256-{digest}"),  # noqa: S704
            svgs={key: Markup(inline_svg(svg, key)) for key, svg in drawn.items()},  # noqa: S704
            remarks={part.key: own_remarks(document, part) for part in document.parts},
            foundations=foundations(document),
            **({} if grid is None else _explorer(grid)),
        )
    )
    return text


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_readable,
    )
    environment.filters["breakable"] = _breakable
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    return environment


def _readable(value: Any) -> Any:
    """Text on one line without control characters; markup as it is."""
    is_text = type(value) is str
    return one_line(value, limit=_LONGEST_TEXT) if is_text else value


def _breakable(text: str) -> Any:
    """Escaped text that may go on to another line after a comma, as long design names must."""
    from markupsafe import Markup, escape

    safe = escape(one_line(text, limit=_LONGEST_TEXT))
    return Markup(re.sub(r",(?=[a-z])", ",<wbr>", safe))  # noqa: S704


NEEDS_FIT = ("step_s", "step_band")  # shown only where the batch fits


def _explorer(grid: SliderGrid) -> dict[str, Any]:
    """What the template needs of the grid."""
    lines: dict[str, GridDesign] = {}
    for design in grid.designs:
        lines.setdefault(design.line, design)
    return {
        "grid_data": _grid_data(grid),
        "grid_refusals": _refusals(grid),
        "grid_lines": list(lines.values()),
        "has_equal": any(one.sets == (EQUAL,) for one in grid.designs),
        "has_users": _is_known(grid, "total_sequences"),
        "has_steps": _is_known(grid, "step_s"),
        "verdict": verdict(grid, grid.start, PLANNED),
        "start_command": start_command(grid),
        "column_chips": {key: n for n, chip in enumerate(grid.chips) for key in chip.columns},
        "needs_fit": NEEDS_FIT,
        "start_text": _start_text,
        "start_value": lambda grid, measure: measure.values[measure.place(grid.start)],
    }


def _is_known(grid: SliderGrid, key: str) -> bool:
    return any(design.measure(key).refused is None for design in grid.designs)


def start_command(grid: SliderGrid) -> str:
    """The command at the sliders' first position, as the script puts it together elsewhere."""
    n = grid.compared[PLANNED]
    other = [] if n is None else ["--attention", _start_text(grid, grid.designs[n].name)]
    point = [
        word
        for axis, flag in zip(
            grid.axes[1:], ("--context-tokens", "--batch-size", "--kv-dtype"), strict=True
        )
        for word in (flag, str(axis.values[axis.start]))
    ]
    return f"{grid.command} {shlex.join([*other, *point])}"


def _grid_data(grid: SliderGrid) -> dict[str, Any]:
    """The grid as the page's script reads it; equal columns of values are stored once."""
    columns: dict[str, int] = {}

    def stored(measure: Measure) -> dict[str, Any]:
        if measure.refused is not None:
            return {"column": None, "refused": measure.refused}
        values = [plain_value(value) for value in measure.values]
        text = json.dumps({"values": values, "texts": list(map(one_line, measure.texts))})
        return {
            "strides": list(measure.strides),
            "column": columns.setdefault(text, len(columns)),
        }

    designs = [
        {
            "line": design.line,
            "style": design.style,
            "sets": list(design.sets),
            "covered": design.is_covered,
            "measures": {one.key: stored(one) for one in (design.name, *design.measures)},
        }
        for design in grid.designs
    ]
    axes = [
        {
            "key": axis.key, "fragment": axis.fragment, "values": list(axis.values),
            "texts": list(axis.texts), "ticks": list(axis.ticks), "start": axis.start,
        }
        for axis in grid.axes
    ]  # fmt: skip
    return {
        "axes": axes,
        "designs": designs,
        "columns": [json.loads(text) for text in columns],
        "compared": dict(grid.compared),
        "phrases": dict(PHRASES),
        "where": one_line(grid.where),
        "command": grid.command,
    }


def _start_text(grid: SliderGrid, measure: Measure, design: GridDesign | None = None) -> str:
    """The text at the sliders' first position; none for a time at a batch that does not fit."""
    if measure.refused is not None:
        return ABSENT
    if design is not None and measure.key in NEEDS_FIT:
        fits = design.measure("batch_fits")
        if fits.refused is None and not fits.values[fits.place(grid.start)]:
            return ABSENT
    return measure.texts[measure.place(grid.start)]


def _refusals(grid: SliderGrid) -> list[str]:
    """Why measures are absent, a line per reason; designs are named unless all are meant."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for design in grid.designs:
        for measure in design.columns:
            if measure.refused is not None:
                titles, roles = found.setdefault(measure.refused, ({}, {}))
                titles[measure.title] = roles[design.role] = None
    n_roles = len({design.role for design in grid.designs})
    return [
        f"{', '.join(titles)}"
        + (f" of {', '.join(roles)}" if len(roles) < n_roles else "")
        + f": {reason}"
        for reason, (titles, roles) in found.items()
    ]
