"""Tensors of a safetensors checkpoint as float32 arrays, mapped from disk one at a time."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lrkv_plan.documents import json_object, read_json
from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import names_in, open_regular

# Of one checkpoint. The largest published have near 280,000 tensors (expert weights of 384 experts
# in 61 layers, three scales each) in some hundred files.
MAX_TENSORS = 400_000
MAX_FILES = 10_000
MAX_INDEX_BYTES = 256 * 2**20
MAX_HEADER_BYTES = 16 * 2**20  # of one file: 150,000 tensors
MAX_FILE_BYTES = 2**60
_MAX_NAME = 255  # bytes that file systems allow
_MAX_DIMS = 16
INDEX_NAME = "model.safetensors.index.json"
# Bits per scalar of the format's dtypes (safetensors README and its Dtype list).
DTYPE_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CheckpointWeights:
    """Bytes by tensor, the file of each, and remarks on what the files disagree about.

    ``tensor_bytes`` and ``tensor_files`` are empty when only the index was there. [bytes]
    """

    total_bytes: int
    tensor_bytes: Mapping[str, int]
    n_files: int
    tensor_files: Mapping[str, Path] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


class TensorEntry(NamedTuple):
    """One tensor of a file: its format, its shape, and where its bytes start in the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    n_bytes: int


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder holds safetensors files or their index, of whatever kind they are."""
    return os.path.lexists(folder / INDEX_NAME) or bool(_weight_files(folder))


def _weight_files(folder: Path) -> list[str]:
    if not folder.is_dir():
        return []
    return names_in(folder, ".safetensors", at_most=10 * MAX_FILES)


def checkpoint_weights(folder: Path, *, otherwise: str = "give --weights") -> CheckpointWeights:
    """Weights of the checkpoint in ``folder``; ``otherwise`` says what to try if files are missing.

    With an index the files that it names are read and must be complete; without one
    ``model.safetensors`` alone, or else every ``*.safetensors`` there. An index without any of its
    files gives its own ``metadata.total_size``.

    Raises
    ------
    SpecError
        If there is no checkpoint, a file is missing, truncated or corrupt, a tensor is missing
        where the index puts it, or its dtype is unknown.

    Notes
    -----
    bytes = sum over tensors of ceil(scalars * bits / 8); every file must be exactly its header and
    that many bytes. Where the index's total differs, the headers count and a remark says so.
    """
    index = folder / INDEX_NAME
    if os.path.lexists(index):
        return _indexed(folder, _read_index(index), index, otherwise)
    names = _weight_files(folder)
    if "model.safetensors" in names:
        names = ["model.safetensors"]
    if not names:
        raise SpecError(f"{folder}: holds no *.safetensors and no {INDEX_NAME}; {otherwise}")
    tensors: dict[str, int] = {}
    places: dict[str, Path] = {}
    _refuse_many_files(folder, len(names))
    for name in names:
        path = folder / name
        found = header_bytes(path, at_most=MAX_TENSORS - len(tensors))
        twice = sorted(tensors.keys() & found.keys())
        if twice:
            raise SpecError(f"{path}: tensor {shown(twice[0])} is in another file as well")
        tensors |= found
        places |= dict.fromkeys(found, path)
    return CheckpointWeights(
        total_bytes=sum(tensors.values()), tensor_bytes=tensors, n_files=len(names),
        tensor_files=places,
    )  # fmt: skip


def _read_index(path: Path) -> Mapping[str, Any]:
    return read_json(path, max_bytes=MAX_INDEX_BYTES, max_values=MAX_TENSORS)


def _refuse_many_files(folder: Path, n_files: int) -> None:
    if n_files > MAX_FILES:
        raise SpecError(f"{folder}: a checkpoint of {n_files:,} files; at most {MAX_FILES:,}")


def _indexed(
    folder: Path, index: Mapping[str, Any], path: Path, otherwise: str
) -> CheckpointWeights:
    held = _tensors_by_file(path, index)
    names = sorted(held)
    missing = [name for name in names if not os.path.lexists(folder / name)]
    stated = _stated_total(path, index)
    if len(missing) == len(names) and stated is not None:
        remark = f"{path.name}: its total_size is taken, none of its {len(names)} files is here"
        return CheckpointWeights(total_bytes=stated, tensor_bytes={}, n_files=0, remarks=(remark,))
    if missing:
        raise SpecError(
            f"{folder}: {len(missing)} of {len(names)} files are missing, for example "
            f"{missing[0]}; download it, or {otherwise}"
        )
    tensors: dict[str, int] = {}
    files: dict[str, Path] = {}
    for name in names:
        found = header_bytes(folder / name, at_most=MAX_TENSORS - len(tensors))
        absent = next((tensor for tensor in held[name] if tensor not in found), None)
        if absent is not None:
            raise SpecError(f"{folder / name}: has no tensor {shown(absent)}, as {path.name} says")
        tensors |= found
        files |= dict.fromkeys(found, folder / name)
    total = sum(tensors.values())
    remarks: tuple[str, ...] = ()
    if stated is not None and stated != total:
        remarks = (f"{path.name}: total_size {stated:,} differs from the headers' {total:,} bytes",)
    return CheckpointWeights(
        total_bytes=total, tensor_bytes=tensors, n_files=len(names), tensor_files=files,
        remarks=remarks,
    )  # fmt: skip


def _tensors_by_file(path: Path, index: Mapping[str, Any]) -> dict[str, list[str]]:
    """File name to the tensors that the index puts there."""
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise SpecError(f"{path}: weight_map is missing; it names the file of every tensor")
    held: dict[Any, list[str]] = defaultdict(list)
    for tensor, name in places.items():
        if not isinstance(name, str):
            _file_name(path, name)
        held[name].append(tensor)
    _refuse_many_files(path, len(held))
    return {_file_name(path, name): tensors for name, tensors in held.items()}


def _file_name(path: Path, name: Any) -> str:
    """A shard's name, which must lie in the index's own folder."""
    is_name = isinstance(name, str) and name.isprintable() and len(name) <= _MAX_NAME
    if not is_name or Path(name).name != name or not name.endswith(".safetensors"):
        raise SpecError(
            f"{path}: weight_map names {shown(name)}; a *.safetensors beside it is needed"
        )
    return str(name)


def _stated_total(path: Path, index: Mapping[str, Any]) -> int | None:
    metadata = index.get("metadata")
    stated = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(stated, float) and stated.is_integer():
        stated = int(stated)
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, int) or not 0 < stated < 2**60:
        raise SpecError(f"{path}: metadata.total_size {shown(stated)}: a number of bytes is needed")
    return stated


def header_bytes(path: Path, at_most: int = MAX_TENSORS) -> dict[str, int]:
    """Bytes of every tensor in one file, from its header. [bytes]

    Raises
    ------
    SpecError
        As ``read_header``.
    """
    return {name: entry.n_bytes for name, entry in read_header(path, at_most).items()}


def read_header(path: Path, at_most: int = MAX_TENSORS) -> dict[str, TensorEntry]:
    """Every tensor in one safetensors file.

    Raises
    ------
    SpecError
        If the file is unreadable, truncated, corrupt, holds more than ``at_most`` tensors or has a
        dtype that is not known.

    Notes
    -----
    A tensor takes ceil(scalars * bits / 8) bytes. In order of their offsets the tensors must fill
    the file: each starts where the one before ends, and the last ends the file.
    """
    text, data_start, data_bytes = _header_text(path)
    if text.count('"dtype"') > at_most:
        raise SpecError(f"{path}: with it the checkpoint has more than {MAX_TENSORS:,} tensors")
    header = json_object(path, text, unique_keys=False)  # of two, one would leave a gap
    header.pop("__metadata__", None)
    found = [_entry(path, name, described, data_start) for name, described in header.items()]
    end = data_start
    for start, n_bytes, name in sorted((e.start, e.n_bytes, e.name) for e in found):
        if start != end:
            raise _incomplete(
                path,
                f"tensor {shown(name)} starts at byte {start - data_start:,} of the data, where "
                f"{end - data_start:,} is needed",
            )
        end += n_bytes
    if end - data_start != data_bytes:
        raise _incomplete(
            path,
            f"its header describes {end - data_start:,} bytes of tensors, the file has "
            f"{data_bytes:,}",
        )
    return {entry.name: entry for entry in found}


def _header_text(path: Path) -> tuple[str, int, int]:
    """The header, where the data start in the file, and how many bytes of them there are."""
    with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
        n_bytes = os.fstat(file.fileno()).st_size
        try:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= n_bytes - 8:
                reason = f"a header of {length:,} bytes in a file of {n_bytes:,}"
                raise _incomplete(path, reason)
            if length > MAX_HEADER_BYTES:
                raise _incomplete(path, f"a header of more than {MAX_HEADER_BYTES >> 20} MiB")
            data = file.read(length)
        except OSError as error:
            raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    if len(data) != length or not data.startswith(b"{"):
        raise _incomplete(path, "its header is not JSON")
    try:
        return data.decode(), 8 + length, n_bytes - 8 - length
    except UnicodeDecodeError:
        raise _incomplete(path, "its header is not UTF-8 text") from None


def _incomplete(path: Path, reason: str) -> SpecError:
    return SpecError(f"{path}: not a complete safetensors file ({reason}); download it again")


def _entry(path: Path, name: str, described: Any, data_start: int) -> TensorEntry:
    try:
        dtype, shape = described["dtype"], described["shape"]
        begin, end = described["data_offsets"]
        bits = DTYPE_BITS.get(dtype)
        is_sound = _are_counts(shape) and _are_counts([begin, end]) and len(shape) <= _MAX_DIMS
    except (LookupError, TypeError, ValueError):
        raise _incomplete(
            path, f"tensor {shown(name)} is described as {shown(described)}"
        ) from None
    if bits is None:
        raise SpecError(
            f"{path}: tensor {shown(name)} has dtype {shown(dtype)}; known: {', '.join(DTYPE_BITS)}"
        )
    n_bytes = -(-prod(shape) * bits // 8) if is_sound else 0
    if not is_sound or n_bytes != end - begin:
        raise _incomplete(
            path,
            f"tensor {shown(name)} of {dtype} {shown(shape)} has data_offsets "
            f"{shown([begin, end])}",
        )
    return TensorEntry(name, dtype, tuple(shape), data_start + begin, n_bytes)


def _are_counts(values: list[Any]) -> bool:
    """Whether all are whole numbers from 0 to what a file can hold."""
    return {*map(type, values)} == {int} and min(values) >= 0 and max(values) < MAX_FILE_BYTES


Array = NDArray[Any]

# How each format lies on disk; numpy has no bf16, whose bits are the upper half of a float32.
_ON_DISK: dict[str, np.dtype[Any]] = {
    "BF16": np.dtype("<u2"), "F16": np.dtype("<f2"), "F32": np.dtype("<f4"),
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """Where every tensor of a folder lies."""

    folder: Path
    files: Mapping[str, Path]

    @cached_property
    def _headers(self) -> dict[Path, dict[str, TensorEntry]]:
        return {}

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, as its file's header states it."""
        return self._entry(name).shape

    def read(self, name: str) -> Array:
        """The tensor as float32.

        Raises
        ------
        SpecError
            If it is stored in another format than bf16, fp16 or fp32, or holds NaN or infinity.
        """
        entry = self._entry(name)
        path, dtype = self.files[name], entry.dtype
        if dtype not in _ON_DISK:
            raise SpecError(
                f"{path}: {shown(name)} is stored as {dtype}; inspect reads {', '.join(_ON_DISK)}, "
                "so convert a quantised checkpoint to one of them first"
            )
        try:
            raw = np.memmap(path, _ON_DISK[dtype], "r", entry.start, entry.shape)
        except (OSError, ValueError) as error:
            raise SpecError(f"{path}: cannot be read: {error}") from None
        if dtype == "BF16":
            values: Array = (raw.astype(np.uint32) << 16).view(np.float32)
        else:
            values = np.asarray(raw.astype(np.float32))
        if not np.isfinite(values).all():
            where = np.argwhere(~np.isfinite(values))[0].tolist()
            raise SpecError(f"{path}: {shown(name)} holds NaN or infinity, first at {where}")
        return values

    def _entry(self, name: str) -> TensorEntry:
        path = self.files[name]
        if path not in self._headers:
            self._headers[path] = read_header(path)
        return self._headers[path][name]


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in ``folder``, every file of it checked against its header.

    Raises
    ------
    SpecError
        If there is none, or a file is missing, truncated or corrupt.
    """
    weights = checkpoint_weights(folder, otherwise="inspect needs the weights themselves")
    if not weights.tensor_files:
        raise SpecError(f"{folder}: holds an index but none of its files; download them")
    return Checkpoint(folder, weights.tensor_files)
