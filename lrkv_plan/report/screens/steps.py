"""The screen of ``calibrate evaluate-steps``: how far whole steps are off, worst groups first."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from lrkv_plan.notes import Note
from lrkv_plan.report.screen import Screen
from lrkv_plan.report.screens.calibration import picked
from lrkv_plan.report.screens.words import WHY, counted

if TYPE_CHECKING:
    from lrkv_plan.calibration.evaluate_steps import StepGroup

MOST_GROUPS, MOST_NOTES = 20, 4
_DROPS = {
    "group": 0, "n": 3, "expressible": 4, "median_error": 0, "p90_error": 1, "median_ratio": 0,
    "in_band": 2,
}  # fmt: skip


def step_evaluation_screen(
    name: str,
    whole: StepGroup,
    groups: Sequence[StepGroup],
    columns: Sequence[Any],
    notes: Sequence[Note],
    again: Sequence[str],
) -> Screen:
    """How far the steps of runs are off: over all of them, and group by group.

    Parameters
    ----------
    whole : all judged runs as one group.
    again : words of the same command without ``--by``.
    """
    from lrkv_plan.report.tables import as_row

    shown = groups[:MOST_GROUPS]
    left = len(groups) - len(shown)
    more = (
        f"The worst {len(shown)} of {counted(len(groups), 'group')}; all: --format markdown. "
        if left
        else ""
    )
    rest = len(notes) - MOST_NOTES
    said = [*notes[:MOST_NOTES]]
    if rest > 0:
        said.append(Note(kind="hint", text=f"{counted(rest, 'more note')}: --explain"))
    by = whole.by if not groups else groups[0].by
    foot = "Error is |predicted / measured - 1|, ratio predicted over measured, in band the share "
    foot += "inside the 90 % band."
    return Screen(
        verdict=_verdict(name, whole, groups),
        rows=[as_row(one) for one in shown],
        columns=picked(columns, _DROPS),
        foot=(f"{more}{foot} {WHY}",),
        following=([*again, "--by", "gpu"],) if by == "group" and len(groups) > 1 else (),
        notes=said,
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _verdict(name: str, whole: StepGroup, groups: Sequence[StepGroup]) -> tuple[str, ...]:
    if whole.median_error is None or whole.p90_error is None or whole.median_ratio is None:
        return (f"None of {counted(whole.n, 'run')} in {name} can be predicted.",)
    medians = [one.median_error for one in groups if one.median_error is not None]
    over = (
        f"; {_percent(median(medians))} is the median over {len(medians)} groups"
        if len(medians) > 1
        else ""
    )
    return (
        f"{whole.expressible:,} of {counted(whole.n, 'run')} can be predicted: "
        f"{_percent(whole.median_error)} off in the median, {_percent(whole.p90_error)} "
        f"at p90{over}.",
        f"Predicted over measured is {whole.median_ratio:.2f} in the median; "
        f"{_percent(whole.in_band or 0)} lie inside their 90 % band.",
    )
