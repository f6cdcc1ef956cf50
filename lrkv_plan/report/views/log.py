"""A server's log beside the prediction, as rows: a printed figure each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.notes import Note
from lrkv_plan.report.screens.log import LogAsked, log_equations, log_screen, written
from lrkv_plan.report.tables import Column, Row, Table
from lrkv_plan.report.views.capacity import deployment_inputs
from lrkv_plan.report.views.specs import model_inputs

if TYPE_CHECKING:
    from lrkv_plan.serving.log_check import LogRow


def log_check_table(asked: LogAsked, notes: Sequence[Note]) -> Table:
    """One row per figure that the log prints and the rules predict."""
    check = asked.check
    rows = [_row(asked, row) for row in check.rows]
    engine = str(check.deployment.engine)
    return Table(
        title=f"{engine} printed, beside the prediction for {asked.model.name}",
        inputs={
            "model": model_inputs(asked.model),
            **deployment_inputs(check.deployment),
            "log": asked.path,
            "first_line": asked.first_line,
            "n_runs": asked.n_runs,
        },
        rows=rows,
        columns=(
            Column(key="term", title="log says", is_number=False),
            *(
                Column(key=f"{key}_text", title=key.replace("_", " "))
                for key in ("printed", "predicted", "predicted_low", "predicted_high")
            ),
            Column(key="inside", title="inside", text=lambda x: "yes" if x else "no",
                   is_number=False),
            Column(key="line", title="line", text=lambda x: f"{x:,}"),
            Column(key="provenance", title="rests on", is_number=False),
        ),
        shown_rows=[
            {**told, **_texts(row)} for told, row in zip(rows, check.rows, strict=True)
        ],
        notes=tuple(dict.fromkeys(notes)),
        explain=lambda row: log_equations(asked, check.rows[_place(rows, row)]),
        screen=lambda: log_screen(asked, notes),
    )  # fmt: skip


def _place(rows: Sequence[Row], row: Row) -> int:
    return next(index for index, one in enumerate(rows) if one is row)


def _row(asked: LogAsked, row: LogRow) -> dict[str, Any]:
    hardware = asked.check.deployment.hardware
    return {
        "model": asked.model.name,
        "gpu": None if hardware is None else hardware.name,
        "engine": str(asked.check.deployment.engine),
        "term": row.term,
        "unit": row.unit,
        "printed": row.printed,
        "printed_low": row.printed_low,
        "printed_high": row.printed_high,
        "predicted": row.predicted,
        "predicted_low": row.predicted_low,
        "predicted_high": row.predicted_high,
        "difference": row.difference,
        "inside": row.is_inside,
        "line": row.line,
        "provenance": row.provenance,
    }


def _texts(row: LogRow) -> dict[str, str]:
    keys = ("printed", "predicted", "predicted_low", "predicted_high")
    return {f"{key}_text": written(row, getattr(row, key)) for key in keys}
