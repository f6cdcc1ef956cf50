"""A sweep's rows: of a frame of any length, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from lrkv_plan.notes import Note
from lrkv_plan.report.screens.sweep import SweepAnswer, sweep_screen
from lrkv_plan.report.tables import Column, Row, Table
from lrkv_plan.sweeping.points import COUNT_KEYS, KEYS

if TYPE_CHECKING:
    import pandas

    from lrkv_plan.sweeping.evaluation import Sweep
    from lrkv_plan.sweeping.running import Outcome


class FrameRows(Sequence[Row]):
    """The rows of a frame as plain dicts: whole counts are ints, what is absent is None."""

    def __init__(self, frame: pandas.DataFrame) -> None:
        self.frame = frame

    def __len__(self) -> int:
        return len(self.frame)

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        if isinstance(place, slice):
            return FrameRows(self.frame.iloc[place])
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        found = self.frame.iloc[[place]]
        return {str(key): plain(str(key), found[key].iloc[0]) for key in found.columns}


def plain(key: str, value: Any) -> Any:
    """A cell as JSON holds it."""
    if value is None or value != value:  # NaN is the one value that is not itself
        return None
    if isinstance(value, str):
        return value
    value = value.item() if hasattr(value, "item") else value
    return int(value) if key in COUNT_KEYS and float(value).is_integer() else value


def sweep_table(
    sweep: Sweep, outcome: Outcome, inputs: Mapping[str, Any], texts: Sequence[str]
) -> Table:
    """The answer of a sweep.

    Parameters
    ----------
    texts : each model as it was named.
    """
    rows = () if outcome.frame is None else FrameRows(outcome.frame)
    answer = SweepAnswer(
        sweep=sweep, counts=outcome.counts, rows=rows, n_rows=outcome.n_rows, inputs=inputs,
        texts=texts,
    )  # fmt: skip
    return Table(
        title=f"{outcome.counts.points:,} points",
        inputs=inputs,
        rows=rows,
        columns=tuple(Column(key=key, title=key, text=_text) for key in KEYS),
        notes=tuple(_notes(sweep)),
        screen=lambda: sweep_screen(answer),
    )


def _notes(sweep: Sweep) -> list[Note]:
    notes = [Note(kind="limit", text="decode only: prefill of arriving requests is not counted")]
    if sweep.grid.target.speculation.query_tokens > 1:
        told = "drafts: the verification is timed, the draft itself is not"
        notes.append(Note(kind="assumption", text=told))
    return notes


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
