"""``plan``, ``crossover``, ``roofline`` and latency-limited ``capacity`` through the runner."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from tests.conftest import only_notes


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def document(*arguments: str) -> dict[str, Any]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


COMMANDS = {
    "plan": ["plan", "llama-3.1-8b", "--gpu", "h100-sxm"],
    "crossover": ["crossover", "llama-3.1-8b", "--gpu", "h200", "--attention", "gqa:8",
                  "--attention", "mla:512+64"],
    "roofline": ["roofline", "deepseek-v3", "--gpu", "h200"],
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("output_format", ["table", "json", "csv", "markdown"])
def test_every_command_writes_every_format(name: str, output_format: str) -> None:
    result = run(*COMMANDS[name], "--format", output_format)
    assert result.exit_code == 0, result.output
    assert only_notes(result.stderr)


def test_plan_rows_and_their_provenance() -> None:
    found = document(*COMMANDS["plan"], "--gpu-hour-usd", "2.5", "--tpot-ms", "20")
    for row in found["rows"]:
        assert row["low_s"] <= row["step_s"] <= row["high_s"]
        parts = row["attention_s"] + row["linear_s"] + row["all_reduce_s"] + row["overhead_s"]
        assert parts == pytest.approx(row["step_s"])
        if row["admitted_sequences"]:
            assert row["tpot_s"] <= 0.020
            assert row["usd_per_million_tokens"] > 0
    assert any("rests on" in remark for remark in found["remarks"])
    assert found["inputs"]["gpu"]["name"] == "h100-sxm"


def test_crossover_rows() -> None:
    found = document(*COMMANDS["crossover"])
    for row in found["rows"]:
        assert row["faster_before"] != row["faster_after"]
        assert 1 < row["at"] <= 131_072
    same = document("crossover", "llama-3.1-8b", "--gpu", "h200", "--attention", "gqa:8",
                    "--attention", "gqa:8")  # fmt: skip
    assert same["rows"][0]["answer"].startswith("never")


def test_roofline_rows_name_units_and_paths() -> None:
    rows = document(*COMMANDS["roofline"])["rows"]
    assert {(row["path"], row["units"]) for row in rows} == {
        (path, unit) for path in ("absorbed", "materialised") for unit in ("bf16", "fp32")
    }
    assert rows[0]["bound"] == "compute"


def test_capacity_admits_by_time() -> None:
    told = ["capacity", "llama-3.1-8b", "--gpu", "h200", "--context-tokens", "8k"]
    (free,) = document(*told)["rows"]
    (timed,) = document(*told, "--tpot-ms", "15")["rows"]
    assert timed["max_sequences"] == free["max_sequences"]
    assert 0 < timed["admitted_sequences"] < timed["max_sequences"]
    assert timed["admitted_binds"] == "time"
    assert timed["tpot_s"] <= 0.015
    assert "admitted_sequences" not in free


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["plan", "llama-3.1-8b"], 2, "--gpu"),
        (["plan", "lrkv-paper-2.5b", "--gpu", "h100-sxm"], 2, "--weight-dtype"),
        (["plan", "llama-3.1-8b", "--gpu", "h100-sxm", "--budget", "1%"], 4, "smallest feasible"),
        (["crossover", "llama-3.1-8b", "--gpu", "h200", "--attention", "mha"], 2, "two designs"),
        (["crossover", "llama-3.1-8b", "--gpu", "h200", "--attention", "mha", "--attention", "mqa", "--over", "rank"], 2, "lrkv:RANK"),
        (["roofline", "deepseek-v3", "--gpu", "h200", "--units", "fp4"], 3, "fp4"),
        (["capacity", "llama-3.1-8b", "--kv-memory", "9GiB", "--tpot-ms", "9"], 2, "--gpu"),
    ],
)  # fmt: skip
def test_errors_are_one_line(arguments: list[str], exit_code: int, message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert message in result.stderr
    assert result.stdout == ""
