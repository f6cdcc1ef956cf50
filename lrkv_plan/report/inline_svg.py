"""A drawn SVG as part of a page: ids of its own, no header, the page's colours."""

from __future__ import annotations

import re

from lrkv_plan.report.panels import COLORS, FAINT, FILLS, INK, REGION_FILLS, SOFT

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
