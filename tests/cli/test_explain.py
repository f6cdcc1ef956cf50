"""``--explain`` and ``--inputs``: all behind the numbers on request, refused where it means nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.report.tables import FITTED_KEYS

RUN = CliRunner().invoke
RANK = ["rank", "lrkv-paper-2.5b", "--budget", "50%"]
PLAN = ["plan", "llama-3.1-8b", "--gpu", "h100-sxm"]


def test_explain_adds_equations_and_every_note() -> None:
    plain, explained = RUN(app, RANK), RUN(app, [*RANK, "--explain"])
    assert explained.stdout.startswith(plain.stdout)
    words = " ".join(explained.stdout.split())
    # 18 layers x 2 B x 2 x (128 + 18 x 56) = 81,792
    assert "lrkv:56: 18 layers x (shared_key 128 x 2 B + shared_value 128 x 2 B + " in words
    assert "private_value 18 x 56 x 2 B) = 81,792 B/token" in words
    notes = json.loads(RUN(app, [*RANK, "-f", "json"]).stdout)["remarks"]
    assert notes
    for note in notes:
        assert " ".join(note.split()) in words
    assert "note:" not in explained.stderr


@pytest.mark.parametrize("output_format", ["json", "csv", "markdown"])
def test_explain_is_of_screens(output_format: str) -> None:
    done = RUN(app, [*RANK, "--explain", "-f", output_format])
    assert done.exit_code == 2
    assert done.stderr == "error: --explain writes for people; leave it out, or --format\n"


def test_explain_goes_into_a_file_too(tmp_path: Path) -> None:
    RUN(app, [*RANK, "--explain", "-o", str(tmp_path / "rank.txt")])
    assert "= 81,792 B/token" in " ".join((tmp_path / "rank.txt").read_text().split())


def test_json_repeats_constants_only_where_asked() -> None:
    short = json.loads(RUN(app, [*PLAN, "-f", "json"]).stdout)["inputs"]["gpu"]
    whole = json.loads(RUN(app, [*PLAN, "-f", "json", "--inputs", "full"]).stdout)["inputs"]["gpu"]
    assert whole["kernels"]
    assert short == {key: whole[key] for key in whole if key not in FITTED_KEYS}
    refused = RUN(app, [*PLAN, "--inputs", "full"])
    assert (refused.exit_code, refused.stderr) == (
        2, "error: --inputs full is of --format json; leave it out\n",
    )  # fmt: skip


def test_marks_and_bars_have_ascii_forms() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "lrkv_plan", *PLAN], capture_output=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    text = done.stdout.decode("ascii")
    assert "26.4 (22 to 34) m" in text
    assert "35.1 (29 to 45) b" in text
    assert "28.4 (23 to 39) a" in text
    assert "\\u" not in text


@pytest.mark.parametrize("columns", ["60", "80"])
def test_columns_sets_the_width(columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = RUN(app, PLAN).stdout.splitlines()
    assert max(map(len, lines)) <= int(columns)
    assert len(lines) > 8
