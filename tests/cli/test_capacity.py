"""``capacity`` and ``rank --fit-sequences`` through the runner."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from tests.conftest import only_notes


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def rows(*arguments: str) -> list[dict[str, Any]]:
    result = run(*arguments, "--format", "json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return found


POOL = ["capacity", "llama-3.1-8b", "--kv-memory", "58.11GiB", "--engine", "vllm@0.19.0"]


def test_a_row_holds_what_programs_need() -> None:
    # The engine printed 476,000 tokens and 58.11x for 58.11 GiB (rounded to 10 MiB).
    (row,) = rows(*POOL, "--context-tokens", "8k")
    assert row["attention"] == "gqa:8"
    assert (row["tp_size"], row["context_tokens"]) == (1, 8192)
    assert row["bytes_per_token_per_gpu"] == 131_072
    assert row["n_blocks"] * 16 == row["kv_tokens"]
    assert abs(row["kv_tokens"] - 476_000) <= 48
    assert round(row["max_concurrency"], 2) == 58.11
    assert row["max_sequences"] == 58
    assert row["kv_budget_bytes_per_gpu"] == round(58.11 * 2**30)


@pytest.mark.parametrize("output_format", ["table", "json", "csv", "markdown"])
def test_every_format(output_format: str) -> None:
    result = run(*POOL, "--attention", "mha", "--attention", "lrkv:24", "--format", output_format)
    assert result.exit_code == 0
    assert "lrkv:24" in result.stdout
    assert only_notes(result.stderr)


def test_requirements_guard_a_deployment_and_still_print() -> None:
    good = run(*POOL, "--require-sequences", "58", "--require-tokens", "476000")
    assert good.exit_code == 0
    bad = run(*POOL, "--require-sequences", "59")
    assert bad.exit_code == 4
    assert "58 sequences fit, 59 are required" in bad.stderr
    assert "gqa:8" in bad.stdout


def test_the_budget_is_shown_term_by_term() -> None:
    found = rows("capacity", "llama-3.1-8b", "--gpu", "h100-sxm", "--detail")
    terms = {row["term"]: row["n_bytes"] for row in found}
    assert sum(v for k, v in terms.items() if k != "cache") == terms["cache"]
    assert all(row["provenance"] for row in found)


def test_rank_that_fits() -> None:
    (row,) = rows(
        "rank", "llama-3.1-8b", "--fit-sequences", "32", "--context-tokens", "32k", "--gpu",
        "h100-sxm", "--tp-size", "2", "--engine", "vllm",
    )  # fmt: skip
    assert row["rank"] >= row["aligned_rank"] >= 0
    assert row["total_sequences"] >= 32 > row["next_total_sequences"]
    assert {"ratio", "aligned_ratio"} <= set(row)


def test_rank_needs_one_budget() -> None:
    assert run("rank", "llama-3.1-8b").exit_code == 2
    both = run("rank", "llama-3.1-8b", "--budget", "50%", "--fit-sequences", "3")
    assert both.exit_code == 2
    assert "one of the two" in both.stderr


def test_min_gpus() -> None:
    (row,) = rows(
        "capacity", "llama-3.1-70b", "--gpu", "h100-sxm", "--min-gpus", "--sequences", "64",
        "--context-tokens", "32k",
    )  # fmt: skip
    assert row["total_sequences"] >= 64
    assert row["n_gpus"] % row["tp_size"] == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty|holds no"),
        ("TIMESTAMP,ContextTokens\n1,2\n", "formats|columns|known"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,-5,3\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,5e12,3\n", "line 2"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:00:00,2k,3\n", "line 2"),
    ],
)
def test_a_bad_trace_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    import re

    path = tmp_path / "trace.csv"
    path.write_text(text)
    output = tmp_path / "out.json"
    result = run(*POOL, "--trace", str(path), "--format", "json", "--output", str(output))
    assert result.exit_code == 3, result.output
    assert result.stderr.count("\n") == 1
    assert re.search(message, result.stderr)
    assert not output.exists()


def test_lengths_from_a_file_and_from_percentiles(tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    path.write_text("100\n200\n8000\n")
    (row,) = rows(*POOL, "--lengths", str(path))
    assert row["context_tokens"] == 8000
    assert row["population_admitted_sequences"] == 3
    (row,) = rows(*POOL, "--length-percentiles", "p50=2k,p95=32k")
    assert row["context_tokens"] == 32_768
    assert row["population_n_sequences"] == 1000
    short = run(*POOL, "--lengths", str(path), "--context-tokens", "4k")
    assert short.exit_code == 2
    assert "1 of 3 sequences are longer" in short.stderr
    two = run(*POOL, "--lengths", str(path), "--length-percentiles", "p50=2k")
    assert two.exit_code == 2


@pytest.mark.parametrize(
    ("options", "exit_code", "message"),
    [
        (["--tp-size", "3"], 4, "32 query heads"),
        (["--engine", "vlm"], 2, "did you mean 'vllm'"),
        (["--kv-memory", "0 GiB"], 2, "--kv-memory"),
        (["--kv-memory", "lots"], 2, "--kv-memory"),
        (["--utilisation", "1.5"], 2, "--utilisation"),
        (["--n-gpus", "3", "--tp-size", "2"], 4, "n_gpus 3"),
        (["--dcp-size", "3"], 4, "dcp_size 3"),
        (["--pp-size", "99"], 4, "pp_size 99"),
        (["--context-tokens", "0"], 2, "--context-tokens"),
        (["--column", "x"], 2, "--column"),
        (["--min-gpus", "--sequences", "0"], 2, "--sequences"),
    ],
)
def test_bad_flags_say_what_to_do(options: list[str], exit_code: int, message: str) -> None:
    result = run(*without(POOL, options), *options)
    assert result.exit_code == exit_code, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def without(words: Sequence[str], options: Sequence[str]) -> list[str]:
    """Words less the options that stand in ``options`` with another value."""
    kept: list[str] = []
    for word in words:
        is_value = kept and kept[-1] in options
        kept = kept[:-1] if is_value else [*kept, word]
    return kept


def test_a_folder_with_a_checkpoint_uses_its_headers(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    config = {
        "model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 128,
        "vocab_size": 1000, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"weight": np.zeros(3_000_000, np.float16)}, tmp_path / "model.safetensors")
    command = ["capacity", str(tmp_path), "--gpu", "l4", "--engine", "ideal"]
    result = run(*command, "--detail", "--format", "json")
    terms = {r["term"]: r["n_bytes"] for r in json.loads(result.stdout)["rows"]}
    assert terms["weights"] == -6_000_000
    assert "6,000,000 B in the checkpoint" in run(*command, "--explain").output
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-10])
    broken = run(*command)
    assert broken.exit_code == 3
    assert broken.stderr.count("\n") == 1
