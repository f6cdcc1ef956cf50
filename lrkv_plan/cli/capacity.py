"""``lrkv-plan capacity``: how many tokens and sequences fit, as the engine would print it."""

from pathlib import Path
from typing import Annotated

import typer

from lrkv_plan.cli.names import models, some_of
from lrkv_plan.cli.options import (
    AcceptedOption,
    AttentionOption,
    BudgetFileOption,
    DpSizeOption,
    EngineOption,
    EpSizeOption,
    GpuHourOption,
    GpusOption,
    KvDtypesOption,
    KvMemoryOption,
    LaunchOption,
    MaxBatchedOption,
    MaxNumSeqsOption,
    NGpusOption,
    PageTokensOption,
    PpLayersOption,
    PrefixCacheOption,
    RequireSequencesOption,
    RequireTokensOption,
    RequireTpotOption,
    SpecDirOption,
    SpeculativeOption,
    TpotOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    asks,
)
from lrkv_plan.cli.panels import DEPLOYMENT, ENGINE, LENGTHS, OUTPUT, PRICE


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("capacity")(capacity)


@asks("capacity")
def capacity(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL[,...]",
            help="Name, YAML, config.json or folder. A comma lists several, one row each. With "
            "--from-log the log may name it.",
            show_default=False,
            autocompletion=some_of(models),
        ),
    ] = None,
    gpu: GpusOption = None,
    attention: AttentionOption = None,
    n_gpus: NGpusOption = None,
    tp_size: Annotated[
        str | None,
        typer.Option(
            "--tp-size",
            metavar="P[,...]",
            help="Tensor-parallel GPUs. Default: of --n-gpus the size that serves most, else 1; "
            "with --min-gpus every power of two.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    pp_size: Annotated[
        str | None,
        typer.Option(
            "--pp-size",
            metavar="N",
            help="Pipeline stages. Default: those of --pp-layers or of the joined GPUs, else 1.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    dp_size: DpSizeOption = "1",
    ep_size: EpSizeOption = "1",
    dcp_size: Annotated[
        str,
        typer.Option(
            "--dcp-size",
            metavar="N",
            help="Decode-context parallel GPUs.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "1",
    pp_layers: PpLayersOption = None,
    engine: EngineOption = "vllm",
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T[,...]",
            help="The engine's maximum length per sequence. Default: the longest of the given "
            "lengths, or 8k, or the model's maximum.",
        ),
    ] = None,
    max_context: Annotated[
        bool,
        typer.Option(
            "--max-context",
            help="The longest context that fits. For --sequences users, one by default.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = False,
    page_tokens: PageTokensOption = None,
    max_batched_tokens: MaxBatchedOption = None,
    kv_dtype: KvDtypesOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    draft_layers: Annotated[
        str,
        typer.Option(
            "--draft-layers",
            metavar="N",
            help="Draft layers that share the pool.",
            rich_help_panel=PRICE,
        ),
    ] = "0",
    draft_tokens: Annotated[
        str | None,
        typer.Option(
            "--draft-tokens",
            metavar="N",
            help="Tokens drafted; 1 with draft layers or a drafter.",
            rich_help_panel=PRICE,
        ),
    ] = None,
    prefix_cache: PrefixCacheOption = False,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="MODEL",
            help="Draft model of its own shape (EAGLE-3, DFlash, MTP): name or config.json.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    max_num_seqs: MaxNumSeqsOption = None,
    mamba_ssm_cache_dtype: Annotated[
        str | None,
        typer.Option(
            "--mamba-ssm-cache-dtype",
            metavar="FORMAT",
            help="Format of recurrent states: fp32, bf16. Default: the model's.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    max_mamba_cache_size: Annotated[
        str | None,
        typer.Option(
            "--max-mamba-cache-size",
            metavar="N",
            help="SGLang's slots for recurrent states. Default: by the ratio.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    mamba_full_memory_ratio: Annotated[
        str | None,
        typer.Option(
            "--mamba-full-memory-ratio",
            metavar="X",
            help="SGLang's memory for states over that for tokens. Default: 0.9.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    mamba_scheduler_strategy: Annotated[
        str | None,
        typer.Option(
            "--mamba-scheduler-strategy",
            metavar="NAME",
            help="no_buffer, lazy or extra_buffer: 3, 4 or 5 slots a request.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    disable_radix_cache: Annotated[
        bool,
        typer.Option(
            "--disable-radix-cache",
            help="SGLang without a prefix cache: one slot a request.",
            rich_help_panel=ENGINE,
        ),
    ] = False,
    swa_full_tokens_ratio: Annotated[
        str | None,
        typer.Option(
            "--swa-full-tokens-ratio",
            metavar="SHARE",
            help="SGLang's tokens of windowed layers over full ones'. Default: 0.8.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    no_kv_unified: Annotated[
        bool,
        typer.Option(
            "--no-kv-unified",
            help="llama.cpp: every sequence has cells of its own.",
            rich_help_panel=ENGINE,
        ),
    ] = False,
    cross_kv_cache_fraction: Annotated[
        str | None,
        typer.Option(
            "--cross-kv-cache-fraction",
            metavar="SHARE",
            help="TensorRT-LLM's share of the pool for encoder rows.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    limit_mm_per_prompt: Annotated[
        str | None,
        typer.Option(
            "--limit-mm-per-prompt",
            metavar="TEXT",
            help="Images and videos a prompt, which vLLM profiles: image=1,video=0.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    shared_prefix_tokens: Annotated[
        str | None,
        typer.Option(
            "--shared-prefix-tokens",
            metavar="T",
            help="First tokens that all sequences have in common: whole blocks are held once.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    max_loras: Annotated[
        str | None,
        typer.Option(
            "--max-loras",
            metavar="N",
            help="vLLM's slots for adapters of one batch.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    max_lora_rank: Annotated[
        str | None,
        typer.Option(
            "--max-lora-rank",
            metavar="R",
            help="Rank that every slot is made for. Default: 16.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    kv_offload: Annotated[
        str | None,
        typer.Option(
            "--kv-offload",
            metavar="SIZE",
            help="Host memory of one replica for contexts that do not run: '64 GiB'.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    n_gpu_layers: Annotated[
        str | None,
        typer.Option(
            "--n-gpu-layers",
            metavar="N",
            help="llama.cpp's layers on GPUs, the output one of them; the rest on the host.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    cpu_offload_gb: Annotated[
        str | None,
        typer.Option(
            "--cpu-offload-gb",
            metavar="X",
            help="vLLM's GiB of weights per GPU that stay on the host.",
            rich_help_panel=ENGINE,
        ),
    ] = None,
    disable_hybrid_kv_cache_manager: Annotated[
        bool,
        typer.Option(
            "--disable-hybrid-kv-cache-manager",
            help="vLLM: windowed layers keep every token.",
            rich_help_panel=ENGINE,
        ),
    ] = False,
    disable_hybrid_swa_memory: Annotated[
        bool,
        typer.Option(
            "--disable-hybrid-swa-memory",
            help="SGLang: windowed layers keep every token.",
            rich_help_panel=ENGINE,
        ),
    ] = False,
    align: Annotated[
        str,
        typer.Option(
            "--align",
            metavar="N",
            help="Multiple that kernels store low-rank rows at.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = "16",
    lengths: Annotated[
        Path | None,
        typer.Option(
            "--lengths",
            metavar="FILE",
            help="Uneven lengths: one a line, or CSV or Parquet with --column. Also .gz.",
            rich_help_panel=LENGTHS,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            "--column", metavar="NAME", help="Column of --lengths.", rich_help_panel=LENGTHS
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="A request trace: Azure 2023/2024, Mooncake, BurstGPT. CSV, JSONL, Parquet, .gz, "
            "or a folder of them.",
            rich_help_panel=LENGTHS,
        ),
    ] = None,
    length_percentiles: Annotated[
        str | None,
        typer.Option(
            "--length-percentiles", metavar="TEXT", help="p50=2k,p95=32k", rich_help_panel=LENGTHS
        ),
    ] = None,
    require_sequences: RequireSequencesOption = None,
    require_tokens: RequireTokensOption = None,
    require_tpot_ms: RequireTpotOption = None,
    min_gpus: Annotated[
        bool,
        typer.Option(
            "--min-gpus",
            help="The fewest GPUs that hold --sequences.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = False,
    sequences: Annotated[
        str | None,
        typer.Option(
            "--sequences",
            metavar="N",
            help="Sequences for --min-gpus and --max-context.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    tpot_ms: TpotOption = None,
    speculative_tokens: SpeculativeOption = "1",
    accepted_tokens: AcceptedOption = "1",
    gpu_hour_usd: GpuHourOption = None,
    detail: Annotated[
        bool,
        typer.Option(
            "--detail", help="One row per term of the memory budget.", rich_help_panel=OUTPUT
        ),
    ] = False,
    launch: LaunchOption = False,
    budget_file: BudgetFileOption = None,
    from_log: Annotated[
        Path | None,
        typer.Option(
            "--from-log",
            metavar="FILE",
            help="Check against a server's own log. vLLM's, SGLang's, TensorRT-LLM's or "
            "llama.cpp's: printed beside predicted, line by line.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    write_budget: Annotated[
        Path | None,
        typer.Option(
            "--write-budget",
            metavar="FILE",
            help="Write the budget that --from-log measured to this new file.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> None:
    """Tokens and sequences that fit, per design, size and context.

    With --from-log it reads a server's own log instead, and prints what is predicted beside what
    the server printed.

    Example: lrkv-plan capacity llama-3.1-8b --gpu h100-sxm --attention lrkv:24
    """
