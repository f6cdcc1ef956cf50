"""``lrkv-plan capacity``: how many tokens and sequences fit, as the engine would print it."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from lrkv_plan.cli import capacity_inputs as inputs
from lrkv_plan.cli.capacity_options import (
    EngineOption,
    GpuOption,
    KvMemoryOption,
    NGpusOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
)
from lrkv_plan.cli.options import (
    AttentionOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    count_list,
    load,
    one_count,
    writes_table,
)
from lrkv_plan.cli.time_options import (
    AcceptedOption,
    GpuHourOption,
    SpeculativeOption,
    TpotOption,
)
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
        str, typer.Option("--tp-size", metavar="P[,P...]", help="Tensor-parallel GPUs.")
    ] = "1",
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
            "lengths, or 8k.",
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
    accepted_tokens: AcceptedOption = 1.0,
    gpu_hour_usd: GpuHourOption = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="One row per term of the memory budget.")
    ] = False,
    spec_dir: SpecDirOption = None,
) -> Table:
    """Tokens and sequences that fit, per design, size and context.

    Example: lrkv-plan capacity llama-3.1-8b --gpu h100-sxm --attention gqa:8 --attention lrkv:24
    """
    from lrkv_plan.calculators.comparison import designs
    from lrkv_plan.engines.answers import capacity_answers, smallest_layouts
    from lrkv_plan.engines.registry import engine_named
    from lrkv_plan.report.capacity_views import budget_table, capacity_table
    from lrkv_plan.specs.engine_settings import EngineSettings
    from lrkv_plan.specs.loader import load_hardware
    from lrkv_plan.specs.serving import Parallelism

    spec = load(model, spec_dir)
    n_draft = inputs.whole(draft_layers, "--draft-layers")
    hardware = load_hardware(gpu, spec_dir=spec_dir) if gpu else None
    common = {
        "hardware": hardware,
        "checkpoint": inputs.checkpoint_beside(model, spec) if weights is None else None,
        "engine": engine_named(engine),
        "n_gpus": inputs.optional_count(n_gpus, "--n-gpus"),
        "utilisation": inputs.share(utilisation, "--utilisation"),
        "weight_dtype": weight_dtype,
        "weight_bytes": inputs.size(weights, "--weights"),
        "kv_memory_bytes": inputs.size(kv_memory, "--kv-memory"),
        "rank_alignment": one_count(align, "--align"),
        "gpu_hour_usd": gpu_hour_usd,
    }
    settings = EngineSettings(
        context_tokens=1,
        kv_dtype=kv_dtype,
        page_tokens=inputs.optional_count(page_tokens, "--page-tokens"),
        max_batched_tokens=inputs.batched_tokens(max_batched_tokens, hardware),
        draft_layers=n_draft,
        draft_tokens=(
            inputs.whole(draft_tokens, "--draft-tokens") if draft_tokens else min(1, n_draft)
        ),
        prefix_cache=prefix_cache,
    )
    sizes = {
        "pp_size": one_count(pp_size, "--pp-size"),
        "dp_size": one_count(dp_size, "--dp-size"),
        "ep_size": one_count(ep_size, "--ep-size"),
        "dcp_size": one_count(dcp_size, "--dcp-size"),
    }
    population = inputs.population_of(lengths, column, trace, length_percentiles)
    asked = inputs.deployments(
        common,
        settings,
        contexts=inputs.contexts_of(context_tokens, population),
        parallels=[Parallelism(tp_size=p, **sizes) for p in count_list(tp_size, "--tp-size")],
    )
    models = [one for _, one in designs(spec, attention or ())]
    if min_gpus:
        wanted = one_count(sequences or "1", "--sequences")
        answers = smallest_layouts(models, asked, wanted)
    else:
        uneven = None if population is None else population.lengths
        target = inputs.latency_target(tpot_ms, speculative_tokens, accepted_tokens, spec_dir)
        answers = capacity_answers(models, asked, lengths=uneven, target=target)
    table = budget_table(spec, answers) if detail else capacity_table(spec, answers, population)
    return replace(
        table, unmet=inputs.unmet_requirement(answers, require_sequences, require_tokens)
    )
