"""A short, seeded part of the fuzz: hostile files and command lines end in an answer or a refusal."""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

pytest.importorskip("scipy")
pytest.importorskip("pyarrow")

from benchmarks.fuzz import search
from benchmarks.fuzzing.damage import damaged_document
from benchmarks.fuzzing.inputs import SOURCES, Input, input_of
from benchmarks.fuzzing.judging import faults
from benchmarks.fuzzing.options import BASES, is_contained
from benchmarks.fuzzing.running import prepared, run
from lrkv_plan.cli.app import app

SEED = 20_261_130
N_INPUTS = 300
AMPLE_S = 60.0  # of processor time: a hang all the same, and no other process can lengthen it


@pytest.mark.slow
def test_no_input_ends_in_a_traceback_a_hang_or_half_a_file(tmp_path: Path) -> None:
    findings = search(SEED, range(N_INPUTS), tmp_path, processor_s=AMPLE_S)
    assert not findings.counts, "\n".join(findings.lines())
    assert findings.n_inputs == N_INPUTS
    assert {0, 2, 3, 5} <= set(findings.exit_codes)


def test_the_undamaged_files_are_accepted(tmp_path: Path) -> None:
    """Damage is found only behind what valid input reaches."""
    first = {kind: source.commands[0].split() for kind, source in SOURCES.items()}
    first["checkpoint"] = ["cache", "k"]  # the index alone is drawn as well, and holds no layers
    with prepared():
        for number, (kind, arguments) in enumerate(first.items()):
            files = dict(SOURCES[kind].draw(random.Random(1)))
            one = Input(number=number, kind=kind, files=files, arguments=arguments)
            outcome = run(one, tmp_path / kind, processor_s=AMPLE_S)
            assert outcome.exit_code == 0, (kind, outcome.stderr, outcome.error)
            assert list(faults(one, outcome)) == []


def test_an_input_depends_on_its_seed_and_number_alone() -> None:
    twice = [[input_of(seed, number) for number in (7, 3)] for seed in (1, 1)]
    assert twice[0] == twice[1]
    assert input_of(1, 3) != input_of(2, 3) != input_of(2, 4)


def test_damage_leaves_the_original_alone() -> None:
    document = {"a": [1, {"b": "text"}], "c": 2.5}
    copies = [damaged_document(document, random.Random(seed)) for seed in range(50)]
    assert document == {"a": [1, {"b": "text"}], "c": 2.5}
    assert sum(copy != document for copy in copies) > 40


@pytest.mark.parametrize(
    ("argument", "contained"),
    [
        ("out.json", True), ("..", True), ("mla:512+64", True), ("1/3", True),
        ("/etc/x", False), ("../../x", False), ("--output=/x", False), ("-o/x", False),
        ("~/x", False),
    ],
)  # fmt: skip
def test_nothing_outside_the_folder_is_named(argument: str, contained: bool) -> None:
    assert is_contained(argument) is contained


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("raise KeyError('x')", "traceback"),
        ("while True: pass", "hang"),
        ("time.sleep(60)", "hang"),
        ("raise SystemExit(1)", "exit code"),
        ("print('error: x', file=sys.stderr)", "exit code"),
        ("print('a\\n' * 9, file=sys.stderr); raise SystemExit(3)", "long message"),
        ("print('\\x1b[31m')", "control character"),
        ("warnings.warn('x')", "warning"),
        ("open('half', 'w').write('x'); print('e', file=sys.stderr); raise SystemExit(3)",
         "files changed by a refusal"),
        ("bytearray(500 * 2**20)", "memory"),
    ],
)  # fmt: skip
def test_each_fault_is_seen(
    code: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        exec(code, {"sys": sys, "time": time, "warnings": warnings})

    monkeypatch.setattr("benchmarks.fuzzing.running.WAITING_S", 0.3)
    monkeypatch.setattr("benchmarks.fuzzing.running.main", broken)
    one = Input(number=0, kind="options", files={}, arguments=["cache"])
    outcome = run(one, tmp_path / "x", processor_s=0.2 if kind == "hang" else AMPLE_S)
    assert [fault.kind for fault in faults(one, outcome)] == [kind]


def test_every_command_is_tried() -> None:
    def names(command: Any, before: str = "") -> Iterator[str]:
        if not hasattr(command, "list_commands"):
            yield before.strip()
            return
        for name in command.list_commands(None):
            yield from names(command.get_command(None, name), f"{before} {name}")

    assert set(names(typer.main.get_command(app))) <= set(BASES)
