"""``lrkv-plan roofline``: intensity, ridge and bound of each design and decode path."""

from typing import Annotated, Any

import typer

from lrkv_plan.cli.options import (
    AttentionOption,
    BatchOption,
    ContextOption,
    KvDtypeOption,
    ModelArgument,
    QueryOption,
    RequiredGpu,
    SpecDirOption,
    TpSizeOption,
    context_of,
    load,
    one_count,
    optional_count,
    writes_table,
)
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("roofline")(roofline)


@writes_table
def roofline(
    model: ModelArgument,
    gpu: RequiredGpu,
    attention: AttentionOption = None,
    context_tokens: ContextOption = None,
    batch_size: BatchOption = "1",
    query_tokens: QueryOption = "1",
    units: Annotated[
        str,
        typer.Option(
            "--units", metavar="U[,U]", help="Peaks to compare with: bf16 (tensor cores), fp32 ..."
        ),
    ] = "bf16,fp32",
    heads_per_tile: Annotated[
        str | None,
        typer.Option(
            "--heads-per-tile", metavar="N", help="Heads served by one read of a shared row."
        ),
    ] = None,
    kv_dtype: KvDtypeOption = "bf16",
    tp_size: TpSizeOption = "1",
    spec_dir: SpecDirOption = None,
) -> Table:
    """Arithmetic intensity, ridge and bound, per design, decode path and kind of unit.

    Example: lrkv-plan roofline deepseek-v3 --gpu h200 --tp-size 8
    """
    from lrkv_plan.latency.roofline import roofline_point
    from lrkv_plan.latency.work import paths_of
    from lrkv_plan.loader import load_hardware
    from lrkv_plan.memory.side_by_side import designs
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.report.views.time import roofline_table

    spec, hardware = load(model, spec_dir), load_hardware(gpu, spec_dir=spec_dir)
    told: dict[str, Any] = {
        "context_tokens": context_of(context_tokens, spec),
        "batch_size": one_count(batch_size, "--batch-size"),
        "query_tokens": one_count(query_tokens, "--query-tokens"),
        "tp_size": one_count(tp_size, "--tp-size"),
        "heads_per_tile": optional_count(heads_per_tile, "--heads-per-tile"),
    }
    points = [
        (label, roofline_point(design, hardware, path=path, units=unit, kv_dtype=kv_dtype, **told))
        for label, design in designs(spec, attention or ())
        for path in paths_of(design)
        for unit in (u.strip() for u in units.split(","))
    ]  # fmt: skip
    place = {"gpu": hardware.name, "kv_dtype": kv_dtype, "units": units}
    stated = {"model": model_inputs(spec), **place, **told}
    return roofline_table(spec, stated, points)
