"""Tensors of a safetensors checkpoint as float32 arrays, mapped from disk one at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lrkv_plan.checkpoint.headers import TensorEntry, checkpoint_weights, read_header
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
