"""``explore``: the page with its sliders alone, in a file of its own, opened where a browser can."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app

ASKED = ("llama-3.2-1b", "--gpu", "h100-sxm")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["explore", *arguments])


def test_the_page_is_written_and_its_path_printed(temporary: Path) -> None:
    result = run(*ASKED, "--attention", "lrkv:24", "--no-browser")
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    path = Path(result.stdout.strip())
    assert path.parent == temporary
    assert list(temporary.iterdir()) == [path]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = path.read_text(encoding="utf-8")
    assert "lrkv-plan explore llama-3.2-1b --gpu h100-sxm --attention lrkv:24</pre>" in page
    found = re.search(r'id="grid-data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data = json.loads(found[1])
    assert data["command"].startswith(
        "lrkv-plan plan llama-3.2-1b --gpu h100-sxm --attention lrkv:24"
    )
    assert page.count("<svg") >= 2  # curves for a browser without script
    assert "report.md" not in page


def test_a_person_at_a_terminal_sees_what_is_made() -> None:
    master, slave = os.openpty()
    words = [sys.executable, "-m", "lrkv_plan", "explore", *ASKED, "--no-browser"]
    place = {**os.environ, "TMPDIR": tempfile.gettempdir(), "TERM": "xterm"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=slave, env=place) as running:
        os.close(slave)
        shown = b""
        while True:
            try:
                part = os.read(master, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
        assert running.wait() == 0
    os.close(master)
    assert b"page: sliders" in shown  # the plan takes less than the line's first frame


def test_the_browser_is_opened_where_there_is_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    with mock.patch("webbrowser.open", return_value=True) as opened:
        result = run(*ASKED)
        assert result.exit_code == 0, result.output
        opened.assert_called_once_with(Path(result.stdout.strip()).as_uri())
        assert "opened in the browser" in result.stderr
        assert run(*ASKED, "--no-browser").exit_code == 0
        assert run(*ASKED, "--quiet").stderr == ""
    assert opened.call_count == 2


def test_a_machine_without_a_browser_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    with mock.patch("webbrowser.open") as opened:
        result = run(*ASKED)
        assert result.exit_code == 0, result.output
        opened.assert_not_called()
    path = result.stdout.strip()
    assert re.search(rf"\n  scp \S+:{re.escape(path)} \.\n$", result.stderr)
    monkeypatch.setenv("DISPLAY", ":0")
    with mock.patch("webbrowser.open", return_value=False):
        assert "no browser was found" in run(*ASKED).stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("no-such", "--gpu", "h200"), 3, "no-such"),
        (("llama-3.2-1b", "--gpu", "h200", "--attention", "nope"), 3, "nope"),
        (("llama-3.2-1b", "--gpu", "h200", "--context-tokens", "0"), 2, "context-tokens"),
        (("llama-3.2-1b", "--gpu", "h200", "--utilisation", "0.9", "--kv-memory", "1GB"), 2,
         "--utilisation"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused_and_writes_nothing(
    temporary: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    result = run(*arguments, "--no-browser")
    assert result.exit_code == code, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert list(temporary.iterdir()) == []


def test_a_folder_that_takes_no_file_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    result = run(*ASKED, "--no-browser")
    assert result.exit_code == 2
    assert (
        result.output
        == "error: /no/such/folder: cannot be written: No such file or directory; set TMPDIR\n"
    )
