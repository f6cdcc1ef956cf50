"""Errors of layer operations for people: one row a group, and pooled medians in the notes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from lrkv_plan.report.tables import Column, Table, as_row, count
from lrkv_plan.report.views.calibration import share

if TYPE_CHECKING:
    from lrkv_plan.calibration.evaluate_layers import LayerError


def layer_evaluation_table(
    name: str, held_out: bool, groups: Sequence[LayerError], unknown: Sequence[str]
) -> Table:
    """One row per operation, GPU, engine, format and part of a table."""
    how = "constants refitted without the judged shapes" if held_out else "shipped constants"
    return Table(
        title=f"Layer operations against {name}, {how}: |predicted / measured - 1|",
        inputs={"file": name, "held_out": held_out, "unknown_files": list(unknown)},
        rows=[as_row(group) for group in groups],
        columns=(
            Column(key="operation", title="operation", is_number=False),
            Column(key="gpu", title="GPU", is_number=False),
            Column(key="engine", title="engine", is_number=False),
            Column(key="format", title="format", is_number=False),
            Column(key="part", title="part", is_number=False),
            Column(key="n", title="rows", text=count),
            Column(key="median_error", title="median", text=share),
            Column(key="p90_error", title="p90", text=share),
            Column(key="predicted_over_measured", title="ratio", text=lambda v: f"{v:.2f}"),
            Column(key="in_band", title="in 90 % band", text=share),
            Column(key="basis", title="rests on", is_number=False),
        ),
        notes=(*_summary(groups), *_beyond(groups), *_notes(groups), *_unknown(unknown)),
    )


def _summary(groups: Sequence[LayerError]) -> list[str]:
    """The median over groups of each kind that is held to a bound."""
    lines = []
    kinds = dict.fromkeys((g.operation, g.part, g.error_bound) for g in groups if g.error_bound)
    for operation, part, bound in kinds:
        alike = (g for g in groups if (g.operation, g.part, g.error_bound)
                 == (operation, part, bound))  # fmt: skip
        medians = [g.median_error for g in alike if g.median_error is not None]
        if medians and bound is not None:
            over = sum(error > bound for error in medians)
            lines.append(
                f"{operation}, {part}: median over {len(medians)} groups {share(median(medians))}, "
                f"held to {share(bound)}; {over} groups above it"
            )
    return lines


def _beyond(groups: Sequence[LayerError]) -> list[str]:
    return [
        f"{g.operation} {g.gpu} {g.engine} {g.format}, {g.part}: median {share(g.median_error)} is "
        f"above {share(g.error_bound)}"
        for g in groups
        if g.error_bound and g.median_error is not None and g.median_error > g.error_bound
    ]


def _notes(groups: Sequence[LayerError]) -> list[str]:
    said = dict.fromkeys(
        f"{g.operation} {g.gpu} {g.engine} {g.format}: {g.note}" for g in groups if g.note
    )
    return list(said)


def _unknown(files: Sequence[str]) -> list[str]:
    return [f"{name}: its columns are of no operation that is predicted here" for name in files]
