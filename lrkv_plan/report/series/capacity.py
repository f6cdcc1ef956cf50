"""How many sequences fit against their length, one line per design."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series
from lrkv_plan.report.screens.capacity import CapacityAsked
from lrkv_plan.report.views.capacity import capacity_table

if TYPE_CHECKING:
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec


def default_contexts(model: ModelSpec) -> list[int]:
    """Powers of two from 1,024 to the model's maximum, or to 131,072. [tokens]"""
    most = max(2048, model.max_context_tokens or 131_072)
    return [2**power for power in range(10, most.bit_length()) if 2**power <= most]


def capacity_vs_context(model: ModelSpec, answers: Sequence[Answer]) -> Figure:
    """Sequences that fit against the context, from ``capacity_answers``.

    Both axes are logarithmic: a cache that grows with the context gives lines of slope -1, one
    above the other by the ratio of their bytes. Contexts at which nothing fits stay in the rows
    and end the line.
    """
    labels = list(dict.fromkeys(answer.attention for answer in answers))
    series = []
    for style, label in enumerate(labels):
        rows = [a.row for a in answers if a.attention == label and a.row is not None]
        if not rows:
            continue
        series.append(
            Series(
                name=label,
                role=Role.LINE,
                x=tuple(row.context_tokens for row in rows),
                y=tuple(row.total_sequences for row in rows),
                style=style,
                label=label,
            )
        )
    described = capacity_table(answers, CapacityAsked(models=[model]))
    return Figure(
        kind="capacity-vs-context",
        title="Sequences that fit against their length",
        caption=caption(model.name, deployment_text(answers[0].deployment)),
        inputs=described.inputs,
        panels=(
            Panel(
                name="capacity",
                x=Axis(key="context_tokens", label="Context, tokens", scale="log2"),
                y=Axis(key="total_sequences", label="Sequences that fit", scale="log10"),
                series=tuple(series),
            ),
        ),
        remarks=tuple(described.remarks),
    )


def deployment_text(deployment: Deployment) -> str:
    """GPUs, engine and formats of a deployment, for a caption."""
    parallel, hardware = deployment.parallel, deployment.hardware
    n_gpus = deployment.n_replicas * parallel.n_gpus
    gpu = f"{n_gpus} x {hardware.name if hardware else 'stated pool'}"
    return caption(
        deployment.gpu_name or gpu if deployment.joined else gpu,
        gpus(parallel.tp_size),
        f"{deployment.engine}",
        f"{deployment.settings.kv_dtype} cache",
        f"low-rank rows stored at multiples of {deployment.rank_alignment}"
        if deployment.rank_alignment > 1
        else "",
    )
