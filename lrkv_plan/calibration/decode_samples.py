"""Measured decode calls on disk: one CSV row per point and round, with every repeat kept.

A point (one path, shape and format) is measured in several rounds spread over the run. Rows are
handed to the system whole, as they are measured, so that whatever stops a run leaves all earlier
rows; a row that was cut off is dropped when the file is opened again, and measured again. Only a
loss of power could take the last rows: waiting for the disk after each would take a tenth of a run.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from lrkv_plan.errors import CalibrationError, shown

ROLES = ("fit", "random", "rank", "heads", "context")  # all but fit are held out


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
            self._file = path.open("a", encoding="utf-8", newline="")
            if self._file.tell() == 0:
                self._write(",".join(COLUMNS) + "\r\n")
        except OSError as error:
            raise CalibrationError(f"{path}: cannot be written: {error.strerror}") from None

    def append(self, sample: DecodeSample) -> None:
        """Write one row.

        Raises
        ------
        CalibrationError
            If the disk does not take it.
        """
        text = io.StringIO(newline="")
        csv.writer(text).writerow([_text(getattr(sample, name)) for name in COLUMNS])
        try:
            self._write(text.getvalue())
        except OSError as error:
            raise CalibrationError(f"{self.path}: cannot be written: {error.strerror}") from None
        self.rows.append(sample)

    def close(self) -> None:
        """Sync the file to disk and close it."""
        os.fsync(self._file.fileno())
        self._file.close()

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()


def read_samples(path: Path) -> list[DecodeSample]:
    """The rows of a samples file.

    Raises
    ------
    CalibrationError
        If the file cannot be read, lacks a column, repeats a point's round, or a cell is not what
        its column holds.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CalibrationError(f"{path}: cannot be read: {reason}; check the path") from None
    try:
        rows = list(csv.DictReader(io.StringIO(text, newline="")))
    except csv.Error as error:
        raise CalibrationError(f"{path}: is no CSV table: {error}") from None
    header = text.splitlines()[:1]
    missing = [n for n in COLUMNS if n not in (header[0].split(",") if header else ())]
    if missing:
        raise CalibrationError(f"{path}: lacks the columns {', '.join(missing)}")
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
    data = path.read_bytes()
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
    numbers = [v for v in values.values() if isinstance(v, int | float)]
    numbers += [*values["repeats_s"], *values["controls_s"]]
    if not all(0 <= v < float("inf") for v in numbers):
        raise CalibrationError(f"{where}: every number must be finite and not negative")
    if min(values["repeats_s"], default=0) <= 0 or values["n_bytes"] <= 0:
        raise CalibrationError(f"{where}: repeats_s and n_bytes must be above 0")
    if len(values["controls_s"]) not in (0, len(values["repeats_s"])):
        raise CalibrationError(f"{where}: controls_s must be as many as repeats_s, or none")
    if values["role"] not in ROLES:
        raise CalibrationError(f"{where}: role {shown(values['role'])}: one of {', '.join(ROLES)}")
    return DecodeSample(**values)
