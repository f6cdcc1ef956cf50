"""Fresh measurements of a model's shapes beside their predictions, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import CalibrationError
from lrkv_plan.report.calibration_views import share
from lrkv_plan.report.tables import Column, Table, as_row, count

if TYPE_CHECKING:
    from lrkv_plan.calibration.validate import ValidatedPoint


def microseconds(value: float) -> str:
    """A time in microseconds with one decimal."""
    return f"{value * 1e6:,.1f}"


def validation_table(
    points: Sequence[ValidatedPoint],
    inputs: dict[str, Any],
    failure: str | None,
    changed: Sequence[str] = (),
) -> Table:
    """One row per shape, with its verdict; ``failure`` is why the profile does not hold.

    It is ``refused`` among the inputs, so that the document says it too. ``changed`` says what was
    measured otherwise than asked.
    """
    rows = [
        as_row(p) | {"verdict": "inside the band" if p.in_band else "outside the band"}
        for p in points
    ]
    bases = dict.fromkeys(
        f"{p.kernel} predictions are {p.basis}" + (f", {p.backend}" if p.backend else "")
        for p in points
    )
    outside = sum(not p.in_band for p in points)
    return Table(
        title=f"{inputs['model']} on {inputs['gpu']}: attention of one layer and decode step",
        inputs=inputs | {"holds": failure is None, "outside": outside, "refused": failure},
        rows=rows,
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="path", title="path", is_number=False),
            Column(key="batch_size", title="batch", text=count),
            Column(key="context_tokens", title="tokens", text=count),
            Column(key="predicted_s", title="predicted us", text=microseconds),
            Column(key="measured_s", title="measured us", text=microseconds),
            Column(key="error", title="error", text=lambda v: f"{v:+.1%}".replace("%", " %")),
            Column(key="low_s", title="band from us", text=microseconds),
            Column(key="high_s", title="to us", text=microseconds),
            Column(key="verdict", title="verdict", is_number=False),
        ),
        remarks=(
            *([f"refused: {failure}"] if failure else []),
            *bases,
            *changed,
            f"{len(points) - outside} of {len(points)} inside their 90 % band; median error "
            f"{share(sorted(abs(p.error) for p in points)[len(points) // 2])}",
        ),
        unmet=None if failure is None else CalibrationError(failure),
    )
