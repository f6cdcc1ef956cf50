"""The script that writes docs/step-accuracy.md: worst groups are named with their reasons."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from lrkv_plan.calibration.evaluate_steps import StepRow
from lrkv_plan.cli.app import app
from scripts import step_accuracy

RUNS = Path(__file__).parent / "golden" / "steps" / "runs.csv"


def run(group: str, ratio: float | None) -> StepRow:
    model, gpu, engine = group.split("|")
    return StepRow(
        id="r", group=group, model=model, gpu=gpu, engine=engine, quality="A", is_judged=True,
        kind="gqa, dense", layout="one GPU", batch_band="1", weight_dtype="bf16", ratio=ratio,
        in_band=None if ratio is None else False, basis=None if ratio is None else "measured",
        refused="no such model" if ratio is None else None,
    )  # fmt: skip


def test_groups_above_the_bound_are_named_with_their_reasons(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [run("a|h200|vllm@0.9", 0.5), run("b|h100|vllm", 1.3), run("c|h100|vllm", 1.1)]
    known = [
        {"gpu": "h200", "engine": "vllm", "why": "why it is slow"},
        {"gpu": "t4", "why": "no longer so"},
    ]
    page = step_accuracy.page([*rows, run("d|h100|vllm", None)], known)
    assert "2 groups are above 20 %" in page
    assert "| a | h200 | vllm | 1 | 1 | 50.0 % | 50.0 % | 0.50 | 0.0 % | why it is slow |" in page
    assert "| b | h100 | vllm | 1 | 1 | 30.0 % | 30.0 % | 1.30 | 0.0 % | not known |" in page
    assert "| c | h100" not in page
    assert "| no such model | 1 |" in page
    told = capsys.readouterr().err
    assert "no reason: b|h100|vllm: 30.0 %" in told
    assert "reason without a group above 20 %: {'gpu': 't4'" in told


def test_the_page_is_made_from_the_command(tmp_path: Path) -> None:
    made = tmp_path / "steps.json"
    asked = ["calibrate", "evaluate-steps", str(RUNS), "-f", "json", "-o", str(made)]
    assert CliRunner().invoke(app, asked).exit_code == 0
    page = step_accuracy.main(str(made))
    assert "| all runs | 10 | 10 |" in page  # the two that are not judged are left out
    assert all(f"## {title}" in page for title in step_accuracy.SECTIONS.values())
