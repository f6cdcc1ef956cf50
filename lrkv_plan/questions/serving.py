"""How much fits a deployment, and the page for a decision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError
from lrkv_plan.questions.arguments import (
    Designs,
    Gpu,
    Model,
    Number,
    Numbers,
    asked_designs,
    budget_text,
    context_of,
    contexts_of,
    deployment_of,
    designs_of,
    latency_target,
    load_model,
    population_of,
    refuse,
    refuse_alignment,
    refuse_beside_pool,
    refuse_unread,
    unmet_requirement,
    with_provenance,
)
from lrkv_plan.questions.asking import Asking
from lrkv_plan.questions.result import Result


def plan(
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
) -> Result:
    """Compare MHA, GQA, MQA, MLA and LRKV on one deployment: cache, fit, time, cost, crossover.

    Parameters
    ----------
    attention : more designs to compare, a row each.
    context_tokens : cached tokens per sequence; 8k or the model's maximum.
    tp_size : GPUs that share the model; of ``n_gpus`` the size that serves most, else the smallest
        that fits.
    budget : cache budget for LRKV, GQA and MLA; the model's own cache, or half of MHA.
    batch_size : sequences decoded together on each replica; each row's largest when None.
    tpot_ms : the most that an output token may take. [ms]
    weights, kv_memory : per GPU. [bytes, or text such as "14.99 GiB"]

    Raises
    ------
    SpecError, UsageError, BudgetError, PlacementError
        If an argument names nothing, cannot be read or honoured, or nothing fits.
    """
    given = dict(locals())
    from lrkv_plan.report.screens.plan import PlanAnswer, plan_equations, plan_screen, said_beside
    from lrkv_plan.report.views.capacity import bounded
    from lrkv_plan.report.views.time import plan_inputs, plan_table
    from lrkv_plan.serving.plan import make_plan
    from lrkv_plan.specs.design import typed_designs

    refuse_beside_pool(kv_memory, utilisation=utilisation)
    spec = load_model(model, spec_dir=spec_dir)
    deployment = deployment_of(
        model, spec, gpu=gpu, engine=engine, context_tokens=context_of(context_tokens, spec),
        kv_dtype=kv_dtype, tp_size=1 if tp_size is None else words.count("tp_size", tp_size),
        n_gpus=n_gpus, weight_dtype=weight_dtype, weights=weights, utilisation=utilisation,
        kv_memory=kv_memory, align=align, gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir,
    )  # fmt: skip
    target = latency_target(tpot_ms, speculative_tokens, accepted_tokens, spec_dir)
    batch = words.optional(words.count, "batch_size", batch_size)
    made = make_plan(
        spec,
        deployment,
        budget=budget_text(budget),
        batch_size=batch,
        target=target,
        is_layout_stated=tp_size is not None,
        designs=typed_designs(spec, asked_designs(attention)),
    )
    inputs = plan_inputs(spec, deployment, target, made)
    table = plan_table(spec, inputs, made)
    assert deployment.hardware is not None, "a plan names its GPU"
    answer = PlanAnswer(
        model=spec, inputs=inputs, plan=made, gpu=deployment.hardware, batch_size=batch,
        bound=bounded(made.rows[0].capacity.weights_left_out), notes=said_beside(table.notes),
    )  # fmt: skip
    asking = Asking(model, spec, given)
    shown = replace(
        table,
        screen=lambda: plan_screen(answer, asking),
        explain=lambda row: plan_equations(answer, str(row["attention"])),
    )
    return Result(with_provenance(shown, spec, deployment.hardware))


def capacity(
    model: Model,
    *,
    gpu: Gpu | None = None,
    attention: Designs | None = None,
    n_gpus: Number | None = None,
    tp_size: Numbers | None = None,
    pp_size: Number | None = None,
    dp_size: Number | None = None,
    ep_size: Number | None = None,
    dcp_size: Number | None = None,
    engine: str | None = None,
    context_tokens: Numbers | None = None,
    page_tokens: Number | None = None,
    max_batched_tokens: Number | None = None,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    draft_layers: Number | None = None,
    draft_tokens: Number | None = None,
    prefix_cache: bool | None = None,
    align: Number | None = None,
    lengths: str | Path | None = None,
    column: str | None = None,
    trace: str | Path | None = None,
    length_percentiles: str | None = None,
    require_sequences: Number | None = None,
    require_tokens: Number | None = None,
    min_gpus: bool | None = None,
    sequences: Number | None = None,
    tpot_ms: Number | None = None,
    speculative_tokens: Number | None = None,
    accepted_tokens: Number | None = None,
    gpu_hour_usd: Number | None = None,
    detail: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Count the tokens and sequences that fit, per design, size and context.

    Parameters
    ----------
    gpu : needed unless ``kv_memory`` states the pool.
    attention : designs to swap in, one row each; the model's own when None.
    tp_size, pp_size, dp_size, ep_size, dcp_size : tensor, pipeline, data, expert and
        decode-context parallel GPUs, 1 each; several tensor-parallel sizes give a row each.
    context_tokens : the engine's maximum per sequence; the longest of the given lengths, or 8k, or
        the model's maximum.
    lengths, trace, length_percentiles : one source of uneven lengths; ``column`` of ``lengths``.
    require_sequences, require_tokens : what every row must hold; else ``unmet`` says what misses.
    min_gpus : search the fewest GPUs that hold ``sequences``.
    tpot_ms : also the load that decodes a token within so many milliseconds. [ms]
    detail : one row per term of the memory budget.

    Raises
    ------
    SpecError, UsageError, BudgetError, PlacementError
        If an argument names nothing, cannot be read or honoured, or nothing fits.
    """
    from lrkv_plan.report.views.capacity import budget_table, capacity_table
    from lrkv_plan.serving.answers import capacity_answers, smallest_layouts
    from lrkv_plan.specs.deployment import Parallelism

    timing = {
        "tpot_ms": tpot_ms, "speculative_tokens": speculative_tokens,
        "accepted_tokens": accepted_tokens,
    }  # fmt: skip
    populations = {"lengths": lengths, "trace": trace, "length_percentiles": length_percentiles}
    is_timed = any(value is not None for value in timing.values())
    _refuse_unused(
        populations, timing if is_timed else {}, n_gpus=n_gpus, min_gpus=min_gpus,
        sequences=sequences, detail=detail, kv_memory=kv_memory,
    )  # fmt: skip
    budget_only = {} if is_timed else {"weights": weights, "weight_dtype": weight_dtype}
    refuse_beside_pool(kv_memory, utilisation=utilisation, **budget_only)
    spec = load_model(model, spec_dir=spec_dir)
    population = population_of(lengths, column, trace, length_percentiles)
    contexts = contexts_of(context_tokens, population, spec)
    first = deployment_of(
        model, spec, gpu=gpu, engine=engine, context_tokens=contexts[0], kv_dtype=kv_dtype,
        n_gpus=n_gpus, weight_dtype=weight_dtype, weights=weights, utilisation=utilisation,
        kv_memory=kv_memory, align=align, gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir,
        settings=_settings(
            page_tokens, max_batched_tokens, draft_layers, draft_tokens, prefix_cache
        ),
    )  # fmt: skip
    refuse_unread(
        first.engine, page_tokens=page_tokens, max_batched_tokens=max_batched_tokens,
        prefix_cache=prefix_cache,
    )  # fmt: skip
    degrees = {"pp_size": pp_size, "dp_size": dp_size, "ep_size": ep_size, "dcp_size": dcp_size}
    sizes = {n: 1 if value is None else words.count(n, value) for n, value in degrees.items()}
    tp_sizes = [1] if tp_size is None else words.counts("tp_size", tp_size)
    if min_gpus and len(tp_sizes) > 1:
        raise ArgumentError("tp_size", f" {tp_size}: --min-gpus takes one size, or searches all")
    asked = [
        replace(
            first,
            parallel=Parallelism(tp_size=size, **sizes),
            settings=replace(first.settings, context_tokens=context),
        )
        for size in tp_sizes
        for context in contexts
    ]
    chosen = designs_of(spec, attention)
    refuse_alignment(chosen, align)
    target = (
        latency_target(tpot_ms, speculative_tokens, accepted_tokens, spec_dir) if is_timed else None
    )
    if min_gpus:
        wanted = 1 if sequences is None else words.count("sequences", sequences)
        only = None if tp_size is None else tp_sizes[0]
        answers = smallest_layouts(chosen, asked, wanted, tp_size=only, target=target)
    else:
        uneven = None if population is None else population.lengths
        answers = capacity_answers(chosen, asked, lengths=uneven, target=target)
    table = budget_table(spec, answers) if detail else capacity_table(spec, answers, population)
    unmet = unmet_requirement(answers, require_sequences, require_tokens)
    return Result(replace(with_provenance(table, spec, first.hardware), unmet=unmet))


def _settings(
    page_tokens: Number | None,
    max_batched_tokens: Number | None,
    draft_layers: Number | None,
    draft_tokens: Number | None,
    prefix_cache: bool | None,
) -> dict[str, Any]:
    layers = 0 if draft_layers is None else words.whole("draft_layers", draft_layers)
    settings: dict[str, Any] = {
        "page_tokens": words.optional(words.count, "page_tokens", page_tokens),
        "draft_layers": layers,
        "draft_tokens": min(1, layers)
        if draft_tokens is None
        else words.whole("draft_tokens", draft_tokens),
        "prefix_cache": bool(prefix_cache),
    }
    if max_batched_tokens is not None:
        settings["max_batched_tokens"] = words.count("max_batched_tokens", max_batched_tokens)
    return settings


def _refuse_unused(
    populations: dict[str, Any],
    timing: dict[str, Any],
    *,
    n_gpus: Number | None,
    min_gpus: bool | None,
    sequences: Number | None,
    detail: bool | None,
    kv_memory: int | str | None,
) -> None:
    """Refuse arguments that this question's answer would not depend on."""
    if min_gpus:
        refuse({"n_gpus": n_gpus}, "--min-gpus searches for their number; leave one of them out")
        refuse(populations, "--min-gpus counts sequences of full length; leave one of them out")
    else:
        refuse(
            {"sequences": sequences},
            "is what --min-gpus must hold; give --min-gpus, or leave it out",
        )
    if timing:
        refuse(
            populations,
            "times are of sequences of equal length; leave them out, or the time target",
        )
    if detail:
        refuse(
            {**populations, **timing},
            "--detail shows the memory budget alone; leave one of them out",
        )
        refuse(
            {"kv_memory": kv_memory},
            "states the pool, so there is no budget to show; leave out --detail",
        )
