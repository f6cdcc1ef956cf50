"""Runs of whole engines beside predicted steps: tables, groups, and what cannot be read."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lrkv_plan.calibration.evaluate_steps import (
    StepRow,
    batch_band,
    evaluate_steps,
    kind_of,
    reasons,
    step_group,
    step_groups,
)
from lrkv_plan.calibration.step_runs import read_runs
from lrkv_plan.cli.app import app
from lrkv_plan.latency.step import step_model, step_time
from lrkv_plan.loader import load_all_hardware, load_hardware, load_model
from lrkv_plan.specs.deployment import Parallelism, parse_engine
from tests.cli.schemas import fault

RUN = CliRunner().invoke
RUNS = Path(__file__).parents[1] / "golden" / "steps" / "runs.csv"
HEADER = "id,model,gpu,engine,batch,context_tokens,decode_ms"
LINE = "r1,llama-3.1-8b,h200,vllm,8,2000,10"


def table(folder: Path, *lines: str, header: str = HEADER) -> Path:
    path = folder / "runs.csv"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


@pytest.fixture(scope="module")
def found() -> list[StepRow]:
    return evaluate_steps(read_runs(RUNS))


def test_a_run_is_the_step_of_one_replica(found: list[StepRow]) -> None:
    row = found[0]  # 2,048 sequences on 5 replicas of 8 attention ranks
    assert (row.batch_size, row.batch_band) == (410, "129 to 512")
    assert (row.kind, row.layout) == ("mla, experts", "attention DP 8, EP 8")
    model = step_model(
        load_model("deepseek-v3"), load_hardware("b200"), kv_dtype="fp8",
        weight_dtype="fp8_block", parallel=Parallelism(dp_size=8, ep_size=8),
        engine=parse_engine("sglang"), relatives=load_all_hardware(),
    )  # fmt: skip
    step = step_time(model, 1383, 410)
    assert row.predicted_s == pytest.approx(float(step.step_s))
    assert row.measured_s == pytest.approx(37.2352e-3)
    assert row.ratio == pytest.approx(float(step.step_s) / 37.2352e-3)
    assert sum(term.time_s for term in row.terms) == pytest.approx(row.predicted_s)


def test_quality_says_what_is_judged(found: list[StepRow]) -> None:
    assert [row.is_judged for row in found] == [True] * 10 + [False] * 2
    assert found[10].predicted_s is not None
    assert "speculation" in (found[11].refused or "")
    assert sum(group.n for group in step_groups(found, "group")) == 10
    every = evaluate_steps(read_runs(RUNS), qualities=("A", "C"))
    assert all(row.is_judged for row in every)
    assert list(reasons(every)) == [(found[11].refused, 1)]


def test_a_row_without_a_quality_counts(tmp_path: Path) -> None:
    (row,) = evaluate_steps(read_runs(table(tmp_path, LINE)))
    assert (row.is_judged, row.quality, row.group) == (True, None, "llama-3.1-8b|h200|vllm")
    assert (row.kind, row.layout, row.kv_dtype) == ("gqa, dense", "one GPU", "bf16")


def made_up(ratio: float | None, group: str = "g", *, in_band: bool = False) -> StepRow:
    return StepRow(
        id="r", group=group, model="m", gpu="h200", engine="vllm@0.9", quality=None,
        is_judged=True, ratio=ratio, in_band=None if ratio is None else in_band,
    )  # fmt: skip


def test_errors_of_a_group_worked_by_hand() -> None:
    rows = [made_up(1.5), made_up(0.9, in_band=True), made_up(1.0, in_band=True), made_up(None)]
    group = step_group("group", "g", rows)
    # errors 0, 0.1, 0.5: the middle is 0.1; nine tenths of the way 0.1 + 0.8 x 0.4
    assert (group.n, group.expressible) == (4, 3)
    assert group.median_error == pytest.approx(0.1)
    assert group.p90_error == pytest.approx(0.42)
    assert group.median_ratio == pytest.approx(1.0)
    assert group.in_band == pytest.approx(2 / 3)


def test_the_worst_group_comes_first_and_one_without_a_prediction_last() -> None:
    rows = [made_up(None, "none"), made_up(0.9, "close"), made_up(2.0, "far")]
    assert [one.group for one in step_groups(rows, "group")] == ["far", "close", "none"]
    (engine,) = step_groups(rows, "engine")
    assert (engine.group, engine.n) == ("vllm", 3)
    (unknown,) = step_groups(rows, "layout")
    assert unknown.group == "unknown"


def test_bands_of_batch_sizes_stand_in_their_order() -> None:
    rows = [
        replace(made_up(ratio), batch_size=size, batch_band=batch_band(size))
        for size, ratio in ((600, 3.0), (1, 1.0), (64, 2.0))
    ]
    assert [one.group for one in step_groups(rows, "batch")] == ["1", "33 to 128", "above 512"]


def test_words_of_groups() -> None:
    assert [batch_band(n) for n in (1, 2, 32, 33, 512, 4096)] == [
        "1", "2 to 8", "9 to 32", "33 to 128", "129 to 512", "above 512",
    ]  # fmt: skip
    assert kind_of(load_model("qwen3-next-80b-a3b")).startswith("recurrent + gqa")


def test_spec_dir_finds_folders_with_a_config_and_files(tmp_path: Path) -> None:
    own = tmp_path / "specs"
    (own / "mine").mkdir(parents=True)
    config = {
        "model_type": "llama", "hidden_size": 1024, "num_attention_heads": 8, "head_dim": 128,
        "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 1000,
        "intermediate_size": 2048, "max_position_embeddings": 8192, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (own / "mine" / "config.json").write_text(json.dumps(config))
    gpu = RUN(app, ["hardware", "new", "my-gpu", "--like", "h200", "-o", str(own / "my-gpu.yaml")])
    assert gpu.exit_code == 0, gpu.output
    path = table(tmp_path, LINE.replace("llama-3.1-8b", "mine"), LINE.replace("h200", "my-gpu"))
    by_name, by_file = evaluate_steps(read_runs(path), spec_dir=own)
    assert by_name.predicted_s is not None
    assert by_file.predicted_s is not None
    unknown, _ = evaluate_steps(read_runs(path))
    assert "no shipped model is called 'mine'" in (unknown.refused or "")
    written_out = table(tmp_path, LINE.replace("llama-3.1-8b", str(own / "mine")))
    (by_path,) = evaluate_steps(read_runs(written_out))
    assert by_path.predicted_s == by_name.predicted_s


def test_json_holds_rows_and_groups() -> None:
    done = RUN(app, ["calibrate", "evaluate-steps", str(RUNS), "-f", "json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert fault("calibrate evaluate-steps", answer) is None
    assert len(answer["rows"]) == 12
    assert {group["by"] for group in answer["groups"]} == {"group"}
    assert sum(group["n"] for group in answer["groups"]) == 10
    first = answer["rows"][0]
    assert first["low_s"] <= first["predicted_s"] <= first["high_s"]
    assert {"term", "basis", "time_s"} == set(first["terms"][0])
    del answer["groups"]
    assert fault("calibrate evaluate-steps", answer)


def test_csv_holds_the_runs_and_markdown_the_groups() -> None:
    lines = RUN(app, ["calibrate", "evaluate-steps", str(RUNS), "-f", "csv"]).stdout.splitlines()
    rows = list(csv.DictReader(lines))
    assert [row["id"] for row in rows][:2] == ["d0005", "d0006"]
    assert float(rows[0]["measured_s"]) == pytest.approx(37.2352e-3)
    by_gpu = ["calibrate", "evaluate-steps", str(RUNS), "-f", "markdown", "--by", "gpu"]
    shown = RUN(app, by_gpu).stdout
    assert "| GPU | runs | predicted |" in shown
    assert shown.count("\n| h200 |") == 1


def test_the_screen_says_the_verdict_first() -> None:
    done = RUN(app, ["calibrate", "evaluate-steps", str(RUNS)])
    assert done.stdout.startswith("10 of 10 runs can be predicted: ")
    assert "--by gpu" in done.stdout
    assert "speculation" not in done.stderr  # of a row that nobody judges
    every = RUN(app, ["calibrate", "evaluate-steps", str(RUNS), "--quality", "A,C"])
    assert every.stdout.startswith("11 of 12 runs can be predicted: ")
    assert "--quality A,C --by gpu" in " ".join(every.stdout.replace("\\\n", "").split())
    assert "refused: speculation" in every.stderr


def test_nothing_that_can_be_predicted_is_said(tmp_path: Path) -> None:
    path = table(tmp_path, LINE.replace("llama-3.1-8b", "nobody"))
    done = RUN(app, ["calibrate", "evaluate-steps", str(path)])
    assert done.exit_code == 0
    assert done.stdout.startswith("None of one run in runs.csv can be predicted.")


@pytest.mark.parametrize(
    ("header", "line", "message"),
    [
        (HEADER, LINE.replace(",8,", ",many,"), "row r1: batch 'many': must be a number above 0"),
        (HEADER, LINE.replace(",10", ",-1"), "row r1: decode_ms '-1'"),
        (HEADER, LINE.replace(",10", ","), "row r1: decode_ms ''"),
        (f"{HEADER},tp", f"{LINE},1.5", "row r1: tp '1.5': must be a whole number from 1"),
        (f"{HEADER},tp", f"{LINE},inf", "row r1: tp 'inf': must be a whole number from 1"),
        (f"{HEADER},draft_tokens", f"{LINE},x", "row r1: draft_tokens 'x'"),
        (HEADER.replace(",gpu", ",card"), LINE, "lacks the columns gpu"),
        (HEADER.replace("decode_ms", "ms"), LINE, "lacks the column decode_ms or tpot_ms"),
        (HEADER, "", "has no row"),
        (HEADER, f"{LINE},1", "line 2: has more cells than the header"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, header: str, line: str, message: str) -> None:
    done = RUN(app, ["calibrate", "evaluate-steps", str(table(tmp_path, line, header=header))])
    assert (done.exit_code, done.stdout) == (5, "")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_bad_cell_of_a_row_that_nobody_judges_is_its_refusal(tmp_path: Path) -> None:
    lines = [f"{LINE},A", f"{LINE.replace('r1', 'r2').replace(',8,', ',,')},C"]
    rows = evaluate_steps(read_runs(table(tmp_path, *lines, header=f"{HEADER},quality")))
    assert rows[0].predicted_s is not None
    assert rows[1].refused == "row r2: batch '': must be a number above 0"


def test_options_that_a_table_does_not_need_are_refused() -> None:
    asked = ["calibrate", "evaluate-steps", str(RUNS), "--model", "llama-3.1-8b", "--tp-size", "2"]
    done = RUN(app, asked)
    assert done.exit_code == 2
    assert "--model, --tp-size: is not used" in done.stderr
    wrong = RUN(app, ["calibrate", "evaluate-steps", str(RUNS), "--by", "gpus"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)
    assert "did you mean 'gpu'?" in wrong.stderr


@pytest.mark.parametrize("quality", ["", "a", "B"])
def test_a_quality_that_no_run_has_is_an_error(quality: str) -> None:
    done = RUN(app, ["calibrate", "evaluate-steps", str(RUNS), "--quality", quality])
    assert (done.exit_code, done.stdout) == (5, "")
    assert f"no run is of quality '{quality}'; there are 'A, C'" in done.stderr
