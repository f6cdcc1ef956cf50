"""How far predictions were from measurements, as people read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lrkv_plan.report.tables import Column, Table, as_row, count

if TYPE_CHECKING:
    from lrkv_plan.calibration.evaluate import GroupError


def share(value: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{value:.1%}".replace("%", " %")


def evaluation_table(name: str, held_out: bool, groups: Sequence[GroupError]) -> Table:
    """One row per GPU, backend, family, storage format and regime, and the median over groups."""
    how = (
        "constants refitted without the judged head configurations"
        if held_out
        else ("shipped constants")
    )
    return Table(
        title=f"Kernel model against {name}, {how}: |predicted / measured - 1|",
        inputs={"file": name, "held_out": held_out},
        rows=[as_row(group) for group in groups],
        columns=(
            Column(key="gpu", title="GPU", is_number=False),
            Column(key="backend", title="backend", is_number=False),
            Column(key="family", title="family", is_number=False),
            Column(key="kv_dtype", title="cache", is_number=False),
            Column(key="regime", title="regime", is_number=False),
            Column(key="n", title="rows", text=count),
            Column(key="median_error", title="median", text=share),
            Column(key="p90_error", title="p90", text=share),
            Column(key="max_error", title="worst", text=share),
            Column(key="in_band", title="in 90 % band", text=share),
            Column(key="basis", title="rests on", is_number=False),
        ),
        remarks=(*_summary(groups), *_notes(groups)),
    )


def _summary(groups: Sequence[GroupError]) -> list[str]:
    lines = []
    for regime in dict.fromkeys(group.regime for group in groups):
        chosen = [g for g in groups if g.regime == regime and "flag" not in g.note]
        medians = sorted(g.median_error for g in chosen if g.median_error is not None)
        tails = sorted(g.p90_error for g in chosen if g.p90_error is not None)
        bands = [g.in_band for g in chosen if g.in_band is not None]
        if medians:
            lines.append(
                f"{regime}: {len(medians)} groups; median of medians "
                f"{share(medians[len(medians) // 2])}, of p90 {share(tails[len(tails) // 2])}; on "
                f"average {share(sum(bands) / len(bands))} of a group inside its band"
            )
    return lines


def _notes(groups: Sequence[GroupError]) -> list[str]:
    return [
        f"{g.gpu} {g.backend} {g.family} {g.kv_dtype} {g.regime}: {g.note}"
        for g in groups
        if g.note
    ]
