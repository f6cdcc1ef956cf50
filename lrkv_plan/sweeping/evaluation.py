"""One chunk of a sweep: its points evaluated, those that are wanted kept, as a frame.

Runs wherever the chunk is sent to; all that it needs travels with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from lrkv_plan.sweeping.grid import Chunk, Grid
from lrkv_plan.sweeping.points import (
    ALL,
    BASES,
    KEYS,
    REASONS,
    TEXT_KEYS,
    WHOLE_KEYS,
    Block,
    blocks,
)
from lrkv_plan.sweeping.reduction import Reduction
from lrkv_plan.sweeping.where import Condition

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A grid, which of its points are wanted, and how they are reduced."""

    grid: Grid
    where: Condition | None
    reduction: Reduction


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Points seen; of refused configurations; whose batch does not fit or is too slow; wanted.

    ``unordered`` are wanted points that fit and of which an objective is not known.
    """

    points: int = 0
    refused: int = 0
    unfit: int = 0
    wanted: int = 0
    unordered: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )


@dataclass(frozen=True, kw_only=True)
class Part:
    """What is left of a chunk."""

    number: int
    frame: pandas.DataFrame
    counts: Counts


def evaluate(sweep: Sweep, chunk: Chunk) -> Part:
    """The rows of a chunk that are wanted, reduced."""
    counts, kept, texts = Counts(), [], _Texts()
    for number in range(chunk.first, chunk.end):
        for block in blocks(sweep.grid, number, chunk.contexts):
            rows, of_block = _wanted(sweep, block)
            counts += of_block
            if len(rows):
                kept.append(_columns_of(block, rows, texts))
    frame = _frame(kept, texts)
    return Part(number=chunk.number, frame=sweep.reduction.of_frame(frame), counts=counts)


def _wanted(sweep: Sweep, block: Block) -> tuple[Any, Counts]:
    """Places of the block's wanted rows after its own reduction."""
    is_refused = block.model is None
    unfit = 0 if is_refused else int(np.count_nonzero(block.reasons))
    rows = np.arange(block.n_points)
    if sweep.where is not None:
        rows = np.flatnonzero(sweep.where.holds(block.column, block.n_points))
    refused = block.n_points if is_refused else 0
    counts = Counts(points=block.n_points, refused=refused, unfit=unfit, wanted=len(rows))
    reduction = sweep.reduction
    if not reduction.objectives or not len(rows):
        return rows, counts
    if is_refused:
        return rows[:0], counts
    taken = ALL if len(rows) == block.n_points else rows
    absent = np.zeros(len(rows), bool)
    for one in reduction.objectives:
        absent |= np.isnan(block.column(one.key, taken))
    unordered = int(np.count_nonzero(absent & (block.reasons[rows] == 0)))
    counts += Counts(unordered=unordered)
    return rows[reduction.kept(lambda key: block.column(key, taken), len(rows))], counts


class _Texts:
    """The texts of a chunk's columns as numbers: places in a list of its own per column."""

    def __init__(self) -> None:
        self.places: dict[str, dict[str, int]] = {key: {} for key in TEXT_KEYS}

    def number(self, key: str, text: str) -> int:
        """The place of a text; -1 of none."""
        known = self.places[key]
        return -1 if text == "" else known.setdefault(text, len(known))

    def numbers(self, key: str, known: Any, places: Any) -> Any:
        """The places here of texts that are themselves places in ``known``."""
        return np.array([self.number(key, str(one)) for one in known], np.int32)[places]


def _columns_of(block: Block, rows: Any, texts: _Texts) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in KEYS:
        if key == "time_basis":
            found[key] = texts.numbers(key, BASES, block.basis_numbers(rows))
        elif key == "refused" and block.model is not None:
            found[key] = texts.numbers(key, REASONS, block.reasons[rows])
        elif key in TEXT_KEYS:
            number = texts.number(key, str(block.column(key)))
            found[key] = np.full(len(rows), number, np.int32)
        elif np.ndim(values := block.column(key, rows)):
            found[key] = values
        else:
            kind = np.int64 if key in WHOLE_KEYS else np.float64
            found[key] = np.full(len(rows), values, kind)
    return found


def _frame(kept: list[dict[str, Any]], texts: _Texts) -> pandas.DataFrame:
    """One frame of all blocks: whole numbers, floats with NaN, texts as categories."""
    import pandas

    columns: dict[str, Any] = {}
    for key in KEYS:
        values = np.concatenate([one[key] for one in kept]) if kept else np.zeros(0, np.int64)
        if key in TEXT_KEYS:
            known = pandas.Index(list(texts.places[key]), dtype=object)
            columns[key] = pandas.Categorical.from_codes(values, categories=known)
        else:
            columns[key] = values.astype(np.int64 if key in WHOLE_KEYS else np.float64)
    return pandas.DataFrame(columns, columns=list(KEYS))


def joined(frames: Sequence[pandas.DataFrame]) -> pandas.DataFrame:
    """Frames of parts under one another; the categories of texts in alphabetical order."""
    import pandas

    columns = {}
    for key in frames[0].columns:
        series = [frame[key] for frame in frames]
        if key in TEXT_KEYS:
            columns[key] = union_of(series)
        else:
            columns[key] = np.concatenate([one.to_numpy() for one in series])
    return pandas.DataFrame(columns)


def union_of(series: Sequence[Any]) -> Any:
    """Categorical columns under one another, over the sorted union of what occurs in them."""
    from pandas.api.types import union_categoricals

    whole = union_categoricals(
        list(map(_as_texts, series)), ignore_order=True
    ).remove_unused_categories()
    return whole.reorder_categories(sorted(whole.categories))


def _as_texts(series: Any) -> Any:
    """A column of texts as categories that are Python's texts, as it may come back from a file."""
    import pandas

    if not isinstance(series.dtype, pandas.CategoricalDtype):
        series = series.astype(object).astype("category")
    known = pandas.Index(list(series.cat.categories), dtype=object)
    return pandas.Categorical.from_codes(series.cat.codes, categories=known)
