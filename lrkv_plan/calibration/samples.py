"""Measured decode-attention calls as arrays: what each moved and computed, and how long it took.

The table has one row per call with the columns of aiconfigurator's published measurements:
gpu, family, backend, backend_version, kv_dtype, batch, kv_len, n_heads, n_kv_heads, head_dim, d_c,
d_rope, latency_us, and optionally flag, regime, source. Heads are per GPU.
"""

from __future__ import annotations

import contextlib
import csv
import io
import math
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.registry import family_of, is_family, kernel_names, kernel_of
from lrkv_plan.calibration.torch_gate import TORCH_DTYPES
from lrkv_plan.errors import CalibrationError, shown
from lrkv_plan.files import read_regular, unpacked

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from lrkv_plan.attention.family import Kernel

    FloatArray = npt.NDArray[np.float64]

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
    data = read_regular(path, max_bytes=MAX_TABLE_BYTES, error=CalibrationError)
    data = unpacked(path, data, max_bytes=MAX_TABLE_BYTES, error=CalibrationError)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise CalibrationError(f"{path}: cannot be read: {error}; check the path") from None


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


def table_kernel(family: str) -> Kernel:
    """The kernel that a table's family was measured with: its own, else one row per head."""
    own = family_of(family).kernels if is_family(family) else ()
    return next((kernel for kernel in own if kernel.calls), kernel_of("grouped"))


def group_key(row: dict[str, str]) -> GroupKey:
    """The group that a row belongs to."""
    return GroupKey(
        gpu=row["gpu"],
        backend=row["backend"],
        kernel=table_kernel(row["family"]).name,
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
    calls = table_kernel(rows[0]["family"]).calls
    assert calls is not None, "a table's kernel states its calls"
    own = {argument: column(name) for argument, name in calls.columns.items()}
    work = calls.work(batch, tokens, n_heads=n_heads, bytes_per_scalar=width, **own)
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


ROLES = ("fit", "random", "rank", "heads", "context")  # all but fit are held out
# What a cell may hold. Times: one nanosecond to eleven days; other numbers: no product overflows.
TIMES_S = (1e-9, 1e6)
LARGEST = 1e18
AT_LEAST_ONE = ("n_heads", "n_copies", "head_dim", "batch_size", "context_tokens", "query_tokens")
CHOICES: dict[str, tuple[str, ...]] = {
    "role": ROLES, "device": ("cpu", "cuda"), "dtype": tuple(TORCH_DTYPES),
    "cache_state": ("cold", "hot"),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DecodeSample:
    """One round of one point. Times are of one call of one layer. [s]

    ``n_bytes`` (cached rows and layer weights, each read once), ``flops`` and ``work_units`` are
    predicted (latency/work.py); ``allocated_bytes`` is what torch holds for the
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
    data = read_regular(path, max_bytes=MAX_TABLE_BYTES, error=CalibrationError)
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
    for name, choices in {**CHOICES, "kernel": kernel_names()}.items():
        if values[name] not in choices:
            raise CalibrationError(
                f"{where}: {name} {shown(values[name])}: one of {', '.join(choices)}"
            )


HALF_WINDOW = 4  # fitted samples before and after: together they take about half a second
N_PASSES = 10


def log_drift(samples: Sequence[DecodeSample]) -> FloatArray:
    """ln of how much slower than half of the time the machine was, sample by sample.

    Parameters
    ----------
    samples
        In the order in which they were measured. Held-out ones do not count: they take the drift
        of the fitted ones around them, so that nothing fitted depends on them.

    Returns
    -------
    One value per sample; all 0 where no point was measured twice. [ln]

    Notes
    -----
    Median polish (Tukey, Exploratory Data Analysis, 1977, 10) of ln t = point + drift: the drift is
    a running median of what the points' own medians leave, ``2 HALF_WINDOW + 1`` samples wide.
    """
    import numpy as np

    fitted = [(i, s) for i, s in enumerate(samples) if s.role == "fit"]
    names = {name: k for k, name in enumerate(dict.fromkeys(s.point for _, s in fitted))}
    if len(names) == len(fitted):
        return np.zeros(len(samples))
    logs = np.array([np.log(np.median(s.repeats_s)) for _, s in fitted])
    drift = _polished(logs, np.array([names[s.point] for _, s in fitted]))
    places = np.arange(len(samples), dtype=float)
    everywhere: FloatArray = np.interp(places, [i for i, _ in fitted], drift)
    return everywhere - np.median(drift)


def _polished(logs: FloatArray, which: FloatArray) -> FloatArray:
    """The common part of ``logs`` around each place, point ``which`` taken out."""
    import numpy as np

    members = [np.flatnonzero(which == k) for k in range(int(which.max()) + 1)]
    drift = np.zeros(len(logs))
    for _ in range(N_PASSES):
        own = np.array([np.median((logs - drift)[m]) for m in members])
        left = logs - own[which]
        padded = np.pad(left, HALF_WINDOW, mode="reflect" if len(left) > HALF_WINDOW else "edge")
        windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * HALF_WINDOW + 1)
        drift = np.median(windows, axis=1)
    return drift


ESTIMATORS: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "cpu": ("median", median),
    "cuda": ("median", median),
}
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {"minimum": min, "median": median}
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, kw_only=True)
class MeasuredPoint:
    """One point: its first row for what it is, all repeats of all rounds, and its time. [s]

    ``rounds_s`` have the machine's drift taken out, ``raw_rounds_s`` are as measured.
    """

    sample: DecodeSample
    rounds_s: tuple[tuple[float, ...], ...]
    raw_rounds_s: tuple[tuple[float, ...], ...]
    controls_s: tuple[float, ...]
    time_s: float
    allocated_equals_predicted: bool
    peak_bytes: int

    @property
    def is_fitted(self) -> bool:
        """Whether the fit and the choice of form may use the point."""
        return self.sample.role == "fit"

    @property
    def repeats_s(self) -> tuple[float, ...]:
        """All repeats of all rounds, drift taken out."""
        return tuple(t for one in self.rounds_s for t in one)

    @property
    def latencies_s(self) -> tuple[float, ...]:
        """All repeats of all rounds as measured."""
        return tuple(t for one in self.raw_rounds_s for t in one)

    def instability(
        self, estimate: Callable[[Sequence[float]], float] | None = None, *, raw: bool = False
    ) -> float:
        """|ln| of the estimate in even rounds over that in odd ones; NaN with one repeat.

        Alternate repeats take the place of rounds where there is one round only. ``raw``: with the
        machine's drift left in.
        """
        chosen = estimate or estimator(self.sample.device)[1]
        rounds = self.raw_rounds_s if raw else self.rounds_s
        parts = rounds if len(rounds) > 1 else tuple((t,) for t in rounds[0])
        even = [t for one in parts[0::2] for t in one]
        odd = [t for one in parts[1::2] for t in one]
        return abs(math.log(chosen(even) / chosen(odd))) if odd else math.nan


def estimator(device: str) -> tuple[str, Callable[[Sequence[float]], float]]:
    """Name and function that make one time out of repeats on that device."""
    return ESTIMATORS.get(device, ESTIMATORS["cuda"])


def measured_points(samples: Iterable[DecodeSample]) -> list[MeasuredPoint]:
    """The points of a run, in order of first appearance; ``samples`` in the order of measuring."""
    listed = list(samples)
    slower = {
        (s.point, s.round): math.exp(d) for s, d in zip(listed, log_drift(listed), strict=True)
    }
    return [_point(rounds, slower) for rounds in by_point(listed).values()]


def _point(rounds: list[DecodeSample], slower: dict[tuple[str, int], float]) -> MeasuredPoint:
    ordered = sorted(rounds, key=lambda s: s.round)
    first = ordered[0]
    raw = tuple(sample.repeats_s for sample in ordered)
    factors = [slower[sample.point, sample.round] for sample in ordered]
    times = tuple(tuple(t / f for t in one) for one, f in zip(raw, factors, strict=True))
    _, estimate = estimator(first.device)
    return MeasuredPoint(
        sample=first,
        rounds_s=times,
        raw_rounds_s=raw,
        controls_s=tuple(c for sample in ordered for c in sample.controls_s),
        time_s=estimate([t for one in times for t in one]),
        allocated_equals_predicted=all(s.allocated_bytes == s.predicted_bytes for s in ordered),
        peak_bytes=max(s.peak_bytes for s in ordered),
    )


def noise(
    points: Iterable[MeasuredPoint],
    estimate: Callable[[Sequence[float]], float] | None = None,
    *,
    raw: bool = False,
) -> float | None:
    """Median split-half instability of the points; None where none can be split."""
    found = [v for p in points if not math.isnan(v := p.instability(estimate, raw=raw))]
    return median(found) if found else None


def control_spread(points: Iterable[MeasuredPoint]) -> float | None:
    """How much longer the median control of the run took than its tenth percentile."""
    controls = sorted(c for point in points for c in point.controls_s)
    if len(controls) < 2:
        return None
    return median(controls) / controls[len(controls) // 10] - 1


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a share of ``values`` does not exceed, linear between neighbours."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def as_arrays(points: Sequence[MeasuredPoint], *, bandwidth: float, peak: float) -> KernelSamples:
    """Points of one path as arrays, one element each."""
    import numpy as np

    def column(name: str) -> FloatArray:
        return np.array([float(getattr(p.sample, name)) for p in points])

    return KernelSamples(
        n_bytes=column("n_bytes"), flops=column("flops"), work_units=column("work_units"),
        time_s=np.array([p.time_s for p in points]), context_tokens=column("context_tokens"),
        n_heads=column("n_heads"), n_kv_heads=column("n_copies"), head_dim=column("head_dim"),
        bandwidth=bandwidth, peak=peak,
    )  # fmt: skip
