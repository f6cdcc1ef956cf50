"""The report on one model and GPU: its sections, and the parts of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import PlanError, RequirementError, UsageError
from lrkv_plan.formats import storage_format
from lrkv_plan.latency.crossover import column_labels, compare, map_columns, names_at
from lrkv_plan.latency.roofline import roofline_point
from lrkv_plan.latency.work import paths_of
from lrkv_plan.memory.cache import reference_mha
from lrkv_plan.memory.largest import rank_ceiling
from lrkv_plan.memory.side_by_side import cache_rows, params_rows, shard_rows, tensor_rows
from lrkv_plan.report.document import Document, Highlight, Part, Section, part_of
from lrkv_plan.report.explorer import SliderGrid, slider_grid
from lrkv_plan.report.request import Settled, ShownDesign, settle
from lrkv_plan.report.screens.capacity import CapacityAsked
from lrkv_plan.report.screens.crossover import CrossoverAnswer
from lrkv_plan.report.screens.roofline import RooflineAnswer
from lrkv_plan.report.series.cache_vs_rank import cache_vs_rank
from lrkv_plan.report.series.capacity import capacity_vs_context, default_contexts
from lrkv_plan.report.series.crossovers import crossover_map
from lrkv_plan.report.series.roofline import roofline
from lrkv_plan.report.series.steps import step_stack
from lrkv_plan.report.tables import count, percent
from lrkv_plan.report.views.cache import (
    cache_table,
    params_table,
    rank_table,
    shard_table,
    tensor_table,
)
from lrkv_plan.report.views.capacity import budget_table, capacity_table
from lrkv_plan.report.views.specs import model_inputs
from lrkv_plan.report.views.time import (
    basis_table,
    crossover_table,
    milliseconds,
    plan_inputs,
    plan_table,
    roofline_table,
    step_parts_table,
)
from lrkv_plan.serving.answers import capacity_answers
from lrkv_plan.serving.load import timed_step
from lrkv_plan.specs.deployment import Workload
from lrkv_plan.specs.design import NamedDesign, design_label

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.report.request import ReportRequest
    from lrkv_plan.report.tables import Table
    from lrkv_plan.schema import Source
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.plan import PlanRow
    from lrkv_plan.specs.model import ModelSpec

_MAP_CONTEXTS = (128, 131_072)


def crossover_parts(settled: Settled) -> tuple[Part, ...]:
    """Where LRKV becomes faster or slower than the model's own design, along three variables."""
    pair = _pair(settled)
    told = {
        "context_tokens": ("--context-tokens", str(settled.context_tokens)),
        "batch_size": settled.batch_option,
    }
    fixed = (*settled.query_options, "--tp-size", str(settled.tp_size))
    variables = (
        ("context_tokens", "crossover-context", "Along the context"),
        ("batch_size", "crossover-batch", "Along the batch"),
        ("rank", "crossover-rank", "Along the rank"),
    )
    tables = [
        part_of(
            key, title, partial(_crossover, settled, over),
            commands=_pair_command(
                settled, "crossover", "--over", over,
                *(word for name, words in told.items() if name != over for word in words), *fixed,
            ),
            is_narrow=True,
        )
        for over, key, title in variables
    ]  # fmt: skip
    limits = ",".join(map(str, _MAP_CONTEXTS))
    picture = part_of(
        "crossover-map", "Which decodes faster, over batch and context", lambda: _map(settled),
        commands=() if pair is None else _pair_command(
            settled, "plot crossover-map", "--over", "batch_size", "--context-tokens", limits,
            "--tp-size", str(settled.tp_size), *settled.query_options,
        ),
    )  # fmt: skip
    return (*tables, picture)


def _crossover(settled: Settled, over: str) -> Table:
    request, pair = settled.request, _needed_pair(settled)
    weight_dtype, weight_bytes = settled.deployment.weight_dtype, settled.weight_bytes
    point = {
        "context_tokens": settled.context_tokens, "batch_size": settled.batch_size,
        "query_tokens": settled.query_tokens, "tp_size": settled.tp_size,
        "pp_size": 1, "dp_size": 1, "ep_size": 1,
    }  # fmt: skip
    found = compare(
        pair, settled.gpu, over=over, point=point, kv_dtype=settled.kv_dtype,
        weight_dtype=weight_dtype, weight_bytes=weight_bytes, engine=settled.timed_engine,
        relatives=request.relatives,
    )  # fmt: skip
    stated = {
        "model": model_inputs(request.model), "gpu": request.gpu_text, "over": over,
        "kv_dtype": settled.kv_dtype, "weight_dtype": weight_dtype or request.model.weight_dtype,
        "weight_bytes_per_gpu": weight_bytes, **point, "engine": str(settled.deployment.engine),
    }  # fmt: skip
    labels = names_at(pair, "RANK" if over == "rank" else None)
    answer = CrossoverAnswer(
        model=request.model, gpu=settled.gpu, inputs=stated, labels=labels, found=found
    )
    return crossover_table(answer)


def _map(settled: Settled) -> Figure:
    request, pair = settled.request, _needed_pair(settled)
    told: dict[str, Any] = {
        "kv_dtype": settled.kv_dtype, "weight_dtype": settled.deployment.weight_dtype,
        "tp_size": settled.tp_size, "weight_bytes": settled.weight_bytes,
    }  # fmt: skip
    columns = map_columns(
        pair, settled.gpu, over="batch_size", engine=settled.timed_engine,
        relatives=request.relatives, **told,
    )  # fmt: skip
    return crossover_map(
        columns,
        column_labels(pair, "batch_size"),
        over="batch_size",
        low=_MAP_CONTEXTS[0],
        high=_MAP_CONTEXTS[1],
        query_tokens=settled.query_tokens,
        where=settled.where,
        inputs={"model": model_inputs(request.model), "gpu": settled.gpu.name, **told},
    )


def _pair(settled: Settled) -> list[NamedDesign] | None:
    """The own design, or MHA where that has no text, against LRKV."""
    last = settled.low_rank
    if last is None or last.text is None or last == settled.designs[0]:
        return None
    first = settled.designs[0]
    own = ("mha", reference_mha(first.model)) if first.text is None else (first.text, first.model)
    return [own, (last.text, last.model)]


def _needed_pair(settled: Settled) -> list[NamedDesign]:
    pair = _pair(settled)
    if pair is None:
        raise UsageError("no LRKV design other than the model's own is in the budget")
    return pair


def _pair_command(settled: Settled, name: str, *extra: str) -> tuple[str, ...]:
    pair = _pair(settled)
    return () if pair is None else (settled.request.command(name, *extra, designs=pair),)


_SIZES = (1, 2, 4, 8)


def cache_parts(settled: Settled) -> tuple[Part, ...]:
    """Cache per design and context, and per cached tensor."""
    settled = settled.held
    workload = Workload(
        batch_size=settled.batch_size,
        kv_dtype=settled.kv_dtype,
        tp_size=settled.tp_size,
    )
    model, contexts = settled.request.model, settled.contexts
    told = ("--context-tokens", ",".join(map(str, contexts)), *_batch_and_gpus(settled))
    one = ("--context-tokens", str(settled.context_tokens), *_batch_and_gpus(settled))

    def caches() -> Table:
        rows = cache_rows(settled.labelled, own=model, contexts=contexts, workload=workload)
        return cache_table([model], settled.labelled, rows, [workload])

    def tensors() -> Table:
        at = [settled.context_tokens]
        rows = tensor_rows(settled.labelled, contexts=at, workload=workload)
        return tensor_table([model], settled.labelled, rows, [workload])

    return (
        part_of(
            "cache", "Cache per design and context", caches,
            commands=_commands(settled, "cache", *told),
        ),
        part_of(
            "cached-tensors", "What each design keeps", tensors,
            lead="One row per cached tensor of one layer group, for one copy of the model.",
            commands=_commands(settled, "cache", "--detail", *one),
        ),
    )  # fmt: skip


def rank_parts(settled: Settled) -> tuple[Part, ...]:
    """The rank ceiling of the budget, the rank's price, and weights per design."""
    settled = settled.held
    request, context = settled.request, settled.context_tokens
    model, deployment = request.model, settled.deployment
    kv_dtype, alignment = deployment.settings.kv_dtype, deployment.rank_alignment
    stated = {
        "model": model_inputs(model), "budget": settled.budget, "align": alignment,
        "tp_size": settled.tp_size, "kv_dtype": storage_format(kv_dtype).name,
        "context_tokens": context, "n_shared_groups": 1, "position": "none", "rope_dim": 0,
        "key_norm": "none", "mla_rope_dim": None,
    }  # fmt: skip

    def ceiling() -> Table:
        answer = rank_ceiling(
            model, budget=settled.budget, alignment=alignment, tp_size=settled.tp_size,
            kv_dtype=kv_dtype, context_tokens=context,
        )  # fmt: skip
        return rank_table(model, stated, answer)

    told = ("--budget", settled.budget, "--tp-size", str(settled.tp_size))

    def weights() -> Table:
        rows = params_rows(model, settled.labelled)
        return params_table([model], settled.labelled, rows, match_params=False)

    return (
        part_of(
            "rank", f"Largest rank in the budget {settled.budget}", ceiling,
            commands=(request.command("rank", *told, "--context-tokens", str(context)),),
        ),
        part_of(
            "cache-vs-rank", "Cache against rank",
            lambda: cache_vs_rank(
                model, budget=settled.budget, alignment=alignment, kv_dtype=kv_dtype,
                tp_size=settled.tp_size,
            ),
            commands=(request.command("plot cache-vs-rank", *told),),
        ),
        part_of(
            "weights", "Weights per design", weights,
            commands=_commands(settled, "params"),
        ),
    )  # fmt: skip


def capacity_parts(settled: Settled) -> tuple[Part, ...]:
    """What fits per design and context, where the memory goes, and a picture."""
    settled = settled.held
    request = settled.request
    deployment = settled.deployment
    models = settled.labelled
    told = ("--tp-size", str(settled.tp_size), *_all_gpus(deployment))

    def table() -> Table:
        asked = [_at(deployment, context) for context in settled.contexts]
        return capacity_table(
            capacity_answers(models, asked), CapacityAsked(models=[request.model])
        )

    def terms() -> Table:
        own = (design_label(request.model), request.model)
        answers = capacity_answers([own], [deployment])
        return budget_table(answers, CapacityAsked(models=[request.model]))

    contexts = ",".join(map(str, settled.contexts))
    return (
        part_of(
            "capacity", "Tokens and sequences that fit", table,
            commands=_commands(settled, "capacity", "--context-tokens", contexts, *told),
        ),
        part_of(
            "capacity-vs-context", "Sequences that fit against their length",
            lambda: _held_against_length(settled, models),
            commands=_commands(settled, "plot capacity-vs-context", *told),
        ),
        part_of(
            "memory-budget", "Where one GPU's memory goes", terms,
            lead="The model's own design.",
            commands=(request.command(
                "capacity", "--detail", "--context-tokens", str(settled.context_tokens), *told
            ),),
        ),
    )  # fmt: skip


def placement_parts(settled: Settled) -> tuple[Part, ...]:
    """What tensor parallelism does to the own design, MLA's latent and LRKV."""
    model, kv_dtype = settled.request.model, settled.kv_dtype
    sizes = sorted({*_SIZES, settled.tp_size})
    inputs = {
        "model": model_inputs(model), "tp_size": sizes, "kv_dtype": storage_format(kv_dtype).name,
    }  # fmt: skip
    chosen = replace(settled, designs=_placed_designs(settled))

    def table() -> Table:
        rows = shard_rows(chosen.labelled, tp_sizes=sizes, kv_dtype=kv_dtype)
        return shard_table(model, chosen.labelled, rows, inputs)

    return (
        part_of(
            "placement", "Cache per GPU under tensor parallelism",
            table,
            commands=_commands(chosen, "shard", "--tp-size", ",".join(map(str, sizes))),
        ),
    )  # fmt: skip


def _held_against_length(settled: Settled, models: Sequence[tuple[str, ModelSpec]]) -> Figure:
    model = settled.request.model
    asked = [_at(settled.deployment, context) for context in default_contexts(model)]
    answers = capacity_answers(models, asked)
    if not any(answer.row and answer.row.total_sequences for answer in answers):
        raise RequirementError("nothing to draw: no design fits at any length on these GPUs")
    return capacity_vs_context(model, answers)


def _placed_designs(settled: Settled) -> tuple[ShownDesign, ...]:
    """The own design, the one before LRKV (MLA where it fits the budget) and plain LRKV."""
    designs = settled.designs
    models = [None if one.text is None else one.model for one in designs]
    if settled.plain_low_rank is None or settled.plain_low_rank not in models:
        return designs[:3]
    at = models.index(settled.plain_low_rank)
    return tuple(designs[i] for i in dict.fromkeys((0, (at - 1) % len(designs), at)))


def _commands(settled: Settled, name: str, *extra: str) -> tuple[str, ...]:
    """The command that prints the designs; two where the own design has no text."""
    named, command = settled.typed, settled.request.command
    own = [command(name, *extra)] if len(named) < len(settled.designs) else []
    return (*own, *([command(name, *extra, designs=named)] if named else []))


def _batch_and_gpus(settled: Settled) -> tuple[str, ...]:
    return ("--batch-size", str(settled.batch_size), "--tp-size", str(settled.tp_size))


def _all_gpus(deployment: Deployment) -> tuple[str, ...]:
    return () if deployment.n_gpus is None else ("--n-gpus", str(deployment.n_gpus))


def _at(deployment: Deployment, context: int) -> Deployment:
    return replace(deployment, settings=replace(deployment.settings, context_tokens=context))


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
    named = settled.labelled
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
        return roofline_table(
            RooflineAnswer(model=request.model, gpu=settled.gpu, inputs=stated, points=found)
        )

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
            [(label, _steps(settled, design)) for label, design in settled.labelled],
        ),
    )  # fmt: skip


def _stack(settled: Settled) -> Figure:
    request = settled.request
    told = {
        "kv_dtype": settled.kv_dtype, "weight_dtype": settled.deployment.weight_dtype,
        "tp_size": settled.tp_size, "weight_bytes": settled.deployment.weight_bytes,
    }  # fmt: skip
    return step_stack(
        [(label, _steps(settled, design)) for label, design in settled.labelled],
        context_tokens=settled.context_tokens,
        batch_size=settled.batch_size,
        query_tokens=settled.query_tokens,
        where=settled.where,
        inputs={"model": model_inputs(request.model), "gpu": settled.gpu.name, **told},
    )


def _texts_command(settled: Settled, name: str, *extra: str) -> tuple[str, ...]:
    """The command for all designs; none where the own design has no text to stand beside them."""
    if len(settled.designs) > max(1, len(settled.typed)):
        return ()
    return (settled.request.command(name, *extra, designs=settled.typed),)


def _steps(settled: Settled, design: ModelSpec) -> StepModel:
    return timed_step(design, settled.deployment, settled.request.target)


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
        sources=_sources(settled),
        common_remarks=_common_remarks(settled),
    )


def explorer_document(
    request: ReportRequest, command: str, progress: Callable[[str], None] = lambda _: None
) -> Document:
    """The page with its sliders alone.

    Parameters
    ----------
    command : the command line that makes it again.
    progress : told what is computed.

    Raises
    ------
    SpecError, UsageError, PlacementError
        If the model has no attention layers, or no design can run.
    """
    progress("plan")
    settled = settle(request)
    progress("sliders")
    return Document(
        title=f"{request.model.name} on {settled.gpu.name}",
        subtitle=_subtitle(settled),
        command=command,
        grid=slider_grid(settled),
        sources=_sources(settled),
        common_remarks=_common_remarks(settled),
    )


def _sources(settled: Settled) -> tuple[tuple[str, tuple[Source, ...]], ...]:
    model, gpu = settled.request.model, settled.gpu
    return (
        (f"Model {model.name}", tuple(model.source)),
        (f"Hardware {gpu.name}", tuple(gpu.source)),
    )


def _common_remarks(settled: Settled) -> tuple[str, ...]:
    refused = (f"left out: {reason}" for reason in settled.refused)
    return (*settled.request.model.remarks, *refused)


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
    chosen = settled.low_rank and settled.low_rank.text
    others = [row for row in plan.rows if row.attention == chosen]
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
