"""Sequences of uneven length: files of lengths and stated percentiles."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.specs.columns import MAX_TOKENS, TOKENS, Columns, header_of
from lrkv_plan.specs.parquet_columns import is_parquet, parquet_chunks, parquet_names
from lrkv_plan.specs.population import Gathering, Population, population_of
from lrkv_plan.specs.request_files import request_files
from lrkv_plan.specs.text_blocks import Line, first_line, without_line
from lrkv_plan.units import parse_number, parse_tokens

MAX_SEQUENCES = 10**7  # made from percentiles
_PERCENTILE = re.compile(r"p(\d{1,3}(?:\.\d{1,6})?)\s*=\s*(\S.*)", re.IGNORECASE)
_VALUE = re.compile(r"[\d.+-].*|nan|inf|infinity|none|null|true|false", re.IGNORECASE)
# 2**64 over the golden ratio: its multiples modulo 2**64 leave no large gap (Weyl sequence).
_GOLDEN_STEP = 0x9E3779B97F4A7C15


def read_lengths(path: Path, column: str | None = None) -> Population:
    """Lengths from files: one number of tokens a line, or one column of CSV or Parquet.

    Parameters
    ----------
    path : a file, a folder or a pattern (``request_files``), packed with gzip or zstd or not. Blank
        lines of text and lines that start with # are left out. [tokens]
    column : which column holds lengths; needed where there are several.

    Returns
    -------
    The sequences in file order, all tokens counted as prompt. Lines of 0 tokens are dropped,
    and a remark counts them.

    Raises
    ------
    SpecError
        Naming file and line or row, if a file is missing, empty, damaged or binary, lacks the
        column, or holds a value that is not a whole number from 0 to 10**9 in digits.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "lengths.csv")
    ...     _ = path.write_text("user,tokens\\na,2048\\nb,512\\n")
    ...     read_lengths(path, column="tokens").lengths.first.tolist()
    [2048, 512]
    """
    import numpy as np

    gathering = Gathering(str(path))
    for file in request_files(path):
        n_before = gathering.n_rows
        for (lengths,) in _chunks(file, column):
            gathering.add(lengths, np.zeros_like(lengths))
        if gathering.n_rows == n_before:
            raise SpecError(f"{file}: holds only a header; at least one line of data is needed")
    return gathering.population(path.name)


def _chunks(path: Path, column: str | None) -> Iterator[list[Any]]:
    """The lengths of one file, some at a time."""
    if is_parquet(path):
        names = parquet_names(path)
        return parquet_chunks(path, {_chosen(f"{path}: ", names, column): TOKENS})
    first, blocks = first_line(path)
    found = _column_names(first)
    if found is not None:
        wanted = {_chosen(f"{path}: line {first.number}: ", found, column): TOKENS}
        return Columns(names=found, wanted=wanted).chunks(without_line(first, blocks))
    if column is not None:
        raise first.error(
            shown(first.text), f"no header, so no column {shown(column)}; leave it out"
        )
    return Columns(names=["length"], wanted={"length": TOKENS}, is_csv=False).chunks(blocks)


def _column_names(first: Line) -> list[str] | None:
    """What the first line names, or None where it is a length already."""
    names = header_of(first)
    if any(_VALUE.fullmatch(name) for name in names):
        if len(names) == 1:
            return None
        allowed = "several values on a line need a header that names them; add one"
        raise first.error(shown(first.text), allowed)
    return names


def _chosen(where: str, names: Sequence[str], column: str | None) -> str:
    found = ", ".join(name or "(no name)" for name in names)
    if column is None and len(names) == 1:
        return names[0]
    if column is None:
        raise SpecError(
            f"{where}{shown(','.join(names))}: has {len(names)} columns; name the one that holds "
            f"lengths: {found}"
        )
    if names.count(column) != 1:
        times = "no" if column not in names else "more than one"
        raise SpecError(
            f"{where}column {shown(column)}: {times} column of that name; found: "
            f"{found}{did_you_mean(column, names)}"
        )
    return column


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
    >>> made = parse_percentiles("p0=1,p100=16", n_sequences=2)  # 16**0.25, 16**0.75
    >>> sorted(made.lengths.first.tolist())
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
    return population_of(text.strip(), lengths, np.zeros_like(lengths), _left_open(stated))


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
