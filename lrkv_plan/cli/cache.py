"""``lrkv-plan cache``: what each design keeps per token, sequence and GPU."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import (
    AttentionOption,
    KvDtypesOption,
    ModelsArgument,
    SpecDirOption,
    TpSizesOption,
    asks,
)
from lrkv_plan.cli.panels import OUTPUT


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("cache")(cache)


@asks("cache")
def cache(
    model: ModelsArgument,
    attention: AttentionOption = None,
    context_tokens: Annotated[
        str | None,
        typer.Option(
            "--context-tokens",
            metavar="T[,T...]",
            help="Tokens cached per sequence; 8k is 8,192. Default: 8k, or the model's maximum.",
        ),
    ] = None,
    batch_size: Annotated[
        str, typer.Option("--batch-size", metavar="N", help="Sequences resident together.")
    ] = "1",
    kv_dtype: KvDtypesOption = "bf16",
    tp_size: TpSizesOption = "1",
    encoder_tokens: Annotated[
        str | None,
        typer.Option("--encoder-tokens", metavar="T", help="Encoder rows of cross-attention."),
    ] = None,
    detail: Annotated[
        bool, typer.Option("--detail", help="One row per cached tensor.", rich_help_panel=OUTPUT)
    ] = False,
    spec_dir: SpecDirOption = None,
) -> None:
    """Cache bytes per design and context.

    Example: lrkv-plan cache llama-3.1-8b --attention gqa:8 --attention lrkv:24 --context-tokens 8k
    """
