"""Sequences of uneven length: files of lengths, public request traces, stated percentiles.

Traces are known by their exact column names or keys: Azure LLM inference, BurstGPT, Mooncake.
A large CSV goes to pandas, block by block, once a pattern has shown that every line of the block
holds exactly what its columns allow. In any other block each line is looked at, so that errors
name theirs.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, NamedTuple, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.files import open_regular, too_large
from lrkv_plan.units import parse_number, parse_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]

MAX_FILE_BYTES = 2 * 2**30  # the largest public trace, Azure's 2024 conversations, has 1.13e9
MAX_LINE_BYTES = 2**20
MAX_LINES = 50_000_000  # that trace has 27 million; an array of them takes 400 MB
BLOCK_BYTES = 2**20
FAST_COLUMNS = 100
FAST_FROM_BYTES = 2**20  # importing pandas takes longer than reading less line by line

_NOT_TEXT = {
    b"version https://git-lfs": "a Git LFS pointer, not the data; fetch it with 'git lfs pull'",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; export the columns as CSV",
}


class Line(NamedTuple):
    """One line of a file, and its number counted from 1."""

    path: Path
    number: int
    text: str

    def error(self, value: str, allowed: str) -> SpecError:
        """A ``SpecError`` that names the file, the line, the value and what is allowed."""
        return SpecError(f"{self.path}: line {self.number}: {value}: {allowed}")


@dataclass(frozen=True, kw_only=True)
class Block:
    """Whole lines of a file, the first of which has the number ``first_number``."""

    path: Path
    first_number: int
    raw: bytes

    def lines(self) -> Iterator[Line]:
        """All but blank ones and those that start with #.

        Raises
        ------
        SpecError
            If they are not lines of UTF-8 text.
        """
        texts = _texts(self.path, self.first_number, self.raw)
        for number, text in enumerate(texts, start=self.first_number):
            if text and not (text.startswith("#") or text.isspace()):
                yield Line(self.path, number, text)

    def since(self, number: int) -> Block:
        """What begins with that line, maybe nothing."""
        raw = self.raw.split(b"\n", number - self.first_number)[number - self.first_number :]
        return replace(self, first_number=number, raw=raw[0] if raw else b"")


def blocks_of(path: Path) -> Iterator[Block]:
    """A file in blocks.

    Raises
    ------
    SpecError
        If it is missing, larger than 2 GiB, not text, or of more lines than ``MAX_LINES``.
    """
    number = 1
    for raw in _raw_blocks(path):
        yield Block(path=path, first_number=number, raw=raw)
        number += raw.count(b"\n")
        if number - 1 > MAX_LINES:
            raise SpecError(f"{path}: more than {MAX_LINES:,} lines; take a part of it")


def first_line(path: Path) -> tuple[Line, Iterator[Block]]:
    """The first line that counts, and blocks from that line on.

    Raises
    ------
    SpecError
        If there is none.
    """
    blocks = blocks_of(path)
    for block in blocks:
        for line in block.lines():
            return line, chain([block.since(line.number)], blocks)
    raise SpecError(f"{path}: empty: at least one line of data is needed; check the file")


def _raw_blocks(path: Path) -> Iterator[bytes]:
    """The file's bytes, cut after line ends."""
    rest, n_read = b"", 0
    with open_regular(path, max_bytes=MAX_FILE_BYTES) as file:
        while chunk := _read(path, file):
            if not n_read:
                chunk = _checked_start(path, chunk)
            n_read += len(chunk)
            if n_read > MAX_FILE_BYTES:  # it grows while it is read
                raise SpecError(too_large(path, MAX_FILE_BYTES))
            rest += chunk
            cut = rest.rfind(b"\n") + 1
            if cut:
                yield rest[:cut]
                rest = rest[cut:]
            elif len(rest) > MAX_LINE_BYTES:
                raise SpecError(
                    f"{path}: a line has more than {MAX_LINE_BYTES:,} bytes: lines must be "
                    "shorter; is it text with one record a line?"
                )
    if rest:
        yield rest


def _read(path: Path, file: BinaryIO) -> bytes:
    try:
        return file.read(BLOCK_BYTES)
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None


def _checked_start(path: Path, chunk: bytes) -> bytes:
    for prefix, advice in _NOT_TEXT.items():
        if chunk.startswith(prefix):
            raise SpecError(f"{path}: line 1: {shown(chunk[:24])}: {advice}")
    return chunk.removeprefix(b"\xef\xbb\xbf")


def _texts(path: Path, first_number: int, raw: bytes) -> list[str]:
    """The block's lines. Control bytes mean a binary file, which is refused with its line."""
    at = raw.find(b"\0")
    if at < 0:
        try:
            text = raw.decode()
            if "\r" in text:  # a replace that finds nothing costs as much as the split
                text = text.replace("\r\n", "\n")
                if "\r" in text:
                    raise _lone_return(path, first_number, text)
            texts = text.split("\n")
            return texts if texts[-1] else texts[:-1]
        except UnicodeDecodeError as error:
            at = error.start
    number = first_number + raw.count(b"\n", 0, at)
    raise SpecError(
        f"{path}: line {number}: byte 0x{raw[at]:02x}: must be UTF-8 text; "
        "is this a binary file, or text saved in another encoding?"
    )


def _lone_return(path: Path, first_number: int, text: str) -> SpecError:
    number = first_number + text.count("\n", 0, text.index("\r"))
    return SpecError(
        f"{path}: line {number}: holds a carriage return (\\r) that no line feed (\\n) follows; "
        "end lines with \\n or \\r\\n"
    )


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

    def read(self, path: Path, blocks: Iterable[Block]) -> list[Any]:
        """The wanted columns as arrays, in that order.

        Times are nanoseconds since 1970 (int64), seconds float64, tokens int64.

        Raises
        ------
        SpecError
            Naming the first line that holds another number of values, an open quote, a value
            that is not of its column's kind, or more than 10**9 tokens in all.
        """
        import numpy as np

        is_large = path.stat().st_size >= FAST_FROM_BYTES and len(self.names) <= FAST_COLUMNS
        parts = []
        for block in blocks:
            fast = self.at_once(block) if is_large else None
            parts.append(self.line_by_line(block.lines()) if fast is None else fast)
        parts = parts or [self.line_by_line([])]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def line_by_line(self, lines: Iterable[Line]) -> list[Any]:
        """The wanted columns of some lines, or the first line's error."""
        import numpy as np

        places = [(kind.read, name, self.names.index(name)) for name, kind in self.wanted.items()]
        counted = [i for i, kind in enumerate(self.wanted.values()) if kind is TOKENS]
        rows: list[list[float]] = []
        for line in lines:
            cells = self._cells(line)
            row = [read(line, name, cells[place]) for read, name, place in places]
            _refuse_absurd_sum(line, int(sum([row[i] for i in counted])))
            rows.append(row)
        return [
            np.fromiter((row[i] for row in rows), np.float64 if kind is SECONDS else np.int64)
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
        return columns if int(sum(counted).max()) <= MAX_TOKENS else None

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


def _without(first: Line, blocks: Iterator[Block]) -> Iterator[Block]:
    """Blocks that begin with a header, without it."""
    block = next(blocks)
    rest = block.since(first.number + 1)
    return chain([rest] if rest.raw else [], blocks)


def _header(line: Line) -> list[str]:
    return [name.strip() for name in csv_cells(line)]


def _refuse_absurd_sum(line: Line, tokens: int) -> None:
    if tokens > MAX_TOKENS:
        allowed = f"prompt and output together must be at most {MAX_TOKENS:,} tokens; mend the line"
        raise line.error(str(tokens), allowed)


MAX_SEQUENCES = 10**7  # made from percentiles
_PERCENTILE = re.compile(r"p(\d{1,3}(?:\.\d{1,6})?)\s*=\s*(\S.*)", re.IGNORECASE)
_VALUE = re.compile(r"[\d.+-].*|nan|inf|infinity|none|null|true|false", re.IGNORECASE)
# 2**64 over the golden ratio: its multiples modulo 2**64 leave no large gap (Weyl sequence).
_GOLDEN_STEP = 0x9E3779B97F4A7C15


@dataclass(frozen=True, eq=False)
class Population:
    """Sequences in arrival order: what each brings, and what it adds. [tokens]"""

    name: str
    prompt_tokens: IntArray
    output_tokens: IntArray
    remarks: tuple[str, ...] = ()

    @property
    def lengths(self) -> IntArray:
        """Tokens that each sequence holds when it ends: prompt and output. [tokens]"""
        return self.prompt_tokens + self.output_tokens

    @property
    def n_sequences(self) -> int:
        """How many sequences there are."""
        return int(self.prompt_tokens.size)


def read_lengths(path: Path, column: str | None = None) -> Population:
    """Lengths from a file: one whole number of tokens a line, or one column of a CSV.

    Parameters
    ----------
    path : the file; blank lines and lines that start with # are left out. [tokens]
    column : which column of a CSV holds lengths; needed when its header names several.

    Returns
    -------
    The sequences in file order, all tokens counted as prompt. Lines of 0 tokens are dropped,
    and a remark counts them.

    Raises
    ------
    SpecError
        Naming file and line, if the file is missing, empty, larger than 2 GiB or binary, lacks
        the column, or holds a value that is not a whole number from 0 to 10**9 in digits.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "lengths.csv")
    ...     _ = path.write_text("user,tokens\\na,2048\\nb,512\\n")
    ...     read_lengths(path, column="tokens").lengths.tolist()
    [2048, 512]
    """
    import numpy as np

    first, blocks = first_line(path)
    names = _column_names(first)
    if names is None:
        if column is not None:
            raise first.error(
                shown(first.text), f"no header, so no column {shown(column)}; leave it out"
            )
        columns = Columns(names=["length"], wanted={"length": TOKENS}, is_csv=False)
    else:
        columns = Columns(names=names, wanted={_chosen(first, names, column): TOKENS})
        blocks = _without(first, blocks)
    (prompt,) = columns.read(path, blocks)
    if not prompt.size:
        raise SpecError(f"{path}: holds only a header; at least one line of data is needed")
    return sequences_that_hold_tokens(path, prompt, np.zeros_like(prompt), ())


def _column_names(first: Line) -> list[str] | None:
    """What the first line names, or None where it is a length already."""
    names = _header(first)
    if any(_VALUE.fullmatch(name) for name in names):
        if len(names) == 1:
            return None
        allowed = "several values on a line need a header that names them; add one"
        raise first.error(shown(first.text), allowed)
    return names


def _chosen(first: Line, names: Sequence[str], column: str | None) -> str:
    found = ", ".join(name or "(no name)" for name in names)
    if column is None and len(names) == 1:
        return names[0]
    if column is None:
        allowed = f"has {len(names)} columns; name the one that holds lengths: {found}"
        raise first.error(shown(first.text), allowed)
    if names.count(column) != 1:
        times = "no" if column not in names else "more than one"
        allowed = f"{times} column of that name; found: {found}{did_you_mean(column, names)}"
        raise first.error(f"column {shown(column)}", allowed)
    return column


def sequences_that_hold_tokens(
    path: Path, prompt: IntArray, output: IntArray, remarks: tuple[str, ...]
) -> Population:
    """The population of a file without its empty sequences, which a remark counts.

    Raises
    ------
    SpecError
        If no sequence holds a token.
    """
    holds = (prompt > 0) | (output > 0)
    n_empty = int(holds.size - holds.sum())
    if n_empty == holds.size:
        raise SpecError(
            f"{path}: all {n_empty:,} sequences hold 0 tokens; at least one must hold a token; "
            "check which column was read"
        )
    if n_empty:
        prompt, output = prompt[holds], output[holds]
        remarks = (*remarks, f"dropped {n_empty:,} of {holds.size:,} rows that hold no token")
    return Population(path.name, prompt, output, remarks)


def parse_percentiles(text: str, n_sequences: int = 1000) -> Population:
    """A population whose lengths have the stated percentiles.

    Parameters
    ----------
    text : percentiles from 0 to 100, ascending, with lengths that never fall. [tokens]
    n_sequences : how many sequences to make, at most 10**7. [sequences]

    Returns
    -------
    Lengths all counted as prompt, with remarks on what the statement leaves open. The order of
    arrival is made up: successive arrivals spread evenly over the lengths, so that a prefix
    looks like the whole.

    Raises
    ------
    UsageError
        If the text cannot be understood, or its percentiles or lengths run the wrong way.

    Notes
    -----
    Sequence i of n has the length at percentile 100 (i + 1/2) / n. Between stated percentiles
    the logarithm of the length is linear in the percentile; outside them the length is constant.
    Lengths are rounded to whole tokens.

    Examples
    --------
    >>> sorted(parse_percentiles("p0=1,p100=16", n_sequences=2).lengths.tolist())  # 16**0.25 ...
    [2, 8]
    """
    import numpy as np

    if isinstance(n_sequences, bool) or not 1 <= n_sequences <= MAX_SEQUENCES:
        raise UsageError(f"n_sequences {n_sequences}: must be from 1 to {MAX_SEQUENCES:,}")
    stated = _stated_percentiles(text)
    percentiles = [float(percentile) for percentile, _ in stated]
    tokens = [length for _, length in stated]
    midpoints = 100 * (np.arange(n_sequences) + 0.5) / n_sequences
    logarithms = np.interp(midpoints, percentiles, np.log(tokens))
    ascending = np.rint(np.exp(logarithms)).astype(np.int64)
    spread = np.arange(1, n_sequences + 1, dtype=np.uint64) * np.uint64(_GOLDEN_STEP)
    lengths = ascending[np.argsort(np.argsort(spread))]
    return Population(text.strip(), lengths, np.zeros_like(lengths), _left_open(stated))


def _stated_percentiles(text: str) -> list[tuple[Fraction, int]]:
    stated: list[tuple[Fraction, int]] = []
    for part in text.split(","):
        match = _PERCENTILE.fullmatch(part.strip())
        if match is None:
            raise UsageError(
                f"percentiles {shown(text)}: {shown(part)} is not a percentile and its length; "
                "write for example 'p50=2k,p95=32k', without commas inside numbers"
            )
        percentile, length = parse_number(match[1]), parse_tokens(match[2])
        if percentile > 100 or length > MAX_TOKENS:
            raise UsageError(
                f"percentiles {shown(text)}: {shown(part)}: percentiles are from 0 to 100, "
                f"lengths from 1 to {MAX_TOKENS:,} tokens"
            )
        if stated and (percentile <= stated[-1][0] or length < stated[-1][1]):
            raise UsageError(
                f"percentiles {shown(text)}: {shown(part)}: percentiles must ascend and lengths "
                "must not fall; put them in order"
            )
        stated.append((percentile, length))
    return stated


def _left_open(stated: Sequence[tuple[Fraction, int]]) -> tuple[str, ...]:
    (lowest, shortest), (highest, longest) = stated[0], stated[-1]
    remarks = ["between stated percentiles the logarithm of the length is taken as linear"]
    if lowest > 0:
        remarks.append(
            f"below p{float(lowest):g} every length is taken as {shortest:,} tokens, "
            "which over-states the short ones"
        )
    if highest < 100:
        remarks.append(
            f"above p{float(highest):g} every length is taken as {longest:,} tokens, "
            "which under-states the tail"
        )
    remarks.append("the order of arrival is made up: spread evenly over the lengths")
    return tuple(remarks)


@dataclass(frozen=True, kw_only=True)
class CsvTrace:
    """The columns of a published CSV trace."""

    name: str
    arrival: str
    arrival_kind: ColumnKind
    prompt: str
    output: str
    unread: tuple[str, ...] = ()
    sometimes: tuple[str, ...] = ()  # columns that only some releases have
    no_output_is_failure: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns that every release has."""
        return (self.arrival, self.prompt, self.output, *self.unread)


AZURE = CsvTrace(
    name="Azure LLM inference",
    arrival="TIMESTAMP",
    arrival_kind=INSTANT,
    prompt="ContextTokens",
    output="GeneratedTokens",
)
BURSTGPT = CsvTrace(
    name="BurstGPT",
    arrival="Timestamp",
    arrival_kind=SECONDS,
    prompt="Request tokens",
    output="Response tokens",
    unread=("Model", "Total tokens", "Log Type"),
    sometimes=("Session ID", "Elapsed time"),
    no_output_is_failure=True,
)
CSV_TRACES = (AZURE, BURSTGPT)

_Tokens: TypeAlias = Annotated[int, Field(ge=0, le=MAX_TOKENS)]


class MooncakeRequest(TypedDict):
    """The keys of a Mooncake line that are read; ``hash_ids`` and others are not."""

    timestamp: Annotated[float, Field(allow_inf_nan=False)]
    input_length: _Tokens
    output_length: _Tokens


_MOONCAKE_KEYS = tuple(MooncakeRequest.__annotations__)


def read_trace(path: Path) -> Population:
    """Requests of a public trace, in order of arrival.

    Parameters
    ----------
    path : a file in one of the formats below; blank lines and # lines are left out.

    Returns
    -------
    Prompt and output tokens by request. Remarks say which format was read, whether rows were
    sorted by arrival (stably) or dropped for holding no token, and what the format leaves open.

    Raises
    ------
    SpecError
        Naming file and line, if the file is missing, empty, larger than 2 GiB or binary, is in
        none of the formats, or holds a value that its format does not allow.

    Notes
    -----
    - Azure LLM inference 2023 and 2024, CSV ``TIMESTAMP,ContextTokens,GeneratedTokens``
      (Azure/AzurePublicDataset, AzureLLMInferenceDataset2023.md and ...2024.md); times without a
      zone order as UTC. The 2025 multimodal trace is refused: its description does not say
      whether ContextTokens counts the images of NumImages.
    - BurstGPT, CSV ``Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type``,
      seconds (HPMLL/BurstGPT, README.md); later files add ``Session ID,Elapsed time``. Requests
      that failed have 0 response tokens; they are kept, with their prompts, and counted.
    - Mooncake, one JSON object a line with ``timestamp`` [ms], ``input_length``,
      ``output_length`` and ``hash_ids`` (kvcache-ai/Mooncake, FAST25-release). The hashes name
      prefixes in common; here every request is counted with its own.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "trace.jsonl")
    ...     _ = path.write_text('{"timestamp": 0, "input_length": 6, "output_length": 2}\\n')
    ...     read_trace(path).lengths.tolist()
    [8]
    """
    first, blocks = first_line(path)
    if first.text.lstrip().startswith("{"):
        remarks = (
            "read as Mooncake; prefixes that requests share (hash_ids) are counted for each",
        )
        return _population(path, _mooncake_columns(blocks), remarks)
    names = _header(first)
    trace = _recognised(first, names)
    wanted = {trace.prompt: TOKENS, trace.output: TOKENS, trace.arrival: trace.arrival_kind}
    columns = Columns(names=names, wanted=wanted).read(path, _without(first, blocks))
    population = _population(path, columns, (f"read as {trace.name}",))
    n_failed = int((population.output_tokens == 0).sum()) if trace.no_output_is_failure else 0
    if not n_failed:
        return population
    failed = f"failed requests (0 response tokens), kept with their prompts: {n_failed:,}"
    return replace(population, remarks=(*population.remarks, failed))


def _population(path: Path, columns: Sequence[Any], remarks: tuple[str, ...]) -> Population:
    """Requests in order of arrival, from prompts, outputs and arrival times."""
    import numpy as np

    prompt, output, arrival = columns
    if not prompt.size:
        raise SpecError(f"{path}: holds only a header; at least one request is needed")
    if (arrival[1:] < arrival[:-1]).any():
        order = np.argsort(arrival, kind="stable")
        prompt, output = prompt[order], output[order]
        remarks = (*remarks, "timestamps were out of order; rows were sorted by arrival")
    return sequences_that_hold_tokens(path, prompt, output, remarks)


def _recognised(first: Line, names: Sequence[str]) -> CsvTrace:
    """The format whose columns these are. Raises ``SpecError`` that names the nearest."""
    for trace in CSV_TRACES:
        known = {*trace.columns, *trace.sometimes}
        if set(trace.columns) <= set(names) <= known and len(set(names)) == len(names):
            return trace
    nearest = min(CSV_TRACES, key=lambda trace: len(set(trace.columns) - set(names)))
    missing = [column for column in nearest.columns if column not in names]
    unknown = [n for n in names if n not in (*nearest.columns, *nearest.sometimes)]
    hint = next((h for h in (did_you_mean(name, missing) for name in unknown) if h), "")
    if len(missing) < len(nearest.columns) and not hint:
        what = f"lacks {', '.join(missing)}" if missing else f"also has {', '.join(unknown)}"
        hint = f"; nearest is {nearest.name}, but this {what}"
    formats = "; ".join(f"{trace.name} ({','.join(trace.columns)})" for trace in CSV_TRACES)
    raise first.error(
        f"header {shown(first.text)}",
        f"not a known trace{hint.rstrip('?')}; known: {formats}; Mooncake (JSON lines with "
        f"{','.join(_MOONCAKE_KEYS)}); for one column of lengths, name that column",
    )


def _mooncake_columns(blocks: Iterable[Block]) -> list[Any]:
    import numpy as np

    keys = (("input_length", np.int64), ("output_length", np.int64), ("timestamp", np.float64))
    parts = []
    for block in blocks:
        requests = _mooncake_requests(list(block.lines()))
        parts.append([np.fromiter(map(itemgetter(key), requests), dtype) for key, dtype in keys])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _mooncake_requests(lines: Sequence[Line]) -> list[Any]:
    validate = _mooncake_validator()
    joined = "\n".join([line.text for line in lines])
    try:
        requests = [validate(line.text, strict=True) for line in lines]
        is_clean = all(joined.count(f'"{key}"') == len(lines) for key in _MOONCAKE_KEYS)
    except ValidationError:
        is_clean = False
    if not is_clean:
        requests = [_mooncake_request(line) for line in lines]
    for line, request in zip(lines, requests, strict=True):
        _refuse_absurd_sum(line, request["input_length"] + request["output_length"])
    return requests


@cache
def _mooncake_validator() -> Any:
    return TypeAdapter(MooncakeRequest).validator.validate_json


def _mooncake_request(line: Line) -> Any:
    text = line.text
    try:
        request = _mooncake_validator()(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].replace(" at line 1 column", " at column")
        problem = f"{key}: {message}" if key else message
        allowed = f"{problem}; a Mooncake line is one JSON object with {', '.join(_MOONCAKE_KEYS)}"
        value = shown(text if first["type"] in ("missing", "json_invalid") else first["input"])
        raise line.error(value, allowed) from None
    # Numbers stay text: a value that is not read may have more digits than Python converts.
    pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    keys = [key for key, _ in pairs]
    for key in _MOONCAKE_KEYS:
        if keys.count(key) > 1:
            raise line.error(f"key {key!r}", "appears twice; remove one")
    return request
