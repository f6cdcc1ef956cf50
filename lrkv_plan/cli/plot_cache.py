"""``lrkv-plan plot``: pictures of cache, rank, capacity and published loss."""

from typing import TYPE_CHECKING, Annotated

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
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import (
    AlignOption,
    AttentionOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    TpSizeOption,
    context_of,
    count_list,
    load,
    one_count,
    token_list,
)
from lrkv_plan.cli.plot_output import writes_figure

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.specs.low_rank_options import LowRankOptions

GroupsOption = Annotated[
    str, typer.Option("--groups", metavar="G", help="Shared key/value groups per layer.")
]
PositionOption = Annotated[
    str,
    typer.Option(
        "--position", metavar="HOW", help="none, rope_expand, rope_rank or rope_decoupled."
    ),
]
RopeDimOption = Annotated[
    str | None, typer.Option("--rope-dim", metavar="D", help="Width for rope_decoupled.")
]
KeyNormOption = Annotated[
    str, typer.Option("--key-norm", metavar="HOW", help="none or rms_cached.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("cache-vs-rank")(cache_vs_rank)
    app.command("rank-sweep")(rank_sweep)
    app.command("capacity-vs-context")(capacity_vs_context)
    app.command("payload-vs-loss")(payload_vs_loss)


@writes_figure
def cache_vs_rank(
    model: ModelArgument,
    heads: Annotated[
        str | None,
        typer.Option("--heads", metavar="H[,H...]", help="Head counts. Default: the model's own."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="A line at 50%, 1/3 ...; with one head count also '96 KiB/token' or gqa:6.",
        ),
    ] = None,
    align: AlignOption = "16",
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    groups: GroupsOption = "1",
    position: PositionOption = "none",
    rope_dim: RopeDimOption = None,
    key_norm: KeyNormOption = "none",
    spec_dir: SpecDirOption = None,
) -> "Figure":
    """LRKV's cache against its rank, with the budget and the aligned ranks that meet it.

    Example: lrkv-plan plot cache-vs-rank lrkv-paper-2.5b --heads 6,18,32 --budget 50% -o rank.png
    """  # fmt: skip
    from lrkv_plan.report.series.cache_vs_rank import cache_vs_rank as series

    return series(
        load(model, spec_dir),
        heads=count_list(heads, "--heads") if heads else (),
        budget=budget,
        alignment=one_count(align, "--align"),
        kv_dtype=kv_dtype,
        tp_size=one_count(tp_size, "--tp-size"),
        options=_variant(groups, position, rope_dim, key_norm),
    )


@writes_figure
def rank_sweep(
    model: ModelArgument,
    align: AlignOption = "16",
    context_tokens: Annotated[
        str | None,
        typer.Option("--context-tokens", metavar="T", help="Where arithmetic is compared."),
    ] = None,
    gpu: GpuOption = None,
    engine: EngineOption = "vllm",
    n_gpus: NGpusOption = None,
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    groups: GroupsOption = "1",
    position: PositionOption = "none",
    rope_dim: RopeDimOption = None,
    key_norm: KeyNormOption = "none",
    spec_dir: SpecDirOption = None,
) -> "Figure":
    """Cache, K/V weights and arithmetic against the rank; with --gpu also the sequences that fit.

    Example: lrkv-plan plot rank-sweep llama-2-7b --gpu h100-sxm --width double -o sweep.png
    """
    from lrkv_plan.report.series.rank_sweep import rank_sweep as series

    spec = load(model, spec_dir)
    context = context_of(context_tokens, spec)
    deployment = None
    if gpu is None and kv_memory is None:
        refuse(
            ("engine", "n_gpus", "weight_dtype", "weights", "utilisation"),
            "counts only with a GPU (--gpu) or a pool (--kv-memory); leave it out",
        )
    inputs.refuse_beside_pool(kv_memory, is_timed=False)
    if gpu is not None or kv_memory is not None:
        deployment = inputs.one_deployment(
            model_text=model, model=spec, gpu=gpu, engine=engine, context_tokens=context,
            kv_dtype=kv_dtype, tp_size=one_count(tp_size, "--tp-size"), n_gpus=n_gpus,
            weight_dtype=weight_dtype,
            weights=weights, utilisation=utilisation, kv_memory=kv_memory,
            alignment=one_count(align, "--align"), spec_dir=spec_dir,
        )  # fmt: skip
    return series(
        spec,
        alignment=one_count(align, "--align"),
        kv_dtype=kv_dtype,
        tp_size=one_count(tp_size, "--tp-size"),
        context_tokens=context,
        options=_variant(groups, position, rope_dim, key_norm),
        deployment=deployment,
    )


@writes_figure
def capacity_vs_context(
    model: ModelArgument,
    gpu: GpuOption = None,
    attention: AttentionOption = None,
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T,T[,T...]",
            help="Lengths. Default: powers of two from 1k to the model's maximum, or 128k.",
        ),
    ] = None,
    engine: EngineOption = "vllm",
    n_gpus: NGpusOption = None,
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: Annotated[
        str,
        typer.Option("--align", metavar="N", help="Multiple that kernels store low-rank rows at."),
    ] = "16",
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> "Figure":
    """Sequences that fit against their length, one line per design.

    Example: lrkv-plan plot capacity-vs-context llama-3.1-8b --gpu h100-sxm --attention mha
    --attention gqa:8 --attention lrkv:24 -o capacity.png
    """  # fmt: skip
    from dataclasses import replace

    from lrkv_plan.calculators.comparison import designs
    from lrkv_plan.engines.answers import capacity_answers
    from lrkv_plan.report.series.capacity import capacity_vs_context as series
    from lrkv_plan.report.series.capacity import default_contexts

    spec = load(model, spec_dir)
    contexts = (
        token_list(context_tokens, "--context-tokens") if context_tokens else default_contexts(spec)
    )
    inputs.refuse_beside_pool(kv_memory, is_timed=False)
    first = inputs.one_deployment(
        model_text=model, model=spec, gpu=gpu, engine=engine, context_tokens=contexts[0],
        kv_dtype=kv_dtype, tp_size=one_count(tp_size, "--tp-size"), n_gpus=n_gpus,
        weight_dtype=weight_dtype,
        weights=weights, utilisation=utilisation, kv_memory=kv_memory,
        alignment=one_count(align, "--align"), spec_dir=spec_dir,
    )  # fmt: skip
    asked = [
        replace(first, settings=replace(first.settings, context_tokens=context))
        for context in sorted(set(contexts))
    ]
    chosen = designs(spec, attention or ())
    inputs.refuse_alignment(chosen, first.rank_alignment)
    return series(spec, capacity_answers(chosen, asked))


@writes_figure
def payload_vs_loss(
    scale: Annotated[
        list[str] | None,
        typer.Option(
            "--scale", metavar="NAME", help="2.5B, 128M, 512M or 6.3B; repeat for a panel each."
        ),
    ] = None,
) -> "Figure":
    """Cache against the final cross-entropies that the LRKV paper prints.

    Example: lrkv-plan plot payload-vs-loss --width double -o loss.png
    """
    from lrkv_plan.report.series.published import payload_vs_loss as series

    return series(scale or ("2.5B", "128M"))


def _variant(groups: str, position: str, rope_dim: str | None, key_norm: str) -> "LowRankOptions":
    from lrkv_plan.specs.low_rank_options import LowRankOptions

    return LowRankOptions(
        n_shared_groups=one_count(groups, "--groups"),
        position=position,
        rope_dim=one_count(rope_dim, "--rope-dim") if rope_dim else 0,
        key_norm=key_norm,
    )
