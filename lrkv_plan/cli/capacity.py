"""``lrkv-plan capacity``: how many tokens and sequences fit, as the engine would print it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lrkv_plan.cli import options as inputs
from lrkv_plan.cli.given import given, refuse
from lrkv_plan.cli.options import (
    AcceptedOption,
    AttentionOption,
    EngineOption,
    GpuHourOption,
    GpuOption,
    KvDtypeOption,
    KvMemoryOption,
    ModelArgument,
    NGpusOption,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    count_list,
    load,
    one_count,
    optional_count,
    whole,
    writes_table,
)
from lrkv_plan.errors import UsageError
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capacity")(capacity)


@writes_table
def capacity(
    model: ModelArgument,
    gpu: GpuOption = None,
    attention: AttentionOption = None,
    n_gpus: NGpusOption = None,
    tp_size: Annotated[
        str | None,
        typer.Option(
            "--tp-size",
            metavar="P[,P...]",
            help="Tensor-parallel GPUs. Default: 1; with --min-gpus every power of two.",
        ),
    ] = None,
    pp_size: Annotated[str, typer.Option("--pp-size", metavar="N", help="Pipeline stages.")] = "1",
    dp_size: Annotated[
        str, typer.Option("--dp-size", metavar="N", help="Data-parallel attention cores.")
    ] = "1",
    ep_size: Annotated[
        str, typer.Option("--ep-size", metavar="N", help="GPUs that experts are dealt over.")
    ] = "1",
    dcp_size: Annotated[
        str, typer.Option("--dcp-size", metavar="N", help="Decode-context parallel GPUs.")
    ] = "1",
    engine: EngineOption = "vllm",
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T[,T...]",
            help="The engine's maximum length per sequence. Default: the longest of the given "
            "lengths, or 8k, or the model's maximum.",
        ),
    ] = None,
    page_tokens: Annotated[
        str | None, typer.Option("--page-tokens", metavar="N", help="Tokens per page.")
    ] = None,
    max_batched_tokens: Annotated[
        str | None,
        typer.Option(
            "--max-batched-tokens",
            metavar="N",
            help="Tokens scheduled in one step. Default: vLLM's for the GPU, 8192 or 2048.",
        ),
    ] = None,
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    draft_layers: Annotated[
        str, typer.Option("--draft-layers", metavar="N", help="Draft layers that share the pool.")
    ] = "0",
    draft_tokens: Annotated[
        str | None,
        typer.Option("--draft-tokens", metavar="N", help="Tokens drafted; 1 with draft layers."),
    ] = None,
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache", help="State layers keep a block for reuse.")
    ] = False,
    align: Annotated[
        str,
        typer.Option("--align", metavar="N", help="Multiple that kernels store low-rank rows at."),
    ] = "16",
    lengths: Annotated[
        Path | None,
        typer.Option("--lengths", help="Uneven lengths: one a line, or CSV with --column."),
    ] = None,
    column: Annotated[
        str | None, typer.Option("--column", metavar="NAME", help="Column of --lengths.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", help="A request trace: Azure 2023/2024, Mooncake, BurstGPT."),
    ] = None,
    length_percentiles: Annotated[
        str | None,
        typer.Option("--length-percentiles", metavar="TEXT", help="p50=2k,p95=32k"),
    ] = None,
    require_sequences: Annotated[
        str | None,
        typer.Option("--require-sequences", metavar="N", help="Exit 4 if a row holds fewer."),
    ] = None,
    require_tokens: Annotated[
        str | None,
        typer.Option("--require-tokens", metavar="N", help="Exit 4 if a row holds fewer."),
    ] = None,
    min_gpus: Annotated[
        bool, typer.Option("--min-gpus", help="The fewest GPUs that hold --sequences.")
    ] = False,
    sequences: Annotated[
        str | None, typer.Option("--sequences", metavar="N", help="Sequences for --min-gpus.")
    ] = None,
    tpot_ms: TpotOption = None,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    gpu_hour_usd: GpuHourOption = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="One row per term of the memory budget.")
    ] = False,
    spec_dir: SpecDirOption = None,
) -> Table:
    """Tokens and sequences that fit, per design, size and context.

    Example: lrkv-plan capacity llama-3.1-8b --gpu h100-sxm --attention gqa:8 --attention lrkv:24
    """
    from lrkv_plan.memory.side_by_side import designs
    from lrkv_plan.report.views.capacity import budget_table, capacity_table
    from lrkv_plan.serving.answers import capacity_answers, smallest_layouts
    from lrkv_plan.specs.deployment import Parallelism

    is_timed = bool(given("tpot_ms", "speculative_tokens", "accepted_tokens"))
    _refuse_unused(min_gpus, is_timed, detail, kv_memory)
    spec = load(model, spec_dir)
    population = inputs.population_of(lengths, column, trace, length_percentiles)
    contexts = inputs.contexts_of(context_tokens, population, spec)
    n_draft = whole(draft_layers, "--draft-layers")
    settings = {
        "page_tokens": optional_count(page_tokens, "--page-tokens"),
        "draft_layers": n_draft,
        "draft_tokens": whole(draft_tokens, "--draft-tokens") if draft_tokens else min(1, n_draft),
        "prefix_cache": prefix_cache,
    }
    if max_batched_tokens is not None:
        settings["max_batched_tokens"] = one_count(max_batched_tokens, "--max-batched-tokens")
    first = inputs.one_deployment(
        model_text=model, model=spec, gpu=gpu, engine=engine, context_tokens=contexts[0],
        kv_dtype=kv_dtype, tp_size=1, n_gpus=n_gpus, weight_dtype=weight_dtype, weights=weights,
        utilisation=utilisation, kv_memory=kv_memory, alignment=one_count(align, "--align"),
        gpu_hour_usd=gpu_hour_usd, spec_dir=spec_dir, settings=settings,
    )  # fmt: skip
    inputs.refuse_unread(first.engine)
    sizes = {
        "pp_size": one_count(pp_size, "--pp-size"),
        "dp_size": one_count(dp_size, "--dp-size"),
        "ep_size": one_count(ep_size, "--ep-size"),
        "dcp_size": one_count(dcp_size, "--dcp-size"),
    }
    tp_sizes = count_list(tp_size, "--tp-size") if tp_size else [1]
    if min_gpus and len(tp_sizes) > 1:
        raise UsageError(f"--tp-size {tp_size}: --min-gpus takes one size, or searches all")
    asked = [
        replace(
            first,
            parallel=Parallelism(tp_size=size, **sizes),
            settings=replace(first.settings, context_tokens=context),
        )
        for size in tp_sizes
        for context in contexts
    ]
    chosen = designs(spec, attention or ())
    inputs.refuse_alignment(chosen, first.rank_alignment)
    target = (
        inputs.latency_target(tpot_ms, speculative_tokens, accepted_tokens, spec_dir)
        if is_timed
        else None
    )
    if min_gpus:
        wanted = one_count(sequences or "1", "--sequences")
        only = tp_sizes[0] if tp_size else None
        answers = smallest_layouts(chosen, asked, wanted, tp_size=only, target=target)
    else:
        uneven = None if population is None else population.lengths
        answers = capacity_answers(chosen, asked, lengths=uneven, target=target)
    table = budget_table(spec, answers) if detail else capacity_table(spec, answers, population)
    return replace(
        table, unmet=inputs.unmet_requirement(answers, require_sequences, require_tokens)
    )


def _refuse_unused(min_gpus: bool, is_timed: bool, detail: bool, kv_memory: str | None) -> None:
    """Refuse options that this question's answer would not depend on."""
    populations = ["lengths", "trace", "length_percentiles"]
    if min_gpus:
        refuse(["n_gpus"], "--min-gpus searches for their number; leave one of them out")
        refuse(populations, "--min-gpus counts sequences of full length; leave one of them out")
    else:
        refuse(["sequences"], "is what --min-gpus must hold; give --min-gpus, or leave it out")
    if is_timed:
        refuse(
            populations,
            "times are of sequences of equal length; leave them out, or the time target",
        )
    if detail:
        refuse(
            [*populations, "tpot_ms", "speculative_tokens", "accepted_tokens"],
            "--detail shows the memory budget alone; leave one of them out",
        )
        refuse(["kv_memory"], "states the pool, so there is no budget to show; leave out --detail")
    inputs.refuse_beside_pool(kv_memory, is_timed=is_timed)
