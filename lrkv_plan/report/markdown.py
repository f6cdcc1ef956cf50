"""A report as one markdown file: the same tables, pictures by relative path, text as text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from lrkv_plan import __version__
from lrkv_plan.errors import one_line
from lrkv_plan.report.document import foundations, own_remarks
from lrkv_plan.schema import NO_SOURCE

if TYPE_CHECKING:
    from lrkv_plan.report.document import Document, Part
    from lrkv_plan.report.tables import Table
    from lrkv_plan.schema import Source

_LONGEST_TEXT = 4_000
# What starts or ends markup inside a line; underscores inside words and single < before a space
# or a digit do not, so figures and option names stay readable in the source.
_SPECIAL = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})
# At the start of a line, what would make it a heading, a list, a quote, a rule or a table.
_BLOCK_START = re.compile(r"^([#+\-=:]|\d+[.)](?=\s|$))")


def markdown_text(text: str) -> str:
    r"""Text that markdown shows as it is written.

    Examples
    --------
    >>> print(markdown_text("<script>[a](javascript:1)_b_ lrkv:16,position=rope_expand"))
    &lt;script&gt;\[a\](javascript:1)\_b\_ lrkv:16,position=rope_expand
    """
    flat = one_line(text, limit=_LONGEST_TEXT)
    return _SPECIAL.sub(lambda found: "\\" + found[0], flat).translate(_ENTITIES)


def _paragraph(text: str) -> str:
    """``markdown_text`` at the start of a line or a list item."""
    return _BLOCK_START.sub(lambda found: found[0][:-1] + "\\" + found[0][-1], markdown_text(text))


def to_markdown(document: Document) -> str:
    """The whole report."""
    lines = [
        f"# {markdown_text(document.title)}",
        "",
        _paragraph(document.subtitle),
        "",
        *_fenced((document.command,)),
    ]
    if document.highlights:
        lines.append("")
        for one in document.highlights:
            detail = f" ({markdown_text(one.detail)})" if one.detail else ""
            lines.append(f"- {markdown_text(one.label)}: **{markdown_text(one.value)}**{detail}")
    for section in document.sections:
        lines += ["", f"## {markdown_text(section.title)}", "", _paragraph(section.lead)]
        for part in section.parts:
            lines += ["", *_part_lines(document, part)]
    lines += ["", "## Assumptions and sources"]
    noted = (
        ("What times rest on", foundations(document)),
        ("Notes on the whole report", document.common_remarks),
        *(
            (
                f"{name}: where its figures were read",
                [_source_text(one) for one in sources] or [NO_SOURCE],
            )
            for name, sources in document.sources
        ),
    )
    for title, notes in noted:
        if notes:
            lines += ["", f"### {markdown_text(title)}", ""]
            lines += [f"- {_paragraph(note)}" for note in notes]
    lines += ["", f"Made by lrkv-plan {__version__}."]
    return "\n".join(lines) + "\n"


def _part_lines(document: Document, part: Part) -> Iterator[str]:
    yield f"### {markdown_text(part.title)}"
    if part.lead:
        yield from ("", _paragraph(part.lead))
    yield ""
    if part.refused is not None:
        yield f"Not computed: {markdown_text(part.refused)}"
    elif part.table is not None:
        yield from _table_lines(part.table)
    elif part.figure is not None:
        words = markdown_text(f"{part.figure.title}: {part.figure.caption}")
        yield f"![{words}](figures/{part.key}.svg)"
    remarks = own_remarks(document, part)
    if remarks:
        yield ""
        yield from (f"- {_paragraph(remark)}" for remark in remarks)
    if part.commands:
        yield ""
        yield from _fenced(part.commands)


def _table_lines(table: Table) -> Iterator[str]:
    yield f"**{markdown_text(table.title)}**"
    yield ""
    # An empty title would end a header row in some renderers.
    yield "| " + " | ".join(markdown_text(c.title) or "&nbsp;" for c in table.columns) + " |"
    yield "| " + " | ".join("---:" if c.is_number else "---" for c in table.columns) + " |"
    for row in table.rows if table.shown_rows is None else table.shown_rows:
        yield "| " + " | ".join(markdown_text(c.cell(row)) for c in table.columns) + " |"


def _fenced(commands: Sequence[str]) -> list[str]:
    """Commands in a code block whose fence none of them can close."""
    runs = [len(run) for command in commands for run in re.findall("`+", command)]
    fence = "`" * max(3, *(1 + run for run in runs), 3)
    return [f"{fence}sh", *(one_line(command, limit=_LONGEST_TEXT) for command in commands), fence]


def _source_text(source: Source) -> str:
    places = [place for place in (source.citation, source.url) if place]
    note = f": {source.note}" if source.note else ""
    return f"{'. '.join(places)}; read on {source.read_on}{note}"
