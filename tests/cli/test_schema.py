"""``schema``: what commands really write is what their schemas say, and nothing else is."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from lrkv_plan.cli.app import COMMANDS, app
from lrkv_plan.report.output_keys import ANSWERS
from tests.checkpoint.synthetic import llama_folder, planted
from tests.cli.schemas import fault

PAPER, LLAMA, HYBRID = "lrkv-paper-2.5b", "llama-3.1-8b", "qwen3-next-80b-a3b"
ON_H100 = ["--gpu", "h100-sxm"]
SWAPPED = ["--attention", "mha", "--attention", "gqa:8", "--attention", "lrkv:48"]
TWO = ["--attention", "mha", "--attention", "lrkv:48"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(one) for one in arguments])


def written(command: str, *arguments: object, exit_code: int = 0) -> dict[str, Any]:
    """The JSON of a command, which fulfils its schema."""
    done = run(*command.split(), *arguments, "--format", "json")
    assert done.exit_code == exit_code, done.output
    document: dict[str, Any] = json.loads(done.stdout)
    assert fault(command, document) is None
    return document


def ids(case: tuple[str, list[str]]) -> str:
    return " ".join((case[0], *case[1]))[:80]


LOG = Path(__file__).parent.parent / "golden" / "logs" / "vllm-0.19-h100.log"
CASES: list[tuple[str, list[str]]] = [
    ("plan", [LLAMA, *ON_H100]),
    ("plan", [LLAMA, "--gpu", "h200", "--n-gpus", "4", "--tpot-ms", "20", "--gpu-hour-usd", "2"]),
    ("plan", [LLAMA, *ON_H100, "--batch-size", "400", "--context-tokens", "32k"]),
    ("plan", [LLAMA, *ON_H100, "--tpot-ms", "0.01", "--speculative-tokens", "4"]),
    ("plan", ["llama-2-7b", *ON_H100, "--kv-memory", "20 GiB", "--engine", "vllm@0.11.0"]),
    ("plan", [HYBRID, "--gpu", "h200", "--n-gpus", "8", "--weights", "20 GiB"]),
    ("best", [LLAMA, "--users", "64", "--gpu", "h200,b200,t4", "--tpot-ms", "30"]),
    ("best", [LLAMA, "--users", "8", "--gpu", "gb10", "--families"]),
    ("sweep", [LLAMA, "--gpus", "h200", "--designs", "own;gqa:5..6:1", "--batch-size", "1,full"]),
    ("sweep", [LLAMA, "--gpus", "l40s,h200", "--reduce", "pareto", "--by", "gpu"]),
    ("rank", [PAPER, "--budget", "50%"]),
    ("rank", [LLAMA, "--budget", "50%", "--position", "rope_expand", "--mla-rope-dim", "32"]),
    ("rank", [LLAMA, "--budget", "gqa:1", "--kv-dtype", "fp8", "--tp-size", "2"]),
    ("rank", [PAPER, "--budget", "96 KiB/token", "--groups", "2"]),
    ("rank", [LLAMA, "--fit-sequences", "16", *ON_H100]),
    ("rank", [LLAMA, "--fit-sequences", "2", "--kv-memory", "4 GiB"]),
    ("cache", [LLAMA]),
    ("cache", [LLAMA, *SWAPPED, "--context-tokens", "1k,8k", "--tp-size", "2"]),
    ("cache", [LLAMA, "--attention", "lrkv:55", "--kv-dtype", "q4_0"]),
    ("cache", [HYBRID, "--batch-size", "3"]),
    ("cache", [f"{LLAMA},{PAPER}", "--kv-dtype", "bf16,fp8", "--tp-size", "1,2"]),
    ("cache", [f"{LLAMA},{HYBRID}", "--detail"]),
    ("cache", ["whisper-large-v3"]),
    ("cache", ["deepseek-v3.2"]),
    ("cache", [LLAMA, "--detail", "--attention", "lrkv:55"]),
    ("cache", [HYBRID, "--detail"]),
    ("cache", ["gpt-oss-20b", "--detail"]),
    ("params", [LLAMA, *SWAPPED]),
    ("params", [LLAMA, "--attention", "lrkv:48", "--match-params"]),
    ("params", [HYBRID]),
    ("params", [f"{LLAMA},{HYBRID}", "--attention", "lrkv:48"]),
    ("params", ["nemotron-3-nano-30b-a3b"]),
    ("shard", [LLAMA, *SWAPPED]),
    ("shard", [LLAMA, "--attention", "lrkv:48", "--tp-size", "1,3,8"]),
    ("capacity", [LLAMA, *ON_H100]),
    ("capacity", [LLAMA, *ON_H100, *SWAPPED, "--tp-size", "1,2", "--context-tokens", "8k,64k"]),
    ("capacity", [LLAMA, *ON_H100, "--tp-size", "1,3"]),
    ("capacity", [LLAMA, *ON_H100, "--tpot-ms", "15", "--gpu-hour-usd", "2.5"]),
    ("capacity", [LLAMA, *ON_H100, "--tpot-ms", "0.01"]),
    ("capacity", ["llama-3.1-70b", *ON_H100]),
    ("capacity", [LLAMA, *ON_H100, "--length-percentiles", "p50=1k,p95=4k"]),
    ("capacity", [LLAMA, *ON_H100, "--detail"]),
    ("capacity", ["llama-3.1-70b", *ON_H100, "--min-gpus", "--sequences", "20"]),
    ("capacity", [f"{LLAMA},llama-3.1-70b", "--gpu", "8xh100-sxm,4xb200", "--kv-dtype", "bf16,fp8",
                  "--tpot-ms", "40"]),
    ("capacity", [LLAMA, "--gpu", "h100-sxm,l4", "--max-context"]),
    ("capacity", [LLAMA, "--gpu", "h100-sxm,l4", "--detail"]),
    ("capacity", [f"{LLAMA},{HYBRID}", *ON_H100]),
    ("capacity", [LLAMA, "--kv-memory", "20 GiB"]),
    ("capacity", [HYBRID, "--kv-memory", "20 GiB", "--engine", "sglang"]),
    ("plan", [LLAMA, "--gpu", "h100-sxm,h200", "--batch-size", "8, 400"]),
    ("plan", [LLAMA, *ON_H100, "--launch"]),
    ("capacity", [LLAMA, "--gpu", "8xh100-sxm", "--launch"]),
    ("capacity", [LLAMA, "--gpu", "1xrtx-5090+1xrtx-4090", "--pp-layers", "20,12", "--max-loras",
                  "2", "--kv-offload", "8 GiB", "--shared-prefix-tokens", "1k"]),
    ("capacity", [LLAMA, "--gpu", "1xrtx-5090+1xrtx-4090", "--detail"]),
    ("capacity", [LLAMA, "--gpu", "b200", "--engine", "llama_cpp", "--n-gpu-layers", "20"]),
    ("capacity", ["--from-log", str(LOG), *ON_H100]),
    ("capacity", [LLAMA, "--from-log", str(LOG)]),
    ("step-time", [LLAMA, *ON_H100]),
    ("step-time", [LLAMA, "--gpu", "h200,b200", "--tp-size", "1,3"]),
    ("step-time", [LLAMA, *ON_H100, *SWAPPED, "--batch-size", "8", "--weights", "15 GiB"]),
    ("crossover", ["llama-2-7b", "--gpu", "h200", *TWO]),
    ("crossover", ["llama-2-7b", "--gpu", "h200", *TWO, "--over", "batch_size"]),
    ("crossover", ["llama-2-7b", "--gpu", "h200", *TWO, "--at-most", "2"]),
    ("crossover", ["llama-2-7b", "--gpu", "h200", "--attention", "mha", "--attention", "lrkv:48",
                   "--over", "rank"]),
    ("roofline", [LLAMA, *ON_H100]),
    ("roofline", [LLAMA, *ON_H100, *SWAPPED, "--units", "bf16,fp32,fp8"]),
    ("roofline", [LLAMA, *ON_H100, "--attention", "mla:512+64", "--units", "fp32"]),
    ("audit", ["mla"]),
    ("audit", ["lrkv"]),
    ("audit", ["--verdict", "explained"]),
    ("models", []),
    *(("models show", [name]) for name in (
        PAPER, LLAMA, HYBRID, "deepseek-v3.2", "whisper-large-v3", "gpt-oss-20b", "llama-4-scout",
    )),
    ("models import", [PAPER]),
    ("models new", ["own"]),
    ("hardware new", ["own", "--like", "h200"]),
    ("hardware", []),
    *(("hardware show", [name]) for name in ("h100-sxm", "h200", "cpu")),
    ("calibrate show", ["h100-sxm"]),
    ("calibrate show", ["h200"]),
    ("plot cache-vs-rank", [PAPER, "--heads", "6,18", "--budget", "50%"]),
    ("plot cache-vs-rank", [PAPER]),
    ("plot rank-sweep", ["llama-2-7b"]),
    ("plot rank-sweep", ["llama-2-7b", *ON_H100]),
    ("plot capacity-vs-context", [LLAMA, *ON_H100, *TWO]),
    ("plot payload-vs-loss", []),
    ("plot payload-vs-loss", ["--scale", "2.5B"]),
    ("plot roofline", [PAPER, *ON_H100, "--attention", "lrkv:55", "--every-path"]),
    ("plot crossover-map", ["llama-2-7b", "--gpu", "h200", *TWO, "--over", "batch_size",
                            "--at-most", "16"]),
    ("plot crossover-map", ["llama-2-7b", "--gpu", "h200", "--attention", "mha", "--attention",
                            "lrkv:48", "--at-most", "64"]),
    ("plot step-stack", [LLAMA, *ON_H100, *TWO, "--batch-size", "4"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_what_a_command_writes_fulfils_its_schema(case: tuple[str, list[str]]) -> None:
    command, arguments = case
    if command == "calibrate show":
        pytest.importorskip("torch")
    assert written(command, *arguments)["rows"]


def test_an_unmet_requirement_is_written_too() -> None:
    asked = [LLAMA, *ON_H100, "--require-sequences", "100000"]
    assert written("capacity", *asked, exit_code=4)["rows"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of 4 query heads on 2 keys; in the second all heads are equal."""
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, 8, 32))
    key, value = planted(rng, 2, 8, 32, 2), planted(rng, 2, 8, 32, 2)
    same = np.repeat(query[:1], 4, axis=0), np.repeat(key[:1], 2, axis=0), value
    folder = tmp_path_factory.mktemp("made") / "toy"
    return llama_folder(folder, {0: (query, key, value), 1: same})


@pytest.mark.parametrize(
    "options",
    [[], ["--fit-ranks", "none"], ["--budget", "60%"], ["--energy", "99.9%", "--layers", "1"]],
    ids=" ".join,
)
def test_inspect(checkpoint: Path, options: list[str]) -> None:
    assert written("inspect", checkpoint, *options)["rows"]


def test_weights_that_are_all_zero_have_no_spectrum(tmp_path: Path) -> None:
    zero = np.zeros((4, 8, 32)), np.zeros((2, 8, 32)), np.zeros((2, 8, 32))
    rows = written("inspect", llama_folder(tmp_path / "zero", {0: zero}))["rows"]
    assert all(row["undefined"] for row in rows)


def test_calibrations_of_a_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    from tests.calibration.made_up_run import planned, timed
    from tests.calibration.made_up_run import written as run_folder

    good = timed(planned(40, held_out=12), "sum", noise=0.02)
    few = timed(planned(3, path="grouped/plain", kernel="grouped"), "sum")
    document = written("calibrate fit", run_folder(tmp_path / "both", [*good, *few]), "--force")
    assert [row["verdict"][:10] for row in document["rows"]] == ["accepted", "not fitted"]
    noisy = run_folder(tmp_path / "noisy", timed(planned(40), "sum", round_noise=0.5))
    refused = written("calibrate fit", noisy, exit_code=5)
    assert refused["inputs"]["refused"]
    assert written("calibrate show", tmp_path / "both")["rows"]


def test_calibrations_of_a_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("scipy")
    from tests.calibration.test_table_fit import table

    samples = table(tmp_path / "calls.csv")
    assert written("calibrate fit", samples, "--gpu", "h200")["rows"]
    for options in ([], ["--held-out"]):
        assert written("calibrate evaluate", samples, *options)["rows"]
    operations = Path(__file__).parent.parent / "golden" / "layers"
    assert written("calibrate evaluate-layers", operations)["rows"]


def test_a_trace_whose_prompts_begin_alike(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    request = {"timestamp": 0, "input_length": 1000, "output_length": 9, "hash_ids": [1, 2]}
    path.write_text(2 * (json.dumps(request) + "\n"))
    (row,) = written("capacity", LLAMA, *ON_H100, "--trace", path)["rows"]
    assert row["prefix_hit_rate"] == 62 * 16 / 2000  # whole blocks of 16 tokens


def test_a_measured_budget(tmp_path: Path) -> None:
    budget = str(tmp_path / "budget.yaml")
    written("capacity", "--from-log", LOG, *ON_H100, "--write-budget", budget)
    for options in ([], ["--detail"]):
        document = written("capacity", LLAMA, *ON_H100, "--budget-file", budget, *options)
        assert document["inputs"]["budget_file"]["model"] == LLAMA
    assert written("plan", LLAMA, *ON_H100, "--budget-file", budget)["rows"]


@pytest.mark.parametrize("options", [[], ["--by", "layout", "--quality", "A,C"]], ids=" ".join)
def test_runs_of_engines(options: list[str]) -> None:
    runs = Path(__file__).parent.parent / "golden" / "steps" / "runs.csv"
    document = written("calibrate evaluate-steps", runs, *options)
    assert document["rows"]
    assert document["groups"]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [("plan", [LLAMA, *ON_H100]), ("cache", [LLAMA]), ("capacity", [LLAMA, *ON_H100]),
     ("models show", [HYBRID]), ("audit", ["mla"]), ("plot step-stack", [LLAMA, *ON_H100])],
)  # fmt: skip
def test_a_key_too_many_or_too_few_is_refused(command: str, arguments: list[str]) -> None:
    document = written(command, *arguments)

    def changed(change: Callable[[dict[str, Any]], object]) -> str | None:
        other = copy.deepcopy(document)
        change(other)
        return fault(command, other)

    assert changed(lambda d: d.update(more=1))
    assert changed(lambda d: d["rows"][0].update(more=1))
    assert changed(lambda d: d["rows"][0].pop(next(iter(d["rows"][0]))))
    assert changed(lambda d: d["inputs"].update(more=1))
    assert changed(lambda d: d.update(schema_version=1))
    assert changed(lambda d: d["notes"].append({"kind": "rumour", "subject": None, "text": "?"}))
    assert changed(lambda d: d["rows"][0].update({key: [[]] for key in d["rows"][0]}))


def test_a_number_is_no_text_and_a_count_is_whole() -> None:
    document = written("cache", LLAMA)
    for value in ("1", 1.5, None):
        document["rows"][0]["context_tokens"] = value
        assert fault("cache", document)


def commands(group: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Commands that have ``--format``, the output of tables."""
    context = group.make_context("", [], resilient_parsing=True)
    has_format = any(param.name == "output_format" for param in group.params)
    if words and has_format:
        yield " ".join(words)
    for name in getattr(group, "list_commands", lambda _: ())(context):
        yield from commands(group.get_command(context, name), (*words, name))


def test_every_command_that_writes_rows_has_a_schema() -> None:
    found = set(commands(typer.main.get_command(app)))
    assert found - {"schema"} == set(ANSWERS)
    assert "schema" in COMMANDS


@pytest.mark.parametrize("words", [["calibrate", "fitt"], ["calibrate  fitt"]])
def test_an_unknown_command_is_one_line(words: list[str]) -> None:
    done = run("schema", *words)
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert "did you mean 'calibrate fit'?" in done.stderr
    assert "plot step-stack, models, models show" in done.stderr


def test_the_schema_goes_to_a_file(tmp_path: Path) -> None:
    done = run("schema", "calibrate", "evaluate", "-o", tmp_path / "s.json")
    assert (done.exit_code, done.stdout) == (0, "")
    schema = json.loads((tmp_path / "s.json").read_text())
    assert schema["title"] == "lrkv-plan calibrate evaluate --format json"
    assert schema["properties"]["notes"]["items"] == {"$ref": "#/$defs/Note"}
