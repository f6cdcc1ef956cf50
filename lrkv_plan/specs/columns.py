"""Columns of CSV text as arrays: fast where a whole block is clean, exact about what is not.

A block is first checked as a whole. Only when that fails is each value looked at, so that the
error can name its line.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.errors import shown
from lrkv_plan.specs.line_blocks import Lines

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_TOKENS = 10**9  # in one sequence; the longest context offered by any model is near 10**7


@dataclass(frozen=True)
class ColumnKind:
    """How the values of a column are written, and how they become numbers."""

    pattern: str
    convert: Callable[[Sequence[str]], Any]  # to an array; ValueError where a value is impossible
    allowed: str

    @cached_property
    def one(self) -> re.Pattern[str]:
        """Matches one value."""
        return re.compile(self.pattern, re.ASCII)

    @cached_property
    def _lines(self) -> re.Pattern[str]:
        return re.compile(f"(?:{self.pattern}\n)*", re.ASCII)

    def holds_all(self, texts: Sequence[str]) -> bool:
        """Whether all texts, none of which holds a line end, are written as this kind."""
        return self._lines.fullmatch("\n".join(texts) + "\n") is not None


def _to_tokens(texts: Sequence[str]) -> IntArray:
    import numpy as np

    tokens = np.fromiter(map(int, texts), np.int64, len(texts))
    if tokens.size and int(tokens.max()) > MAX_TOKENS:
        raise ValueError("more tokens than any sequence holds")
    return tokens


def _to_seconds(texts: Sequence[str]) -> Any:
    import numpy as np

    return np.fromiter(map(float, texts), np.float64, len(texts))


def _to_instants(texts: Sequence[str]) -> Any:
    """UTC times in nanoseconds. numpy reads no zones, and UTC is the only one allowed."""
    import numpy as np

    without_zone = "\n".join(texts).replace("+00:00", "").replace("Z", "").split("\n")
    return np.array(without_zone, dtype="datetime64[ns]").astype(np.int64)


TOKENS = ColumnKind(
    r"\d{1,10}",
    _to_tokens,
    f"must be a whole number of tokens from 0 to {MAX_TOKENS:,} in plain digits; "
    "write 2048, not '2k', '2,048' or '2048 tokens'",
)
SECONDS = ColumnKind(
    r"\d{1,15}(?:\.\d{1,9})?",
    _to_seconds,
    "must be a number of seconds such as 118 or 118.5; mend or remove the line",
)
INSTANT = ColumnKind(  # the years that nanoseconds in int64 can hold
    r"(?:19[7-9]|2[01]\d)\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:\+00:00|Z)?",
    _to_instants,
    "must be a UTC time such as 2023-11-16 18:17:03.9799600; mend or remove the line",
)


def read_column(lines: Lines, name: str, texts: Sequence[str], kind: ColumnKind) -> Any:
    """One column of a block as an array.

    Parameters
    ----------
    lines : where the values come from, one a line.
    name : the column, as errors name it.
    texts : its values, as many as ``lines`` has.
    kind : ``TOKENS`` (int64), ``SECONDS`` (float64) or ``INSTANT`` (int64 nanoseconds).

    Raises
    ------
    SpecError
        Naming the first line whose value is not of that kind. Spaces around a value are allowed.
    """
    clean = texts if kind.holds_all(texts) else list(map(str.strip, texts))
    if clean is texts or kind.holds_all(clean):
        try:
            return kind.convert(clean)
        except ValueError:
            pass
    return kind.convert([_one(lines, i, name, text, kind) for i, text in enumerate(texts)])


def _one(lines: Lines, index: int, name: str, text: str, kind: ColumnKind) -> str:
    value = text.strip()
    if kind.one.fullmatch(value):
        try:
            kind.convert([value])
            return value
        except ValueError:
            pass
    raise lines.error(index, f"{name} {shown(text)}", kind.allowed)


def csv_header(lines: Lines) -> list[str]:
    """The names in the first line. Raises ``SpecError`` where its quotes do not close."""
    return [name.strip() for name in _row(lines, 0)]


def csv_rows(lines: Lines, n_columns: int) -> list[list[str]]:
    """Each line split into its ``n_columns`` values; quotes as in CSV, but within one line.

    Raises
    ------
    SpecError
        Naming the first line with another number of values, or with an open quote.
    """
    try:
        rows = list(csv.reader(lines.texts, strict=True, skipinitialspace=True))
    except csv.Error:
        rows = []
    if len(rows) == len(lines.texts) and set(map(len, rows)) <= {n_columns}:
        return rows
    rows = [_row(lines, i) for i in range(len(lines.texts))]
    for i, row in enumerate(rows):
        if len(row) != n_columns:
            allowed = f"has {len(row)} values: the header names {n_columns}; mend or remove it"
            raise lines.error(i, shown(lines.texts[i]), allowed)
    return rows


def _row(lines: Lines, index: int) -> list[str]:
    text = lines.texts[index]
    try:
        return next(csv.reader([text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        allowed = f"not one line of CSV ({error}); a quoted value must end on its own line"
        raise lines.error(index, shown(text), allowed) from None
