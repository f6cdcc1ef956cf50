"""Exact weight bytes of a checkpoint, read from the headers of its safetensors files.

A header lists every tensor with dtype and shape, so a folder of hundreds of gigabytes is counted in
milliseconds. What an engine makes of the tensors (tying, repacking, casting) is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.specs.strict_files import read_json

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


def has_checkpoint(folder: Path) -> bool:
    """Whether the folder holds safetensors files or their index."""
    return (folder / INDEX_NAME).is_file() or any(folder.glob("*.safetensors"))


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
    if index.is_file():
        return _indexed(folder, read_json(index), index, otherwise)
    single = folder / "model.safetensors"
    files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if not files:
        raise SpecError(f"{folder}: holds no *.safetensors and no {INDEX_NAME}; {otherwise}")
    tensors: dict[str, int] = {}
    places: dict[str, Path] = {}
    for path in files:
        found = header_bytes(path)
        twice = sorted(tensors.keys() & found.keys())
        if twice:
            raise SpecError(f"{path}: tensor {shown(twice[0])} is in another file as well")
        tensors |= found
        places |= dict.fromkeys(found, path)
    return CheckpointWeights(
        total_bytes=sum(tensors.values()), tensor_bytes=tensors, n_files=len(files),
        tensor_files=places,
    )  # fmt: skip


def _indexed(
    folder: Path, index: Mapping[str, Any], path: Path, otherwise: str
) -> CheckpointWeights:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise SpecError(f"{path}: weight_map is missing; it names the file of every tensor")
    names = sorted({_file_name(path, name) for name in places.values()})
    missing = [name for name in names if not (folder / name).is_file()]
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
        found = header_bytes(folder / name)
        for tensor, place in places.items():
            if place == name and tensor not in found:
                raise SpecError(
                    f"{folder / name}: has no tensor {shown(tensor)}, as {path.name} says"
                )
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


def _file_name(path: Path, name: Any) -> str:
    """A shard's name, which must lie in the index's own folder."""
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise SpecError(
            f"{path}: weight_map names {shown(name)}; a *.safetensors beside it is needed"
        )
    return name


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


def header_bytes(path: Path) -> dict[str, int]:
    """Bytes of every tensor in one file, from its header. [bytes]

    Raises
    ------
    SpecError
        If the file is unreadable, truncated, corrupt, or has a dtype that is not known.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            names = file.keys()
            tensors = {name: _tensor_bytes(path, name, file.get_slice(name)) for name in names}
        with path.open("rb") as raw:
            header_length = int.from_bytes(raw.read(8), "little")
        data_bytes = path.stat().st_size - 8 - header_length
    except SafetensorError as error:
        raise SpecError(
            f"{path}: not a complete safetensors file ({error}); download it again"
        ) from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None
    if sum(tensors.values()) != data_bytes:
        raise SpecError(
            f"{path}: its header describes {sum(tensors.values()):,} bytes of tensors, the file "
            f"has {data_bytes:,}; download it again"
        )
    return tensors


def _tensor_bytes(path: Path, name: str, tensor: Any) -> int:
    dtype = str(tensor.get_dtype())
    bits = DTYPE_BITS.get(dtype)
    if bits is None:
        raise SpecError(
            f"{path}: tensor {shown(name)} has dtype {shown(dtype)}; known: {', '.join(DTYPE_BITS)}"
        )
    return int(-(-prod(tensor.get_shape()) * bits // 8))
