"""``lrkv-plan rank``: the largest LRKV rank that a cache budget allows."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import (
    AlignOption,
    EngineOption,
    GpuOption,
    KvDtypeOption,
    KvMemoryOption,
    ModelArgument,
    NGpusOption,
    SpecDirOption,
    TpSizeOption,
    UtilisationOption,
    WeightDtypeOption,
    WeightsOption,
    asks,
)
from lrkv_plan.cli.panels import LOW_RANK


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rank")(rank)


@asks("rank")
def rank(
    model: ModelArgument,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="Share of MHA, '50% of own', bytes or a design. 50%, 0.5 or 1/3 of MHA; '50% of "
            "own' of the model's own cache; '96 KiB/token' over the group, '24 KiB/token/gpu' on "
            "each GPU; or a design: gqa:6, mla:512+64.",
        ),
    ] = None,
    fit_sequences: Annotated[
        str | None,
        typer.Option(
            "--fit-sequences",
            metavar="N",
            help="Sequences that must fit on --gpu. Instead of --budget; each of --context-tokens.",
        ),
    ] = None,
    gpu: GpuOption = None,
    n_gpus: NGpusOption = None,
    engine: EngineOption = "vllm",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    utilisation: UtilisationOption = None,
    kv_memory: KvMemoryOption = None,
    align: AlignOption = "16",
    tp_size: TpSizeOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    groups: Annotated[
        str,
        typer.Option(
            "--groups",
            metavar="G",
            help="Shared key/value groups per layer.",
            rich_help_panel=LOW_RANK,
        ),
    ] = "1",
    position: Annotated[
        str,
        typer.Option(
            "--position",
            metavar="HOW",
            help="none, rope_expand, rope_rank or rope_decoupled.",
            rich_help_panel=LOW_RANK,
        ),
    ] = "none",
    rope_dim: Annotated[
        str | None,
        typer.Option(
            "--rope-dim", metavar="D", help="Width for rope_decoupled.", rich_help_panel=LOW_RANK
        ),
    ] = None,
    key_norm: Annotated[
        str,
        typer.Option(
            "--key-norm", metavar="HOW", help="none or rms_cached.", rich_help_panel=LOW_RANK
        ),
    ] = "none",
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens", metavar="T", help="Cached tokens where arithmetic is compared."
        ),
    ] = None,
    mla_rope_dim: Annotated[
        str | None,
        typer.Option(
            "--mla-rope-dim",
            metavar="D",
            help="Rope width of the MLA compared with.",
            rich_help_panel=LOW_RANK,
        ),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> None:
    """Largest LRKV rank within a cache budget, and what else fits it.

    Example: lrkv-plan rank lrkv-paper-2.5b --budget 50%
    """
