"""Rendering on literal rows: every format has the same numbers, and hostile text stays text."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from fractions import Fraction

import pytest

from lrkv_plan.report.tables import Column, Format, Table, count, percent, render

ROWS = [
    {"name": "a [bold]|<b>", "size_bytes": 339_738_624, "ratio": Fraction(559, 1152), "odd": None},
    {"name": "b", "size_bytes": Fraction(55, 2), "ratio": Fraction(1), "odd": ["x", "y"]},
]
TABLE = Table(
    title="Sizes",
    inputs={"model": "toy", "share": Fraction(1, 2)},
    rows=ROWS,
    columns=(
        Column(key="name", title="name", is_number=False),
        Column(key="size_bytes", title="B", text=count),
        Column(key="ratio", title="of MHA", text=percent),
        Column(key="odd", title="odd", text=lambda v: "+".join(v)),
    ),
    notes=("one remark",),
)


def test_json_is_one_object_in_full_precision() -> None:
    document = json.loads(render(TABLE, Format.JSON))
    assert set(document) == {"schema_version", "tool_version", "inputs", "rows", "notes", "remarks"}
    assert document["inputs"] == {"model": "toy", "share": 0.5}
    first, second = document["rows"]
    assert first["size_bytes"] == 339_738_624
    assert first["ratio"] == 559 / 1152
    assert first["ratio_exact"] == "559/1152"
    assert second["size_bytes"] == 27.5
    assert isinstance(second["ratio"], float)


def test_csv_has_all_keys_and_plain_numbers() -> None:
    rows = list(csv.DictReader(io.StringIO(render(TABLE, Format.CSV))))
    assert rows[0] == {
        "name": "a [bold]|<b>", "size_bytes": "339738624", "ratio": str(559 / 1152), "odd": "",
    }  # fmt: skip
    assert rows[1]["odd"] == "x; y"
    assert rows[1]["size_bytes"] == "27.5"


def test_markdown_escapes_pipes_and_tags() -> None:
    lines = render(TABLE, Format.MARKDOWN).splitlines()
    assert lines[2:5] == [
        "| name | B | of MHA | odd |",
        "| --- | ---: | ---: | ---: |",
        "| a [bold]\\|&lt;b> | 339,738,624 | 48.5243 % | - |",
    ]
    assert lines[-1] == "- one remark"


def test_text_keeps_markup_and_every_digit() -> None:
    wide = Table(title="t", inputs={}, rows=[{"n": 10**300}], columns=(Column(key="n", title="n"),))
    assert str(10**300) in render(wide, Format.TABLE)
    text = render(TABLE, Format.TABLE)
    assert "a [bold]|<b>" in text
    assert "339,738,624" in text
    assert "one remark" not in text  # a command says remarks on stderr
    assert "\x1b" not in text


HOSTILE_NAME = "\x1b[31mRED\x1b[0m\x1b]0;x\x07\x9b\0\u202e\ud800"


@pytest.mark.parametrize("output_format", list(Format))
def test_no_control_character_leaves_in_any_format(output_format: Format) -> None:
    table = Table(
        title=HOSTILE_NAME, inputs={"name": HOSTILE_NAME}, rows=[{"n": HOSTILE_NAME}],
        columns=(Column(key="n", title="n"),), notes=(HOSTILE_NAME,),
    )  # fmt: skip
    for one in (table, replace(table, text=f"name: {HOSTILE_NAME}\n")):
        text = render(one, output_format)
        assert not any(ord(c) < 32 and c != "\n" for c in text)
        assert not set(text) & set("\x07\x9b\0\u202e\ud800")
        text.encode()  # nothing that UTF-8 cannot hold
    if output_format is Format.JSON:
        assert json.loads(render(table, output_format))["rows"] == [{"n": HOSTILE_NAME}]


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1+1", "-2+3", "@SUM(A1)", "\t=1"])
def test_no_csv_cell_is_a_formula(name: str) -> None:
    table = Table(title="t", inputs={}, rows=[{"name": name, "n": -1.5}], columns=())
    (row,) = csv.DictReader(io.StringIO(render(table, Format.CSV)))
    assert row["name"].startswith("'")
    assert row["n"] == "-1.5"  # numbers stay numbers


def test_a_narrow_terminal_cuts_nothing() -> None:
    text = render(TABLE, Format.TABLE, width=40)
    assert "…" not in text
    assert all(len(line) <= 40 for line in text.splitlines())


def test_colour_only_when_asked() -> None:
    assert "\x1b[" in render(TABLE, Format.TABLE, color=True)


@pytest.mark.parametrize("output_format", list(Format))
def test_output_ends_in_one_newline(output_format: Format) -> None:
    text = render(TABLE, output_format)
    assert text.endswith("\n")
    assert not text.endswith("\n\n")
