"""Sequences of uneven length: files of lengths, public request traces, stated percentiles.

Traces are known by their exact column names or keys: Azure LLM inference, BurstGPT, Mooncake. Text
is read in blocks of numbered lines; a block is first checked as a whole, and only when that fails
is each value looked at, so that the error can name its line.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, cached_property
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.files import open_regular, too_large
from lrkv_plan.units import parse_number, parse_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]
    Requests: TypeAlias = tuple[Any, IntArray, IntArray]  # arrival times, prompts, outputs

MAX_FILE_BYTES = 2 * 2**30  # the largest public trace, Azure's 2024 conversations, has 1.13e9
MAX_LINE_BYTES = 2**20
MAX_LINES = 50_000_000  # that trace has 27 million; an array of them takes 400 MB
# One block's Python strings fit the processor's cache: 4 MiB blocks parse 2.5 times slower.
BLOCK_BYTES = 2**18

_NOT_TEXT = {
    b"version https://git-lfs": "a Git LFS pointer, not the data; fetch it with 'git lfs pull'",
    b"\x1f\x8b": "compressed with gzip; unpack it first",
    b"PK\x03\x04": "a zip archive; unpack it first",
    b"PAR1": "a Parquet file; export the columns as CSV",
}


@dataclass(frozen=True, kw_only=True)
class Lines:
    """Lines of one file with their numbers, counted from 1."""

    path: Path
    numbers: Sequence[int]
    texts: Sequence[str]

    def after_first(self) -> Lines:
        """All but the first line: what follows a header."""
        return Lines(path=self.path, numbers=self.numbers[1:], texts=self.texts[1:])

    def error(self, index: int, value: str, allowed: str) -> SpecError:
        """A ``SpecError`` that names the file, the line, the value and what is allowed."""
        return SpecError(f"{self.path}: line {self.numbers[index]}: {value}: {allowed}")


def line_blocks(path: Path) -> Iterator[Lines]:
    """Blocks of lines in file order, each with at least one line.

    Raises
    ------
    SpecError
        If the file is missing, empty, larger than 2 GiB, or not lines of UTF-8 text.
    """
    next_number, any_lines = 1, False
    for raw in _raw_blocks(path):
        texts = _texts(path, next_number, raw)
        kept = _significant(path, next_number, texts)
        next_number += len(texts)
        if next_number > MAX_LINES:
            raise SpecError(f"{path}: more than {MAX_LINES:,} lines; take a part of it")
        if kept.texts:
            any_lines = True
            yield kept
    if not any_lines:
        raise SpecError(f"{path}: empty: at least one line of data is needed; check the file")


def _significant(path: Path, first_number: int, texts: list[str]) -> Lines:
    kept = [
        i for i, text in enumerate(texts) if text and not (text.startswith("#") or text.isspace())
    ]
    if len(kept) == len(texts):
        numbers: Sequence[int] = range(first_number, first_number + len(texts))
        return Lines(path=path, numbers=numbers, texts=texts)
    return Lines(
        path=path, numbers=[first_number + i for i in kept], texts=[texts[i] for i in kept]
    )


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

    blocks = line_blocks(path)
    first = next(blocks)
    names = _header(first)
    if names is None:
        if column is not None:
            raise first.error(
                0, shown(first.texts[0]), f"no header, so no column {shown(column)}; leave it out"
            )
        parts = [read_column(b, "length", b.texts, TOKENS) for b in chain([first], blocks)]
    else:
        index = _column_index(first, names, column)
        parts = [
            _csv_tokens(block, names, index)
            for block in chain([first.after_first()], blocks)
            if block.texts
        ]
    if not parts:
        raise SpecError(f"{path}: holds only a header; at least one line of data is needed")
    prompt = np.concatenate(parts)
    return sequences_that_hold_tokens(path, prompt, np.zeros_like(prompt), ())


def _header(first: Lines) -> list[str] | None:
    """Column names in the first line, or None where it is a length already."""
    names = csv_header(first)
    if any(_VALUE.fullmatch(name) for name in names):
        if len(names) == 1:
            return None
        allowed = "several values on a line need a header that names them; add one"
        raise first.error(0, shown(first.texts[0]), allowed)
    return names


def _column_index(first: Lines, names: Sequence[str], column: str | None) -> int:
    found = ", ".join(name or "(no name)" for name in names)
    if column is None and len(names) == 1:
        return 0
    if column is None:
        allowed = f"has {len(names)} columns; name the one that holds lengths: {found}"
        raise first.error(0, shown(first.texts[0]), allowed)
    if names.count(column) != 1:
        times = "no" if column not in names else "more than one"
        allowed = f"{times} column of that name; found: {found}{did_you_mean(column, names)}"
        raise first.error(0, f"column {shown(column)}", allowed)
    return names.index(column)


def _csv_tokens(block: Lines, names: Sequence[str], index: int) -> IntArray:
    texts = list(map(itemgetter(index), csv_rows(block, len(names))))
    tokens: IntArray = read_column(block, names[index], texts, TOKENS)
    return tokens


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
    blocks = line_blocks(path)
    first = next(blocks)
    if first.texts[0].lstrip().startswith("{"):
        remarks = (
            "read as Mooncake; prefixes that requests share (hash_ids) are counted for each",
        )
        return _population(path, map(_mooncake_block, chain([first], blocks)), remarks)
    names = csv_header(first)
    trace = _recognised(first, names)
    rows = (block for block in chain([first.after_first()], blocks) if block.texts)
    requests = (_csv_block(block, trace, names) for block in rows)
    population = _population(path, requests, (f"read as {trace.name}",))
    n_failed = int((population.output_tokens == 0).sum()) if trace.no_output_is_failure else 0
    if not n_failed:
        return population
    failed = f"failed requests (0 response tokens), kept with their prompts: {n_failed:,}"
    return replace(population, remarks=(*population.remarks, failed))


def _population(path: Path, blocks: Iterable[Requests], remarks: tuple[str, ...]) -> Population:
    import numpy as np

    parts = list(blocks)
    if not parts:
        raise SpecError(f"{path}: holds only a header; at least one request is needed")
    arrival, prompt, output = (np.concatenate(column) for column in zip(*parts, strict=True))
    if (arrival[1:] < arrival[:-1]).any():
        order = np.argsort(arrival, kind="stable")
        prompt, output = prompt[order], output[order]
        remarks = (*remarks, "timestamps were out of order; rows were sorted by arrival")
    return sequences_that_hold_tokens(path, prompt, output, remarks)


def _recognised(first: Lines, names: Sequence[str]) -> CsvTrace:
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
        0,
        f"header {shown(first.texts[0])}",
        f"not a known trace{hint.rstrip('?')}; known: {formats}; Mooncake (JSON lines with "
        f"{','.join(_MOONCAKE_KEYS)}); for one column of lengths, name that column",
    )


def _csv_block(lines: Lines, trace: CsvTrace, names: Sequence[str]) -> Requests:
    rows = csv_rows(lines, len(names))

    def column(name: str, kind: ColumnKind) -> Any:
        return read_column(lines, name, list(map(itemgetter(names.index(name)), rows)), kind)

    prompt, output = column(trace.prompt, TOKENS), column(trace.output, TOKENS)
    _refuse_absurd_sums(lines, prompt, output)
    return column(trace.arrival, trace.arrival_kind), prompt, output


def _mooncake_block(lines: Lines) -> Requests:
    import numpy as np

    validate = _mooncake_validator()
    joined = "\n".join(lines.texts)
    try:
        requests = [validate(text, strict=True) for text in lines.texts]
        is_clean = all(joined.count(f'"{key}"') == len(requests) for key in _MOONCAKE_KEYS)
    except ValidationError:
        is_clean = False
    if not is_clean:
        requests = [_mooncake_request(lines, i) for i in range(len(lines.texts))]
    count = len(requests)
    arrival = np.fromiter(map(itemgetter("timestamp"), requests), np.float64, count)
    prompt = np.fromiter(map(itemgetter("input_length"), requests), np.int64, count)
    output = np.fromiter(map(itemgetter("output_length"), requests), np.int64, count)
    _refuse_absurd_sums(lines, prompt, output)
    return arrival, prompt, output


@cache
def _mooncake_validator() -> Any:
    return TypeAdapter(MooncakeRequest).validator.validate_json


def _mooncake_request(lines: Lines, index: int) -> Any:
    text = lines.texts[index]
    try:
        request = _mooncake_validator()(text, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"]))
        message = first["msg"].replace(" at line 1 column", " at column")
        problem = f"{key}: {message}" if key else message
        allowed = f"{problem}; a Mooncake line is one JSON object with {', '.join(_MOONCAKE_KEYS)}"
        value = shown(text if first["type"] in ("missing", "json_invalid") else first["input"])
        raise lines.error(index, value, allowed) from None
    # Numbers stay text: a value that is not read may have more digits than Python converts.
    pairs = json.loads(text, object_pairs_hook=list, parse_int=str, parse_float=str)
    keys = [key for key, _ in pairs]
    for key in _MOONCAKE_KEYS:
        if keys.count(key) > 1:
            raise lines.error(index, f"key {key!r}", "appears twice; remove one")
    return request


def _refuse_absurd_sums(lines: Lines, prompt: IntArray, output: IntArray) -> None:
    lengths = prompt + output
    if int(lengths.max()) > MAX_TOKENS:
        index = int(lengths.argmax())
        allowed = f"prompt and output together must be at most {MAX_TOKENS:,} tokens; mend the line"
        raise lines.error(index, str(int(lengths[index])), allowed)
