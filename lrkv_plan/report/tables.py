"""Rows as a table, markdown, CSV or JSON: the same numbers, rounded only for people.

JSON and CSV carry full precision in base units. A Fraction is written as a number (an int where
it is whole), and ratios additionally as exact text under ``<key>_exact`` in JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lrkv_plan import __version__
from lrkv_plan.errors import PlanError
from lrkv_plan.notes import Note
from lrkv_plan.report.format import Format as Format
from lrkv_plan.report.screen import WIDTH, Screen, ScreenColumn, draw, printable

SCHEMA_VERSION = 2

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column for people: what to take from a row, its title, and how to write it."""

    key: str
    title: str
    text: Callable[[Any], str] = str
    is_number: bool = True

    def cell(self, row: Row) -> str:
        """The cell's text; a dash where there is no value."""
        value = row.get(self.key)
        return "-" if value is None else printable(self.text(value))


@dataclass(frozen=True, kw_only=True)
class Table:
    """One command's answer. Texts for people hold no control characters, whatever a spec held.

    ``rows`` go to JSON and CSV whole; ``columns`` pick what people see of ``shown_rows`` (all rows
    when None). ``also`` are further lists of the same answer, by the key under which JSON holds
    them beside ``rows``. ``notes`` are assumptions and caveats, part of every format but CSV; a
    text given as one becomes an assumption. ``text``, a whole YAML document, takes the place of the
    columns where there is one. ``unmet`` is what the
    rows miss (a requirement, or a judgement as an error of its own): they are written, then the
    command fails.
    """

    title: str
    inputs: Row
    rows: Sequence[Row]
    columns: Sequence[Column]
    notes: Sequence[str | Note] = ()
    shown_rows: Sequence[Row] | None = None
    text: str | None = None
    unmet: str | PlanError | None = None
    screen: Callable[[], Screen] | None = None
    explain: Callable[[Row], Sequence[str]] | None = None
    also: Mapping[str, Sequence[Row]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", printable(self.title))
        object.__setattr__(self, "notes", tuple(map(_as_note, self.notes)))

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes as people read them."""
        return tuple(map(str, self.notes))


def table_notes(table: Table) -> tuple[Note, ...]:
    """The notes as records."""
    return tuple(map(_as_note, table.notes))


def _as_note(remark: str | Note) -> Note:
    """A remark as a record; plain text says what was assumed."""
    note = remark if isinstance(remark, Note) else Note(kind="assumption", text=remark)
    subject = None if note.subject is None else printable(note.subject)
    return replace(note, text=printable(note.text), subject=subject)


def as_row(result: Any) -> dict[str, Any]:
    """A frozen result as one flat row: nested results contribute their fields and properties."""
    row: dict[str, Any] = {}
    for spec in dataclasses.fields(result):
        value = getattr(result, spec.name)
        if dataclasses.is_dataclass(value):
            row |= as_row(value)
        else:
            row[spec.name] = value
    return row


def render(
    table: Table,
    output_format: Format,
    *,
    width: int = WIDTH,
    color: bool = False,
    whole_inputs: bool = False,
) -> str:
    """The table as text, with a final newline.

    ``width`` and ``color`` are of a screen, ``whole_inputs`` of JSON.
    """
    if output_format is Format.JSON:
        return to_json(table, whole_inputs=whole_inputs)
    if output_format is Format.CSV:
        return to_csv(table)
    if output_format is Format.MARKDOWN:
        return to_markdown(table)
    if table.text is not None:
        return _document(table.text)
    return draw(screen_of(table), width=width, color=color)


def _document(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


_UNSAFE_IN_JSON = re.compile("[\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]"
                             "|[\ud800-\udfff]")  # fmt: skip


# Tables of fitted constants inside a GPU profile: nine tenths of a plan's JSON.
FITTED_KEYS = (
    "kernels", "allreduce", "matrices", "experts", "products", "exchanges", "recurrent",
    "whole_step",
)  # fmt: skip


def _short(inputs: Row) -> Row:
    several = inputs.get("alternatives")
    if isinstance(several, list):
        return {**inputs, "alternatives": [_short(one) for one in several]}
    gpu = inputs.get("gpu")
    if not isinstance(gpu, Mapping):
        return inputs
    return {**inputs, "gpu": {key: gpu[key] for key in gpu if key not in FITTED_KEYS}}


def to_json(table: Table, *, whole_inputs: bool = False) -> str:
    """One object: schema_version, tool_version, inputs, rows, notes, and their texts as remarks.

    The table's further lists stand after ``rows``.

    A GPU among the inputs stands there with its tables of fitted constants where ``whole_inputs``;
    the notes say which of them were used.
    """
    import json

    document = {
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "inputs": _plain(table.inputs if whole_inputs else _short(table.inputs)),
        "rows": plain_rows(table.rows),
        **{key: plain_rows(rows) for key, rows in table.also.items()},
        "notes": [dataclasses.asdict(_as_note(note)) for note in table.notes],
        "remarks": list(table.remarks),
    }
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNSAFE_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n"


def plain_rows(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Rows as JSON holds them: numbers, texts, lists; ratios also as exact text."""
    return [_plain(row, exact=True) for row in rows]


def _plain(row: Row, exact: bool = False) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for key, value in row.items():
        plain[key] = plain_value(value)
        if exact and isinstance(value, Fraction) and "ratio" in key:
            plain[f"{key}_exact"] = str(value)
    return plain


def plain_value(value: Any) -> Any:
    """A value as JSON holds it."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 and abs(value) > 1 else float(value)
    if isinstance(value, Mapping):
        return _plain(value)
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return value


def to_csv(table: Table) -> str:
    """A header and all rows; lists are joined by semicolons, absent values are empty.

    Keys whose values are records (JSON has them) are left out.

    A text that a spreadsheet would run as a formula gets an apostrophe in front.
    """
    import csv
    import io

    keys = list(dict.fromkeys(key for row in table.rows for key in row))
    keys = [key for key in keys if not any(_holds_records(row.get(key)) for row in table.rows)]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(keys)
    for row in table.rows:
        writer.writerow([_csv_cell(plain_value(row.get(key))) for key in keys])
    return buffer.getvalue()


def _holds_records(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(isinstance(item, Mapping | list | tuple) for item in value)
    return isinstance(value, Mapping)


def _csv_cell(value: Any) -> Any:
    if isinstance(value, list):
        value = "; ".join(str(item) for item in value)
    if not isinstance(value, str):
        return value
    return f"'{printable(value)}" if value[:1] in _FORMULA_STARTS else printable(value)


_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def to_markdown(table: Table) -> str:
    """A heading, a pipe table with numbers to the right, and the remarks."""
    lines = [f"**{_escaped(table.title)}**", ""]
    if table.text is not None:
        return "\n".join([*lines, "```yaml", _document(table.text).rstrip("\n"), "```"]) + "\n"
    lines.append("| " + " | ".join(_escaped(c.title) for c in table.columns) + " |")
    lines.append("| " + " | ".join("---:" if c.is_number else "---" for c in table.columns) + " |")
    for row in shown_rows(table):
        lines.append("| " + " | ".join(_escaped(c.cell(row)) for c in table.columns) + " |")
    if table.remarks:
        lines += ["", *(f"- {_escaped(remark)}" for remark in table.remarks)]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")


def shown_rows(table: Table) -> Sequence[Row]:
    """The rows that people see."""
    return table.rows if table.shown_rows is None else table.shown_rows


def screen_of(table: Table) -> Screen:
    """What a terminal shows of the table: its own screen, or its title, columns and all notes."""
    if table.screen is not None:
        return table.screen()
    return Screen(
        verdict=(table.title,),
        columns=[
            ScreenColumn(title=one.title, text=one.cell, is_number=one.is_number)
            for one in table.columns
        ],
        rows=shown_rows(table),
        notes=[_as_note(note) for note in table.notes],
    )


def verdict_of(table: Table) -> str:
    """The answer in a sentence or a few."""
    return " ".join(screen_of(table).verdict)


def explained(table: Table) -> list[str]:
    """Paragraphs behind the numbers: equations of every row, then all notes.

    An indented line belongs to the last one that is not; under it none stands twice.
    """
    lines: dict[tuple[str, str], str] = {}
    heading = ""
    rows = [] if table.explain is None else [table.explain(row) for row in table.rows]
    for told in rows:
        for line in told:
            heading = heading if line.startswith(" ") else line
            lines.setdefault((heading, line), line)
    return [*lines.values(), *table.remarks]


def count(value: int | Fraction) -> str:
    """A count with thousands separators; a rational that is not whole keeps three digits."""
    return f"{int(value):,}" if Fraction(value).denominator == 1 else f"{float(value):,.3f}"


def percent(value: Fraction | float) -> str:
    """A ratio as a percentage with four decimals."""
    return f"{float(value):.4%}".replace("%", " %")


def ratio(value: Fraction | float) -> str:
    """A ratio as a factor with four decimals."""
    return f"{float(value):.4f}"
