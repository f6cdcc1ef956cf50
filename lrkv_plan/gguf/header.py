"""The header of a GGUF file: its keys, and the name, shape, type and bytes of each tensor.

Layout: docs/gguf.md of ggml. Only what stands before the tensors' bytes is read, and no more of it
than ``MAX_HEADER_BYTES``; lists longer than a model has layers (tokens, merges) are passed over.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import open_regular
from lrkv_plan.gguf_mixtures import BLOCK_TYPES

MAX_HEADER_BYTES = 64 * 2**20  # of a vocabulary of 262,144 it is 15
MAX_FILE_BYTES = 2**60
MAX_KEYS = 10_000
MAX_TENSORS = 400_000
MAX_LIST = 10_000  # values of a list that is kept: one per layer
MAX_WORDS = 2_000_000  # of a vocabulary, or its merges
_MAX_NAME = 1_000
_MAX_TEXT = 10_000  # of a value that is kept; chat templates are longer
_MAX_DIMS = 4
_CHUNK = 2**20
_TEXT, _LIST = 8, 9
# Number of a scalar type -> how struct reads it.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_TYPES = {block.number: name for name, block in BLOCK_TYPES.items()}


@dataclass(frozen=True, kw_only=True)
class GgufTensor:
    """One tensor; ``shape`` begins with the inputs of a matrix. [bytes]"""

    shape: tuple[int, ...]
    type_name: str
    n_bytes: int


@dataclass(frozen=True, kw_only=True)
class GgufHeader:
    """Keys and tensors of one file. Lists and texts that are too long to matter have no key."""

    path: Path
    keys: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read_header(path: Path) -> GgufHeader:
    """The header of that file.

    Raises
    ------
    SpecError
        If it is no GGUF file of version 2 or 3, damaged, or shorter than its tensors are.
    """
    with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
        return _Reader(path, file).header()


class _Reader:
    """Reads values one after another, growing what it holds of the file as it needs to."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.path, self.file = path, file
        self.data = bytearray()
        self.at, self.order = 0, "<"

    def header(self) -> GgufHeader:
        if self._bytes(4) != b"GGUF":
            raise SpecError(f"{self.path}: is no GGUF file")
        version = self._number("I")
        if version & 0xFFFF == 0:  # written on a machine with the other byte order
            self.order, version = ">", version >> 24
        if version not in (2, 3):
            raise SpecError(f"{self.path}: GGUF version {version} is not read; 2 and 3 are")
        n_tensors, n_keys = self._count("tensors", MAX_TENSORS), self._count("keys", MAX_KEYS)
        keys: dict[str, Any] = {}
        for _ in range(n_keys):
            name = self._name("key")
            if name in keys:
                raise SpecError(f"{self.path}: key {shown(name)} appears twice")
            keys[name] = self._value(name, self._number("I"))
        tensors: dict[str, GgufTensor] = {}
        ends = [0]
        for _ in range(n_tensors):
            name = self._name("tensor")
            if name in tensors:
                raise SpecError(f"{self.path}: tensor {shown(name)} appears twice")
            tensors[name], offset = self._tensor(name)
            ends.append(offset + tensors[name].n_bytes)
        self._check_size(keys, max(ends))
        kept = {name: value for name, value in keys.items() if value is not None}
        return GgufHeader(path=self.path, keys=kept, tensors=tensors)

    def _check_size(self, keys: dict[str, Any], n_bytes: int) -> None:
        """The file must hold its last tensor whole: an unfinished download does not."""
        alignment = keys.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
            raise SpecError(f"{self.path}: general.alignment {shown(alignment)} is none")
        wanted = -(-self.at // alignment) * alignment + n_bytes if n_bytes else self.at
        size = self.file.seek(0, 2)
        if size < wanted:
            raise SpecError(f"{self.path}: is {size:,} bytes, but its tensors end at {wanted:,}")

    def _bytes(self, n_bytes: int) -> bytes:
        self._hold(n_bytes)
        found = bytes(self.data[self.at : self.at + n_bytes])
        self.at += n_bytes
        return found

    def _hold(self, n_bytes: int) -> None:
        """Read on until that many bytes more are there."""
        end = self.at + n_bytes
        if end > MAX_HEADER_BYTES:
            raise SpecError(f"{self.path}: its header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        while end > len(self.data):
            more = self.file.read(max(_CHUNK, min(len(self.data), 2**24)))
            if not more:
                raise SpecError(f"{self.path}: ends inside its header")
            self.data += more

    def _number(self, kind: str) -> Any:
        form = self.order + kind
        return struct.unpack(form, self._bytes(struct.calcsize(form)))[0]

    def _count(self, what: str, at_most: int) -> int:
        found: int = self._number("Q")
        if found > at_most:
            raise SpecError(f"{self.path}: states {found:,} {what}; at most {at_most:,} are read")
        return found

    def _name(self, what: str) -> str:
        length: int = self._number("Q")
        if not 0 < length <= _MAX_NAME:
            raise SpecError(f"{self.path}: the name of a {what} has {length:,} bytes")
        try:
            return self._bytes(length).decode()
        except UnicodeDecodeError:
            raise SpecError(f"{self.path}: the name of a {what} is not UTF-8") from None

    def _value(self, key: str, kind: int) -> Any:
        """The value; None for a text or list that is too long to matter."""
        if kind == _TEXT:
            text = self._bytes(self._number("Q"))
            return text.decode(errors="replace") if len(text) <= _MAX_TEXT else None
        if kind == _LIST:
            return self._list(key)
        if kind not in _SCALARS:
            raise SpecError(f"{self.path}: {shown(key)} is of a type {kind} that is not known")
        return self._number(_SCALARS[kind])

    def _list(self, key: str) -> tuple[Any, ...] | None:
        kind, length = self._number("I"), self._number("Q")
        if kind == _TEXT:
            self._pass_over_words(key, length)
            return None
        if kind not in _SCALARS:
            raise SpecError(
                f"{self.path}: {shown(key)} is a list of a type {kind} that is not read"
            )
        form = f"{self.order}{length}{_SCALARS[kind]}"
        data = self._bytes(length * struct.calcsize(self.order + _SCALARS[kind]))
        return struct.unpack(form, data) if length <= MAX_LIST else None

    def _pass_over_words(self, key: str, n_words: int) -> None:
        if n_words > MAX_WORDS:
            raise SpecError(f"{self.path}: {shown(key)} has {n_words:,} words")
        length_of = struct.Struct(self.order + "Q")
        for _ in range(n_words):
            if self.at + length_of.size > len(self.data):
                self._hold(length_of.size)
            (length,) = length_of.unpack_from(self.data, self.at)
            self.at += length_of.size
            if self.at + length > len(self.data):
                self._hold(length)
            self.at += length

    def _tensor(self, name: str) -> tuple[GgufTensor, int]:
        n_dims = self._number("I")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise SpecError(f"{self.path}: tensor {shown(name)} has {n_dims:,} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dims))
        number, offset = self._number("I"), self._number("Q")
        if not all(1 <= n < 2**40 for n in shape) or prod(shape) > 2**56:
            raise SpecError(f"{self.path}: tensor {shown(name)} is of an impossible shape")
        if number not in _TYPES:
            raise SpecError(
                f"{self.path}: tensor {shown(name)} is of type {number}, not known here"
            )
        block = BLOCK_TYPES[_TYPES[number]]
        if shape[0] % block.width:
            raise SpecError(
                f"{self.path}: rows of {shown(name)} are no whole blocks of {block.width}"
            )
        n_bytes = prod(shape) // block.width * block.n_bytes
        return GgufTensor(shape=shape, type_name=_TYPES[number], n_bytes=n_bytes), offset
