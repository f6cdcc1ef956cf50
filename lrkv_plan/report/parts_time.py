"""Parts of a model's report about time: the plan, a step's parts and rooflines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.attention_work import paths_of
from lrkv_plan.calculators.roofline import roofline_point
from lrkv_plan.engines.latency import timed_step
from lrkv_plan.errors import RequirementError
from lrkv_plan.report.basis_views import basis_table
from lrkv_plan.report.document import Part, part_of
from lrkv_plan.report.series.roofline import roofline
from lrkv_plan.report.series.steps import step_stack
from lrkv_plan.report.spec_views import model_inputs
from lrkv_plan.report.time_views import (
    plan_inputs,
    plan_table,
    roofline_table,
    step_parts_table,
)
from lrkv_plan.specs.attention_text import design_label

if TYPE_CHECKING:
    from lrkv_plan.calculators.step_time import StepModel
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.report.settled import Settled
    from lrkv_plan.report.tables import Table


def plan_part(settled: Settled) -> Part:
    """Every family on the backbone, held, timed and priced."""
    request = settled.request
    return part_of(
        "plan", "The plan", lambda: planned(settled), commands=(request.command("plan"),)
    )


def planned(settled: Settled) -> Table:
    """The plan's table, as ``lrkv-plan plan`` prints it. Raises what refused it."""
    request, made = settled.request, settled.plan
    if made is None:
        raise RequirementError(settled.plan_refused or "no plan was made")
    stated = plan_inputs(request.model, request.deployment, request.target, made)
    return plan_table(request.model, stated, made)


def time_parts(settled: Settled) -> tuple[Part, ...]:
    """Where a step's time goes, and what bounds its attention."""
    request = settled.request
    settled = settled.fitting
    told, batch = settled.place_options, settled.batch_option
    named = settled.named_designs
    place: dict[str, Any] = {
        "context_tokens": settled.context_tokens, "kv_dtype": settled.kv_dtype,
        "tp_size": settled.tp_size, "query_tokens": settled.query_tokens,
    }  # fmt: skip

    def points() -> Table:
        asked = {**place, "batch_size": settled.batch_size, "heads_per_tile": None}
        found = [
            (label, roofline_point(one, settled.gpu, path=path, units=unit, **asked))
            for label, one in named
            for path in paths_of(one)
            for unit in ("bf16", "fp32")
        ]
        stated = {
            "model": model_inputs(request.model), "gpu": settled.gpu.name, "units": "bf16,fp32",
            **asked,
        }  # fmt: skip
        return roofline_table(request.model, stated, found)

    return (
        part_of(
            "step-parts", "Parts of a decode step", lambda: step_parts_table(planned(settled)),
            commands=(request.command("plan"),), is_view=True,
        ),
        part_of(
            "roofline", "Intensity, ridge and bound of the attention", points,
            commands=_texts_command(settled, "roofline", *told, *batch),
        ),
        part_of(
            "step-stack", "Where a step's time goes", lambda: _stack(settled),
            commands=_texts_command(settled, "plot step-stack", *told, *batch),
        ),
        part_of(
            "roofline-picture", "The datasheet roofline",
            lambda: roofline(request.model, named, settled.gpu, **place),
            commands=_texts_command(settled, "plot roofline", *told),
        ),
    )  # fmt: skip


def basis_part(settled: Settled) -> Part:
    """Constants of every design's attention kernels, with their errors."""
    return part_of(
        "basis", "What each design's attention time rests on",
        lambda: basis_table(
            settled.request.model, settled.gpu.name,
            [(design_label(settled.design(t)), _steps(settled, t)) for t in settled.texts],
        ),
    )  # fmt: skip


def _stack(settled: Settled) -> Figure:
    request = settled.request
    told = {
        "kv_dtype": settled.kv_dtype, "weight_dtype": settled.deployment.weight_dtype,
        "tp_size": settled.tp_size, "weight_bytes": settled.deployment.weight_bytes,
    }  # fmt: skip
    return step_stack(
        [(design_label(settled.design(t)), _steps(settled, t)) for t in settled.texts],
        context_tokens=settled.context_tokens,
        batch_size=settled.batch_size,
        query_tokens=settled.query_tokens,
        where=settled.where,
        inputs={"model": model_inputs(request.model), "gpu": settled.gpu.name, **told},
    )


def _texts_command(settled: Settled, name: str, *extra: str) -> tuple[str, ...]:
    """The command for all designs; none where the own design has no text to stand beside them."""
    if None in settled.texts and len(settled.texts) > 1:
        return ()
    return (settled.request.command(name, *extra, texts=settled.texts),)


def _steps(settled: Settled, text: str | None) -> StepModel:
    return timed_step(settled.design(text), settled.deployment, settled.request.target)
