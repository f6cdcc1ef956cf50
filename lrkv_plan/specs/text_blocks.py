"""How is a text file of any size read? In blocks of whole lines, packed with gzip or zstd or not.

No more than a block and a line is held. A packed file that unpacks to far more than data does is
refused as it is read.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import open_regular, too_large
from lrkv_plan.progress import tell_progress

MAX_FILE_BYTES = 2**40
MAX_LINE_BYTES = 2**20
MAX_LINES = 2 * 10**9  # below 2**31, so that sums over requests stay within int64
BLOCK_BYTES = 2**20
# Digits, commas and line ends shrink to a tenth with gzip; JSON of equal keys to a fiftieth.
MOST_UNPACKED = 200
FREELY_UNPACKED_BYTES = 2**26

_NOT_TEXT = {
    b"version https://git-lfs": "a Git LFS pointer, not the data; fetch it with 'git lfs pull'",
    b"\x1f\x8b": "packed with gzip twice; unpack it once",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"BZh": "compressed with bzip2; unpack it first",
    b"\xfd7zXZ": "compressed with xz; unpack it first",
    b"PAR1": "a Parquet file; Parquet packs its columns itself, so unpack it first",
}
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


class Line(NamedTuple):
    """One line of a file, and its number counted from 1."""

    path: Path
    number: int
    text: str

    def error(self, value: str, allowed: str) -> SpecError:
        """A ``SpecError`` that names the file, the line, the value and what is allowed."""
        return SpecError(f"{self.path}: line {self.number}: {value}: {allowed}")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Whole lines of a file, the first of which has the number ``first_number``."""

    path: Path
    first_number: int
    raw: bytes

    def lines(self) -> Iterator[Line]:
        """All but blank ones and those that start with #.

        Raises
        ------
        SpecError
            If they are not lines of UTF-8 text.
        """
        texts = _texts(self.path, self.first_number, self.raw)
        for number, text in enumerate(texts, start=self.first_number):
            if text and not (text.startswith("#") or text.isspace()):
                yield Line(self.path, number, text)

    def since(self, number: int) -> Block:
        """What begins with that line, maybe nothing."""
        raw = self.raw.split(b"\n", number - self.first_number)[number - self.first_number :]
        return replace(self, first_number=number, raw=raw[0] if raw else b"")


def blocks_of(path: Path) -> Iterator[Block]:
    """A file in blocks.

    Raises
    ------
    SpecError
        If it is missing, larger than ``MAX_FILE_BYTES``, not text, damaged, packed beyond belief,
        or of more lines than ``MAX_LINES``.
    """
    number = 1
    for raw in _raw_blocks(path):
        yield Block(path=path, first_number=number, raw=raw)
        number += raw.count(b"\n")
        if number - 1 > MAX_LINES:
            raise SpecError(f"{path}: more than {MAX_LINES:,} lines; take a part of it")


def first_line(path: Path) -> tuple[Line, Iterator[Block]]:
    """The first line that counts, and blocks from that line on.

    Raises
    ------
    SpecError
        If there is none.
    """
    blocks = blocks_of(path)
    for block in blocks:
        for line in block.lines():
            return line, chain([block.since(line.number)], blocks)
    raise SpecError(f"{path}: empty: at least one line of data is needed; check the file")


def without_line(first: Line, blocks: Iterator[Block]) -> Iterator[Block]:
    """Blocks that begin with a header, without it."""
    block = next(blocks)
    rest = block.since(first.number + 1)
    return chain([rest] if rest.raw else [], blocks)


def _raw_blocks(path: Path) -> Iterator[bytes]:
    """The unpacked bytes, cut after line ends."""
    rest, n_read = b"", 0
    with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
        for chunk in _chunks(path, file):
            kept = chunk if n_read else _checked_start(path, chunk)
            n_read += len(chunk)
            rest += kept
            cut = rest.rfind(b"\n") + 1
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
            elif len(rest) > MAX_LINE_BYTES:
                raise SpecError(
                    f"{path}: a line has more than {MAX_LINE_BYTES:,} bytes: lines must be "
                    "shorter; is it text with one record a line?"
                )
    if rest:
        yield rest


def _chunks(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Unpacked bytes of the open file, as long as they are believable."""
    size = max(1, file.seek(0, 2))
    file.seek(0)
    start = _read(path, file, 4)
    file.seek(0)
    n_read = 0
    with _unpacking(path, file, start) as source:
        while chunk := _read(path, source, BLOCK_BYTES):
            n_read += len(chunk)
            n_packed = file.tell()
            if n_packed > MAX_FILE_BYTES:  # it grows while it is read
                raise SpecError(too_large(path, MAX_FILE_BYTES))
            if n_read > FREELY_UNPACKED_BYTES + MOST_UNPACKED * n_packed:
                raise SpecError(
                    f"{path}: unpacks to over {MOST_UNPACKED} times its size, as no list of "
                    "requests does; unpack it yourself if it is what it should be"
                )
            tell_progress(lambda at=n_packed: f"{path.name}: {100 * min(at, size) // size} %")  # type: ignore[misc]
            yield chunk


@contextmanager
def _unpacking(path: Path, file: BinaryIO, start: bytes) -> Iterator[Any]:
    if start.startswith(_GZIP):
        import gzip

        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked
    elif start.startswith(_ZSTD):
        from lrkv_plan.specs.trace_extra import pyarrow_for

        arrow = pyarrow_for(path, "zstd")
        yield arrow.CompressedInputStream(arrow.PythonFile(file, mode="r"), "zstd")
    else:
        yield file


def _read(path: Path, file: Any, n_bytes: int) -> bytes:
    try:
        return file.read(n_bytes) or b""
    except (EOFError, zlib.error) as error:
        raise SpecError(f"{path}: cannot be unpacked: {error}") from None
    except OSError as error:  # a damaged gzip has no number of the system
        what = "cannot be read" if error.errno else "cannot be unpacked"
        raise SpecError(f"{path}: {what}: {error.strerror or error}") from None


def _checked_start(path: Path, chunk: bytes) -> bytes:
    for prefix, advice in _NOT_TEXT.items():
        if chunk.startswith(prefix):
            raise SpecError(f"{path}: line 1: {shown(chunk[:24])}: {advice}")
    return chunk.removeprefix(b"\xef\xbb\xbf")


def _texts(path: Path, first_number: int, raw: bytes) -> list[str]:
    """The block's lines. Control bytes mean a binary file, which is refused with its line."""
    at = raw.find(b"\0")
    if at < 0:
        try:
            text = raw.decode()
            if "\r" in text:  # a replace that finds nothing costs as much as the split
                text = text.replace("\r\n", "\n")
                if "\r" in text:
                    raise _lone_return(path, first_number, text)
            texts = text.split("\n")
            return texts if texts[-1] else texts[:-1]
        except UnicodeDecodeError as error:
            at = error.start
    number = first_number + raw.count(b"\n", 0, at)
    raise SpecError(
        f"{path}: line {number}: byte 0x{raw[at]:02x}: must be UTF-8 text; "
        "is this a binary file, or text saved in another encoding?"
    )


def _lone_return(path: Path, first_number: int, text: str) -> SpecError:
    number = first_number + text.count("\n", 0, text.index("\r"))
    return SpecError(
        f"{path}: line {number}: holds a carriage return (\\r) that no line feed (\\n) follows; "
        "end lines with \\n or \\r\\n"
    )
