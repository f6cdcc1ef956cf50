"""Files that commands read, damaged: as documents, as texts, as bytes, or no regular file at all.

How a file is taken apart and put together again is chosen by its suffix.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import random
import stat
from collections.abc import Callable, Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from benchmarks.fuzzing.binary import from_parquet, small_gguf, to_gguf, to_parquet
from benchmarks.fuzzing.damage import damaged_bytes, damaged_document, damaged_source

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class Special(Enum):
    """What stands where a regular file is expected."""

    PIPE = "pipe"  # nobody writes to it
    ENDLESS = "endless"  # a device that gives zeros for ever
    NULL = "null"  # a device that gives nothing and takes everything
    FOLDER = "folder"
    LOOP = "loop"  # a link to itself
    MISSING = "missing"
    UNPACKED = "unpacked"  # gzip of 200 MB of one line


Content = bytes | Special


def write_files(folder: Path, files: Mapping[str, Content]) -> None:
    """Put the files into the folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            _write_special(path, content)


def _write_special(path: Path, what: Special) -> None:
    devices = {Special.ENDLESS: os.makedev(1, 5), Special.NULL: os.makedev(1, 3)}
    if what is Special.PIPE:
        os.mkfifo(path)
    elif what in devices:
        with contextlib.suppress(PermissionError):  # then the file is missing
            os.mknod(path, stat.S_IFCHR | 0o666, devices[what])
    elif what is Special.FOLDER:
        path.mkdir()
    elif what is Special.LOOP:
        path.symlink_to(path.name)
    elif what is Special.UNPACKED:
        with gzip.open(path, "wb", compresslevel=1) as file:
            for _ in range(200):
                file.write(b"1" * 1_000_000)


def damaged_file(name: str, content: bytes, chance: random.Random) -> Content:
    """The file damaged in one way, or in two."""
    kind = chance.random()
    if kind < 0.02:
        return chance.choice([s for s in Special if s is not Special.UNPACKED or kind < 0.0005])
    damaged = content
    if kind < 0.75:
        damaged = _as_document(Path(name).suffix, content, chance)
    elif kind < 0.85:
        text = content.decode(errors="surrogateescape")
        damaged = damaged_source(text, chance).encode(errors="surrogateescape")
    if kind > 0.7:
        damaged = damaged_bytes(damaged, chance)
    return damaged


def _as_document(suffix: str, content: bytes, chance: random.Random) -> bytes:
    parse, put_together = _FORMATS[suffix]
    return put_together(damaged_document(parse(content), chance), chance)


def _to_yaml(document: Any, chance: random.Random) -> bytes:
    """YAML, or the JSON that YAML is where a text has a lone surrogate."""
    width = chance.choice((20, 4096))
    try:
        text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, width=width)
    except UnicodeEncodeError:
        return _to_json(document, chance)
    return bytes(text.encode())


def _to_json(document: Any, chance: random.Random) -> bytes:
    text = json.dumps(document, ensure_ascii=chance.random() < 0.7, default=str)
    return text.encode(errors="surrogatepass")


def _from_csv(content: bytes) -> list[list[str]]:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


def _to_csv(document: Any, chance: random.Random) -> bytes:
    """Rows of cells; what the damage made of rows and cells is written as text."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=chance.choice(("\n", "\r\n", "\r")))
    for row in document if isinstance(document, list) else [document]:
        cells = row if isinstance(row, list) else [row]
        writer.writerow([str(cell) for cell in cells])
    return text.getvalue().encode(errors="surrogatepass")


def _from_lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def _to_lines(document: Any, chance: random.Random) -> bytes:
    lines = document if isinstance(document, list) else [document]
    return b"\n".join(_to_json(line, chance) for line in lines)


def _from_safetensors(content: bytes) -> dict[str, Any]:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    return {"header": header, "length": length, "data": content[8 + length :].hex()}


def _to_safetensors(document: Any, chance: random.Random) -> bytes:
    """The parts again; the length is mostly that of the damaged header, so that it is read."""
    parts = document if isinstance(document, dict) else {}
    header = _to_json(parts.get("header"), chance)
    length = parts.get("length") if chance.random() < 0.2 else len(header)
    in_range = isinstance(length, int) and 0 <= length < 2**64
    try:
        data = bytes.fromhex(str(parts.get("data", "")))
    except ValueError:
        data = b""
    return int(length if in_range else 2**64 - 1).to_bytes(8, "little") + header + data


_FORMATS: dict[
    str, tuple[Callable[[bytes], Any], Callable[[Any, random.Random], bytes]]
] = {
    ".yaml": (lambda content: yaml.load(content, Loader=_Loader), _to_yaml),
    ".json": (json.loads, _to_json),
    ".csv": (_from_csv, _to_csv),
    ".jsonl": (_from_lines, _to_lines),
    ".txt": (lambda content: content.decode().splitlines(), lambda d, _: _lines_of_text(d)),
    ".safetensors": (_from_safetensors, _to_safetensors),
    ".parquet": (from_parquet, to_parquet),
    ".gguf": (lambda _: small_gguf(), to_gguf),  # the one that is drawn
    ".gz": (
        lambda content: _from_csv(gzip.decompress(content)),
        lambda document, chance: gzip.compress(_to_csv(document, chance), 1, mtime=0),
    ),
}  # fmt: skip


def _lines_of_text(document: Any) -> bytes:
    lines = document if isinstance(document, list) else [document]
    return "\n".join(map(str, lines)).encode(errors="surrogatepass")
