"""A result of several files is there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from lrkv_plan import files
from lrkv_plan.errors import UsageError
from lrkv_plan.files import made, write_together


def full_from(monkeypatch: pytest.MonkeyPatch, n_files: int) -> None:
    """A disk that takes ``n_files`` files."""
    synced: list[int] = []

    def fsync(descriptor: int) -> None:
        if len(synced) == n_files:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced.append(descriptor)

    monkeypatch.setattr(files.os, "fsync", fsync)


@pytest.mark.parametrize("n_files", [0, 1])
def test_a_full_disk_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_files: int
) -> None:
    full_from(monkeypatch, n_files)
    with pytest.raises(UsageError, match="No space left on device"):
        write_together(tmp_path / "a" / "b", {"one": "1", "two": b"2"})
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_earlier_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_together(tmp_path, {"one": "1", "two": "2"})
    full_from(monkeypatch, 1)
    with pytest.raises(UsageError, match="No space left on device"):
        write_together(tmp_path, {"one": "new", "two": "new", "three": "new"}, force=True)
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"one": "1", "two": "2"}


def test_what_exists_is_overwritten_only_if_forced(tmp_path: Path) -> None:
    write_together(tmp_path, {"one": "1"})
    with pytest.raises(UsageError, match="one exist; --force"):
        write_together(tmp_path, {"one": "2", "two": "2"})
    assert [p.name for p in tmp_path.iterdir()] == ["one"]
    assert write_together(tmp_path, {"one": "2"}, force=True) == [tmp_path / "one"]
    assert (tmp_path / "one").read_text() == "2"


def test_a_folder_that_was_there_stays(tmp_path: Path) -> None:
    for folder, stays in ((tmp_path, True), (tmp_path / "new", False)):
        with pytest.raises(KeyError), made(folder):
            raise KeyError
        assert folder.exists() == stays
