"""Measured decode calls on disk: one CSV row per point and round, with every repeat kept.

A point (one path, shape and format) is measured in several rounds spread over the run. Rows are
handed to the system whole, as they are measured, so that whatever stops a run leaves all earlier
rows; a row that was cut off is dropped when the file is opened again, and measured again. Only a
loss of power could take the last rows: waiting for the disk after each would take a tenth of a run.
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lrkv_plan.calibration.samples import MAX_TABLE_BYTES, read_rows, regular_bytes
from lrkv_plan.calibration.torch_gate import TORCH_DTYPES
from lrkv_plan.errors import CalibrationError, shown
from lrkv_plan.specs.kernels import KERNELS

ROLES = ("fit", "random", "rank", "heads", "context")  # all but fit are held out
# What a cell may hold. Times: one nanosecond to eleven days; other numbers: no product overflows.
TIMES_S = (1e-9, 1e6)
LARGEST = 1e18
AT_LEAST_ONE = ("n_heads", "n_copies", "head_dim", "batch_size", "context_tokens", "query_tokens")
CHOICES: dict[str, tuple[str, ...]] = {
    "role": ROLES, "kernel": KERNELS, "device": ("cpu", "cuda"), "dtype": tuple(TORCH_DTYPES),
    "cache_state": ("cold", "hot"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecodeSample:
    """One round of one point. Times are of one call of one layer. [s]

    ``n_bytes`` (cached rows and layer weights, each read once), ``flops`` and ``work_units`` are
    predicted (calculators/attention_work.py); ``allocated_bytes`` is what torch holds for the
    cache, and ``predicted_bytes`` what the calculators say it must be. ``controls_s`` time the same
    memory-bound read before each of ``repeats_s`` (empty where none was made). ``n_copies`` are
    cached heads, ``rank`` and ``latent_dim`` 0 where a design has none; ``page_tokens`` 0 is a
    contiguous cache. ``role`` says whether a point may be fitted, and by what it is held out.
    """

    point: str
    round: int
    role: str
    path: str
    kernel: str
    device: str
    device_name: str
    dtype: str
    attention: str
    n_heads: int
    n_copies: int
    head_dim: int
    rank: int
    latent_dim: int
    batch_size: int
    context_tokens: int
    query_tokens: int
    page_tokens: int
    cache_state: str
    threads: int
    n_bytes: float
    flops: float
    work_units: float
    allocated_bytes: int
    predicted_bytes: int
    peak_bytes: int
    repeats_s: tuple[float, ...]
    controls_s: tuple[float, ...]


COLUMNS = tuple(f.name for f in fields(DecodeSample))
_KINDS: dict[str, type] = {
    f.name: {"int": int, "float": float, "str": str}.get(str(f.type), tuple)
    for f in fields(DecodeSample)
}


class SampleFile:
    """An open samples file that rows are appended to; a process that dies loses none."""

    def __init__(self, path: Path) -> None:
        """Open ``path``, with a header if it is new; a cut last row is removed first.

        Raises
        ------
        CalibrationError
            If the file cannot be written, or holds other columns.
        """
        self.path = path
        try:
            self.rows = list(read_samples(path)) if _drop_cut_row(path) else []
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise CalibrationError(f"{path}: cannot be written: {error.strerror}") from None
        if not self._size():
            try:
                self._write(",".join(COLUMNS) + "\r\n")
            except CalibrationError:
                self._file.close()
                raise

    def append(self, sample: DecodeSample) -> None:
        """Write one row.

        Raises
        ------
        CalibrationError
            If the disk does not take it; the rows before it stay.
        """
        text = io.StringIO(newline="")
        csv.writer(text).writerow([_text(getattr(sample, name)) for name in COLUMNS])
        self._write(text.getvalue())
        self.rows.append(sample)

    def close(self) -> None:
        """Sync the file to disk and close it.

        Raises
        ------
        CalibrationError
            If the disk does not take what was written.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._refused(error) from None
        finally:
            self._file.close()

    def _write(self, text: str) -> None:
        """All of ``text`` or none of it."""
        data = text.encode()
        end = self._size()
        try:
            written = 0
            while written < len(data):
                written += self._file.write(data[written:]) or 0
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(end)
            raise self._refused(error) from None

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _refused(self, error: OSError) -> CalibrationError:
        kept = f"; the {len(self.rows)} samples in it are kept" if self.rows else ""
        return CalibrationError(f"{self.path}: cannot be written: {error.strerror}{kept}")


def read_samples(path: Path) -> list[DecodeSample]:
    """The rows of a samples file.

    Raises
    ------
    CalibrationError
        If the file cannot be read, lacks a column, repeats a point's round, or a cell is not what
        its column holds.
    """
    rows = read_rows(path, COLUMNS)
    samples = [_sample(row, f"{path}: line {line}") for line, row in enumerate(rows, start=2)]
    seen: set[tuple[str, int]] = set()
    for sample in samples:
        key = (sample.point, sample.round)
        if key in seen:
            raise CalibrationError(f"{path}: {sample.point}: round {sample.round} is there twice")
        seen.add(key)
    return samples


def by_point(samples: Iterable[DecodeSample]) -> dict[str, list[DecodeSample]]:
    """The rounds of each point, in order of first appearance."""
    points: dict[str, list[DecodeSample]] = {}
    for sample in samples:
        points.setdefault(sample.point, []).append(sample)
    return points


def _drop_cut_row(path: Path) -> bool:
    """Cut the file after its last whole line; whether anything but a header may be left."""
    if not path.exists():
        return False
    data = regular_bytes(path, MAX_TABLE_BYTES)
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) != len(data):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return bool(whole)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ";".join(f"{v:.9g}" for v in value)
    return repr(value) if isinstance(value, float) else str(value)


def _numbers(cell: str) -> tuple[float, ...]:
    return tuple(map(float, cell.split(";"))) if cell else ()


def _sample(row: dict[str, str], where: str) -> DecodeSample:
    values: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        cell = row.get(name)
        try:
            if cell is None:
                raise ValueError
            values[name] = _numbers(cell) if kind is tuple else kind(cell)
        except ValueError:
            raise CalibrationError(f"{where}: column {name}: {shown(cell)} is no value") from None
    _check_values(values, where)
    return DecodeSample(**values)


def _check_values(values: Mapping[str, Any], where: str) -> None:
    """Raise ``CalibrationError`` for values that no measurement has."""
    times = [*values["repeats_s"], *values["controls_s"]]
    numbers = [*(v for v in values.values() if isinstance(v, int | float)), *times]
    if not all(0 <= v <= LARGEST for v in numbers):
        raise CalibrationError(f"{where}: every number must be finite and not negative")
    if not values["repeats_s"] or values["n_bytes"] <= 0:
        raise CalibrationError(f"{where}: repeats_s and n_bytes must be above 0")
    if not all(TIMES_S[0] <= t <= TIMES_S[1] for t in times):
        raise CalibrationError(
            f"{where}: every time must be above 0: from {TIMES_S[0]:g} to {TIMES_S[1]:g} s"
        )
    if len(values["controls_s"]) not in (0, len(values["repeats_s"])):
        raise CalibrationError(f"{where}: controls_s must be as many as repeats_s, or none")
    for name in AT_LEAST_ONE:
        if values[name] < 1:
            raise CalibrationError(f"{where}: column {name}: must be at least 1")
    for name, choices in CHOICES.items():
        if values[name] not in choices:
            raise CalibrationError(
                f"{where}: {name} {shown(values[name])}: one of {', '.join(choices)}"
            )
