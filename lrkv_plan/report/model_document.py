"""The report on one model and GPU: which sections it has, what comes first, and its sources."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from lrkv_plan.errors import PlanError
from lrkv_plan.report.document import Document, Highlight, Section
from lrkv_plan.report.parts_crossover import crossover_parts
from lrkv_plan.report.parts_memory import (
    cache_parts,
    capacity_parts,
    placement_parts,
    rank_parts,
)
from lrkv_plan.report.parts_time import basis_part, plan_part, time_parts
from lrkv_plan.report.settled import Settled, settle
from lrkv_plan.report.slider_grid import SliderGrid, slider_grid
from lrkv_plan.report.tables import count, percent
from lrkv_plan.report.time_views import milliseconds

if TYPE_CHECKING:
    from lrkv_plan.engines.plan import PlanRow
    from lrkv_plan.report.document import Part
    from lrkv_plan.report.report_request import ReportRequest

_SECTIONS: tuple[tuple[str, str, str, Callable[[Settled], tuple[Part, ...]]], ...] = (
    (
        "plan", "Plan", "Every attention family on the model's backbone: what it caches, how many "
        "full-length sequences fit, how long a step takes and where the ranking changes.",
        lambda settled: (plan_part(settled),),
    ),
    ("cache", "Cache", "Exact bytes, by design and by cached tensor. LRKV keeps the same "
        "cache whether keys are rotated as they are rebuilt or not.", cache_parts),
    (
        "rank", "Rank ceilings", "The largest LRKV rank whose cache stays within the budget, and "
        "the GQA and MLA designs that fit the same budget.", rank_parts,
    ),
    (
        "capacity", "Capacity", "What the engine's own allocation rules leave for the cache.",
        capacity_parts,
    ),
    (
        "time", "Time", "Predicted decode steps, and the bounds that the datasheet sets.",
        time_parts,
    ),
    (
        "crossovers", "Crossovers", "Where LRKV becomes faster or slower than the model's own "
        "design; exact changes of the step model, with the band that its constants leave.",
        crossover_parts,
    ),
    (
        "placement", "Placement", "What a tensor-parallel group holds, repeats, and moves over its "
        "links.", placement_parts,
    ),
    (
        "basis", "What it rests on", "Bytes are exact. Times come from constants fitted on "
        "measurements; each says which, and how far predictions were off where they were tested.",
        lambda settled: (basis_part(settled),),
    ),
)  # fmt: skip


def model_document(
    request: ReportRequest, command: str, progress: Callable[[str], None] = lambda _: None
) -> Document:
    """The whole report on one model and GPU.

    Parameters
    ----------
    command : the command line that makes it again.
    progress : told the title of each section before it is computed.
    """
    progress("Plan")
    settled = settle(request)
    grid: SliderGrid | None = None
    grid_refused = None
    progress("Sliders")
    try:
        grid = slider_grid(settled)
    except PlanError as error:
        grid_refused = str(error)
    sections = []
    for key, title, lead, parts in _SECTIONS:
        progress(title)
        sections.append(Section(key=key, title=title, lead=lead, parts=parts(settled)))
    return Document(
        title=f"{request.model.name} on {settled.gpu.name}",
        subtitle=_subtitle(settled),
        command=command,
        highlights=tuple(_highlights(settled)),
        grid=grid,
        grid_refused=grid_refused,
        sections=tuple(sections),
        sources=(
            (f"Model {request.model.name}", request.model.source),
            (f"Hardware {settled.gpu.name}", settled.gpu.source),
        ),
        common_remarks=(
            *request.model.remarks,
            *(f"left out: {reason}" for reason in settled.refused),
        ),
    )


def _subtitle(settled: Settled) -> str:
    deployment = settled.deployment
    n_gpus = deployment.n_gpus or deployment.parallel.n_gpus
    shared = "" if settled.tp_size == 1 else f", {settled.tp_size} GPUs share the model"
    return (
        f"{n_gpus} x {settled.gpu.title}{shared}; {deployment.engine}; {settled.kv_dtype} cache; "
        f"{settled.context_tokens:,} tokens a sequence; steps at batch {settled.batch_size:,}"
    )


def _highlights(settled: Settled) -> Iterator[Highlight]:
    ceiling, plan = settled.ceiling, settled.plan
    if ceiling is not None:
        yield Highlight(
            label=f"Largest LRKV rank in {settled.budget}",
            value=count(ceiling.largest.value),
            detail=f"largest multiple of {ceiling.alignment:,}: {ceiling.aligned.value:,}",
        )
    if plan is None:
        return
    own = plan.rows[0]
    others = [row for row in plan.rows if row.attention == settled.low_rank]
    for row in (own, *others):
        yield from _of_design(row)


def _of_design(row: PlanRow) -> Iterator[Highlight]:
    what = "own design" if row.role == "own design" else "LRKV in the budget"
    ratio = "" if row.ratio_to_mha is None else f"; cache {percent(row.ratio_to_mha)} of MHA"
    yield Highlight(
        label=f"Sequences that fit, {what}",
        value=count(row.capacity.total_sequences),
        detail=f"{row.attention}{ratio}",
    )
    if row.load is None:
        return
    step = row.load.step
    low, high = (milliseconds(float(t)) for t in (step.low_s, step.high_s))
    yield Highlight(
        label=f"Decode step, {what}",
        value=f"{milliseconds(float(step.step_s))} ms",
        detail=f"{low} to {high} ms at batch {row.load.batch_size:,}",
    )
