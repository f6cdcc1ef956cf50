"""A report as one HTML page: styles, script, pictures and data inline, nothing from a network.

Every text from a spec is escaped by the template engine; the page's own script is the only one
that its content policy lets run, and it looks values up in embedded data.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import __version__
from lrkv_plan.errors import one_line
from lrkv_plan.report.document import foundations, own_remarks
from lrkv_plan.report.panels import COLORS, FAINT, FILLS, INK, REGION_FILLS, SOFT
from lrkv_plan.report.tables import plain_value

if TYPE_CHECKING:
    from jinja2 import Environment

    from lrkv_plan.report.document import Document
    from lrkv_plan.report.explorer import Measure, SliderGrid

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
            grid_data=None if grid is None else _grid_data(grid),
            grid_refusals=[] if grid is None else _refusals(grid),
            start_text=_start_text,
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


def _grid_data(grid: SliderGrid) -> dict[str, Any]:
    """The grid as the page's script reads it; equal columns of values are stored once."""
    columns: list[dict[str, list[Any]]] = []

    def stored(measure: Measure) -> int | None:
        if measure.refused is not None:
            return None
        values = [plain_value(value) for value in measure.values]
        column = {"values": values, "texts": list(measure.texts)}
        if column not in columns:
            columns.append(column)
        return columns.index(column)

    designs = [
        {
            "names": [one_line(name) for name in design.names],
            "measures": [
                {"key": m.key, "strides": list(m.strides), "column": stored(m)}
                for m in design.measures
            ],
        }
        for design in grid.designs
    ]
    axes = [
        {"key": axis.key, "values": list(axis.values), "texts": list(axis.texts)}
        for axis in grid.axes
    ]
    return {"axes": axes, "designs": designs, "columns": columns}


def _start_text(grid: SliderGrid, measure: Measure) -> str:
    """The text at the sliders' first position."""
    if measure.refused is not None:
        return ABSENT
    at = sum(s * axis.start for s, axis in zip(measure.strides, grid.axes, strict=True))
    return measure.texts[at]


def _refusals(grid: SliderGrid) -> list[str]:
    """Why measures are absent, a line per reason; designs are named unless all are meant."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for design in grid.designs:
        for measure in design.measures:
            if measure.refused is not None:
                titles, roles = found.setdefault(measure.refused, ({}, {}))
                titles[measure.title] = roles[design.role] = None
    return [
        f"{', '.join(titles)}"
        + (f" of {', '.join(roles)}" if len(roles) < len(grid.designs) else "")
        + f": {reason}"
        for reason, (titles, roles) in found.items()
    ]
