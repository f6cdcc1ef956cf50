"""Published results as tables: losses by size, a rank sweep, task scores, a turned residual."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.quarter_turns import TurnedResidual, score, turned_residual
from lrkv_plan.report.series.loss_by_size import (
    REFERENCE,
    compared_scales,
    difference,
    exact_loss,
    families,
)
from lrkv_plan.report.series.published import placed_runs
from lrkv_plan.report.tables import Column, Table, percent

if TYPE_CHECKING:
    from lrkv_plan.specs.published import PublishedLoss, PublishedScores, Scale, TaskScore

_ALONG, _ACROSS = (1, 0), (0, 1)


def _signed(value: Fraction) -> str:
    return f"{float(value):+.3f}"


def _relative(value: Fraction) -> str:
    return f"{float(100 * value):+.2f} %"


def _loss(value: Fraction) -> str:
    return f"{float(value):.3f}"


def _points(value: Fraction) -> str:
    return f"{float(100 * value):+.1f} points"


def _share(value: Fraction) -> str:
    return f"{float(100 * value):.1f} %"


def losses_table(facts: PublishedLoss) -> Table:
    """Final losses of every family at every scale that has all of them, and the lowest."""
    scales, names = compared_scales(facts), families(facts)
    rows: list[dict[str, Any]] = []
    for family in names:
        row: dict[str, Any] = {"family": family.upper()}
        for scale in scales:
            row[scale.name] = exact_loss(scale.compared[family])
            row[f"{scale.name}_minus_mha"] = difference(scale, family)
        rows.append(row)
    columns = [Column(key="family", title="attention", is_number=False)]
    for scale in scales:
        columns.append(Column(key=scale.name, title=scale.name, text=_loss))
        columns.append(Column(key=f"{scale.name}_minus_mha", title="minus MHA", text=_signed))
    lowest = {scale.name: min(names, key=partial(difference, scale)).upper() for scale in scales}
    return Table(
        title="Final held-out cross-entropy, nats per token",
        inputs={},
        rows=rows,
        columns=columns,
        remarks=(
            "lowest: " + ", ".join(f"{best} at {name}" for name, best in lowest.items()),
            "one run each: how much another seed would change is not known",
        ),
    )


def scale_table(scale: Scale) -> Table:
    """Every run of one scale: its cache, where that can be placed, and its loss against MHA's."""
    reference = exact_loss(scale.compared[REFERENCE])
    ratios = {run.design: (ratio, known) for run, ratio, known in placed_runs(scale)}
    rows = [
        {
            "design": run.design,
            "cache_ratio": ratios.get(run.design, (None, None))[0],
            "ratio_is": ratios.get(run.design, (None, None))[1],
            "cross_entropy_nats_per_token": exact_loss(run),
            "difference_nats_per_token": exact_loss(run) - reference,
            "relative_difference": (exact_loss(run) - reference) / reference,
            "table": run.table,
        }
        for run in scale.runs
    ]
    return Table(
        title=f"Runs at {scale.name}, sequences of {scale.sequence_tokens:,} tokens",
        inputs={},
        rows=sorted(rows, key=lambda row: (row["cache_ratio"] is None, row["cache_ratio"] or 0)),
        columns=(
            Column(key="design", title="design", is_number=False),
            Column(key="cache_ratio", title="cache of MHA", text=percent),
            Column(key="cross_entropy_nats_per_token", title="cross-entropy", text=_loss),
            Column(key="difference_nats_per_token", title="minus MHA", text=_signed),
            Column(key="relative_difference", title="relative", text=_relative),
            Column(key="table", title="printed in", is_number=False),
        ),
        remarks=tuple(
            f"{name}: the cache is printed, not computed"
            for name, (_, known) in ratios.items()
            if known == "printed"
        ),
    )


def tasks_table(facts: PublishedScores) -> Table:
    """LRKV minus MHA per task, for the tasks whose scores are known."""
    missing = facts.n_tasks - len(facts.task_scores)
    return Table(
        title=f"Downstream scores at {facts.scale}, LRKV minus MHA",
        inputs={},
        rows=[_task(one) for one in (*facts.task_scores, facts.mean_of_tasks)],
        columns=(
            Column(key="task", title="task", is_number=False),
            Column(key="mha", title="MHA", text=_share),
            Column(key="lrkv", title="LRKV", text=_share),
            Column(key="difference", title="difference", text=_points),
        ),
        remarks=(
            f"the figure cannot be made again: scores of {missing} of {facts.n_tasks} tasks are in "
            "none of the documents read, so the mean is as printed",
        ),
    )


def _task(one: TaskScore) -> Mapping[str, Any]:
    mha, lrkv = Fraction(one.mha), Fraction(one.lrkv)
    return {"task": one.task, "mha": mha, "lrkv": lrkv, "difference": lrkv - mha}


def rotation_table() -> Table:
    """A residual on the first axis under quarter turns, and what the latent can give instead."""
    return Table(
        title="Residual (1, 0) of rank one, turned by its position",
        inputs={"basis": list(_ALONG), "query": list(_ACROSS)},
        rows=[_turn(turned_residual(_ALONG, turns)) for turns in range(4)],
        columns=(
            Column(key="degrees", title="turn", text=lambda v: f"{v}°"),
            Column(key="turned", title="true row", text=_row),
            Column(key="nearest", title="nearest from the latent", text=_row),
            Column(key="true_score", title="true score", text=str),
            Column(key="pulled_score", title="its score", text=str),
            Column(key="lost_ratio", title="squared length lost", text=percent),
        ),
        remarks=(
            "scores are against a query along the second axis, (0, 1)",
            "with one latent number every reconstruction stays on the first axis",
        ),
    )


def _turn(one: TurnedResidual) -> Mapping[str, Any]:
    return {
        "degrees": 90 * one.quarter_turns,
        "turned": one.turned,
        "nearest": one.nearest,
        "true_score": score(one.turned, _ACROSS),
        "pulled_score": score(one.nearest, _ACROSS),
        "lost_ratio": one.lost_ratio,
    }


def _row(value: tuple[Fraction, Fraction]) -> str:
    return f"({value[0]}, {value[1]})"
