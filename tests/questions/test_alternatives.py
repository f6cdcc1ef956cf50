"""A comma or a list asks for several at once: one answer each, stacked with what tells them apart."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.errors import ArgumentError, PlacementError, RequirementError, SpecError, UsageError
from lrkv_plan.questions.alternatives import combinations
from lrkv_plan.questions.listed import listed
from lrkv_plan.report.screen import draw
from lrkv_plan.report.tables import screen_of
from tests.cli.schemas import fault

LLAMA, LARGE, H100 = "llama-3.1-8b", "llama-3.1-70b", "h100-sxm"
TOLD = ("model", "gpu", "kv_dtype", "tp_size", "context_tokens", "batch_size")


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_lists_are_read_as_people_write_them(tmp_path: Path) -> None:
    assert listed("gpu", "b200, 8xh100-sxm") == ["b200", "8xh100-sxm"]
    assert listed("gpu", ["b200", "h200"]) == ["b200", "h200"]
    assert listed("context_tokens", "8k,32k") == [8192, 32_768]
    assert listed("batch_size", None) == [None]
    file = tmp_path / "a,b.yaml"
    file.write_text("x")
    assert listed("model", str(file)) == [str(file)]
    given = {"gpu": "a,b", "kv_dtype": "bf16,fp8"}
    assert combinations(given, ("gpu", "kv_dtype")) == [
        {"gpu": gpu, "kv_dtype": kv} for gpu in "ab" for kv in ("bf16", "fp8")
    ]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gpu", "h200,", "write values with a comma between"),
        ("gpu", [], "write values with a comma between"),
        ("gpu", "h200,h200", "'h200' stands twice"),
        ("context_tokens", "8,192", "is it 8192, or 8 and 192"),
    ],
)
def test_lists_that_cannot_be_read(name: str, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        listed(name, value)


def test_too_many_combinations_are_refused() -> None:
    many = ",".join(map(str, range(1, 40)))
    given = {"tp_size": many, "batch_size": many}
    with pytest.raises(ArgumentError, match="1,521 combinations"):
        combinations(given, ("tp_size", "batch_size"))


ASKED: list[tuple[str, dict[str, Any]]] = [
    ("plan", {"gpu": ["h100-sxm", "h200"], "context_tokens": "8k"}),
    ("step_time", {"gpu": "h200", "context_tokens": [8192, "32k"], "batch_size": "1, 32"}),
    ("step_time", {"gpu": "h200,b200", "tp_size": [1, 2], "kv_dtype": ["bf16", "fp8"]}),
]


@pytest.mark.parametrize(("question", "asked"), ASKED, ids=lambda case: str(case)[:50])
def test_stacked_rows_are_those_of_each_question(question: str, asked: dict[str, Any]) -> None:
    ask = getattr(lrkv_plan, question)
    whole = ask(LLAMA, **asked)
    several = combinations({name: asked.get(name) for name in TOLD[1:]}, TOLD[1:])
    alone = [row for one in several for row in ask(LLAMA, **{**asked, **one}).rows]
    assert len(whole.rows) == len(alone)
    for row, own in zip(whole.rows, alone, strict=True):
        assert own.items() <= row.items()
        assert row["model"] == LLAMA
        assert None not in (row["gpu"], row["kv_dtype"], row["context_tokens"], row["tp_size"])
    told = [(*(row[key] for key in TOLD), row["attention"]) for row in whole.rows]
    assert len(set(told)) == len(told)
    assert set(whole.frame.columns) >= set(TOLD)


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("crossover", {"attention": ["gqa:8", "mla:512+64"], "batch_size": 4}),
        ("crossover", {"attention": ["gqa:8", "lrkv:RANK"], "over": "rank", "at_most": 32}),
        ("roofline", {"attention": ["mha", "lrkv:24"], "units": "bf16"}),
    ],
)
def test_crossovers_and_rooflines_of_several_have_rows_for_each(
    question: str, asked: dict[str, Any]
) -> None:
    ask = getattr(lrkv_plan, question)
    whole = ask([LLAMA, "qwen3-8b"], gpu="h200,b200", **asked)
    alone = [
        (model, gpu, row)
        for model in (LLAMA, "qwen3-8b") for gpu in ("h200", "b200")
        for row in ask(model, gpu=gpu, **asked).rows
    ]  # fmt: skip
    assert len(whole.rows) == len(alone)
    for row, (model, gpu, own) in zip(whole.rows, alone, strict=True):
        assert own.items() <= row.items()
        assert (row["model"], row["gpu"], row["kv_dtype"]) == (model, gpu, "bf16")
    words = [word for name, value in asked.items() for one in (value if name == "attention" else [value])
             for word in (f"--{name.replace('_', '-')}", str(one))]  # fmt: skip
    told = run(question, f"{LLAMA},qwen3-8b", "--gpu", "h200,b200", *words, "-f", "json")
    document = json.loads(told.stdout)
    assert fault(question, document) is None
    assert document["rows"] == whole.rows
    for row in document.get("sensitivity", []):
        assert row["model"] in (LLAMA, "qwen3-8b")
        assert row["gpu"] in ("h200", "b200")


def test_the_command_line_writes_what_python_answers_and_its_schema_says_so() -> None:
    asked = ["step-time", f"{LLAMA},{LARGE}", "--gpu", "h200,b200", "--tp-size", "4"]
    document = json.loads(run(*asked, "-f", "json").stdout)
    assert fault("step-time", document) is None
    assert len(document["inputs"]["alternatives"]) == 4
    python = lrkv_plan.step_time([LLAMA, LARGE], gpu=["h200", "b200"], tp_size=4)
    assert document["rows"] == python.rows
    table = list(csv.DictReader(io.StringIO(run(*asked, "-f", "csv").stdout)))
    assert [row["gpu"] for row in table] == ["h200", "b200"] * 2
    planned = json.loads(run("plan", LLAMA, "--gpu", "h200,b200", "-f", "json").stdout)
    assert fault("plan", planned) is None


def test_a_refused_combination_is_kept_with_its_reason() -> None:
    told = run("plan", f"{LARGE},{LLAMA}", "--gpu", H100, "--tp-size", "1", "-f", "json")
    document = json.loads(told.stdout)
    assert fault("plan", document) is None
    refused, *rest = document["rows"]
    assert refused["model"] == LARGE
    assert "fits at TP 1" in refused["refused"]
    assert all(row["model"] == LLAMA for row in rest)
    with pytest.raises(RequirementError, match="fits at TP 1"):
        lrkv_plan.plan([LARGE, "llama-3.1-405b"], gpu=H100, tp_size=1)


def test_a_name_that_is_none_is_an_error_and_no_row() -> None:
    for asked in ({"gpu": "h200,h2000"}, {"gpu": "h200", "kv_dtype": "bf16,bf17"}):
        for question in (lrkv_plan.plan, lrkv_plan.capacity, lrkv_plan.step_time):
            with pytest.raises((SpecError, UsageError)):
                question(LLAMA, **asked)


def test_a_stacked_screen_says_a_sentence_each_and_shows_one_table() -> None:
    answer = lrkv_plan.step_time([LLAMA, LARGE], gpu="h200,b200", tp_size=4)
    shown = screen_of(answer.table)
    assert [line.split(":")[0] for line in shown.verdict] == [
        "llama-3.1-8b, h200", "llama-3.1-8b, b200", "llama-3.1-70b, h200", "llama-3.1-70b, b200",
    ]  # fmt: skip
    assert [column.title for column in shown.columns][:2] == ["model", "GPU"]
    lines = draw(shown, width=160).splitlines()
    assert sum(line.startswith("llama-3.1-70b  h200") for line in lines) == 1
    many = screen_of(lrkv_plan.step_time(LLAMA, gpu="h200", batch_size="1,2,3,4,5,6").table)
    assert many.verdict[-1] == "And 2 more below."


def test_one_of_a_list_is_the_plain_answer() -> None:
    alone = lrkv_plan.step_time(LLAMA, gpu="h200")
    assert lrkv_plan.step_time([LLAMA], gpu=["h200"]).rows == alone.rows


def test_capacity_of_several_is_one_table() -> None:
    rows = lrkv_plan.capacity(
        [LLAMA, LARGE], gpu=["8xh100-sxm", "4xb200"], kv_dtype="bf16,fp8", context_tokens="8k,32k"
    ).rows
    told = [(r["model"], r["gpu"], r["kv_dtype"], r["context_tokens"]) for r in rows]
    assert len(set(told)) == 16
    # Fewest GPUs first.
    assert [r["n_gpus"] for r in rows] == [4] * 8 + [8] * 8
    alone = lrkv_plan.capacity(LARGE, gpu="4xb200", kv_dtype="fp8", context_tokens="32k").rows[0]
    assert alone in rows


def test_refused_capacities_are_kept(tmp_path: Path) -> None:
    plain = lrkv_plan.load_model("qwen3-next-80b-a3b").model_dump(mode="json", exclude_none=True)
    bare = [{**group, "weights": []} for group in plain["layers"]]
    hybrid = str(tmp_path / "bare.yaml")  # its recurrent weights are not stated
    Path(hybrid).write_text(yaml.safe_dump({**plain, "name": "bare", "layers": bare}))
    asked = ["capacity", f"{LLAMA},{hybrid}", "--gpu", "h200"]
    document = json.loads(run(*asked, "-f", "json").stdout)
    assert fault("capacity", document) is None
    assert [row["refused"] is None for row in document["rows"]] == [True, False]
    assert document["rows"][1]["model"] == "bare"
    assert "recurrent layers are not counted" in run(*asked).stderr
    assert run("capacity", hybrid, "--gpu", "h200").exit_code == 3
    spelled = lrkv_plan.load_model(LLAMA).model_dump(mode="json", exclude_none=True)
    file = tmp_path / "own.yaml"
    file.write_text(yaml.safe_dump({**spelled, "name": "own"}))
    both = lrkv_plan.capacity(f"{LLAMA},{file}", gpu="h200").rows
    assert [row["model"] for row in both] == [LLAMA, "own"]
    with pytest.raises(PlacementError):
        lrkv_plan.capacity([LLAMA, LARGE], gpu="h200", tp_size=3)
