"""``lrkv-plan plot``: pictures of time: roofline, crossover map and the parts of a step."""

import enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan.cli import capacity_inputs as inputs
from lrkv_plan.cli.capacity_options import WeightDtypeOption, WeightsOption
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import (
    AttentionOption,
    KvDtypeOption,
    ModelArgument,
    SpecDirOption,
    TpSizeOption,
    context_of,
    load,
    one_count,
    optional_count,
    token_list,
)
from lrkv_plan.cli.plot_output import writes_figure
from lrkv_plan.cli.time_options import (
    BatchOption,
    ContextOption,
    QueryOption,
    RequiredGpu,
)
from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure


class MapOver(str, enum.Enum):
    """The x axis of a crossover map."""

    RANK = "rank"
    BATCH = "batch_size"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("roofline")(roofline)
    app.command("crossover-map")(crossover_map)
    app.command("step-stack")(step_stack)


@writes_figure
def roofline(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: AttentionOption = None,
    every_path: Annotated[
        bool, typer.Option("--every-path", help="Place each decode path of a design.")
    ] = False,
    units: Annotated[
        str,
        typer.Option(
            "--units", metavar="U[,U]", help="Ceilings to draw: bf16 (tensor cores), fp32 ..."
        ),
    ] = "bf16,fp32",
    context_tokens: ContextOption = None,
    query_tokens: QueryOption = "1",
    heads_per_tile: Annotated[
        str | None,
        typer.Option(
            "--heads-per-tile", metavar="N", help="Heads served by one read of a shared row."
        ),
    ] = None,
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> "Figure":
    """A GPU's datasheet roofline with designs placed on it.

    Example: lrkv-plan plot roofline lrkv-paper-2.5b --gpu h100-sxm --attention mha
    --attention lrkv:55 --attention lrkv:55,position=rope_expand -o roofline.png
    """  # fmt: skip
    from lrkv_plan.calculators.comparison import designs
    from lrkv_plan.report.series.roofline import roofline as series
    from lrkv_plan.specs.loader import load_hardware

    spec = load(model, spec_dir)
    return series(
        spec,
        designs(spec, attention or ()),
        load_hardware(gpu, spec_dir=spec_dir),
        context_tokens=context_of(context_tokens, spec),
        kv_dtype=kv_dtype,
        tp_size=one_count(tp_size, "--tp-size"),
        query_tokens=one_count(query_tokens, "--query-tokens"),
        heads_per_tile=optional_count(heads_per_tile, "--heads-per-tile"),
        every_path=every_path,
        units=[unit.strip() for unit in units.split(",")],
    )


@writes_figure
def crossover_map(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: Annotated[
        list[str],
        typer.Option(
            "--attention",
            metavar="DESIGN",
            help="Give two. Over the rank, the LRKV one is lrkv:RANK with any options.",
        ),
    ],
    over: Annotated[MapOver, typer.Option("--over", help="The x axis.")] = MapOver.RANK,
    context_tokens: Annotated[
        str, typer.Option("--context-tokens", metavar="LOW,HIGH", help="The y axis.")
    ] = "128,128k",
    at_most: Annotated[
        str | None,
        typer.Option("--at-most", metavar="N", help="Largest rank, or batch (default 256)."),
    ] = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> "Figure":
    """Which of two designs decodes faster, over context and rank or context and batch.

    Example: lrkv-plan plot crossover-map llama-2-7b --gpu h200 --attention mha --attention lrkv:48
    --over batch_size -o map.png
    """  # fmt: skip
    from lrkv_plan.engines.crossover_grid import column_labels, map_columns
    from lrkv_plan.report.captions import caption, gpus
    from lrkv_plan.report.series.crossovers import crossover_map as series
    from lrkv_plan.report.spec_views import model_inputs
    from lrkv_plan.specs.loader import load_all_hardware, load_hardware

    if over is MapOver.BATCH:
        refuse(["batch_size"], "is what --over batch_size varies; --at-most bounds it")
    limits = token_list(context_tokens, "--context-tokens")
    if len(attention) != 2 or len(limits) != 2:
        raise UsageError("give two designs (--attention) and LOW,HIGH for --context-tokens")
    spec, hardware = load(model, spec_dir), load_hardware(gpu, spec_dir=spec_dir)
    size = one_count(tp_size, "--tp-size")
    columns = map_columns(
        spec,
        (attention[0], attention[1]),
        hardware,
        over=over.value,
        at_most=optional_count(at_most, "--at-most"),
        kv_dtype=kv_dtype,
        weight_dtype=weight_dtype,
        weight_bytes=inputs.size(weights, "--weights"),
        tp_size=size,
        relatives=load_all_hardware(spec_dir),
    )
    return series(
        columns,
        column_labels(attention, over.value),
        over=over.value,
        low=limits[0],
        high=limits[1],
        batch_size=one_count(batch_size, "--batch-size"),
        query_tokens=one_count(query_tokens, "--query-tokens"),
        where=caption(spec.name, hardware.name, gpus(size), f"{kv_dtype} cache"),
        inputs={
            "model": model_inputs(spec), "gpu": hardware.name, "attention": attention,
            "kv_dtype": kv_dtype, "weight_dtype": weight_dtype or spec.weight_dtype,
            "tp_size": size,
        },
    )  # fmt: skip


@writes_figure
def step_stack(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: AttentionOption = None,
    context_tokens: ContextOption = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    kv_dtype: KvDtypeOption = "bf16",
    weight_dtype: WeightDtypeOption = None,
    weights: WeightsOption = None,
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> "Figure":
    """Where a decode step's time goes: attention, weights, all-reduce and overhead.

    Example: lrkv-plan plot step-stack llama-3.1-8b --gpu h200 --attention mha --attention gqa:8
    --batch-size 32 -o step.png
    """  # fmt: skip
    from lrkv_plan.calculators.comparison import designs
    from lrkv_plan.calculators.step_model import step_model
    from lrkv_plan.report.captions import caption, gpus
    from lrkv_plan.report.series.steps import step_stack as series
    from lrkv_plan.report.spec_views import model_inputs
    from lrkv_plan.specs.loader import load_all_hardware, load_hardware

    spec, hardware = load(model, spec_dir), load_hardware(gpu, spec_dir=spec_dir)
    size = one_count(tp_size, "--tp-size")
    told: dict[str, Any] = {
        "kv_dtype": kv_dtype, "weight_dtype": weight_dtype, "tp_size": size,
        "weight_bytes": inputs.size(weights, "--weights"),
    }  # fmt: skip
    relatives = load_all_hardware(spec_dir)
    return series(
        [
            (label, step_model(one, hardware, relatives=relatives, **told))
            for label, one in designs(spec, attention or ())
        ],
        context_tokens=context_of(context_tokens, spec),
        batch_size=one_count(batch_size, "--batch-size"),
        query_tokens=one_count(query_tokens, "--query-tokens"),
        where=caption(spec.name, hardware.name, gpus(size), f"{kv_dtype} cache"),
        inputs={"model": model_inputs(spec), "gpu": hardware.name, **told},
    )
