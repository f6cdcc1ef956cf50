"""Several at once: a comma or a list where a question takes one value, one answer for each.

``combinations`` spells out what ``listed`` lists. ``stacked`` asks a question once per combination
and puts the answers under one another; each row carries what tells it from the others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, PlanError
from lrkv_plan.formats import storage_format
from lrkv_plan.loader import load_model
from lrkv_plan.notes import Note
from lrkv_plan.questions.arguments import default_context
from lrkv_plan.questions.gpus import counted_gpu
from lrkv_plan.questions.listed import listed
from lrkv_plan.questions.result import Result
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, short_tokens
from lrkv_plan.report.tables import Column, Table, count, screen_of

PLACES = ("model", "gpu", "kv_dtype")
KEYS = (*PLACES, "tp_size", "context_tokens", "batch_size")
_TITLES = {
    "model": "model", "gpu": "GPU", "kv_dtype": "cache", "tp_size": "TP",
    "context_tokens": "context", "batch_size": "batch",
}  # fmt: skip
_MOST_SENTENCES = 4
_MOST_FEET = 3  # of more, what differs waits for --explain


def combinations(given: Mapping[str, Any], names: Sequence[str]) -> list[dict[str, Any]]:
    """Every combination of the listed arguments, the last name's values next to one another.

    Raises
    ------
    ArgumentError
        As ``listed``, or if there are too many.
    """
    lists = [listed(name, given[name]) for name in names]
    several = [dict(zip(names, one, strict=True)) for one in itertools.product(*lists)]
    if len(several) > words.MAX_VALUES:
        raise ArgumentError(
            [name for name, values in zip(names, lists, strict=True) if len(values) > 1],
            f": {len(several):,} combinations; at most {words.MAX_VALUES:,}",
        )
    return several


@dataclass(frozen=True, kw_only=True)
class _Alternative:
    """One combination as it was asked and as its rows tell it, and its answer or why not."""

    asked: Mapping[str, Any]
    told: Mapping[str, Any]
    label: str
    table: Table | None
    refused: str | None = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its rows with what tells them apart in front."""
        if self.table is None:
            return [{**self.told, "refused": self.refused}]
        return [{**self.known, **row} for row in self.table.rows]

    @property
    def known(self) -> dict[str, Any]:
        """What tells its rows apart, as its answer understood it."""
        inputs = {} if self.table is None else self.table.inputs
        numbers = ("tp_size", "context_tokens", "batch_size")
        understood = {key: inputs[key] for key in numbers if key in inputs and key in self.told}
        return {**self.told, **understood}


def stacked(
    question: Callable[..., Result], given: Mapping[str, Any], names: Sequence[str] = KEYS
) -> Result | None:
    """The answers of one question to every combination; None where nothing is listed.

    Parameters
    ----------
    question : the public function; it is asked with single values.
    given : its arguments by name.
    names : arguments that may list values.

    Raises
    ------
    ArgumentError, SpecError
        If a value names nothing.
    PlanError
        The first combination's, where every one is refused.
    """
    several = combinations(given, names)
    if len(several) == 1:
        is_single = all(not isinstance(given[name], list | tuple) for name in names)
        return None if is_single else _asked(question, given, several[0])
    told = [_told(one, given.get("spec_dir")) for one in several]  # every name is looked up first
    varied = [name for name in names if len({repr(one[name]) for one in several}) > 1]
    found, errors = [], []
    for one, says in zip(several, told, strict=True):
        label = ", ".join(_label(name, one[name], says[name]) for name in varied)
        try:
            table = _asked(question, given, one).table
        except ArgumentError:
            raise
        except PlanError as error:
            errors.append(error)
            found.append(
                _Alternative(asked=one, told=says, label=label, table=None, refused=str(error))
            )
            continue
        found.append(_Alternative(asked=one, told=says, label=label, table=table))
    if len(errors) == len(found):
        raise errors[0]
    return Result(_stack(found, varied))


def _asked(
    question: Callable[..., Result], given: Mapping[str, Any], one: Mapping[str, Any]
) -> Result:
    arguments = {**given, **one}
    return question(arguments.pop("model"), **arguments)


def _told(one: Mapping[str, Any], spec_dir: str | Path | None) -> dict[str, Any]:
    """What a row says of its combination; what was not stated by its default."""
    model = load_model(one["model"], spec_dir=spec_dir)
    _, gpu = counted_gpu(one["gpu"], spec_dir=spec_dir)
    told = {
        **one,
        "model": model.name,
        "gpu": gpu.name,
        "kv_dtype": storage_format(one["kv_dtype"] or "bf16").name,
    }
    if "context_tokens" in one:
        told["context_tokens"] = one["context_tokens"] or default_context(model)
    return told


def _label(name: str, value: Any, told: Any) -> str:
    """A value in a sentence; a GPU with its number, as it was written."""
    if name == "gpu" and isinstance(value, str):
        return value
    if name == "context_tokens":
        return f"{short_tokens(told)} tokens"
    if name == "kv_dtype":
        return f"{told} cache"
    return {"tp_size": "TP {}", "batch_size": "batch {}"}.get(name, "{}").format(told)


def _stack(found: Sequence[_Alternative], varied: Sequence[str]) -> Table:
    tables = [one.table for one in found if one.table is not None]
    rows, origins = [], []
    for one in found:
        rows += one.rows
        origins += [(one.table, row) for row in (one.table.rows if one.table else [None])]

    def explain(row: Row) -> list[str]:
        index = next(i for i, one in enumerate(rows) if one is row)
        table, own = origins[index]
        if table is None or table.explain is None or own is None:
            return []
        return list(table.explain(own))

    shown = [one.table for one in found if one.table is not None and one.table.shown_rows]
    also: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        for key, further in (one.table.also if one.table else {}).items():
            also.setdefault(key, []).extend({**one.known, **row} for row in further)
    columns = max((table.columns for table in tables), key=len)
    own_keys = {column.key for column in columns}
    unmet = [f"{one.label}: {one.table.unmet}" for one in found if one.table and one.table.unmet]
    return Table(
        title="; ".join(one.label for one in found),
        inputs={"alternatives": [table.inputs for table in tables]},
        rows=rows,
        columns=(*(_column(name) for name in varied if name not in own_keys), *columns),
        notes=tuple(_notes(found)),
        shown_rows=None if not shown else [
            {**one.told, **row} for one in found if one.table
            for row in (one.table.shown_rows or one.table.rows)
        ],
        unmet=unmet[0] if unmet else None,
        screen=lambda: _screen(found, varied),
        explain=explain,
        also=also,
    )  # fmt: skip


def _column(name: str) -> Column:
    is_number = name in ("tp_size", "context_tokens", "batch_size")
    return Column(
        key=name, title=_TITLES[name], text=count if is_number else str, is_number=is_number
    )


def _notes(found: Sequence[_Alternative]) -> Iterator[Note]:
    """Notes that all share as they are; those of some with the alternative as their subject."""
    tables = [one.table for one in found if one.table is not None]
    shared = [note for note in tables[0].notes if all(note in table.notes for table in tables)]
    for one in found:
        if one.table is None:
            yield Note(kind="refusal", subject=one.label, text=str(one.refused))
            continue
        for note in one.table.notes:
            if note not in shared:
                assert isinstance(note, Note), "a table makes records of its notes"
                about = one.label if note.subject is None else f"{one.label}, {note.subject}"
                yield replace(note, subject=about)
    yield from shared  # type: ignore[misc]  # as above


def _screen(found: Sequence[_Alternative], varied: Sequence[str]) -> Screen:
    """A sentence per alternative, then all rows with what varies in the first columns."""
    drawn = [(one, screen_of(one.table)) for one in found if one.table is not None]
    sentences = [f"{one.label}: {_first_sentence(screen.verdict)}" for one, screen in drawn]
    sentences += [f"{one.label}: refused: {one.refused}" for one in found if one.table is None]
    more = len(sentences) - _MOST_SENTENCES
    if more > 1:
        sentences = [*sentences[:_MOST_SENTENCES], f"And {more} more below."]
    titles: dict[str, ScreenColumn] = {}
    for _, screen in drawn:
        for column in screen.columns:
            titles.setdefault(column.title, column)
    rows = [
        {"told": one, "cells": {c.title: c for c in screen.columns}, "row": row}
        for one, screen in drawn
        for row in screen.rows
    ]
    leading = [_varied(name) for name in varied if _TITLES[name] not in titles]
    notes = [note for _, screen in drawn for note in screen.notes]
    return Screen(
        verdict=sentences,
        columns=(*leading, *(_of_own(column) for column in titles.values())),
        rows=rows,
        foot=list(_foot(drawn)),
        following=drawn[0][1].following,
        notes=list(dict.fromkeys(notes)),
        cards_below=max(screen.cards_below for _, screen in drawn),
    )


def _foot(drawn: Sequence[tuple[_Alternative, Screen]]) -> Iterator[str]:
    """What all rest on; of what only some do, whose it is, where they are few."""
    feet = [screen.foot for _, screen in drawn]
    lines = list(dict.fromkeys(line for foot in feet for line in foot))
    yield from (line for line in lines if all(line in foot for foot in feet))
    if len(drawn) > _MOST_FEET:
        return
    for one, screen in drawn:
        for line in screen.foot:
            if not all(line in foot for foot in feet):
                yield f"{one.label}: {line}"


def _varied(name: str) -> ScreenColumn:
    return ScreenColumn(
        title=_TITLES[name],
        text=lambda row: _cell(name, row["told"], row["row"]),
        is_number=name in ("tp_size", "context_tokens", "batch_size"),
    )


def _first_sentence(verdict: Sequence[str]) -> str:
    sentence, end, _ = (verdict[0] if verdict else "").partition(". ")
    return sentence + end.strip()


def _cell(name: str, one: _Alternative, row: Any) -> str:
    value = one.told[name]
    if name == "gpu" and isinstance(one.asked[name], str):
        return str(one.asked[name])  # with its number
    if value is None and isinstance(row, Mapping):
        value = row.get(name)
    if name == "context_tokens" and value is not None:
        return short_tokens(value)
    return "-" if value is None else count(value) if isinstance(value, int) else str(value)


def _of_own(column: ScreenColumn) -> ScreenColumn:
    """The column of that title of each row's own screen."""

    def own(row: Row) -> ScreenColumn | None:
        found: ScreenColumn | None = row["cells"].get(column.title)
        return found

    def text(row: Row) -> str:
        its = own(row)
        return "-" if its is None else its.text(row["row"])

    def tone(row: Row) -> Any:
        its = own(row)
        return None if its is None else its.tone(row["row"])

    return replace(column, text=text, tone=tone)
