"""Markdown shows text as text, and a command cannot leave its block."""

from __future__ import annotations

import pytest

from lrkv_plan.report.document import Document, Part, Section
from lrkv_plan.report.markdown import markdown_text, to_markdown
from lrkv_plan.report.tables import Column, Table


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("<script>alert(1)</script>", "&lt;script&gt;alert(1)&lt;/script&gt;"),
        ("[x](javascript:1)", r"\[x\](javascript:1)"),
        ("![x](http://a/b.png)", r"!\[x\](http://a/b.png)"),
        ("a|b `c` *d* _e_ ~~f~~", r"a\|b \`c\` \*d\* \_e\_ \~\~f\~\~"),
        ("&lt;b>", "&amp;lt;b&gt;"),
        ("a\nb\x1b[31m\u202e", r"a b\\x1b\[31m\\u202e"),
        ("lrkv:16,position=rope_expand", "lrkv:16,position=rope_expand"),
    ],
)
def test_markup_in_text_is_escaped(text: str, written: str) -> None:
    assert markdown_text(text) == written


def document(command: str, subtitle: str = "s", cell: str = "x") -> Document:
    table = Table(
        title="t", inputs={}, rows=[{"name": cell}],
        columns=(Column(key="name", title="name", is_number=False),),
    )  # fmt: skip
    part = Part(key="a", title="A", table=table, commands=(command,))
    return Document(
        title="T", subtitle=subtitle, command=command,
        sections=(Section(key="s", title="S", lead="", parts=(part,)),),
    )  # fmt: skip


def test_a_command_cannot_close_its_code_block() -> None:
    lines = to_markdown(document("plan '```\n# big'")).splitlines()
    assert "# big" not in lines
    assert lines.count("````") == 2
    assert lines.count("````sh") == 2


@pytest.mark.parametrize("start", ["# big", "- item", "1. item", "> quote", "=== rule"])
def test_text_at_the_start_of_a_line_opens_no_block(start: str) -> None:
    assert start not in to_markdown(document("c", subtitle=start)).splitlines()


def test_a_cell_cannot_add_columns_or_rows() -> None:
    text = to_markdown(document("c", cell="a | b\n| c | d |"))
    (row,) = [line for line in text.splitlines() if line.startswith("| a")]
    assert row == r"| a \| b \| c \| d \| |"
