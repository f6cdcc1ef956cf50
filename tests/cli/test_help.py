"""Help fits a screen, says every option, and a bare call says where to start."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from lrkv_plan.cli import panels, start
from lrkv_plan.cli.app import COMMANDS, app
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, shipped_files
from scripts.site_pages import commands

EVERY = [command.name for command in commands()]
GROUPS = ("calibrate", "plot")


def run(*arguments: str, **settings: Any) -> Any:
    return CliRunner().invoke(app, list(arguments), **settings)


def declared(name: str) -> Any:
    """The command of that name as typer holds it."""
    node: Any = typer.main.get_command(app)
    for word in name.split():
        node = node.get_command(None, word)
    return node


def flags_of(name: str) -> set[str]:
    return {
        max(one.opts, key=len)
        for one in declared(name).params
        if one.param_type_name == "option" and not getattr(one, "hidden", False)
    }


def test_a_bare_call_shows_five_tasks_with_true_counts() -> None:
    result = run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.count("lrkv-plan ") >= 5
    assert max(map(len, result.stdout.splitlines())) <= 80
    n_models, n_gpus = len(shipped_files(MODEL_FOLDER)), len(shipped_files(HARDWARE_FOLDER))
    assert f"one of {n_models} names" in result.stdout
    assert f"one of {n_gpus}," in result.stdout


@pytest.mark.parametrize("command", start.TASKS.values())
def test_each_task_runs(command: str) -> None:
    line = command.replace("\\\n", "").replace("MODEL", "llama-3.1-8b").replace("GPU", "h200")
    result = run(*shlex.split(line)[1:])
    assert result.exit_code == 0, result.output


def test_summaries_of_commands_end_before_column_80() -> None:
    lines = run("--help", terminal_width=78).stdout.splitlines()
    assert max(map(len, lines)) < 80
    for name, summary in COMMANDS.items():
        assert f"  {name:9}  {summary}" in lines, name


@pytest.mark.parametrize("name", EVERY)
def test_help_fits_a_screen_and_names_every_option(name: str) -> None:
    text = run(*name.split(), "--help", terminal_width=78).stdout
    lines = text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    own = {max(one.opts, key=len) for one in declared(name).params
           if getattr(one, "rich_help_panel", None) == panels.ENGINE}  # fmt: skip
    assert flags_of(name) - own <= set(re.findall(r"--[a-z-]+", text))
    assert not own or f"{len(own)} settings by their names in engines" in text
    # One line each: no text of a list goes on in a next line.
    lists = re.findall(r"\n(?:Question|Commands)\n((?:  .*\n)+)", text)
    assert not [line for part in lists for line in part.splitlines() if line.startswith("    ")]


@pytest.mark.parametrize("name", EVERY)
def test_help_all_says_every_option_and_its_whole_help(name: str) -> None:
    text = " ".join(run(*name.split(), "--help-all").stdout.split())
    for one in declared(name).params:
        if one.help and not getattr(one, "hidden", False):
            assert " ".join(one.help.split()) in text, one.name
    assert flags_of(name) <= set(re.findall(r"--[a-z-]+", text))


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("columns", [52, 60, 120])
def test_help_keeps_to_the_width(name: str, columns: int) -> None:
    for flag in ("--help", "--help-all"):
        lines = run(*name.split(), flag, terminal_width=columns - 2).stdout.splitlines()
        # A word that is longer than its column is not broken: an example, a folder, a format.
        long = [line for line in lines if len(line) > columns]
        assert all(len(line.split()) <= 3 for line in long), long


def test_panels_are_those_that_are_declared() -> None:
    """Each option stands in the panel that its declaration names, the question's in a line each."""
    text = run("plan", "--help", terminal_width=78).stdout
    question = text.split("Question\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in question] == [
        "MODEL[,...]", "--gpu", "--attention", "--context-tokens", "--budget", "--batch-size",
        "--tpot-ms",
    ]  # fmt: skip
    assert question[0].endswith("required")
    assert re.search(r"^Price, speculation  --speculative-tokens --accepted", text, re.MULTILINE)
    assert {getattr(one, "rich_help_panel", None) for one in declared("capacity").params} <= {
        None, *panels.PANELS,
    }  # fmt: skip


def test_an_argument_stands_as_it_is_written() -> None:
    assert run("cache", "--help").stdout.startswith("Usage: lrkv-plan cache MODEL[,...] [OPTIONS]")
    assert run("report", "--help").stdout.startswith("Usage: lrkv-plan report [MODEL] --output DIR")


def test_help_is_the_same_without_colour() -> None:
    plain = run("plan", "--help", env={"NO_COLOR": "1"}).stdout
    assert plain == run("plan", "--help").stdout
    assert plain.isascii()
