"""What do columns of requests hold, and how are they read from text at full speed and exactly?

A large CSV goes to pandas, block by block, once a pattern has shown that every line of the block
holds exactly what its columns allow. In any other block each line is looked at, so that errors
name theirs.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.errors import shown
from lrkv_plan.specs.text_blocks import Block, Line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]

FAST_COLUMNS = 100
FAST_FROM_BYTES = 2**19  # importing pandas takes longer than reading less line by line

MAX_TOKENS = 10**9  # in one sequence; the longest context offered by any model is near 10**7


@dataclass(frozen=True)
class ColumnKind:
    """How the values of a column are written, and how they become numbers."""

    pattern: str
    value: Callable[[str], float]  # ValueError where a value that is written so is impossible
    allowed: str
    dtype: str | None  # as pandas reads it; None for times, which it parses

    @cached_property
    def _form(self) -> re.Pattern[str]:
        return re.compile(self.pattern, re.ASCII)

    def read(self, line: Line, name: str, text: str) -> float:
        """The number. Raises ``SpecError`` where there is none. Spaces around it are allowed."""
        clean = text.strip()
        if self._form.fullmatch(clean):
            try:
                return self.value(clean)
            except ValueError:
                pass
        raise line.error(f"{name} {shown(text)}", self.allowed)


def _tokens(text: str) -> int:
    if int(text) > MAX_TOKENS:
        raise ValueError("more tokens than any sequence holds")
    return int(text)


def _nanoseconds(text: str) -> int:
    """Since 1970, UTC. numpy reads no zones, and UTC is the only one allowed."""
    import numpy as np

    without_zone = text.replace("+00:00", "").replace("Z", "")
    return int(np.datetime64(without_zone, "ns").astype(np.int64))


TOKENS = ColumnKind(
    r"\d{1,10}",
    _tokens,
    f"must be a whole number of tokens from 0 to {MAX_TOKENS:,} in plain digits; "
    "write 2048, not '2k', '2,048' or '2048 tokens'",
    "int64",
)
SECONDS = ColumnKind(
    r"\d{1,15}(?:\.\d{1,9})?",
    float,
    "must be a number of seconds such as 118 or 118.5; mend or remove the line",
    "float64",
)
MILLISECONDS = ColumnKind(
    SECONDS.pattern,
    float,
    "must be a number of milliseconds such as 27482; mend or remove the line",
    "float64",
)
INSTANT = ColumnKind(  # the years that nanoseconds in int64 can hold
    r"(?:19[7-9]|2[01]\d)\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:\+00:00|Z)?",
    _nanoseconds,
    "must be a UTC time such as 2023-11-16 18:17:03.9799600; mend or remove the line",
    None,
)
# A value that is not read: plain ASCII, with commas only where it is quoted from end to end.
_UNREAD = r"""(?:[\t !#-+\--~]{0,1000}|"[\t !#-~]{0,1000}")"""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The columns of a file that are read, of all that its lines hold."""

    names: Sequence[str]
    wanted: Mapping[str, ColumnKind]
    is_csv: bool = True

    def chunks(self, blocks: Iterable[Block], n_bytes_before: int = 0) -> Iterator[list[Any]]:
        """The wanted columns as arrays, in that order, block by block.

        Times are nanoseconds since 1970 (int64), seconds float64, tokens int64.

        Parameters
        ----------
        n_bytes_before : what was read of other files of the trace; pandas pays from
            ``FAST_FROM_BYTES`` on in all. [bytes]

        Raises
        ------
        SpecError
            Naming the first line that holds another number of values, an open quote, a value
            that is not of its column's kind, or more than 10**9 tokens in all.
        """
        n_bytes = n_bytes_before
        for block in blocks:
            n_bytes += len(block.raw)
            is_large = n_bytes >= FAST_FROM_BYTES and len(self.names) <= FAST_COLUMNS
            fast = self.at_once(block) if is_large else None
            yield self.line_by_line(block.lines()) if fast is None else fast

    def line_by_line(self, lines: Iterable[Line]) -> list[Any]:
        """The wanted columns of some lines, or the first line's error."""
        import numpy as np

        places = [(kind.read, name, self.names.index(name)) for name, kind in self.wanted.items()]
        counted = [i for i, kind in enumerate(self.wanted.values()) if kind is TOKENS]
        rows: list[list[float]] = []
        for line in lines:
            cells = self._cells(line)
            row = [read(line, name, cells[place]) for read, name, place in places]
            refuse_absurd_sum(line, int(sum([row[i] for i in counted])))
            rows.append(row)
        return [
            np.fromiter(
                (row[i] for row in rows), np.float64 if kind.dtype == "float64" else np.int64
            )
            for i, kind in enumerate(self.wanted.values())
        ]

    def _cells(self, line: Line) -> list[str]:
        cells = csv_cells(line) if self.is_csv else [line.text]
        if len(cells) != len(self.names):
            allowed = (
                f"has {len(cells)} values: the header names {len(self.names)}; mend or remove it"
            )
            raise line.error(shown(line.text), allowed)
        return cells

    @cached_property
    def _strict(self) -> re.Pattern[bytes]:
        cells = [self.wanted[n].pattern if n in self.wanted else _UNREAD for n in self.names]
        no_comment = "" if self.names[0] in self.wanted else "(?!#)"
        return re.compile(f"^{no_comment}{','.join(cells)}\r?\n".encode(), re.MULTILINE)

    def at_once(self, block: Block) -> list[Any] | None:
        """The wanted columns of a block by pandas; None where its lines must be looked at."""
        raw = block.raw if block.raw.endswith(b"\n") else block.raw + b"\n"
        # Nothing is left over only if lines of that form touch each other from end to end.
        if self._strict.sub(b"", raw):
            return None
        try:
            columns = self._parsed(raw)
        except ValueError:
            return None
        counted = [c for c, k in zip(columns, self.wanted.values(), strict=True) if k is TOKENS]
        totals: Any = sum(counted)
        return columns if not counted or int(totals.max()) <= MAX_TOKENS else None

    def _parsed(self, raw: bytes) -> list[Any]:
        import pandas as pd

        kinds = {self.names.index(name): kind for name, kind in self.wanted.items()}
        # From 3.1 on floats are exact without being asked, and asking warns.
        older = tuple(map(int, pd.__version__.split(".")[:2])) < (3, 1)
        frame = pd.read_csv(
            io.BytesIO(raw), engine="c", header=None, names=range(len(self.names)),
            index_col=False, usecols=list(kinds), na_filter=False,
            skip_blank_lines=False,
            dtype={place: kind.dtype for place, kind in kinds.items() if kind.dtype},
            parse_dates=[place for place, kind in kinds.items() if not kind.dtype],
            date_format="ISO8601", **({"float_precision": "round_trip"} if older else {}),
        )  # fmt: skip
        return [
            frame[place].to_numpy() if kind.dtype else _since_1970(frame[place])
            for place, kind in kinds.items()
        ]


def _since_1970(times: Any) -> IntArray:
    """Nanoseconds of times that pandas parsed. ``ValueError`` where it left texts."""
    import pandas as pd

    if times.dtype.kind != "M":
        raise ValueError("not all are times, or only some have a zone")
    nanoseconds: IntArray = pd.DatetimeIndex(times).as_unit("ns").asi8
    return nanoseconds


def csv_cells(line: Line) -> list[str]:
    """The values of one line; quotes as in CSV, but within it.

    Raises
    ------
    SpecError
        If a quote is left open.
    """
    try:
        return next(csv.reader([line.text], strict=True, skipinitialspace=True))
    except csv.Error as error:
        allowed = f"not one line of CSV ({error}); a quoted value must end on its own line"
        raise line.error(shown(line.text), allowed) from None


def header_of(line: Line) -> list[str]:
    """The names that a header holds. Raises as ``csv_cells``."""
    return [name.strip() for name in csv_cells(line)]


def refuse_absurd_sum(line: Line, tokens: int) -> None:
    """Refuse a request of more tokens than any sequence holds (``SpecError`` with its line)."""
    if tokens > MAX_TOKENS:
        allowed = f"prompt and output together must be at most {MAX_TOKENS:,} tokens; mend the line"
        raise line.error(str(tokens), allowed)
