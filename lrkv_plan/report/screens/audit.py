"""The screen of ``audit``: whether the claims hold, and those that differ from their print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.report.screen import Row, Screen, ScreenColumn

if TYPE_CHECKING:
    from lrkv_plan.auditing.evaluate import AuditRow
    from lrkv_plan.notes import Note

_NAMED = 5
_TONES: dict[str, Any] = {"mismatch": "bad", "explained": "doubtful"}


Ask: TypeAlias = Callable[..., Sequence[str]]


def audit_screen(
    rows: Sequence[AuditRow],
    shown: Sequence[Row],
    verdicts: Sequence[str],
    notes: Sequence[Note],
    ask: Ask | None,
) -> Screen:
    """Claims that differ, or those of the asked verdicts.

    Parameters
    ----------
    rows : all claims.
    shown : those of the asked verdicts, all without any, as people read them.
    ask : the words of the same audit with other verdicts.
    """
    listed = shown if verdicts else [row for row in shown if row["verdict"] != "match"]
    return Screen(
        verdict=(_verdict(rows),),
        rows=listed,
        columns=tuple(_columns(listed)),
        foot=(
            "Exact arithmetic against half a unit of the last printed digit; readings are "
            "inference. Why: --explain",
        ),
        following=() if ask is None else (ask(() if verdicts else ("match",)),),
        notes=[note for note in notes if note.kind == "limit"],
    )  # fmt: skip


def _verdict(rows: Sequence[AuditRow]) -> str:
    found = Counter(row.verdict.value for row in rows)
    failed = [row.claim for row in rows if row.verdict.value == "mismatch"]
    told = [
        f"{found[name]:,} {words}"
        for name, words in (
            ("match", "match"),
            ("explained", "differ for a recorded reason that was checked"),
            ("not_computable", "cannot be computed"),
        )
        if found[name]
    ]
    if failed:
        more = f" and {len(failed) - _NAMED} more" if len(failed) > _NAMED else ""
        rest = f"; {', '.join(told)}" if told else ""
        return (
            f"{len(failed)} of {len(rows):,} claims differ without a reason that holds: "
            f"{', '.join(failed[:_NAMED])}{more}{rest}."
        )
    if found["match"] == len(rows):
        return (
            "The claim matches its print."
            if len(rows) == 1
            else (f"All {len(rows):,} claims match their print.")
        )
    return f"None of {len(rows):,} claims differs without a reason: {', '.join(told)}."


def _columns(rows: Sequence[Row]) -> Iterator[ScreenColumn]:
    def of(key: str) -> Callable[[Row], str]:
        return lambda row: "-" if row.get(key) is None else str(row[key])

    yield ScreenColumn(title="claim", text=of("claim"), is_number=False)
    yield ScreenColumn(title="printed", text=of("printed"))
    yield ScreenColumn(title="computed", text=of("computed"))
    yield ScreenColumn(
        title="verdict", text=of("verdict"), is_number=False,
        tone=lambda row: _TONES.get(row["verdict"]),
    )  # fmt: skip
    if any(row.get("found") for row in rows):
        yield ScreenColumn(title="would print it:", text=of("found"), is_number=False)
    if any(row.get("reason") for row in rows):
        yield ScreenColumn(title="reason:", text=of("reason"), is_number=False)
    yield ScreenColumn(title="what", text=of("says"), is_number=False, drop=1)
    yield ScreenColumn(title="source", text=of("source"), is_number=False, drop=2)


def audit_equation(row: Row) -> list[str]:
    """One claim's equation, its value beside the print, and what would print the same."""
    value = "not computable" if row["computed_text"] is None else row["computed_text"]
    readings = (f"  reading: {one['reading']} = {one['computed_text']}" for one in row["readings"])
    reason = row["explanation"] or (row["missing"] and f"missing: {row['missing']}")
    return [
        f"{row['claim']}: {row['equation']} = {value}; printed {row['printed']} ({row['source']})",
        *readings,
        *([f"  {reason}"] if reason else []),
    ]
