"""Errors of whole decode steps for people: groups of runs, and every run in JSON and CSV."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.calibration.evaluate_steps import reasons, step_group, step_groups
from lrkv_plan.notes import Note, definition, limit
from lrkv_plan.report.screen import significant
from lrkv_plan.report.screens.steps import step_evaluation_screen
from lrkv_plan.report.tables import Column, Row, Table, as_row, count
from lrkv_plan.report.views.calibration import share

if TYPE_CHECKING:
    from lrkv_plan.calibration.evaluate_steps import StepRow
    from lrkv_plan.calibration.serving_results import Served

TITLES = {
    "group": "group", "gpu": "GPU", "engine": "engine", "kind": "model", "batch": "batch",
    "layout": "layout", "weights": "weights",
}  # fmt: skip


def step_evaluation_table(
    files: Sequence[Path],
    qualities: Sequence[str],
    by: str,
    served: Served,
    rows: Sequence[StepRow],
    *,
    limits: Sequence[str] = (),
    again: Sequence[str] = (),
) -> Table:
    """Every run in ``rows``; per group of what ``by`` names one row in ``groups``, shown to people.

    Parameters
    ----------
    limits : where measured times are more than that of a step.
    again : words of this very command without ``--by``.
    """
    groups = step_groups(rows, by)
    whole = step_group("all", "all", [row for row in rows if row.is_judged])
    shown = [as_row(group) for group in groups]
    name = files[0].name if len(files) == 1 else f"{len(files)} files"
    notes = (
        definition("error: |predicted / measured - 1| of a decode step; ratio: predicted over "
                   "measured; in band: inside the 90 % band"),
        *(Note(kind="refusal", text=f"{why} ({count(n)} of the runs)") for why, n in reasons(rows)),
        *map(limit, limits),
    )  # fmt: skip
    table = Table(
        title=f"Decode steps against {name}: |predicted / measured - 1|",
        inputs={"files": [str(path) for path in files], "quality": list(qualities), "by": by}
        | asdict(served),
        rows=[as_row(row) | {"terms": [asdict(one) for one in row.terms]} for row in rows],
        also={"groups": shown},
        shown_rows=shown,
        columns=(
            Column(key="group", title=TITLES[by], is_number=False),
            Column(key="n", title="runs", text=count),
            Column(key="expressible", title="predicted", text=count),
            Column(key="median_error", title="median", text=share),
            Column(key="p90_error", title="p90", text=share),
            Column(key="median_ratio", title="ratio", text=lambda value: f"{value:.2f}"),
            Column(key="in_band", title="in band", text=share),
        ),
        notes=notes,
        explain=_run_words,
    )
    return replace(
        table,
        screen=lambda: step_evaluation_screen(
            name, whole, groups, table.columns, [one for one in notes if one.kind != "definition"],
            again,
        ),
    )  # fmt: skip


def _run_words(row: Row) -> list[str]:
    """One judged run: its terms, their evidence, and what was measured."""
    if not row["is_judged"]:
        return []
    head = f"{row['id']} {row['model']} {row['gpu']} {row['engine']}"
    if row["refused"]:
        return [f"{head}: refused: {row['refused']}"]
    terms = " + ".join(
        f"{one['term']} {significant(1e3 * one['time_s'])} ({one['basis']})"
        for one in row["terms"] if one["time_s"]
    )  # fmt: skip
    return [
        f"{head}, {row['layout']}, batch {count(row['batch_size'])}, "
        f"{count(row['context_tokens'])} tokens: {terms} = {_ms(row['predicted_s'])} ms "
        f"({_ms(row['low_s'])} to {_ms(row['high_s'])}) / {_ms(row['measured_s'])} measured = "
        f"{row['ratio']:.2f}"
    ]


def _ms(seconds: float) -> str:
    return significant(1e3 * seconds)
