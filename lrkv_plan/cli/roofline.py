"""``lrkv-plan roofline``: intensity, ridge and bound of each design and decode path."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import (
    AttentionOption,
    BatchOption,
    ContextOption,
    KvDtypesOption,
    ModelsArgument,
    QueryOption,
    RequiredGpus,
    SpecDirOption,
    TpSizeOption,
    asks,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("roofline")(roofline)


@asks("roofline")
def roofline(
    model: ModelsArgument,
    gpu: RequiredGpus,
    attention: AttentionOption = None,
    context_tokens: ContextOption = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    units: Annotated[
        str,
        typer.Option(
            "--units", metavar="U[,U]", help="Peaks compared with. bf16 (tensor cores), fp32 ..."
        ),
    ] = "bf16,fp32",
    heads_per_tile: Annotated[
        str | None,
        typer.Option(
            "--heads-per-tile", metavar="N", help="Heads served by one read of a shared row."
        ),
    ] = None,
    kv_dtype: KvDtypesOption = "bf16",
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> None:
    """Arithmetic intensity, ridge and bound, per design, path and unit.

    Example: lrkv-plan roofline deepseek-v3 --gpu h200 --tp-size 8
    """
