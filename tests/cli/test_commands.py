"""Every command and format through the runner: streams, exit codes, and the same numbers."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from tests.conftest import one_error, only_notes

COMMANDS = {
    "cache": ["cache", "lrkv-paper-2.5b", "--attention", "mha", "--attention", "lrkv:55"],
    "detail": ["cache", "lrkv-paper-2.5b", "--attention", "lrkv:55", "--detail"],
    "rank": ["rank", "lrkv-paper-2.5b", "--budget", "50%"],
    "params": ["params", "lrkv-paper-2.5b", "--attention", "lrkv:55"],
    "shard": ["shard", "lrkv-paper-2.5b", "--attention", "lrkv:55", "--tp-size", "1,2,4"],
    "models": ["models"],
    "models show": ["models", "show", "lrkv-paper-2.5b"],
    "hardware": ["hardware"],
    "hardware show": ["hardware", "show", "h100-sxm"],
}


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("output_format", ["table", "json", "csv", "markdown"])
def test_every_command_writes_every_format(name: str, output_format: str) -> None:
    result = run(*COMMANDS[name], "--format", output_format)
    assert result.exit_code == 0, result.output
    assert only_notes(result.stderr)
    assert result.stdout.endswith("\n")
    if output_format == "json":
        document = json.loads(result.stdout)
        assert document["schema_version"] == 2
        assert document["rows"]


@pytest.mark.parametrize("name", ["cache", "detail", "rank", "params", "shard"])
def test_csv_and_json_hold_the_same_numbers(name: str) -> None:
    from_json = rows(*COMMANDS[name])
    text = run(*COMMANDS[name], "--format", "csv").stdout
    from_csv = list(csv.DictReader(io.StringIO(text)))
    assert len(from_csv) == len(from_json)
    for left, right in zip(from_csv, from_json, strict=True):
        for key, value in right.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                assert float(left[key]) == value


def test_cache_rows_hold_what_programs_need() -> None:
    found = rows("cache", "lrkv-paper-2.5b", "--attention", "lrkv:55", "--context-tokens", "2048,8k",
                 "--batch-size", "4", "--tp-size", "2")  # fmt: skip
    assert [row["context_tokens"] for row in found] == [2048, 8192]
    first = found[0]
    # 2 * 2 * 18 * (128 + 18*55) = 80,496; on 2 GPUs 2 * 2 * 18 * (128 + 9*55) = 44,856
    assert first["bytes_per_token"] == 80_496
    assert first["bytes_per_token_per_gpu"] == 44_856
    assert first["cache_bytes"] == 4 * 2048 * 80_496
    assert first["cache_bytes_per_gpu"] == 4 * 2048 * 44_856
    assert first["ratio_to_mha_exact"] == "559/1152"
    assert first["model"] == "lrkv-paper-2.5b"
    assert first["attention"] == "lrkv:55"


def test_detail_adds_up_to_the_whole() -> None:
    options = [
        "cache",
        "lrkv-paper-2.5b",
        "--attention",
        "lrkv:55,key_norm=rms_cached",
        "--tp-size",
        "2",
    ]
    (whole,) = rows(*options)
    tensors = rows(*options, "--detail")
    assert [t["tensor"] for t in tensors] == [
        "shared_key", "shared_value", "private_key", "private_value", "key_scale",
    ]  # fmt: skip
    for key in ("bytes_per_token", "cache_bytes", "cache_bytes_per_gpu"):
        assert sum(t[key] for t in tensors) == whole[key]


def test_rank_answers_the_design_goldens() -> None:
    (half,) = rows("rank", "lrkv-paper-2.5b", "--budget", "1/2")
    assert (half["rank"], half["aligned_rank"], half["gqa_kv_heads"]) == (56, 48, 9)
    assert half["ratio"] == 71 / 144
    assert half["aligned_ratio"] == 31 / 72
    (third,) = rows("rank", "lrkv-paper-2.5b", "--budget", "gqa:6")
    assert third["rank"] == 35


def test_an_infeasible_budget_exits_4_and_names_the_smallest() -> None:
    result = run("rank", "lrkv-paper-2.5b", "--budget", "5%")
    assert result.exit_code == 4
    assert result.stdout == ""
    assert "smallest feasible budget is 1/18" in result.stderr


def test_params_rows() -> None:
    (row,) = rows("params", "lrkv-paper-2.5b", "--attention", "lrkv:55")
    assert row["kv_params"] == 97_293_312
    assert row["model_params"] is None
    assert "feed_forward" in row["missing"]


def test_shard_rows_and_refusals() -> None:
    found = rows(*COMMANDS["shard"])
    assert [(r["tp_size"], r["policy"]) for r in found] == [
        (1, "by_copy"), (2, "replicated"), (2, "by_token"), (2, "gathered"), (4, "refused"),
    ]  # fmt: skip
    assert found[1]["cache_bytes_per_token_per_gpu"] == 44_856
    assert "18 query heads" in found[-1]["refused"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "message"),
    [
        (["cache", "nothing"], 3, "no shipped model is called 'nothing'"),
        (["cache", "lrkv-paper-2.5b", "--attention", "lrkv:999"], 3, "exceeds head_dim"),
        (["cache", "lrkv-paper-2.5b", "--kv-dtype", "fp7"], 3, "storage format 'fp7'"),
        (["cache", "lrkv-paper-2.5b", "--tp-size", "4"], 4, "18 query heads"),
        (["cache", "lrkv-paper-2.5b", "--context-tokens", "8q"], 2, "--context-tokens"),
        (["cache", "lrkv-paper-2.5b", "--context-tokens", "0"], 2, "--context-tokens"),
        (["cache", "lrkv-paper-2.5b", "--batch-size", "-1"], 2, "--batch-size"),
        (["cache", "lrkv-paper-2.5b", "--batch-size", "1,2"], 2, "takes one value; is it 12, or 1 and 2?"),
        (["cache", "lrkv-paper-2.5b", "--batch-size", "9e18", "--context-tokens", "1m"], 2, "overflow"),
        (["rank", "lrkv-paper-2.5b", "--budget", "lots"], 2, "budget"),
        (["rank", "lrkv-paper-2.5b"], 2, "budget"),
        (["rank", "lrkv-paper-2.5b", "--budget", "1/2", "--align", "0"], 2, "--align"),
        (["hardware", "show", "h1000"], 3, "perhaps  h100"),
        (["nonsense"], 2, "nonsense"),
    ],
)  # fmt: skip
def test_errors_are_one_line_on_stderr_with_their_exit_code(
    arguments: list[str], exit_code: int, message: str
) -> None:
    result = run(*arguments)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    if exit_code in (3, 4):
        assert one_error(result.stderr)


def test_output_file_holds_the_same_bytes_and_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    command = [*COMMANDS["rank"], "--format", "json"]
    written = run(*command, "--output", str(path))
    assert written.exit_code == 0
    assert written.stdout == ""
    assert "wrote" in written.stderr
    assert path.read_text() == run(*command).stdout
    path.write_text("mine")
    refused = run(*command, "--output", str(path))
    assert refused.exit_code == 2
    assert "--force" in refused.stderr
    assert path.read_text() == "mine"
    assert run(*command, "--output", str(path), "--force", "--quiet").stderr == ""
    assert json.loads(path.read_text())
    missing = run(*command, "--output", str(tmp_path / "no" / "out.json"))
    assert missing.exit_code == 2
    assert os.listdir(tmp_path) == ["out.json"]


def test_debug_keeps_the_traceback() -> None:
    result = run("--debug", "cache", "nothing")
    assert result.exit_code == 1
    assert type(result.exception).__name__ == "SpecError"


def test_every_command_has_help_and_an_example() -> None:
    for name in COMMANDS:
        words = name.replace("detail", "cache").split()
        text = run(*words, "--help").stdout
        assert "--format" in text
        if words not in (["models"], ["hardware"]):
            assert f"lrkv-plan {' '.join(words)}" in " ".join(text.split())


def test_version() -> None:
    assert re.fullmatch(r"lrkv-plan \d+\.\d+\.\d+\n", run("--version").stdout)


def script(*arguments: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "lrkv_plan", *arguments], capture_output=True, text=True, **kwargs
    )


def test_a_real_process_from_another_folder(tmp_path: Path) -> None:
    done = script(*COMMANDS["rank"], cwd=tmp_path)
    assert done.returncode == 0
    assert "lrkv:56" in done.stdout
    assert "\x1b" not in done.stdout
    assert script("cache", "nothing", cwd=tmp_path).returncode == 3


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m lrkv_plan hardware --format json | head -c 10"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.stdout == '{\n  "schem'
    assert done.stderr == ""
