"""A report's folder is replaced whole; links, modes and foreign files stay."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

import pytest

from lrkv_plan.errors import UsageError
from lrkv_plan.report import folder as report_folder
from lrkv_plan.report.folder import check_folder, write_folder

FILES = {"report.md": b"new", "tables/a.csv": b"new"}


def is_ours(name: str) -> bool:
    return name.endswith((".md", ".csv"))


def write(folder: Path, files: Mapping[str, bytes] = FILES, force: bool = True) -> None:
    write_folder(folder, files, is_ours=is_ours, force=force)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_folder_has_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "r", force=False)
    finally:
        os.umask(before)
    assert mode(tmp_path / "r") == mode(tmp_path / "r" / "tables") == 0o750
    assert mode(tmp_path / "r" / "report.md") == 0o640
    assert os.listdir(tmp_path) == ["r"]


def test_a_replaced_folder_keeps_modes(tmp_path: Path) -> None:
    write(tmp_path / "r", {**FILES, "old.md": b"old"})
    (tmp_path / "r").chmod(0o700)
    (tmp_path / "r" / "tables").chmod(0o770)
    (tmp_path / "r" / "report.md").chmod(0o600)
    write(tmp_path / "r")
    assert mode(tmp_path / "r") == 0o700
    assert mode(tmp_path / "r" / "tables") == 0o770
    assert mode(tmp_path / "r" / "report.md") == 0o600
    assert not (tmp_path / "r" / "old.md").exists()


def test_a_link_to_a_folder_stays(tmp_path: Path) -> None:
    write(tmp_path / "r", {"report.md": b"old"})
    (tmp_path / "l").symlink_to("r")
    (tmp_path / "new").symlink_to("target")
    write(tmp_path / "l")
    write(tmp_path / "new")
    assert (tmp_path / "l").is_symlink()
    assert (tmp_path / "new").is_symlink()
    assert (tmp_path / "r" / "report.md").read_bytes() == b"new"
    assert (tmp_path / "target" / "report.md").read_bytes() == b"new"


@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("problem", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_what_stops_the_exchange_leaves_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, problem: BaseException
) -> None:
    write(tmp_path / "r", {"report.md": b"old"})
    renamed, n_calls = Path.rename, 0

    def rename(self: Path, target: Path) -> Path:
        nonlocal n_calls
        n_calls += 1
        if n_calls == at:
            raise problem
        return renamed(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises((KeyboardInterrupt, UsageError)):
        write(tmp_path / "r")
    assert (tmp_path / "r" / "report.md").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["r"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pipe", "pipe: is a named pipe; a report needs a folder"),
        ("file", "file: is a file; a report needs a folder"),
        ("loop", "leads to itself|levels of symbolic links"),
        ("", r"holds the current folder \(or its name is empty\)"),
        ("no/r", "does not exist"),
        ("x" * 300, "File name too long"),
        ("a\0b", "is not a path"),
    ],
)
def test_the_reason_is_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("file").touch()
    Path("loop").symlink_to("loop")
    with pytest.raises(UsageError, match=reason):
        check_folder(Path(name), is_ours=is_ours, force=True)


def test_a_folder_of_more_files_than_any_report_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_folder, "_MAX_PATHS", 1)
    write(tmp_path / "r")
    with pytest.raises(UsageError, match="exists; --force"):
        write(tmp_path / "r", force=False)
    with pytest.raises(UsageError, match="more files than any report"):
        write(tmp_path / "r")
