"""Measured decode-attention calls as arrays: what each moved and computed, and how long it took.

The table has one row per call with the columns of aiconfigurator's published measurements:
gpu, family, backend, backend_version, kv_dtype, batch, kv_len, n_heads, n_kv_heads, head_dim, d_c,
d_rope, latency_us, and optionally flag, regime, source. Heads are per GPU.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import stat
import zlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.calculators.kernel_time import grouped_work, mla_absorbed_work
from lrkv_plan.errors import CalibrationError, shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    FloatArray = npt.NDArray[np.float64]

TABLE_KERNELS = {"mla": "mla_absorbed"}  # family in a table of calls -> kernel
BYTES_PER_SCALAR = {"bf16": 2, "fp16": 2, "fp8": 1}
_NEEDED = (
    "gpu", "family", "backend", "kv_dtype", "batch", "kv_len", "n_heads", "n_kv_heads",
    "head_dim", "latency_us",
)  # fmt: skip
MAX_TABLE_BYTES = 64 * 2**20  # unpacked; ten times the largest table that is in use
MAX_ROWS = 500_000
MAX_LINE_CHARS = 2**20
# What a cell may hold: one nanosecond to eleven days, and counts that no product overflows.
LATENCIES_US = (1e-3, 1e12)
COUNTS = (1.0, 1e9)


@dataclass(frozen=True, kw_only=True)
class KernelSamples:
    """Calls of one kernel on one GPU, one array element per call.

    ``bandwidth`` and ``peak`` are the datasheet figures that the fitted shares refer to.
    """

    n_bytes: FloatArray
    flops: FloatArray
    work_units: FloatArray
    time_s: FloatArray
    context_tokens: FloatArray
    n_heads: FloatArray
    n_kv_heads: FloatArray
    head_dim: FloatArray
    bandwidth: float
    peak: float

    def __len__(self) -> int:
        return len(self.time_s)

    @property
    def query_heads_per_kv_head(self) -> FloatArray:
        """Query heads that share one cached head."""
        return self.n_heads / self.n_kv_heads

    def where(self, chosen: npt.NDArray[np.bool_] | npt.NDArray[np.intp]) -> KernelSamples:
        """The calls that a mask or an index array selects."""
        arrays = (f.name for f in fields(self) if f.name not in ("bandwidth", "peak"))
        return replace(self, **{name: getattr(self, name)[chosen] for name in arrays})


@dataclass(frozen=True, kw_only=True)
class GroupKey:
    """Rows that one set of constants may describe."""

    gpu: str
    backend: str
    kernel: str
    kv_dtype: str
    regime: str


def read_rows(path: Path, needed: tuple[str, ...] = _NEEDED) -> list[dict[str, str]]:
    """The rows of a CSV file, gzipped or not.

    Raises
    ------
    CalibrationError
        If the file cannot be read, is too large, lacks one of the columns ``needed``, or has a row
        with more or fewer cells than the header.
    """
    reader = csv.DictReader(_lines(path, table_text(path)))
    rows: list[dict[str, str]] = []
    try:
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise CalibrationError(f"{path}: lacks the columns {', '.join(missing)}")
        for row in reader:
            if None in row or None in row.values():
                raise CalibrationError(
                    f"{path}: line {reader.line_num}: "
                    + ("has more cells than the header" if None in row
                       else "has fewer cells than the header: what is not there is no value")
                )  # fmt: skip
            if len(rows) == MAX_ROWS:
                raise CalibrationError(f"{path}: holds more than {MAX_ROWS:,} rows; fit a part")
            rows.append(row)
    except csv.Error as error:
        raise CalibrationError(
            f"{path}: line {reader.line_num}: is no CSV table: {error}"
        ) from None
    return rows


def table_text(path: Path) -> str:
    """The text of a regular file, unpacked where it is gzipped, of bounded size.

    Raises
    ------
    CalibrationError
        If it is a pipe, a device or a folder, is larger than ``MAX_TABLE_BYTES``, or no UTF-8 text.
    """
    try:
        data = regular_bytes(path, MAX_TABLE_BYTES)
        if data[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(MAX_TABLE_BYTES + 1)
            _check_size(path, len(data), MAX_TABLE_BYTES)
        return data.decode("utf-8-sig")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise CalibrationError(f"{path}: cannot be read: {reason}; check the path") from None


def regular_bytes(path: Path, limit: int, at_most: int | None = None) -> bytes:
    """What a regular file holds, or its first ``at_most`` bytes.

    Raises
    ------
    CalibrationError
        If it is a pipe, a device or a folder, or larger than ``limit`` bytes.
    OSError, ValueError
        If it cannot be opened or read.
    """
    # Without O_NONBLOCK, opening a pipe would wait for somebody who writes to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(path, flags), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise CalibrationError(
                f"{path}: is {_kind(found.st_mode)}; a regular file of samples is needed"
            )
        if at_most is None:
            _check_size(path, found.st_size, limit)
        return file.read(limit if at_most is None else at_most)


def _check_size(path: Path, size: int, limit: int) -> None:
    if size > limit:
        raise CalibrationError(
            f"{path}: larger than {limit // 2**20} MiB (unpacked); not a table of samples"
        )


def _kind(mode: int) -> str:
    """What a path is that is no regular file."""
    kinds = ((stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"))
    return next((name for holds, name in kinds if holds(mode)), "a device")


def _lines(path: Path, text: str) -> Iterator[str]:
    """The lines of a table, however they end (LF, CRLF or a lone CR)."""
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        if len(line) > MAX_LINE_CHARS:
            raise CalibrationError(
                f"{path}: line {number}: longer than {MAX_LINE_CHARS:,} characters"
            )
        yield line


def grouped_rows(rows: list[dict[str, str]]) -> dict[GroupKey, list[dict[str, str]]]:
    """Rows by GPU, backend, kernel path, storage format and regime, in order of first appearance.

    Rows without a ``regime`` count as cold. Flagged rows, known to take another path, are left out.
    """
    groups: dict[GroupKey, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        if not row.get("flag"):
            groups[group_key(row)].append(row)
    return dict(groups)


def kernel_of(family: str) -> str:
    """The kernel that a table's family was measured with; all but MLA scan one row per head."""
    return TABLE_KERNELS.get(family, "grouped")


def group_key(row: dict[str, str]) -> GroupKey:
    """The group that a row belongs to."""
    return GroupKey(
        gpu=row["gpu"],
        backend=row["backend"],
        kernel=kernel_of(row["family"]),
        kv_dtype=row["kv_dtype"],
        regime=row.get("regime") or "cold",
    )


def samples_of(rows: list[dict[str, str]], *, bandwidth: float, peak: float) -> KernelSamples:
    """Rows of one group as arrays, with the bytes, FLOPs and work units of each call.

    Raises
    ------
    CalibrationError
        If a cell is no number that a call can have, or the storage format has no known width.
    """

    def column(name: str) -> FloatArray:
        return _column(rows, name, LATENCIES_US if name == "latency_us" else COUNTS)

    kv_dtype = rows[0]["kv_dtype"]
    if kv_dtype not in BYTES_PER_SCALAR:
        raise CalibrationError(
            f"kv_dtype {shown(kv_dtype)}: known are {', '.join(BYTES_PER_SCALAR)}"
        )
    width = BYTES_PER_SCALAR[kv_dtype]
    batch, tokens, n_heads = column("batch"), column("kv_len"), column("n_heads")
    if kernel_of(rows[0]["family"]) == "mla_absorbed":
        work = mla_absorbed_work(
            batch, tokens, n_heads=n_heads, latent_dim=column("d_c"), rope_dim=column("d_rope"),
            bytes_per_scalar=width,
        )  # fmt: skip
    else:
        work = grouped_work(
            batch, tokens, n_heads=n_heads, n_kv_heads=column("n_kv_heads"),
            head_dim=column("head_dim"), bytes_per_scalar=width,
        )  # fmt: skip
    return KernelSamples(
        n_bytes=work[0], flops=work[1], work_units=work[2], time_s=column("latency_us") * 1e-6,
        context_tokens=tokens, n_heads=n_heads, n_kv_heads=column("n_kv_heads"),
        head_dim=column("head_dim"), bandwidth=bandwidth, peak=peak,
    )  # fmt: skip


def _column(rows: list[dict[str, str]], name: str, ends: tuple[float, float]) -> FloatArray:
    """The cells of a column as numbers.

    Raises
    ------
    CalibrationError
        If the column is missing, or a cell is no number between the ``ends``.
    """
    import numpy as np

    if name not in rows[0]:
        raise CalibrationError(f"column {name} is missing; {rows[0]['family']} rows need it")
    try:
        values = np.array([float(row[name]) for row in rows])
    except (TypeError, ValueError):
        raise CalibrationError(f"column {name}: every cell must be a number") from None
    if not ((values >= ends[0]) & (values <= ends[1])).all():
        raise CalibrationError(
            f"column {name}: every cell must be a positive number from {ends[0]:g} to {ends[1]:g}"
        )
    return values
