"""What is advised below an error: the name, option or command that was meant, to paste."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.fuzzing.inputs import Input
from benchmarks.fuzzing.judging import faults
from benchmarks.fuzzing.running import Outcome
from lrkv_plan.cli.app import app
from lrkv_plan.cli.boundary import what_is_told
from lrkv_plan.errors import ArgumentError, PlanError, SpecError
from lrkv_plan.loader import load_gpu, load_model
from tests.conftest import one_error

PLAN = "plan llama-3.1-8b --gpu h200"


def run(line: str) -> Any:
    return CliRunner().invoke(app, shlex.split(line))


@pytest.mark.parametrize(
    ("typed", "wrong", "meant"),
    [
        (f"{PLAN} --context 8k", "--context", f"{PLAN} --context-tokens 8k"),
        (f"{PLAN} --ctx=8k", "--ctx", f"{PLAN} --context-tokens 8k"),
        (f"{PLAN} --max-model-len 8k", "--max-model-len", f"{PLAN} --context-tokens 8k"),
        ("plan llama-3.1-8b --gpus h200", "--gpus", PLAN),
        (f"{PLAN} --gpus 8", "--gpus", f"{PLAN} --n-gpus 8"),
        (f"{PLAN} --tp 2", "--tp", f"{PLAN} --tp-size 2"),
        (f"{PLAN} --batch 8", "--batch", f"{PLAN} --batch-size 8"),
        (f"{PLAN} --kv_dtype fp8", "--kv_dtype", f"{PLAN} --kv-dtype fp8"),
        (f"{PLAN} --json", "--json", f"{PLAN} --format json"),
        ("cach llama-3.1-8b", "'cach'", "cache llama-3.1-8b"),
        ("models shw qwen3-8b", "'shw'", "models show qwen3-8b"),
        ("plot step-stck qwen3-8b", "'step-stck'", "plot step-stack qwen3-8b"),
    ],
)
def test_a_near_miss_is_told_with_the_line_that_was_meant(
    typed: str, wrong: str, meant: str
) -> None:
    """Nothing near is taken silently: the exit code is 2, and nothing was computed."""
    result = run(typed)
    assert (result.exit_code, result.stdout) == (2, "")
    first, *advice = result.stderr.splitlines()
    assert wrong in one_error(result.stderr)
    assert "; did you mean " in first
    assert advice == [f"  lrkv-plan {meant}"]


def test_a_word_that_is_nothing_near_gets_no_line_to_paste() -> None:
    assert run(f"{PLAN} --zzz").stderr == (
        "error: no such option --zzz; see lrkv-plan plan --help\n"
    )
    assert "\n  " not in run(f"{PLAN} --forme json").stderr  # --force or --format
    assert "\n  " not in run(f"{PLAN} --context '{'8' * 300}'").stderr
    assert "\n  " not in run("plan a --gpu h200 --format json --json").stderr


def test_a_model_in_place_of_a_command_is_told_a_command() -> None:
    told = run("llama-3.1-8b").stderr.splitlines()
    assert told[1] == "  lrkv-plan plan llama-3.1-8b --gpu h100-sxm"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("plan qwen3-8b", "plan qwen3-8b --gpu h100-sxm"),
        ("plan", "plan llama-3.1-8b --gpu h100-sxm"),
        ("plan --tp-size 2", "plan llama-3.1-8b --tp-size 2 --gpu h100-sxm"),
        ("report qwen3-8b --gpu l40s", "report qwen3-8b --gpu l40s -o llama-report"),
        (
            "crossover qwen3-8b --gpu=l40s",
            "crossover qwen3-8b --gpu=l40s --attention gqa:8 --attention mla:512+64",
        ),
        ("plot step-stack", "plot step-stack llama-3.1-8b --gpu h200"),
        ("models show", "models show qwen3-32b"),
    ],
)
def test_what_is_missing_is_put_in_as_in_the_example(typed: str, meant: str) -> None:
    result = run(typed)
    assert result.exit_code == 2
    assert one_error(result.stderr).startswith("error: missing ")
    assert result.stderr.splitlines()[1:] == [f"  for example:  lrkv-plan {meant}"]


def test_a_missing_option_of_what_torchrun_starts_is_put_in_behind_it() -> None:
    assert run("calibrate tensor-parallel").stderr.endswith(
        "  for example:  torchrun --nproc-per-node 2 -m lrkv_plan calibrate tensor-parallel "
        "--output tp2\n"
    )


def test_a_repeated_list_is_joined_and_a_repeated_value_is_not() -> None:
    result = run("cache qwen3-8b --context-tokens 8k --tp-size 1 --context-tokens=32k")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[1:] == [
        "  lrkv-plan cache qwen3-8b --context-tokens 8k,32k --tp-size 1"
    ]
    assert run(f"{PLAN} --gpu l40s").stderr.splitlines()[1:] == [
        "  lrkv-plan plan llama-3.1-8b --gpu h200,l40s"
    ]
    twice = run(f"{PLAN} --n-gpus 1 --n-gpus 2").stderr
    assert twice == "error: --n-gpus is given twice: give one value\n"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("llama-70b", "llama-3.1-70b"),
        ("Llama3.1-8B", "llama-3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b"),
        ("Qwen/Qwen2.5-7B-Instruct", "qwen2.5-7b"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b-v0.3"),
    ],
)
def test_a_near_name_or_hub_id_is_proposed_alone(name: str, near: str) -> None:
    with pytest.raises(SpecError) as caught:
        load_model(name)
    names, otherwise = caught.value.advice
    assert names.split() == ["perhaps", near, "(all:", "lrkv-plan", "models)"]
    assert otherwise == "or a file or folder with a Hugging Face config.json"
    assert f"perhaps {near} (all: lrkv-plan models); or a file" in str(caught.value)
    assert len(f"  {names}") <= 80


def test_names_that_nothing_is_near_to_and_gpus_by_alias() -> None:
    with pytest.raises(SpecError) as caught:
        load_model("zzzzzz")
    assert caught.value.advice[0] == "names:  lrkv-plan models"
    with pytest.raises(SpecError) as caught:
        load_gpu("rtx-4091")
    assert caught.value.advice[0].startswith("perhaps  rtx-4090")
    with pytest.raises(SpecError) as caught:
        load_model("./folder/none.yaml")
    assert caught.value.advice == ()


def test_a_budget_below_every_rank_says_the_smallest() -> None:
    """1 % of llama-3.1-8b's MHA, 524,288 B, is 5,242.88 B; rank 0 takes 16,384 B, 1/32 of it."""
    told = run("rank llama-3.1-8b --budget 1%")
    assert told.exit_code == 4
    assert told.stderr.splitlines()[1:] == [
        "  rank 0 already takes 16,384 B",
        "  the smallest feasible budget is 1/32 = 3.1250% of MHA",
    ]


def test_advice_is_data_of_the_error_and_two_lines_of_it_are_told() -> None:
    error = PlanError("no", advice=("first\x1b", "second", "third"))
    assert (error.message, error.advice[0]) == ("no", "first\\x1b")
    assert str(error) == "no; first\\x1b; second; third"
    assert what_is_told(error) == ("error: no\n  first\\x1b\n  second\n", 1)
    argument = ArgumentError("tp_size", " 3: no", advice=["--tp-size 4"])
    assert what_is_told(argument) == ("error: --tp-size 3: no\n  --tp-size 4\n", 2)


@pytest.mark.parametrize(
    ("stderr", "kinds"),
    [
        ("error: no\n  one\n  two\n", set()),
        ("error: no\none\n", {"advice not indented"}),
        ("error: no\n  one\n  two\n  three\n", {"long message"}),
    ],
)
def test_the_fuzz_takes_two_indented_lines_and_no_more(stderr: str, kinds: set[str]) -> None:
    outcome = Outcome(
        exit_code=2, stdout="", stderr=stderr, error="", raised_at="", too_slow=False,
        grown_bytes=0, python_warnings=(), files_before={}, files_after={},
    )  # fmt: skip
    one = Input(number=0, kind="options", files={}, arguments=["plan"])
    assert {fault.kind for fault in faults(one, outcome)} == kinds
