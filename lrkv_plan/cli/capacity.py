"""``lrkv-plan capacity``: how many tokens and sequences fit, as the engine would print it."""

from pathlib import Path
from typing import Annotated

import typer

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
    asks,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capacity")(capacity)


@asks("capacity")
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
) -> None:
    """Tokens and sequences that fit, per design, size and context.

    Example: lrkv-plan capacity llama-3.1-8b --gpu h100-sxm --attention gqa:8 --attention lrkv:24
    """
