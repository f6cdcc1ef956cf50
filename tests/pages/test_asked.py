"""A call on a page and its command line say the same, in the commands' own options."""

from __future__ import annotations

import csv
import io
import shlex
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.errors import ArgumentError
from lrkv_plan.pages import pictures
from lrkv_plan.pages.asked import Asked, called, keywords_of, part_of
from lrkv_plan.pages.model_page import Place
from lrkv_plan.questions.asking import REPEATED
from lrkv_plan.report.document import Part
from lrkv_plan.report.figures import figure_table
from lrkv_plan.report.tables import to_csv

PICTURES = ("cache-vs-rank", "rank-sweep", "capacity-vs-context", "payload-vs-loss", "roofline",
            "crossover-map", "step-stack")  # fmt: skip
ASKED = ("cache", "rank", "params", "shard", "capacity", "plan", "step-time", "crossover",
         "roofline", "audit", *(f"plot {name}" for name in PICTURES))  # fmt: skip
# What commands write with, and what no page states.
OF_OUTPUT = {"output", "output_format", "format", "force", "no_color", "quiet", "explain", "inputs",
             "width", "schema", "help", "help_all"}  # fmt: skip


def options(command: str) -> dict[str, Any]:
    """Options of a command by name, but those of its output."""
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.get_command(None, word)
    return {
        one.name: one for one in found.params
        if one.param_type_name == "option" and one.name not in OF_OUTPUT
    }  # fmt: skip


def written(command: str) -> str:
    """What a command line writes as CSV."""
    told = CliRunner().invoke(app, [*shlex.split(command)[1:], "--format", "csv"])
    assert told.exit_code == 0, told.output
    return told.stdout


@pytest.mark.parametrize("command", ASKED)
def test_keywords_are_the_commands_options(command: str) -> None:
    registered = options(command)
    known = set(keywords_of(command)) - {"model", "claims"}
    assert known == set(registered)
    for name, option in registered.items():
        assert f"--{name.replace('_', '-')}" in option.opts
        assert option.multiple == (name in REPEATED)


@pytest.mark.parametrize("command", ["report", "explore"])
def test_a_pages_keywords_are_those_of_designs(command: str) -> None:
    known = set(keywords_of("designs")) - {"model"}
    assert set(options(command)) - {"all_reports", "no_browser"} == known


def test_a_line_is_the_call() -> None:
    asked = Asked(
        command="step-time", subject="llama-3.2-1b", name="llama-3.2-1b",
        keywords={"gpu": "h200", "attention": ["mha", "lrkv:16"], "batch_size": 4},
    )  # fmt: skip
    assert asked.line == (
        "lrkv-plan step-time llama-3.2-1b --gpu h200 --attention mha --attention lrkv:16 "
        "--batch-size 4"
    )
    assert written(asked.line) == to_csv(asked.table)
    assert called("plot step-stack") is pictures.step_stack
    assert called("step-time") is lrkv_plan.step_time


def test_a_refusal_stands_in_the_place_of_the_table() -> None:
    asked = Asked(command="shard", subject="nothing", name="nothing")
    part = part_of("placement", "Placement", [asked])
    assert isinstance(part, Part)
    assert part.table is None
    assert "no shipped model" in str(part.refused)
    assert part.commands == ("lrkv-plan shard nothing",)


@pytest.fixture(scope="module")
def mixed() -> Place:
    return Place.of("gemma-4-31b", gpu="h200", context_tokens=2048)


def test_a_picture_has_the_own_design_that_no_text_names(mixed: Place) -> None:
    assert mixed.is_mixed
    (asked,) = mixed.drawn("plot step-stack", **mixed.step, batch_size=2)
    assert " --beside-own" in asked.line
    assert written(asked.line) == to_csv(figure_table(asked.answer))
    bars = asked.answer.panels[0].series[0].y
    assert bars == tuple(one.label for one in mixed.designs)
    with pytest.raises(ArgumentError, match="without attention"):
        pictures.step_stack("gemma-4-31b", gpu="h100-sxm", beside_own=True)


def test_tables_of_two_calls_are_under_one_another(mixed: Place) -> None:
    asked = mixed.each("params")
    part = part_of("weights", "Weights", asked)
    assert part.table is not None
    rows = [row for one in asked for row in csv.DictReader(io.StringIO(written(one.line)))]
    assert [row["attention"] for row in part.table.rows] == [row["attention"] for row in rows]
    assert len(part.commands) == 2


def test_given_options_are_repeated_where_the_answer_depends_on_them() -> None:
    place = Place.of(
        "llama-3.2-1b", gpu="2xh100-sxm", engine="sglang", kv_memory="10 GiB", weights="3 GiB",
        kv_dtype="fp8", align=32,
    )  # fmt: skip
    told = {name: place.asked(name).line for name in ("cache", "roofline", "crossover")}
    assert told["cache"] == "lrkv-plan cache llama-3.2-1b --kv-dtype fp8"
    assert told["roofline"] == "lrkv-plan roofline llama-3.2-1b --gpu h100-sxm --kv-dtype fp8"
    assert told["crossover"].endswith("--engine sglang --kv-dtype fp8 --weights '3 GiB'")
    assert place.all_gpus == {"n_gpus": 2}


def test_a_gpu_of_ones_own_is_asked_and_called_by_its_name() -> None:
    own = lrkv_plan.load_gpu("h200").model_copy(
        update={"name": "mine", "mem_capacity_bytes": 2**37}
    )
    place = Place.of("llama-3.2-1b", gpu=own)
    asked = place.asked("capacity", tp_size=1)
    assert asked.line == "lrkv-plan capacity llama-3.2-1b --gpu mine --tp-size 1"
    assert [row["gpu"] for row in asked.table.rows] == ["mine"]


def test_new_questions_answer_in_rows() -> None:
    rows = lrkv_plan.ranks("lrkv-paper-2.5b", budget="50%").rows
    assert len(rows) == 129
    assert rows[55]["cache_ratio_exact"] == "559/1152"  # 1/18 + 55/128
    assert [row["in_budget"] for row in rows[55:58]] == [
        True,
        True,
        False,
    ]  # 128 (1/2 - 1/18) = 56.9
    (first, *_) = lrkv_plan.faster_map(
        "llama-3.1-8b", gpu="h200", attention=["gqa:8", "mqa"], over="batch_size", at_most=2
    ).rows
    assert (first["batch_size"], first["constants"]) == (1, "predicted")
    answer = lrkv_plan.designs("llama-3.2-1b", gpu="h100-sxm")
    assert [row["attention"] for row in answer.rows][:3] == ["gqa:8", "mha", "mqa"]
    assert answer.batch_size == 32
    explored = lrkv_plan.explore("llama-3.2-1b", gpu="h100-sxm")
    (row,) = (
        row for row in explored.rows
        if (row["attention"], row["kv_dtype"], row["context_tokens"], row["batch_size"])
        == ("gqa:8", "bf16", 8192, 32)
    )  # fmt: skip
    assert (
        row["step_s"]
        == lrkv_plan.step_time(
            "llama-3.2-1b", gpu="h100-sxm", context_tokens=8192, batch_size=32
        ).rows[0]["step_s"]
    )
