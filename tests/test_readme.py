"""The README is true: its shown output is today's, and its Python session runs."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, shipped_files

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```console\n\$ lrkv-plan ([^\n]+)\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_shown_output_is_what_the_command_prints(command: str, shown: str) -> None:
    assert CliRunner().invoke(app, shlex.split(command)).output == shown


def test_every_command_is_shown_or_named() -> None:
    shown = {command.split()[0] for command, _ in BLOCKS}
    assert {"rank", "cache", "params", "shard"} <= shown
    assert "`lrkv-plan models`" in README
    assert "`lrkv-plan hardware`" in README


def test_python_session_runs() -> None:
    session = doctest.DocTestParser().get_doctest(README, {}, "README.md", "README.md", 0)
    assert session.examples
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(session)
    assert runner.summarize(verbose=False).failed == 0


def test_counts_of_shipped_files_are_right() -> None:
    assert f"lists {len(shipped_files(MODEL_FOLDER))})" in README
    assert f"lists {len(shipped_files(HARDWARE_FOLDER))} accelerators" in README
