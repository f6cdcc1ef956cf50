"""Results of vLLM's and SGLang's serving benchmarks as runs, worked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.calibration.serving_results import Served, limits, serving_rows
from lrkv_plan.cli.app import app
from lrkv_plan.errors import ArgumentError, CalibrationError

RUN = CliRunner().invoke
# Keys of `vllm bench serve --save-result`, vLLM 0.11; made-up figures.
VLLM: dict[str, Any] = {
    "date": "20251001-120000", "endpoint_type": "vllm", "backend": "vllm", "label": None,
    "model_id": "meta-llama/Llama-3.1-8B-Instruct", "tokenizer_id": "x", "num_prompts": 200,
    "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 16, "duration": 40.0,
    "completed": 200, "total_input_tokens": 200_000, "total_output_tokens": 80_000,
    "request_throughput": 5.0, "output_throughput": 2000.0, "mean_ttft_ms": 90.0,
    "mean_tpot_ms": 8.0, "median_tpot_ms": 7.9, "p99_tpot_ms": 9.0,
    "mean_itl_ms": 8.1, "median_itl_ms": 7.6, "p99_itl_ms": 30.0,
}  # fmt: skip
# Keys of sglang.bench_serving's lines; request_rate is Infinity there.
SGLANG: dict[str, Any] = {
    "backend": "sglang", "dataset_name": "random", "request_rate": math.inf,
    "max_concurrency": 64, "random_input_len": 1024, "random_output_len": 512,
    "random_range_ratio": 1.0, "duration": 60.0, "completed": 128, "total_input_tokens": 131_072,
    "total_output_tokens": 65_536, "concurrency": 60.1, "accept_length": None,
    "mean_tpot_ms": 20.0, "median_tpot_ms": 19.5, "mean_itl_ms": 200.0, "median_itl_ms": 190.0,
}  # fmt: skip
SERVED = Served(model="llama-3.1-8b", gpu="h200", tp_size=1)


def saved(folder: Path, *results: dict[str, Any], indent: int | None = None) -> Path:
    path = folder / "result.json"
    path.write_text("\n".join(json.dumps(one, indent=indent) for one in results) + "\n")
    return path


def row(folder: Path, result: dict[str, Any], served: Served = SERVED) -> dict[str, str]:
    (found,) = serving_rows(saved(folder, result), served)
    return found


def test_a_result_of_vllm(tmp_path: Path) -> None:
    found = row(tmp_path, VLLM)
    assert (found["id"], found["engine"], found["batch"]) == ("result.json", "vllm", "16")
    assert float(found["context_tokens"]) == 1000 + 400 / 2  # mean prompt, half the mean output
    # One token a chunk (mean gap 8.1, mean time per token 8.0): the median gap is a decode step.
    assert (found["metric"], float(found["tpot_ms"])) == ("median_itl_ms", 7.6)
    assert row(tmp_path, VLLM | {"num_prompts": 8, "completed": 8})["batch"] == "8"
    served = Served(model="m", gpu="h200", tp_size=2, engine="vllm@0.11.0", ep_size=2)
    told = row(tmp_path, VLLM, served)
    assert (told["engine_version"], told["tp"], told["moe_ep"]) == ("0.11.0", "2", "2")


def test_lines_of_sglang(tmp_path: Path) -> None:
    first, second = serving_rows(saved(tmp_path, SGLANG, SGLANG | {"max_concurrency": 8}), SERVED)
    assert (first["id"], second["id"]) == ("result.json:1", "result.json:2")
    assert (first["engine"], first["batch"], second["batch"]) == ("sglang", "64", "8")
    assert float(first["context_tokens"]) == 1024 + 512 / 2
    # Ten tokens a chunk: a gap is no step.
    assert (first["metric"], float(first["tpot_ms"])) == ("median_tpot_ms", 19.5)


@pytest.mark.parametrize("change", [{"max_concurrency": None}, {"request_rate": 5.0}])
def test_littles_law_where_no_concurrency_is_kept_up(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    # 80,000 tokens in 40 s, each 8 ms after the last: 2,000 x 0.008 = 16; half the time: 32
    slow = VLLM | change | {"max_concurrency": None, "duration": 20.0}
    assert row(tmp_path, VLLM | change)["batch"] == "16"
    assert row(tmp_path, slow)["batch"] == "32"
    limited = VLLM | {"request_rate": 5.0, "max_concurrency": 500}
    assert row(tmp_path, limited)["batch"] == "16"


def test_a_pretty_object_is_one_run(tmp_path: Path) -> None:
    (found,) = serving_rows(saved(tmp_path, VLLM, indent=2), SERVED)
    assert found["id"] == "result.json"


@pytest.mark.parametrize(
    ("key", "value"), [("accept_length", 2.4), ("spec_decode_num_drafts", 1000)]
)
def test_speculation_is_refused(tmp_path: Path, key: str, value: float) -> None:
    path = saved(tmp_path, SGLANG | {key: value})
    asked = ["--model", "llama-3.1-8b", "--gpu", "h200", "--tp-size", "1"]
    done = RUN(app, ["calibrate", "evaluate-steps", str(path), *asked])
    assert done.stdout.startswith("None of one run")
    assert "speculation" in done.stderr


def test_times_that_hold_prefill_are_said(tmp_path: Path) -> None:
    rows = [row(tmp_path, VLLM), row(tmp_path, SGLANG)]
    assert list(limits(rows)) == [
        "1 measured as time per token, which holds the prefill of other requests"
    ]
    short = row(tmp_path, VLLM | {"total_output_tokens": 2000})  # 10 tokens: 16 prompts in 10 steps
    (told,) = limits([short])
    assert told.startswith("1 with a prompt prefilled in more than every second step")


@pytest.mark.parametrize(
    ("served", "result", "option", "told"),
    [
        (Served(gpu="h200", tp_size=1), VLLM, "model", "(model_id: 'meta-llama/Llama-3.1-8B"),
        (Served(model="m", tp_size=1), VLLM, "gpu", "does not say it"),
        (Served(model="m", gpu="h200"), VLLM, "tp_size", "does not say it"),
        (SERVED, VLLM | {"backend": "openai-chat"}, "engine", "(backend: 'openai-chat')"),
    ],
)
def test_what_a_result_does_not_say_names_the_option(
    tmp_path: Path, served: Served, result: dict[str, Any], option: str, told: str
) -> None:
    with pytest.raises(ArgumentError, match=f"^{option}: is needed") as caught:
        row(tmp_path, result, served)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"completed": 0}, "completed '0': must be a number above 0"),
        ({"total_input_tokens": "many"}, "total_input_tokens 'many'"),
        ({"total_output_tokens": None}, "total_output_tokens 'None'"),
        ({"mean_tpot_ms": 0, "median_tpot_ms": 0, "median_itl_ms": 0}, "holds no median_tpot_ms"),
        ({"max_concurrency": None, "duration": 1e-9}, "mean 6.4e+11 sequences at once"),
    ],
)
def test_a_result_that_cannot_be_compared_is_one_line(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(CalibrationError) as caught:
        row(tmp_path, VLLM | change)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps(SGLANG) + "\n{broken}\n")
    with pytest.raises(CalibrationError, match=r"lines.jsonl: line 2: "):
        serving_rows(path, SERVED)
    path.write_text("[1, 2]\n")
    with pytest.raises(CalibrationError, match="holds a list"):
        serving_rows(path, SERVED)


def test_the_command_predicts_results_and_tables_together(tmp_path: Path) -> None:
    path = saved(tmp_path, VLLM)
    asked = [
        "--model", "llama-3.1-8b", "--gpu", "h200", "--tp-size", "1", "--engine", "vllm@0.11.0",
        "--kv-dtype", "fp8",
    ]  # fmt: skip
    runs = Path(__file__).parents[1] / "golden" / "steps" / "runs.csv"
    done = RUN(app, ["calibrate", "evaluate-steps", str(path), str(runs), *asked, "-f", "json"])
    assert done.exit_code == 0, done.output
    first = json.loads(done.stdout)["rows"][0]
    assert (first["id"], first["engine"], first["kv_dtype"]) == (
        "result.json", "vllm@0.11.0", "fp8",
    )  # fmt: skip
    assert first["measured_s"] == pytest.approx(7.6e-3)
    assert 0.3 < first["ratio"] < 3
