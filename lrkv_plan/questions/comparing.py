"""Which designs does a plan compare, and at which point do they stand side by side?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import PlanError, UsageError
from lrkv_plan.notes import Note
from lrkv_plan.questions.arguments import (
    Designs,
    Gpu,
    Model,
    Number,
    asked_designs,
    budget_text,
    context_of,
    deployment_of,
    latency_target,
    load_model,
    refuse_beside_pool,
    with_provenance,
)
from lrkv_plan.questions.result import Result
from lrkv_plan.questions.serving import plan
from lrkv_plan.report.tables import Column, Table, count

if TYPE_CHECKING:
    from lrkv_plan.serving.compared import SideBySide
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, repr=False, eq=False)
class Compared(Result):
    """The answer of ``designs``: the point, the designs there, and the plan or why there is none.

    ``deployment`` has the tensor-parallel size that the plan chose and whole replicas of it.
    """

    model: ModelSpec
    deployment: Deployment
    beside: SideBySide
    batch_size: int
    target: LatencyTarget
    extra: tuple[NamedDesign, ...]
    plan: Result | None
    plan_refused: str | None


def designs(
    model: Model,
    *,
    gpu: Gpu,
    attention: Designs | None = None,
    context_tokens: Number | None = None,
    n_gpus: Number | None = None,
    tp_size: Number | None = None,
    budget: Number | None = None,
    batch_size: Number | None = None,
    tpot_ms: Number | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    engine: str | None = None,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    gpu_hour_usd: Number | None = None,
    spec_dir: str | Path | None = None,
) -> Compared:
    """List the designs that ``plan`` compares, what one replica holds of each, and at which batch.

    Where the plan is refused, designs stand on the size that was given, or on one GPU.

    Parameters
    ----------
    batch_size : at which designs are compared; what every one of them holds, at most 32, when None.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``plan``, or if no design can run on that tensor-parallel size.
    """
    given = dict(locals())
    from lrkv_plan.serving.compared import side_by_side
    from lrkv_plan.specs.deployment import Parallelism
    from lrkv_plan.specs.design import typed_designs

    refuse_beside_pool(kv_memory, utilisation=utilisation)
    spec = load_model(model, spec_dir=spec_dir)
    deployment = deployment_of(
        model, spec, gpu=gpu, engine=engine, context_tokens=context_of(context_tokens, spec),
        kv_dtype=kv_dtype, tp_size=1 if tp_size is None else words.count("tp_size", tp_size),
        n_gpus=n_gpus, weight_dtype=weight_dtype, weights=weights, utilisation=utilisation,
        kv_memory=kv_memory, align=align, gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir,
    )  # fmt: skip
    if deployment.hardware is None:
        raise UsageError("a comparison needs a GPU: --gpu h100-sxm")
    batch = words.optional(words.count, "batch_size", batch_size)
    target = latency_target(
        tpot_ms, speculative_tokens, accepted_tokens, spec_dir, [deployment.hardware]
    )
    extra = tuple(typed_designs(spec, asked_designs(attention)))
    planned, refused = None, None
    try:
        planned = plan(given.pop("model"), **given)
    except PlanError as error:
        refused = str(error)
    else:
        chosen = planned.rows[0]
        deployment = replace(
            deployment,
            parallel=Parallelism(tp_size=chosen["tp_size"]),
            n_gpus=None if deployment.n_gpus is None else chosen["n_gpus"],
        )
    beside = side_by_side(spec, deployment, budget=budget_text(budget), extra=extra)
    batch = batch or beside.batch_size
    table = with_provenance(
        _table(spec, deployment, beside, batch, refused), spec, deployment.hardware
    )
    return Compared(
        table, model=spec, deployment=deployment, beside=beside, batch_size=batch, target=target,
        extra=extra, plan=planned, plan_refused=refused,
    )  # fmt: skip


def _table(
    model: ModelSpec,
    deployment: Deployment,
    beside: SideBySide,
    batch_size: int,
    plan_refused: str | None,
) -> Table:
    from lrkv_plan.report.views.capacity import deployment_inputs
    from lrkv_plan.report.views.specs import model_inputs

    reasons: list[Any] = [*beside.refused, *([plan_refused] if plan_refused else [])]
    return Table(
        title=f"Designs beside each other on {model.name}'s backbone, batch {batch_size:,}",
        inputs={
            "model": model_inputs(model),
            **deployment_inputs(deployment),
            "budget": beside.budget,
            "batch_size": batch_size,
        },
        rows=[
            {
                "model": model.name,
                "attention": one.text or one.label,
                "role": one.role,
                "tp_size": deployment.parallel.tp_size,
                "context_tokens": deployment.settings.context_tokens,
                "max_sequences": one.room,
            }
            for one in beside.designs
        ],
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="role", title="role", is_number=False),
            Column(key="max_sequences", title="sequences of a replica", text=count),
        ),
        notes=(
            *(Note(kind="refusal", text=reason) for reason in reasons),
            *model.remarks,
        ),
    )
