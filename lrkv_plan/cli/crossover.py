"""``lrkv-plan crossover``: where the ranking of two designs changes."""

import enum
from typing import Annotated

import typer

from lrkv_plan.cli import options as inputs
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import (
    BatchOption,
    ContextOption,
    KvDtypeOption,
    ModelArgument,
    QueryOption,
    RequiredGpu,
    SpecDirOption,
    TpSizeOption,
    WeightDtypeOption,
    WeightsOption,
    context_of,
    load,
    one_count,
    optional_tokens,
    writes_table,
)
from lrkv_plan.errors import UsageError
from lrkv_plan.report.tables import Table


class Over(str, enum.Enum):
    """The variable along which designs are compared."""

    CONTEXT = "context_tokens"
    BATCH = "batch_size"
    RANK = "rank"
    QUERY = "query_tokens"
    TP = "tp_size"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("crossover")(crossover)


@writes_table
def crossover(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: Annotated[
        list[str],
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="Give two. Along the rank, the LRKV one is lrkv:RANK with any options.",
        ),
    ],
    over: Annotated[Over, typer.Option("--over", help="What to vary.")] = Over.CONTEXT,
    context_tokens: ContextOption = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    at_most: Annotated[
        str | None,
        typer.Option("--at-most", metavar="N", help="Largest value of the variable looked at."),
    ] = None,
    tp_size: TpSizeOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    spec_dir: SpecDirOption = None,
) -> Table:
    """The exact place where one design becomes faster than another, and its band.

    Example: lrkv-plan crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention mla:512+64
    """
    from lrkv_plan.latency.crossover import compare, rank_names
    from lrkv_plan.loader import load_all_hardware, load_hardware
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.report.views.time import crossover_table

    if len(attention) != 2:
        raise UsageError(f"--attention: give two designs to compare, not {len(attention)}")
    if over.value != "rank":
        refuse([over.value], f"is what --over {over.value} varies; --at-most bounds it")
    if over is Over.TP:
        refuse(["weights"], "are of one size, and --over tp_size varies it; leave it out")
    spec = load(model, spec_dir)
    point = {
        "context_tokens": context_of(context_tokens, spec),
        "batch_size": one_count(batch_size, "--batch-size"),
        "query_tokens": one_count(query_tokens, "--query-tokens"),
        "tp_size": one_count(tp_size, "--tp-size"),
    }
    answer = compare(
        spec,
        (attention[0], attention[1]),
        load_hardware(gpu, spec_dir=spec_dir),
        over=over.value,
        point=point,
        at_most=optional_tokens(at_most, "--at-most"),
        kv_dtype=kv_dtype,
        weight_dtype=weight_dtype,
        weight_bytes=inputs.parse_size(weights, "--weights"),
        relatives=load_all_hardware(spec_dir),
    )
    stated = {
        "model": model_inputs(spec),
        "gpu": gpu,
        "over": over.value,
        "kv_dtype": kv_dtype,
        "weight_dtype": weight_dtype or spec.weight_dtype,
        "weight_bytes_per_gpu": inputs.parse_size(weights, "--weights"),
        **point,
    }
    labels = rank_names(spec, attention, "RANK") if over is Over.RANK else attention
    return crossover_table(spec, stated, labels, answer.crossover, answer.sides, answer.rests_on)
