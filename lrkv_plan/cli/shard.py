"""``lrkv-plan shard``: what tensor parallelism does to each design's cache."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import (
    AttentionOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    asks,
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("shard")(shard)


@asks("shard")
def shard(
    model: ModelArgument,
    attention: AttentionOption = None,
    tp_size: Annotated[
        str, typer.Option("--tp-size", metavar="P[,P...]", help="GPUs that share the model.")
    ] = "1,2,4,8",
    kv_dtype: KvDtypeOption = "bf16",
    spec_dir: SpecDirOption = None,
) -> None:
    """Cache per GPU, in all, and how much of it is repeated, per policy.

    Example: lrkv-plan shard llama-3.1-70b --attention gqa:8 --attention lrkv:32 --tp-size 4,8,16
    """
