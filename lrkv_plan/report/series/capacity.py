"""How many sequences fit against their length, one line per design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series


def capacity_vs_context(
    model: str,
    rows: Sequence[Mapping[str, Any]],
    inputs: Mapping[str, Any],
    remarks: Sequence[str] = (),
) -> Figure:
    """Sequences that fit against the context.

    Both axes are logarithmic: a cache that grows with the context gives lines of slope -1, one
    above the other by the ratio of their bytes. Contexts at which nothing fits stay in the rows
    and end the line.

    Parameters
    ----------
    rows, inputs, remarks : of ``capacity`` at several contexts.
    """
    labels = list(dict.fromkeys(row["attention"] for row in rows))
    series = []
    for style, label in enumerate(labels):
        held = [row for row in rows if row["attention"] == label and row.get("refused") is None]
        if not held:
            continue
        series.append(
            Series(
                name=label,
                role=Role.LINE,
                x=tuple(row["context_tokens"] for row in held),
                y=tuple(row["total_sequences"] for row in held),
                style=style,
                label=label,
            )
        )
    return Figure(
        kind="capacity-vs-context",
        title="Sequences that fit against their length",
        caption=caption(model, deployment_text(inputs)),
        inputs=inputs,
        panels=(
            Panel(
                name="capacity",
                x=Axis(key="context_tokens", label="Context, tokens", scale="log2"),
                y=Axis(key="total_sequences", label="Sequences that fit", scale="log10"),
                series=tuple(series),
            ),
        ),
        remarks=tuple(remarks),
    )


def deployment_text(inputs: Mapping[str, Any]) -> str:
    """GPUs, engine and formats of a deployment, as its inputs state it, for a caption."""
    parallel, gpu = inputs["parallelism"], inputs["gpu"]
    name = gpu["name"] if gpu else "stated pool"
    alignment = inputs["rank_alignment"]
    one_replica = parallel["tp_size"] * parallel["pp_size"] * parallel["dp_size"]
    joined = " + ".join(inputs.get("joined_gpus") or ())
    return caption(
        joined or f"{inputs['n_gpus'] or one_replica} x {name}",
        gpus(parallel["tp_size"]),
        f"{inputs['engine']}",
        f"{inputs['settings']['kv_dtype']} cache",
        f"low-rank rows stored at multiples of {alignment}" if alignment > 1 else "",
    )
