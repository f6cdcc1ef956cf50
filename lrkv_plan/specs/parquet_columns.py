"""How are columns of requests read from Parquet? In batches, checked whole; one that fails is
searched for its first wrong row.

Files are opened by pyarrow (extra ``trace``); no row group is held whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import open_regular, start_of_regular
from lrkv_plan.progress import tell_progress
from lrkv_plan.specs.columns import MAX_TOKENS, TOKENS, ColumnKind, Columns
from lrkv_plan.specs.text_blocks import MAX_FILE_BYTES, MAX_LINES, Block
from lrkv_plan.specs.trace_extra import pyarrow_for

MAX_COLUMNS = 10_000
BATCH_ROWS = 2**17
_PAGE_BUFFER_BYTES = 2**20
_INDEX = "__index_level_"  # pandas keeps its index so


def is_parquet(path: Path) -> bool:
    """Whether the file begins as Parquet does. Raises ``SpecError`` if it cannot be read."""
    return start_of_regular(path, 4) == b"PAR1"


def parquet_names(path: Path) -> list[str]:
    """The names of a file's columns, without an index that pandas kept.

    Raises
    ------
    SpecError
        If pyarrow is missing, the file is damaged, or it has too many columns or rows.
    """
    with _opened(path) as file:
        names = list(file.schema_arrow.names)
        if len(names) > MAX_COLUMNS:
            raise SpecError(f"{path}: {len(names):,} columns; at most {MAX_COLUMNS:,} are read")
        if file.metadata.num_rows > MAX_LINES:
            raise SpecError(
                f"{path}: {file.metadata.num_rows:,} rows; at most {MAX_LINES:,}; take a part of it"
            )
        return [name for name in names if not name.startswith(_INDEX)]


def parquet_chunks(path: Path, wanted: Mapping[str, ColumnKind]) -> Iterator[list[Any]]:
    """The wanted columns as arrays, in that order, batch by batch, as ``Columns.chunks``.

    Raises
    ------
    SpecError
        Naming the first row with a value that is missing or not of its column's kind, or with
        more than 10**9 tokens in all; if a column is of another type, or the file is damaged.
    """
    with _opened(path) as file:
        schema, n_rows, first_row = file.schema_arrow, file.metadata.num_rows, 1
        readers = [_Reader(path, schema, name, kind) for name, kind in wanted.items()]
        batches = file.iter_batches(batch_size=BATCH_ROWS, columns=list(wanted), use_threads=False)
        for batch in batches:
            if batch.num_columns != len(wanted):
                raise SpecError(f"{path}: cannot be read as Parquet: its columns are damaged")
            chunk = [reader.read(batch.column(reader.name), first_row) for reader in readers]
            _refuse_absurd_sums(path, first_row, wanted, chunk)
            first_row += batch.num_rows
            tell_progress(lambda at=first_row - 1: f"{path.name}: {at:,} of {n_rows:,} rows")  # type: ignore[misc]
            yield chunk


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """The file as pyarrow's; what it says of a damaged one in one line."""
    arrow = pyarrow_for(path, "Parquet")
    import pyarrow.parquet as parquet

    try:
        with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
            # Without pre_buffer and with a buffer a column is read page by page.
            yield parquet.ParquetFile(file, pre_buffer=False, buffer_size=_PAGE_BUFFER_BYTES)
    except (arrow.ArrowException, OSError, ValueError, KeyError, OverflowError) as error:
        raise SpecError(f"{path}: cannot be read as Parquet: {error}") from None


class _Reader:
    """One column of a file."""

    def __init__(self, path: Path, schema: Any, name: str, kind: ColumnKind) -> None:
        self.path, self.name, self.kind = path, name, kind
        field = schema.field(name)
        self._read = _rule_for(kind, field.type)
        if self._read is None:
            raise SpecError(
                f"{path}: column {name} is {field.type}: {kind.allowed.split(';')[0]}; cast the "
                f"column to {_TYPES[kind.dtype]}"
            )

    def read(self, column: Any, first_row: int) -> Any:
        """The values. The first that is none of its kind is found by halving."""
        values = self._tried(column)
        if values is not None:
            return values
        good, bad = 0, len(column)  # a wrong value stands between
        while bad - good > 1:
            middle = (good + bad) // 2
            if self._tried(column.slice(good, middle - good)) is None:
                bad = middle
            else:
                good = middle
        raise SpecError(
            f"{self.path}: row {first_row + good}: {self.name} {_text(column[good])}: "
            f"{self.kind.allowed}"
        )

    def _tried(self, column: Any) -> Any:
        assert self._read is not None, "the constructor looked"
        if not len(column):
            return _nothing(self.kind)
        if column.null_count:
            return None
        try:
            return self._read(column)
        except ValueError:  # pyarrow's ArrowInvalid is one
            return None


def _nothing(kind: ColumnKind) -> Any:
    import numpy as np

    return np.empty(0, np.float64 if kind.dtype == "float64" else np.int64)


_TYPES = {"int64": "int64", "float64": "float64", None: "timestamp"}


def _rule_for(kind: ColumnKind, found: Any) -> Callable[[Any], Any] | None:
    """How a column of that type becomes numbers (ValueError where it does not), or None."""
    from pyarrow import types

    if kind.dtype == "int64":
        return _whole if types.is_integer(found) else None
    if kind.dtype == "float64":
        return _finite if types.is_integer(found) or types.is_floating(found) else None
    if types.is_timestamp(found):
        return _nanoseconds
    if types.is_string(found) or types.is_large_string(found):
        return _parsed_with(kind)
    return None


def _whole(column: Any) -> Any:
    import pyarrow

    values = column.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)
    if values.min() < 0 or values.max() > MAX_TOKENS:
        raise ValueError("not a number of tokens")
    return values


def _finite(column: Any) -> Any:
    import numpy as np
    import pyarrow

    values = column.cast(pyarrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    if not np.isfinite(values).all():
        raise ValueError("not finite")
    return values


def _nanoseconds(column: Any) -> Any:
    import pyarrow

    in_nanoseconds = column.cast(pyarrow.timestamp("ns", tz=column.type.tz))
    return in_nanoseconds.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)


def _parsed_with(kind: ColumnKind) -> Callable[[Any], Any]:
    """Texts, read as the cells of a CSV are."""
    columns = Columns(names=["time"], wanted={"time": kind}, is_csv=False)

    def parsed(column: Any) -> Any:
        raw = "\n".join(column.to_pylist()).encode()
        if not raw.endswith(b"\n") and raw.count(b"\n") == len(column) - 1:
            block = Block(path=Path(), first_number=1, raw=raw)
            try:
                (values,) = columns.at_once(block) or columns.line_by_line(block.lines())
            except SpecError:
                raise ValueError("not all are times") from None
            if values.size == len(column):
                return values
        raise ValueError("not one time each")

    return parsed


def _text(value: Any) -> str:
    """A value as errors show it, by pyarrow: its times have more digits than Python's."""
    if not value.is_valid:
        return "null"
    try:
        return shown(str(value))
    except (ValueError, OverflowError):  # a time beyond those of Python
        return f"{value.value} of {value.type}"


def _refuse_absurd_sums(
    path: Path, first_row: int, wanted: Mapping[str, ColumnKind], chunk: Sequence[Any]
) -> None:
    counted = [c for c, kind in zip(chunk, wanted.values(), strict=True) if kind is TOKENS]
    totals = sum(counted)
    if len(counted) > 1 and totals.size and totals.max() > MAX_TOKENS:
        at = int((totals > MAX_TOKENS).argmax())
        raise SpecError(
            f"{path}: row {first_row + at}: {int(totals[at])}: prompt and output together must be "
            f"at most {MAX_TOKENS:,} tokens; mend the row"
        )
