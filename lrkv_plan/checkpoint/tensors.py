"""Tensors of a safetensors checkpoint as float32 arrays, mapped from disk one at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrkv_plan.checkpoint.headers import checkpoint_weights
from lrkv_plan.errors import SpecError, shown

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
    def _headers(self) -> dict[Path, tuple[dict[str, Any], int]]:
        return {}

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, as its file's header states it."""
        return tuple(self._entry(name)[0]["shape"])

    def read(self, name: str) -> Array:
        """The tensor as float32.

        Raises
        ------
        SpecError
            If it is stored in another format than bf16, fp16 or fp32, or holds NaN or infinity.
        """
        entry, data_start = self._entry(name)
        path, dtype = self.files[name], str(entry["dtype"])
        if dtype not in _ON_DISK:
            raise SpecError(
                f"{path}: {shown(name)} is stored as {dtype}; inspect reads {', '.join(_ON_DISK)}, "
                "so convert a quantised checkpoint to one of them first"
            )
        try:
            raw = np.memmap(
                path, _ON_DISK[dtype], "r", data_start + entry["data_offsets"][0],
                tuple(entry["shape"]),
            )  # fmt: skip
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

    def _entry(self, name: str) -> tuple[dict[str, Any], int]:
        path = self.files[name]
        if path not in self._headers:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                self._headers[path] = (json.loads(file.read(length)), 8 + length)
        header, data_start = self._headers[path]
        return header[name], data_start


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
