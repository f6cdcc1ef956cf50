"""Where a decode step's time goes, as stacked bars, one per design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.captions import caption, unmeasured
from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel, StepTime

_PARTS = (
    ("attention", "attention_s"),
    ("weights", "linear_s"),
    ("all-reduce", "all_reduce_s"),
    ("rest", "overhead_s"),
)


def step_stack(
    timed: Sequence[tuple[str, StepModel, StepTime]],
    *,
    context_tokens: int,
    batch_size: int,
    query_tokens: int = 1,
    where: str = "",
    inputs: Mapping[str, Any] | None = None,
) -> Figure:
    """The parts of a decode step, summed, with the band that holds nine of ten measured steps.

    Parameters
    ----------
    timed : (label, design on a GPU, its step there).
    where : model, GPUs and formats, for the caption.
    """
    labels = tuple(label for label, _, _ in timed)
    models, steps = [(label, model) for label, model, _ in timed], [step for *_, step in timed]
    parts = tuple(
        Series(
            name=name,
            role=Role.STACK,
            x=tuple(float(getattr(step, key)) for step in steps),
            y=labels,
            style=style,
        )
        for style, (name, key) in enumerate(_PARTS)
        if any(getattr(step, key) for step in steps)
    )
    totals = [float(step.step_s) for step in steps]
    band = Series(
        name="step",
        role=Role.BAND,
        x=tuple(totals),
        y=labels,
        low=tuple(float(step.low_s) for step in steps),
        high=tuple(float(step.high_s) for step in steps),
        texts=tuple(f"{1e3 * total:.3g} ms" for total in totals),
    )
    sequences = "1 sequence" if batch_size == 1 else f"{batch_size:,} sequences"
    return Figure(
        kind="step-stack",
        title="Time of one decode step",
        caption=caption(
            where,
            f"{sequences} of {context_tokens:,} tokens",
            "" if query_tokens == 1 else f"{query_tokens} query tokens",
            "parts summed (no overlap); whiskers: nine of ten measured steps",
            unmeasured(models),
        ),
        inputs={
            **(inputs or {}),
            "context_tokens": context_tokens,
            "batch_size": batch_size,
            "query_tokens": query_tokens,
        },
        panels=(
            Panel(
                name="step",
                x=Axis(key="time_s", label="Time, ms", factor=1e3, low=0),
                y=Axis(key="attention", label="", scale="category"),
                series=(*parts, band),
            ),
        ),
        remarks=_remarks(models),
    )


def _remarks(models: Sequence[tuple[str, StepModel]]) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(f"{label}: {remark}" for label, model in models for remark in model.remarks)
    )
