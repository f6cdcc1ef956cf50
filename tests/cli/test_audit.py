"""``lrkv-plan audit``: exit codes, formats, filters, and one line for whatever is wrong."""

from __future__ import annotations

import copy
import csv
import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from lrkv_plan.auditing.claim import CLAIM_FOLDER
from lrkv_plan.auditing.evaluate import audit_file
from lrkv_plan.cli.app import app
from lrkv_plan.errors import SpecError
from lrkv_plan.loader import shipped_files
from lrkv_plan.report.tables import to_json
from lrkv_plan.report.views.audit import audit_table
from tests.conftest import only_notes

RIGHT = {
    "id": "right", "says": "cache of GQA-8 over MHA", "place": "page 1", "computes": "cache_ratio",
    "inputs": {"n_heads": 32, "head_dim": 128, "attention": "gqa:8"}, "printed": "25 %",
}  # fmt: skip
WRONG = {**RIGHT, "id": "wrong", "printed": "12.6 %"}
HEAD = {"title": "mine", "source": {"citation": "my notes", "read_on": "2026-11-30"}}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["audit", *arguments])


def written(folder: Path, *claims: dict[str, Any], **more: Any) -> str:
    path = folder / "mine.yaml"
    path.write_text(yaml.dump({**HEAD, **more, "claims": list(claims)}))
    return str(path)


def test_claims_that_hold_exit_0(tmp_path: Path) -> None:
    result = run(written(tmp_path, RIGHT), "--format", "json")
    assert result.exit_code == 0
    assert only_notes(result.stderr)
    (row,) = json.loads(result.stdout)["rows"]
    assert row["claim"] == "right"
    assert row["source"] == "mine, page 1"
    assert (row["printed"], row["computed"], row["verdict"]) == ("25 %", 0.25, "match")
    assert row["readings"] == []


def test_a_wrong_claim_is_written_and_exits_4(tmp_path: Path) -> None:
    result = run(written(tmp_path, RIGHT, WRONG), "--format", "json")
    assert result.exit_code == 4
    assert result.stderr == (
        "error: 1 of 2 claims differ from their print without an explanation that holds: wrong\n"
    )
    verdicts = {row["claim"]: row["verdict"] for row in json.loads(result.stdout)["rows"]}
    assert verdicts == {"right": "match", "wrong": "mismatch"}


def test_a_wrong_explanation_exits_4(tmp_path: Path) -> None:
    why = {"reading": ["times 2"], "reason": "a guess"}
    result = run(written(tmp_path, {**WRONG, "explanation": why}))
    assert result.exit_code == 4
    assert "does not hold: a guess" in result.stdout


def test_readings_are_marked_as_inference(tmp_path: Path) -> None:
    # eight groups of 32 heads: 25 %; groups of eight heads: 4 groups, 12.5 %
    result = run(written(tmp_path, {**WRONG, "printed": "12.5 %"}), "--format", "json")
    (row,) = json.loads(result.stdout)["rows"]
    assert row["readings"][0] == {
        "reading": "8 as group size", "computed": 0.125, "computed_text": "12.500 %",
        "inference": True,
    }  # fmt: skip


@pytest.mark.parametrize("output_format", ["table", "json", "csv", "markdown"])
def test_shipped_documents_pass_in_every_format(output_format: str) -> None:
    result = run("--format", output_format)
    assert result.exit_code == 0
    assert only_notes(result.stderr)
    assert "mha-gb-128000" in result.stdout
    assert "491.5 GB" in result.stdout


def test_markdown_is_one_even_table_with_its_sources() -> None:
    text = run("mla", "--format", "markdown").stdout
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in table}) == 1
    assert len(table) == 2 + 14
    assert text.startswith("**Audit of 14 claims: 11 match, 3 explained, 0 mismatch, 0 not")
    assert "- mla-article: Multi-Head Latent Attention" in text


def test_csv_has_a_line_per_claim() -> None:
    rows = list(csv.DictReader(io.StringIO(run("mla", "--format", "csv").stdout)))
    assert len(rows) == 14
    assert rows[1]["computed"] == "65536"


def test_verdict_filters_rows_and_counts_all() -> None:
    document = json.loads(run("mla", "--verdict", "explained", "--format", "json").stdout)
    assert [row["claim"] for row in document["rows"]] == [
        "grouping-factor",
        "mha-kb",
        "mha-gb-128000",
    ]
    assert "14 claims" in run("mla", "--verdict", "explained").stdout
    wrong = run("mla", "--verdict", "explaned")
    assert wrong.exit_code == 2
    assert "did you mean 'explained'" in wrong.stderr


def test_schema_is_printed() -> None:
    document = json.loads(run("--schema").stdout)
    assert document["$schema"].startswith("https://json-schema.org/")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"computes": "cache_ration"}, "did you mean 'cache_ratio'"),
        ({"prinetd": "1 %"}, "prinetd: unknown key; did you mean 'printed'"),
        ({"inputs": {"n_head": 2}}, "did you mean 'n_heads'"),
        ({"printed": 25}, "write the print in quotes"),
        ({"printed": "25 GB"}, "does not fit a ratio"),
        ({"explanation": {"raeson": "x", "reading": ["half"]}}, "explanation.raeson: unknown key; did you mean 'reason'"),
        ({"explanation": {"reason": "x"}}, "give a reading or none_of"),
        ({"printed": "12 %", "explanation": {"reading": ["hafl"], "reason": "x"}}, "did you mean 'half'"),
        ({"row": {"table": "sizes", "name": "x"}}, "no table 'sizes'"),
        ({"missing": "cells"}, "missing and inputs exclude"),
        ({"id": "Not an id"}, "id"),
        ({"inputs": {"model": "no-such-model"}}, "no-such-model"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_one_line(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    path = written(tmp_path, {**RIGHT, **changes})
    result = run(path)
    assert result.exit_code == 3
    assert result.stdout == ""
    assert result.stderr.startswith(f"error: {path}: ")
    assert result.stderr.count("\n") == 1
    assert words in result.stderr


def test_a_name_or_file_that_does_not_exist_exits_3() -> None:
    assert "did you mean 'lrkv'" in run("lrvk").stderr
    for name in ("nosuch", "nosuch.yaml", "./"):
        result = run(name)
        assert result.exit_code == 3
        assert result.stderr.count("\n") == 1


def test_ids_appear_once(tmp_path: Path) -> None:
    result = run(written(tmp_path, RIGHT, RIGHT))
    assert result.exit_code == 3
    assert "'right' appears twice" in result.stderr


ODD: list[Any] = [
    None, -1, 0, 1.5, 10**30, True, "", "many", "80 furlongs", [], [1], {}, {"x": 1},
    "\x00", "[red]", "9" * 70, "-", "1/0", ">", "lrkv:-1", "lrkv:999", "gqa:7",
]  # fmt: skip


def test_three_hundred_damaged_files_end_in_one_clear_line_or_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lrkv_plan.auditing.readings.MAX_TRIED", 10)
    chance = random.Random(20_261_130)
    documents = [yaml.safe_load(path.read_text()) for path in shipped_files(CLAIM_FOLDER)]
    lines = []
    for number in range(300):
        document = copy.deepcopy(chance.choice(documents))
        claim = chance.choice(document["claims"])
        document["claims"] = [claim]
        places = [claim, claim.get("inputs"), claim.get("explanation"), claim.get("row")]
        inner = chance.choice([place for place in places if place])
        inner[chance.choice(list(inner))] = chance.choice(ODD)
        path = tmp_path / f"{number}.yaml"
        path.write_text(json.dumps(document, default=str))  # JSON is YAML, written faster
        # Without the runner: building every command 300 times is what takes long.
        try:
            table = audit_table(audit_file(path), [])
        except SpecError as error:
            lines.append((str(path), str(error)))
        else:
            assert json.loads(to_json(table))["rows"], document
    assert len(lines) > 150
    assert all(line.startswith(f"{path}: ") and line.isprintable() for path, line in lines)
