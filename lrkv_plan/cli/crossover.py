"""``lrkv-plan crossover``: where the ranking of two designs changes."""

import enum
from typing import Annotated

import typer

from lrkv_plan.cli.names import designs, one_of
from lrkv_plan.cli.options import (
    BatchOption,
    ContextOption,
    DpSizeOption,
    EngineOption,
    EpSizeOption,
    KvDtypesOption,
    ModelsArgument,
    PpSizeOption,
    QueryOption,
    RequiredGpus,
    SpecDirOption,
    TpSizeOption,
    WeightDtypeOption,
    WeightsOption,
    asks,
)


class Over(str, enum.Enum):
    """The variable along which designs are compared."""

    CONTEXT = "context_tokens"
    BATCH = "batch_size"
    RANK = "rank"
    QUERY = "query_tokens"
    TP = "tp_size"
    DP = "dp_size"
    EP = "ep_size"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("crossover")(crossover)


@asks("crossover")
def crossover(
    model: ModelsArgument,
    gpu: RequiredGpus,
    attention: Annotated[
        list[str],
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="Give two. Along the rank, the LRKV one is lrkv:RANK with any options.",
            autocompletion=one_of(designs),
        ),
    ],
    over: Annotated[
        Over,
        typer.Option(
            "--over",
            metavar="NAME",
            help="What to vary. context_tokens, batch_size, rank, query_tokens, tp_size, dp_size "
            "or ep_size.",
        ),
    ] = Over.CONTEXT,
    context_tokens: ContextOption = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    at_most: Annotated[
        str | None,
        typer.Option("--at-most", metavar="N", help="Largest value of the variable looked at."),
    ] = None,
    tp_size: TpSizeOption = "1",
    pp_size: PpSizeOption = "1",
    dp_size: DpSizeOption = "1",
    ep_size: EpSizeOption = "1",
    engine: EngineOption = "vllm",
    kv_dtype: KvDtypesOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    spec_dir: SpecDirOption = None,
) -> None:
    """Where one design becomes faster than another, exactly, with its band.

    Example: lrkv-plan crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention mla:512+64
    """
