"""A report as data: sections of tables and pictures, each with the command that gives the same.

Nothing here is rendered; ``html``, ``markdown`` and ``report_files`` write it down. A part that
cannot be computed stays, with the reason in the place of its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lrkv_plan.errors import PlanError
from lrkv_plan.notes import Note

if TYPE_CHECKING:
    from lrkv_plan.report.explorer import SliderGrid
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.report.tables import Table
    from lrkv_plan.schema import Source


@dataclass(frozen=True, kw_only=True)
class Part:
    """A table or a picture, or why there is neither.

    ``key`` names its files and never holds text from a spec. ``commands`` print or draw the same
    numbers one after the other. A part with ``is_view`` shows rows of another part's file; one
    that ``is_narrow`` may stand beside another.
    """

    key: str
    title: str
    lead: str = ""
    table: Table | None = None
    figure: Figure | None = None
    refused: str | None = None
    commands: tuple[str, ...] = ()
    is_view: bool = False
    is_narrow: bool = False


@dataclass(frozen=True, kw_only=True)
class Section:
    """One subject: what it answers, and its parts."""

    key: str
    title: str
    lead: str
    parts: tuple[Part, ...]


@dataclass(frozen=True, kw_only=True)
class Highlight:
    """A figure that a reader should see first."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A whole report.

    ``command`` makes it again. ``common_remarks`` apply to every part and are shown once, at the
    end, as are notes about what times rest on.
    """

    title: str
    subtitle: str
    command: str
    highlights: tuple[Highlight, ...] = ()
    grid: SliderGrid | None = None
    grid_refused: str | None = None
    sections: tuple[Section, ...] = ()
    sources: tuple[tuple[str, tuple[Source, ...]], ...] = ()
    common_remarks: tuple[str, ...] = ()

    @property
    def parts(self) -> Iterator[Part]:
        """All parts in order."""
        return (part for section in self.sections for part in section.parts)


def part_of(key: str, title: str, make: Callable[[], Table | Figure], **shown: object) -> Part:
    """The part that ``make`` computes, or the reason that it gives for refusing."""
    from lrkv_plan.report.figures import Figure

    blank = Part(key=key, title=title, **shown)  # type: ignore[arg-type]
    try:
        made = make()
    except PlanError as error:
        return replace(blank, refused=str(error))
    return replace(blank, figure=made) if isinstance(made, Figure) else replace(blank, table=made)


def own_remarks(document: Document, part: Part) -> list[str]:
    """What only this part has to say: neither common remarks nor what times rest on."""
    shown = part.table or part.figure
    if shown is None:
        return []
    elsewhere = {*document.common_remarks, *foundations(document)}
    remarks = (
        shown.remarks
        if part.table is None
        else [str(note) for note in part.table.notes if _kind(note) != "provenance"]
    )
    return [
        remark
        for remark in remarks
        if remark not in elsewhere
        and remark.partition(": ")[2] not in elsewhere  # a picture names the design first
    ]


def _kind(note: str | Note) -> str:
    return note.kind if isinstance(note, Note) else "assumption"


def foundations(document: Document) -> list[str]:
    """What the times of any part rest on, once each."""
    found = [
        note.text
        for part in document.parts
        if part.table is not None
        for note in part.table.notes
        if isinstance(note, Note) and note.kind == "provenance"
    ]
    return list(dict.fromkeys(found))


def joined(tables: Sequence[Table]) -> Table:
    """Tables of the same columns as one; titles and inputs are the first's."""
    first = tables[0]
    shown = [t.rows if t.shown_rows is None else t.shown_rows for t in tables]
    return replace(
        first,
        rows=[row for table in tables for row in table.rows],
        shown_rows=[row for rows in shown for row in rows],
        columns=max((table.columns for table in tables), key=len),
        notes=tuple(dict.fromkeys(note for table in tables for note in table.notes)),
    )
