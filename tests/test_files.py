"""The one way to open a file: what is no regular file is named for what it is, and never read."""

from __future__ import annotations

import gzip
import os
import socket
import sys
import zlib
from pathlib import Path

import pytest

from lrkv_plan.errors import CalibrationError, SpecError, one_line, shown
from lrkv_plan.files import as_path, names_in, open_regular, read_regular, unpacked


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_regular_file_and_a_link_to_one_are_read(tmp_path: Path) -> None:
    path, link = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"12345")
    link.symlink_to("a")
    assert read_regular(link, max_bytes=5) == b"12345"
    with open_regular(path, max_bytes=5) as file:
        assert file.read(2) == b"12"


def test_a_file_above_the_bound_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(SpecError, match="larger than 1 MiB"):
        read_regular(path, max_bytes=2**20)


def test_a_file_that_says_it_is_empty_is_still_bounded() -> None:
    if not Path("/proc/self/maps").exists():
        pytest.skip("needs /proc, whose files state no size")
    with pytest.raises(SpecError, match="larger than"):
        read_regular(Path("/proc/self/maps"), max_bytes=10)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_pipe_is_named_and_not_waited_for(fifo: Path, is_link: bool) -> None:
    path = fifo
    if is_link:
        path = fifo.with_name("link")
        path.symlink_to(fifo)
    with pytest.raises(SpecError, match=r"cannot be read: is a named pipe"):
        open_regular(path, max_bytes=10)


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/null", "/dev/tty"])
def test_a_device_is_named(name: str) -> None:
    with pytest.raises(SpecError, match="is a device; a file is needed"):
        open_regular(Path(name), max_bytes=10)


def test_a_folder_a_socket_and_a_loop_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="is a folder"):
        open_regular(tmp_path, max_bytes=10)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        with pytest.raises(SpecError, match="is a socket"):
            open_regular(tmp_path / "s", max_bytes=10)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SpecError, match="levels of symbolic links"):
        open_regular(tmp_path / "loop", max_bytes=10)


@pytest.mark.parametrize("name", ["none", "x" * 400, "nul\0byte", "none/below"])
def test_a_name_that_leads_nowhere_is_one_line_of_the_wanted_class(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(CalibrationError) as caught:
        read_regular(tmp_path / name, max_bytes=10, error=CalibrationError)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads all")
def test_a_file_without_permission_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.touch(mode=0)
    with pytest.raises(SpecError, match="Permission denied"):
        read_regular(path, max_bytes=10)


def test_no_descriptor_is_left_open(fifo: Path) -> None:
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    for path in (fifo, fifo.parent, Path("/dev/zero")):
        with pytest.raises(SpecError):
            open_regular(path, max_bytes=10)
    assert len(os.listdir("/proc/self/fd")) == before


def test_unpacking_stops_at_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    packed = gzip.compress(bytes(10**8))  # 100 kB
    with pytest.raises(CalibrationError, match=r"larger than 1 MiB.*once unpacked"):
        unpacked(path, packed, max_bytes=2**20, error=CalibrationError)
    assert unpacked(path, gzip.compress(b"ab"), max_bytes=2) == b"ab"
    assert unpacked(path, b"plain", max_bytes=2) == b"plain"


@pytest.mark.parametrize(
    "data",
    [
        b"\x1f\x8b",
        b"\x1f\x8b\x08\x00junk",
        gzip.compress(b"abc", mtime=0)[:-3],
        b"\x1f\x8b\x00" * 9,
    ],
)
def test_damaged_gzip_is_one_line(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(SpecError, match="cannot be unpacked"):
        unpacked(tmp_path / "a.gz", data, max_bytes=100)
    with pytest.raises((EOFError, OSError, zlib.error)):  # the same data, without the bound
        gzip.decompress(data)


def test_names_in_a_folder_are_bounded(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / f"{number}.yaml").touch()
    (tmp_path / ".hidden.yaml").touch()
    (tmp_path / "other.txt").touch()
    assert names_in(tmp_path, ".yaml", at_most=7) == [f"{n}.yaml" for n in range(5)]
    with pytest.raises(SpecError, match="holds more than 6 files"):
        names_in(tmp_path, ".yaml", at_most=6)
    with pytest.raises(SpecError, match="cannot be read"):
        names_in(tmp_path / "none", ".yaml", at_most=6)


def test_a_path_as_people_write_it() -> None:
    assert as_path("~/x.json") == Path.home() / "x.json"
    for text, reason in (
        ("~nosuchuser/x", "no such user"),
        ("", "not a path"),
        ("\0", "not a path"),
    ):
        with pytest.raises(SpecError, match=reason):
            as_path(text)


def test_a_message_keeps_its_end_and_shortens_what_is_long() -> None:
    # 90 + 90 letters around the dots of a word, and what follows it
    text = one_line("x" * 100_000 + ": File name too long")
    assert text.endswith("xxx: File name too long")
    assert len(text) < 250
    assert len(one_line("word " * 10_000)) == 600
    assert one_line("a\x1b\u202e\udcff\nb") == r"a\x1b\u202e\udcff b"


def test_any_value_is_shown_short() -> None:
    assert shown(2**4000) == "a whole number of 4,001 bits"
    assert shown([2**40_000]) == "a list"  # more digits than Python writes
    assert len(shown("\x1b" * 10**6)) == 60
    nested: list[object] = []
    for _ in range(sys.getrecursionlimit()):
        nested = [nested]
    assert len(shown(nested)) <= 60
