"""A report as data: refusals keep their place, remarks are said once, tables join."""

from __future__ import annotations

from lrkv_plan.errors import RequirementError
from lrkv_plan.notes import Note
from lrkv_plan.report.document import (
    Document,
    Part,
    Section,
    foundations,
    joined,
    own_remarks,
    part_of,
)
from lrkv_plan.report.tables import Column, Table

NAME = Column(key="name", title="name", is_number=False)


def table(*names: str, remarks: tuple[str | Note, ...] = ()) -> Table:
    rows = [{"name": name} for name in names]
    return Table(title="t", inputs={}, rows=rows, columns=(NAME,), notes=remarks)


def document(*parts: Part, common: tuple[str, ...] = ()) -> Document:
    section = Section(key="s", title="S", lead="", parts=parts)
    return Document(title="T", subtitle="", command="c", sections=(section,), common_remarks=common)


def test_a_refused_part_keeps_its_place_and_says_why() -> None:
    def refuse() -> Table:
        raise RequirementError("no feed-forward width")

    part = part_of("plan", "The plan", refuse, lead="l", commands=("a",))
    assert part.refused == "no feed-forward width"
    assert (part.table, part.figure, part.lead, part.commands) == (None, None, "l", ("a",))


def test_remarks_are_said_once() -> None:
    prior = Note(kind="provenance", text="a prior")
    remarks = ("mine", "the model's", prior, prior)
    told = document(Part(key="a", title="A", table=table("x", remarks=remarks)),
                    Part(key="b", title="B", table=table("y", remarks=remarks)),
                    common=("the model's",))  # fmt: skip
    first = next(iter(told.parts))
    assert own_remarks(told, first) == ["mine"]
    assert foundations(told) == ["a prior"]


def test_joined_tables_keep_all_rows_and_every_remark_once() -> None:
    one, other = table("a", remarks=("r",)), table("b", "c", remarks=("r", "s"))
    both = joined([one, other])
    assert [row["name"] for row in both.rows] == ["a", "b", "c"]
    assert both.remarks == ("r", "s")
