"""A drawn SVG inside a page: ids of its own, nothing but shapes, colours as properties."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series
from lrkv_plan.report.html import inline_svg
from lrkv_plan.report.plots import picture


@pytest.fixture(scope="module")
def drawn() -> bytes:
    name = "--></svg><script>alert(1)</script>"
    lines = tuple(
        Series(name=f"{name}{k}", role=Role.LINE, x=(1, 2, 4), y=(1, 2 + k, 3), style=k, label=name)
        for k in range(3)
    )
    axis = Axis(key="x", label=name, scale="log2")
    panel = Panel(name="p", x=axis, y=Axis(key="y", label=name), series=lines)
    return picture(Figure(kind="k", title=name, caption=name, inputs={}, panels=(panel,)), "svg")


def test_it_is_one_well_formed_element_of_shapes(drawn: bytes) -> None:
    text = inline_svg(drawn, "a")
    tree = ElementTree.fromstring(text)
    names = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert names <= {"svg", "g", "path", "use", "defs", "clipPath", "rect", "pattern", "text"}
    assert "<!--" not in text
    assert "alert" not in text


def test_two_pictures_on_a_page_share_no_id(drawn: bytes) -> None:
    def ids(prefix: str) -> list[str]:
        text = inline_svg(drawn, prefix)
        found = re.findall(r'\bid="([^"]+)"', text)
        assert set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
        for link in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
            assert link in found
        return found

    one, other = ids("one"), ids("other")
    assert len(set(one)) == len(one)
    assert not set(one) & set(other)


def test_every_colour_follows_the_page(drawn: bytes) -> None:
    text = inline_svg(drawn, "a")
    assert "var(--fig-ink)" in text
    assert not re.findall(r"#[0-9a-fA-F]{6}\b", text)
