"""Sequences of uneven length: from a file of lengths, or from stated percentiles.

What the lengths cost is ``calculators.population``; public request traces are ``specs.traces``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.specs.columns import MAX_TOKENS, TOKENS, csv_header, csv_rows, read_column
from lrkv_plan.specs.line_blocks import Lines, line_blocks
from lrkv_plan.units import parse_number, parse_tokens

if TYPE_CHECKING:
    from lrkv_plan.specs.columns import IntArray

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
