"""Written whole or not at all, and what was at the path keeps what it was."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lrkv_plan.errors import UsageError
from lrkv_plan.files import check_target, write_whole


@pytest.fixture
def umask_027() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.usefixtures("umask_027")
def test_a_new_file_has_what_the_umask_leaves(tmp_path: Path) -> None:
    write_whole(tmp_path / "a", "x")
    assert mode(tmp_path / "a") == 0o640  # 0666 without 0027


@pytest.mark.usefixtures("umask_027")
@pytest.mark.parametrize("kept", [0o600, 0o644, 0o666, 0o755, 0o400])
def test_a_replaced_file_keeps_its_mode(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(kept)
    write_whole(path, "new", force=True)
    assert (path.read_text(), mode(path)) == ("new", kept)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root gives away")
def test_a_replaced_file_keeps_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch()
    os.chown(path, 12, 34)
    write_whole(path, "new", force=True)
    assert (path.stat().st_uid, path.stat().st_gid) == (12, 34)


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    target, link, outer = tmp_path / "deep" / "t", tmp_path / "l", tmp_path / "o"
    target.write_text("old")
    link.symlink_to("deep/t")
    outer.symlink_to("l")
    with pytest.raises(UsageError, match="exists; --force"):
        write_whole(outer, "new")
    write_whole(outer, "new", force=True)
    assert target.read_text() == "new"
    assert link.is_symlink()
    assert outer.is_symlink()
    assert not target.is_symlink()


def test_a_link_to_nothing_makes_its_target(tmp_path: Path) -> None:
    (tmp_path / "l").symlink_to("t")
    write_whole(tmp_path / "l", "new")
    assert (tmp_path / "l").is_symlink()
    assert (tmp_path / "t").read_text() == "new"


def test_a_device_is_written_to_and_stays(tmp_path: Path) -> None:
    write_whole(Path("/dev/null"), "x" * 10**6)
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    (tmp_path / "l").symlink_to("/dev/null")
    write_whole(tmp_path / "l", "x", force=True)
    assert (tmp_path / "l").is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    if Path("/dev/full").exists():
        with pytest.raises(UsageError, match="No space left"):
            write_whole(Path("/dev/full"), "x")


def test_a_device_node_of_ones_own_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "n"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.open("w").close()
    except OSError:
        pytest.skip("only root makes device nodes, where the file system takes them")
    write_whole(path, "x", force=True)
    assert stat.S_ISCHR(path.stat().st_mode)


def test_a_pipe_that_a_process_reads_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "p"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="no process reads it"):
        write_whole(path, "x")
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_whole(path, "all of it")
        assert os.read(reader, 100) == b"all of it"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_a_descriptor_of_the_process_is_written_to(tmp_path: Path, name: str) -> None:
    """Its file stays the same file: what the shell opened is not replaced."""
    path = tmp_path / "opened by the shell"
    with path.open("wb") as file:
        inode = path.stat().st_ino
        write_whole(Path(name.format(file.fileno())), "one, ")
        write_whole(Path(name.format(file.fileno())), "two")
        (tmp_path / "l").symlink_to(name.format(file.fileno()))
        write_whole(tmp_path / "l", ", three", force=True)
    assert path.read_text() == "one, two, three"
    assert path.stat().st_ino == inode
    with pytest.raises(UsageError, match="Bad file descriptor"):
        write_whole(Path(name.format(999_999)), "x")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "the name of the file to write is empty"),
        (".", r"is a folder \(or its name is empty\)"),
        ("folder", "folder: is a folder; a file is needed"),
        ("no/x", "no is a folder that does not exist"),
        ("file/x", "file is not a folder"),
        ("x" * 300, "File name too long"),
        ("a\0b", "is not a path"),
        ("loop", "levels of symbolic links"),
        ("file", "exists; --force overwrites it"),
    ],
)
def test_the_reason_is_the_right_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(UsageError, match=reason):
        check_target(name)
    with pytest.raises(UsageError, match=reason):
        write_whole(name, "x")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder", "loop"]


@pytest.mark.parametrize(
    "stopped_by", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()]
)
def test_what_stops_it_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_by: BaseException
) -> None:
    def fsync(_: int) -> None:
        raise stopped_by

    (tmp_path / "a").write_text("old")
    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises((UsageError, KeyboardInterrupt)):
        write_whole(tmp_path / "a", "new", force=True)
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_made_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    monkeypatch.setattr(os, "fsync", lambda _: path.write_text("another's"))
    with pytest.raises(UsageError, match="exists; --force"):
        write_whole(path, "mine")
    assert path.read_text() == "another's"
    assert os.listdir(tmp_path) == ["a"]


def test_the_longest_name_and_odd_bytes_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    write_whole(path, "a\udcff.json")
    assert path.read_bytes() == rb"a\udcff.json"
