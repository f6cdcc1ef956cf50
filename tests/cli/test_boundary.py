"""Whatever stops a command is one line on stderr and a small exit code; bugs keep their traceback."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.cli.plain_text import plain
from tests.conftest import one_error

CACHE = ("cache", "llama-3.1-8b")
LONG = "a" * 100_000


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def shell(command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A shell line in which $P is the command; five seconds of processor time at most."""

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (5, 5))

    return subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, errors="surrogateescape",
        preexec_fn=bounded, env={**os.environ, "P": f"{sys.executable} -m lrkv_plan", **environment},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((*CACHE, "--forme", "json"), "no such option --forme; did you mean --force or --format?"),
        ((*CACHE, "--zzz"), "no such option --zzz; see lrkv-plan cache --help"),
        (("cach",), "no such command 'cach'; did you mean 'cache'?"),
        (("models", "shw"), "no such command 'shw'; did you mean 'show'?"),
        (("cache",), "missing argument 'MODEL[,...]'; see lrkv-plan cache --help"),
        (("rank", "llama-3.1-8b", "--align"), "option '--align' requires an argument"),
        ((*CACHE, "b"), "got unexpected extra argument (b); see lrkv-plan cache --help"),
        (
            (*CACHE, "-f", "xml"),
            "invalid value for '--format' / '-f': 'xml' is not one of 'table', 'json', 'csv', "
            "'markdown'; see lrkv-plan cache --help",
        ),
    ],
)
def test_a_usage_error_is_one_line_in_our_form(arguments: tuple[str, ...], line: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert one_error(result.stderr).replace("argument(s)", "argument") == f"error: {line}"


@pytest.mark.parametrize(
    "arguments",
    [
        (*CACHE, "-f", LONG),
        (*CACHE, f"--{LONG}"),
        (*CACHE, LONG),
        ("cache", LONG),
        ("cache", f"./{LONG}"),
        (LONG,),
        ("audit", LONG),
        ("hardware", "show", LONG),
        (*CACHE, "--spec-dir", LONG),
        (*CACHE, "-f", "a " * 50_000),
        (*CACHE, "--attention", LONG),
        (*CACHE, "--context-tokens", LONG),
        (*CACHE, "-o", LONG),
    ],
)
def test_a_long_value_is_shortened(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert 2 <= result.exit_code <= 5
    assert one_error(result.stderr)
    assert len(result.stderr) < 700


@pytest.mark.parametrize("text", ["\x1b[31m", "\x9b", "\u202e", "a\nb"])
def test_control_characters_are_escaped(text: str) -> None:
    for arguments in ((*CACHE, "-f", text), (*CACHE, f"--{text}"), (text,), ("cache", f"./{text}")):
        result = run(*arguments)
        assert result.exit_code in (2, 3)
        assert one_error(result.stderr).isprintable()


@pytest.mark.parametrize(
    "arguments",
    [
        ("cache", "\0"),
        (*CACHE, "-o", "a\0b"),
        (*CACHE, "--spec-dir", "\0"),
        ("inspect", "\0"),
        ("audit", "\0.yaml"),
        ("capacity", "llama-3.1-8b", "--gpu", "h200", "--lengths", "\0"),
        ("report", "llama-3.1-8b", "--gpu", "h200", "-o", "\0"),
        ("calibrate", "show", "\0"),
    ],
)
def test_no_option_takes_a_nul(arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "holds a NUL character" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("cache", "{}.json"), ("cache", "{}.yaml"), ("audit", "{}.yaml"), ("hardware", "show", "{}.yaml"),
        ("inspect", "{}"), ("calibrate", "show", "{}.yaml"), ("models", "import", "{}.json"),
        ("capacity", "llama-3.1-8b", "--gpu", "h200", "--lengths", "{}.csv"),
        ("capacity", "llama-3.1-8b", "--gpu", "h200", "--trace", "{}.csv"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_every_reader_tells_pipes_and_devices(
    tmp_path: Path, arguments: tuple[str, ...], kind: str
) -> None:
    path = Path(arguments[-1].format(tmp_path / "x"))
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    result = run(*arguments[:-1], str(path))
    assert 3 <= result.exit_code <= 5, result.output
    assert result.stderr.count("\n") == 1
    assert kind in result.stderr


@pytest.mark.parametrize(
    ("problem", "exit_code", "line"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 2, "this needs more memory than there is; ask for less"),
        (PermissionError(13, "Permission denied", "some.file"), 2, "some.file: Permission denied"),
        (OSError(28, "No space left on device"), 2, "stdout cannot be written: No space left"),
    ],
)
def test_what_a_person_can_mend_is_told(
    monkeypatch: pytest.MonkeyPatch, problem: BaseException, exit_code: int, line: str
) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise problem

    monkeypatch.setattr("lrkv_plan.report.tables.render", fail)
    result = run(*CACHE)
    assert (result.exit_code, result.stderr.count("\n")) == (exit_code, 1)
    assert result.stderr.startswith(f"error: {line}")
    if isinstance(problem, Exception):
        assert type(run("--debug", *CACHE).exception) is type(problem)


@pytest.mark.parametrize(
    "bug", [AssertionError("x"), OSError(9, "x"), KeyError("x"), ValueError("x")]
)
def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, bug: Exception) -> None:
    def fail(*_: Any, **__: Any) -> str:
        raise bug

    monkeypatch.setattr("lrkv_plan.report.tables.render", fail)
    result = run(*CACHE)
    assert (result.exit_code, result.exception) == (1, bug)


def test_a_closed_or_full_stdout_is_one_line() -> None:
    for command, reason in (
        ("$P cache llama-3.1-8b >&-", "stdout is closed"),
        ("$P cache llama-3.1-8b > /dev/full", "stdout cannot be written: No space left"),
        ("$P --version > /dev/full", "stdout cannot be written: No space left"),
    ):
        done = shell(command)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert done.stderr.startswith(f"error: {reason}")


def test_a_closed_or_full_stderr_keeps_the_exit_code(tmp_path: Path) -> None:
    assert shell("$P cache nothing 2>&-").returncode == 3
    assert shell("$P cache nothing 2> /dev/full").returncode == 3
    assert shell(f"$P cache llama-3.1-8b -o {tmp_path}/x >&- 2>&-").returncode == 0
    assert (tmp_path / "x").stat().st_size > 0


def test_other_encodings_get_plain_characters() -> None:
    done = shell("$P cache llama-3.1-8b -q", PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "-----" in done.stdout
    assert "─────" in shell("$P cache llama-3.1-8b -q", PYTHONIOENCODING="utf-8").stdout
    done = shell("$P cache ./ä→", LC_ALL="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert done.returncode == 3
    assert done.stderr.isascii()


def test_plain_characters_leave_json_and_csv_what_they_are() -> None:
    text = "α×😀é“x”\udcff─"
    escaped = "".join(c if c.isascii() else plain(c) for c in text)
    assert escaped == r"\u03b1x\ud83d\ude00\u00e9'x'\udcff-"
    assert json.loads(f'"{escaped}"') == "αx😀é'x'\udcff-"


def test_a_file_name_of_odd_bytes_is_told_and_taken(tmp_path: Path) -> None:
    shown = r"a\udcff.yaml"
    done = shell(f"$P cache {tmp_path}/$'a\\xff.yaml'")
    assert (done.returncode, done.stderr) == (
        3,
        f"error: {tmp_path}/{shown}: no such file or folder\n",
    )
    shell(f"$P models show llama-3.1-8b -o {tmp_path}/$'a\\xff.yaml'")
    done = shell(f"$P cache {tmp_path}/$'a\\xff.yaml' -f json")
    assert json.loads(done.stdout)["rows"]
    done = shell(f"$P capacity llama-3.1-8b --gpu h200 --lengths {tmp_path}/$'a\\xff.yaml'")
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert shown in done.stderr


def test_an_interrupt_of_the_process_is_one_line() -> None:
    """Sent as soon as the process tells that its command runs: no clock decides where."""
    script = (
        "import lrkv_plan.__main__ as m, lrkv_plan.report.tables as o, signal, sys, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a background job
        "def wait(*a, **k): print('running', flush=True); time.sleep(60)\n"
        "o.render = wait; sys.argv = ['lrkv-plan', 'cache', 'llama-3.1-8b']; m.main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "running\n"
        process.send_signal(signal.SIGINT)
        _, told = process.communicate()
    assert (process.returncode, told) == (130, "error: interrupted\n")


def test_an_interrupt_while_the_program_is_imported_is_one_line() -> None:
    script = (
        "import sys, lrkv_plan.__main__ as m\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder()); m.main()"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")
