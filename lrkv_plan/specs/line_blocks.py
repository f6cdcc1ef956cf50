"""Read a long text file as blocks of numbered lines: bounded memory, never half a line.

Blank lines and lines that start with # are left out. What the lines mean is the caller's affair.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import open_regular, too_large

MAX_FILE_BYTES = 2 * 2**30  # the largest public trace, Azure's 2024 conversations, has 1.13e9
MAX_LINE_BYTES = 2**20
MAX_LINES = 50_000_000  # that trace has 27 million; an array of them takes 400 MB
# One block's Python strings fit the processor's cache: 4 MiB blocks parse 2.5 times slower.
BLOCK_BYTES = 2**18

_NOT_TEXT = {
    b"version https://git-lfs": "a Git LFS pointer, not the data; fetch it with 'git lfs pull'",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; export the columns as CSV",
}


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of one file with their numbers, counted from 1."""

    path: Path
    numbers: Sequence[int]
    texts: Sequence[str]

    def after_first(self) -> Lines:
        """All but the first line: what follows a header."""
        return Lines(path=self.path, numbers=self.numbers[1:], texts=self.texts[1:])

    def error(self, index: int, value: str, allowed: str) -> SpecError:
        """A ``SpecError`` that names the file, the line, the value and what is allowed."""
        return SpecError(f"{self.path}: line {self.numbers[index]}: {value}: {allowed}")


def line_blocks(path: Path) -> Iterator[Lines]:
    """Blocks of lines in file order, each with at least one line.

    Raises
    ------
    SpecError
        If the file is missing, empty, larger than 2 GiB, or not lines of UTF-8 text.
    """
    next_number, any_lines = 1, False
    for raw in _raw_blocks(path):
        texts = _texts(path, next_number, raw)
        kept = _significant(path, next_number, texts)
        next_number += len(texts)
        if next_number > MAX_LINES:
            raise SpecError(f"{path}: more than {MAX_LINES:,} lines; take a part of it")
        if kept.texts:
            any_lines = True
            yield kept
    if not any_lines:
        raise SpecError(f"{path}: empty: at least one line of data is needed; check the file")


def _significant(path: Path, first_number: int, texts: list[str]) -> Lines:
    kept = [
        i for i, text in enumerate(texts) if text and not (text.startswith("#") or text.isspace())
    ]
    if len(kept) == len(texts):
        numbers: Sequence[int] = range(first_number, first_number + len(texts))
        return Lines(path=path, numbers=numbers, texts=texts)
    return Lines(
        path=path, numbers=[first_number + i for i in kept], texts=[texts[i] for i in kept]
    )


def _raw_blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes, cut after line ends."""
    rest, n_read = b"", 0
    with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
        while chunk := _read(path, file):
            if not n_read:
                chunk = _checked_start(path, chunk)
            n_read += len(chunk)
            if n_read > MAX_FILE_BYTES:  # it grows while it is read
                raise SpecError(too_large(path, MAX_FILE_BYTES))
            rest += chunk
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


def _read(path: Path, file: BinaryIO) -> bytes:
    try:
        return file.read(BLOCK_BYTES)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None


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
