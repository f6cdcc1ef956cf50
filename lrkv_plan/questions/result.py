"""An answer: rows, a frame, one line of verdict, and notes."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import ArgumentError
from lrkv_plan.notes import Note
from lrkv_plan.report.tables import Table, plain_rows, plain_value, shown_rows, verdict_of

if TYPE_CHECKING:
    import pandas

_MAX_REPR = 100


@dataclass(frozen=True, repr=False, eq=False)
class Result:
    """An answer. ``table`` is what a command renders; the properties are what it says.

    Examples
    --------
    >>> import lrkv_plan
    >>> answer = lrkv_plan.cache("llama-3.1-8b", attention=["gqa:8", "lrkv:24"])
    >>> [row["bytes_per_token_per_gpu"] for row in answer.rows]
    [131072, 114688]
    """

    table: Table

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """One plain dict per row, full precision in base units: what JSON holds."""
        return plain_rows(self.table.rows)

    @cached_property
    def frame(self) -> pandas.DataFrame:
        """The rows as a pandas DataFrame."""
        import pandas

        return pandas.DataFrame.from_records(self.rows)

    @property
    def verdict(self) -> str:
        """The answer in a sentence or a few: the first lines of the screen."""
        return verdict_of(self.table)

    def explain(self, row: int | Mapping[str, Any]) -> str:
        """The equations of one row with its numbers put in, and what they rest on.

        Parameters
        ----------
        row : its place in ``rows``, or the row itself.

        Raises
        ------
        ArgumentError
            If there is no such row.
        """
        place = row if isinstance(row, int) else self._place(row)
        if not 0 <= place < len(self.table.rows):
            raise ArgumentError("row", f" {place}: the answer has {len(self.table.rows)} rows")
        told = self.table.rows[place]
        lines = [] if self.table.explain is None else self.table.explain(told)
        about = {told.get("attention"), told.get("model"), told.get("gpu")}
        notes = [
            str(note) for note in self.notes
            if note.subject is None or about & {note.subject, *note.subject.split(", ")}
        ]  # fmt: skip
        return "\n".join([*lines, *notes])

    def _place(self, row: Mapping[str, Any]) -> int:
        if dict(row) not in self.rows:
            raise ArgumentError("row", ": is not a row of this answer")
        return self.rows.index(dict(row))

    @property
    def notes(self) -> tuple[Note, ...]:
        """What it assumes, rests on and cannot say: records of kind, subject and text."""
        return tuple(self.table.notes)  # type: ignore[arg-type]  # the table made records of all

    @cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The arguments as they were understood, defaults filled in."""
        plain: Mapping[str, Any] = plain_value(dict(self.table.inputs))
        return plain

    @property
    def unmet(self) -> str | None:
        """What a requirement or a check found missing; None if it is met or none was stated."""
        return None if self.table.unmet is None else str(self.table.unmet)

    def __repr__(self) -> str:
        n_rows = len(self.table.rows)
        said = self.verdict.removesuffix(".")
        title = said if len(said) < _MAX_REPR else said[:_MAX_REPR] + "..."
        return f"<{title}: {n_rows} row{'' if n_rows == 1 else 's'}>"

    def _repr_html_(self) -> str:
        """The table and its notes, for a notebook."""
        table, escape = self.table, html.escape
        head = "".join(f"<th>{escape(column.title)}</th>" for column in table.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(c.cell(row))}</td>" for c in table.columns) + "</tr>"
            for row in shown_rows(table)
        )
        notes = "".join(f"<li>{escape(remark)}</li>" for remark in table.remarks)
        return (
            f"<p><b>{escape(self.verdict)}</b></p><table><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table>" + (f"<ul>{notes}</ul>" if notes else "")
        )
