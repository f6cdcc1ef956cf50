"""``plot``: every kind, series beside pictures, and files written whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app

KINDS = {
    "cache-vs-rank": ["lrkv-paper-2.5b", "--heads", "6,18", "--budget", "50%"],
    "rank-sweep": ["llama-2-7b", "--gpu", "h100-sxm", "--context-tokens", "2k"],
    "capacity-vs-context": [
        "llama-3.1-8b", "--gpu", "h100-sxm", "--attention", "mha", "--attention", "lrkv:24",
    ],
    "roofline": ["lrkv-paper-2.5b", "--gpu", "h100-sxm", "--attention", "lrkv:55"],
    "crossover-map": [
        "llama-2-7b", "--gpu", "h200", "--attention", "mha", "--attention", "lrkv:48",
        "--at-most", "8",
    ],
    "step-stack": ["llama-3.1-8b", "--gpu", "h200", "--attention", "mha", "--attention", "gqa:8"],
    "payload-vs-loss": [],
}  # fmt: skip


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["plot", *arguments])


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_writes_a_picture(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    result = run(kind, *KINDS[kind], "-o", str(path))
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert f"wrote {path}" in result.stderr
    assert path.read_bytes().startswith(b"\x89PNG")
    assert os.listdir(tmp_path) == ["x.png"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_its_series(kind: str) -> None:
    result = run(kind, *KINDS[kind], "--format", "json")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    rows = json.loads(result.stdout)["rows"]
    assert rows
    assert all("series" in row for row in rows)
    text = run(kind, *KINDS[kind], "--format", "csv").stdout
    assert len(list(csv.DictReader(io.StringIO(text)))) == len(rows)
    assert run(kind, *KINDS[kind], "--format", "table").exit_code == 0


def test_series_are_exact_and_in_base_units() -> None:
    result = run("cache-vs-rank", "lrkv-paper-2.5b", "--budget", "50%", "--format", "json")
    document = json.loads(result.stdout)
    found = {(r["series"], r["rank"]): r for r in document["rows"]}
    assert found["18 heads", 55]["cache_ratio_exact"] == "559/1152"
    assert found["budget", None]["cache_ratio"] == 0.5
    assert document["inputs"]["n_heads"] == [18]


def test_a_map_over_the_batch_has_its_boundary() -> None:
    result = run("crossover-map", "llama-3.1-8b", "--gpu", "h200", "--attention", "gqa:8",
                 "--attention", "mqa", "--over", "batch_size", "--at-most", "4",
                 "--format", "json")  # fmt: skip
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    assert {row["batch_size"] for row in rows} >= {1, 2, 3, 4}


@pytest.mark.parametrize("name", ["x.gif", "x", "x.PNG.txt", "x.jpeg"])
def test_unknown_suffixes_are_refused_with_the_known_ones(name: str, tmp_path: Path) -> None:
    result = run("payload-vs-loss", "-o", str(tmp_path / name))
    assert result.exit_code == 2
    assert "png, svg, pdf" in result.stderr
    assert os.listdir(tmp_path) == []


def test_neither_and_both_of_picture_and_format_are_refused(tmp_path: Path) -> None:
    for output in ([], ["-o", "-"]):
        neither = run("payload-vs-loss", *output)
        assert neither.exit_code == 2
        assert "--output FILE" in neither.stderr
    both = run("payload-vs-loss", "-o", str(tmp_path / "x.png"), "--format", "json")
    assert both.exit_code == 2
    assert "one of them" in both.stderr
    assert os.listdir(tmp_path) == []


def test_series_can_go_to_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    assert run("payload-vs-loss", "--format", "csv", "-o", str(path)).exit_code == 0
    assert path.read_text() == run("payload-vs-loss", "--format", "csv").stdout


def test_existing_pictures_are_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    path.write_text("mine")
    refused = run("payload-vs-loss", "-o", str(path))
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert path.read_text() == "mine"
    forced = run("payload-vs-loss", "-o", str(path), "--force", "--quiet")
    assert forced.exit_code == 0
    assert forced.stderr == ""
    assert path.read_text().startswith("<?xml")


def test_a_failure_while_drawing_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lrkv_plan.report import plots

    def broken(*_: Any, **__: Any) -> bytes:
        raise RuntimeError("half drawn")

    monkeypatch.setattr(plots, "drawn", broken)
    assert run("payload-vs-loss", "-o", str(tmp_path / "x.png")).exit_code == 1
    missing = run("payload-vs-loss", "--format", "json", "-o", str(tmp_path / "no" / "x.json"))
    assert missing.exit_code == 2
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["cache-vs-rank", "nothing", "--format", "json"], 3, "no shipped model"),
        (["cache-vs-rank", "lrkv-paper-2.5b", "--heads", "0", "--format", "json"], 2, "--heads"),
        (["cache-vs-rank", "lrkv-paper-2.5b", "--heads", "6,18", "--budget", "gqa:6", "--format", "json"], 2, "head count"),
        (["capacity-vs-context", "llama-3.1-8b", "--format", "json"], 2, "--gpu"),
        (["rank-sweep", "llama-2-7b", "--gpu", "l40s", "--tp-size", "3", "--format", "json"], 4, "query heads"),
        (["roofline", "llama-3.1-8b", "--gpu", "h100-sxm", "--units", "fp99", "--format", "json"], 3, "fp99"),
        (["crossover-map", "llama-2-7b", "--gpu", "h200", "--attention", "mha", "--format", "json"], 2, "two designs"),
        (["crossover-map", "llama-2-7b", "--gpu", "h200", "--attention", "mha", "--attention", "mqa", "--format", "json"], 2, "lrkv:RANK"),
        (["step-stack", "lrkv-paper-2.5b", "--gpu", "h200", "--format", "json"], 3, "weight_dtype"),
        (["payload-vs-loss", "--scale", "9T", "--format", "json"], 2, "no such scale"),
        (["payload-vs-loss", "--width", "wide", "-o", "x.png"], 2, "single, double"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_their_exit_code(
    arguments: list[str], exit_code: int, message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_help_says_what_to_write_and_has_an_example(kind: str) -> None:
    text = " ".join(run(kind, "--help").stdout.split())
    assert "png, svg or pdf" in text
    assert f"lrkv-plan plot {kind}" in text
