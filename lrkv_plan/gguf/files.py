"""The files of one GGUF model: a file, its parts where it is split, or the one in a folder."""

from __future__ import annotations

import os
import re
from pathlib import Path

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import names_in
from lrkv_plan.gguf.header import MAX_TENSORS, GgufHeader, GgufTensor, read_header

SUFFIX = ".gguf"
_MAX_FILES = 1_000
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
# Files that belong to a model and are none: projectors of images, importance matrices.
_BESIDE = ("mmproj", "imatrix")


def is_gguf(path: Path) -> bool:
    """Whether the path is a GGUF file, or a folder with one and no config.json."""
    if not path.is_dir():
        return path.suffix.lower() == SUFFIX
    return not os.path.lexists(path / "config.json") and bool(_names(path))


def _names(folder: Path) -> list[str]:
    found = names_in(folder, SUFFIX, at_most=_MAX_FILES)
    return [name for name in found if not name.lower().startswith(_BESIDE)]


def gguf_files(path: Path) -> list[Path]:
    """The files of the model at that path, in order.

    Raises
    ------
    SpecError
        If a part of a split model is missing, or a folder holds several models or none.
    """
    if path.is_dir():
        names = _names(path)
        stems = {_stem(name) for name in names}
        if len(stems) != 1:
            listed = ", ".join(sorted(stems)[:3])
            what = f"several models ({listed}); name one" if stems else "no model"
            raise SpecError(f"{path}: holds {what}")
        path = path / names[0]
    part = _PART.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part["count"])
    if not 1 <= count <= _MAX_FILES:
        raise SpecError(f"{path}: is one of {count:,} parts; at most {_MAX_FILES:,} are read")
    files = [
        path.with_name(f"{part['stem']}-{n:05}-of-{part['count']}{SUFFIX}")
        for n in range(1, count + 1)
    ]
    missing = [one.name for one in files if not os.path.lexists(one)]
    if missing:
        raise SpecError(f"{path.parent}: {len(missing)} of {count} parts missing: {missing[0]}")
    return files


def _stem(name: str) -> str:
    part = _PART.fullmatch(name)
    return part["stem"] if part else name.removesuffix(SUFFIX)


def model_name(path: Path) -> str:
    """What the file is called, without its part."""
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", _stem(path.name)).strip("-")[:200] or "model"


def read_parts(path: Path) -> GgufHeader:
    """The keys of the first file with the tensors of all.

    Raises
    ------
    SpecError
        As ``gguf_files`` and ``read_header``, or if a tensor is in two files, or all of them
        together are not those that the first says.
    """
    files = gguf_files(path)
    first = read_header(files[0])
    tensors: dict[str, GgufTensor] = dict(first.tensors)
    for other in files[1:]:
        found = read_header(other).tensors
        twice = sorted(tensors.keys() & found.keys())
        if twice:
            raise SpecError(f"{other}: tensor {shown(twice[0])} is in another file as well")
        tensors |= found
        if len(tensors) > MAX_TENSORS:
            raise SpecError(f"{path}: more than {MAX_TENSORS:,} tensors")
    stated = first.keys.get("split.count", len(files))
    if stated not in (0, len(files)):
        raise SpecError(
            f"{files[0]}: is split into {shown(stated)} parts, of which one is named so"
        )
    counted = first.keys.get("split.tensors.count", len(tensors))
    if len(files) > 1 and counted != len(tensors):
        raise SpecError(f"{files[0]}: states {shown(counted)} tensors; there are {len(tensors):,}")
    return GgufHeader(path=files[0], keys=first.keys, tensors=tensors)


def gguf_bytes(path: Path) -> int:
    """Bytes of the model's tensors in all its files. Raises as ``read_parts``. [bytes]"""
    return sum(tensor.n_bytes for tensor in read_parts(path).tensors.values())
