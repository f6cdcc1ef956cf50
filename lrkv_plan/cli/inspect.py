"""``lrkv-plan inspect``: what a checkpoint's heads share, and how large their residuals are."""

from pathlib import Path
from typing import Annotated

import typer

from lrkv_plan.cli import inspect_inputs as inputs
from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import KvDtypeOption, writes_table
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


@writes_table
def inspect(
    context: typer.Context,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT_FOLDER", help="A folder of config.json and *.safetensors."
        ),
    ],
    layers: Annotated[
        str, typer.Option("--layers", metavar="LAYERS", help="all, or for example 0,5,10-12.")
    ] = "all",
    energy: Annotated[
        str,
        typer.Option("--energy", metavar="SHARE", help="Share of energy that ranks must keep."),
    ] = "0.9",
    fit_ranks: Annotated[
        str,
        typer.Option(
            "--fit-ranks",
            metavar="RANKS",
            help="Where the base is fitted: auto (what is quick), all, none, or 16,32,64.",
        ),
    ] = "auto",
    alternations: Annotated[
        str | None,
        typer.Option(
            "--alternations",
            metavar="N",
            help="Most turns of the fit at one rank.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="BUDGET",
            help="Plan ranks per layer under it: 50%, 1/3, '96 KiB/token', gqa:6.",
        ),
    ] = None,
    align: Annotated[
        str, typer.Option("--align", metavar="N", help="Multiple that planned ranks must be.")
    ] = "1",
    position: Annotated[
        str,
        typer.Option(
            "--position", metavar="HOW", help="Of the planned model: none, rope_expand, rope_rank."
        ),
    ] = "none",
    kv_dtype: KvDtypeOption = "bf16",
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan-file", metavar="FILE.yaml", help="Write the planned model there."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Picture of the spectra: png, svg or pdf."),
    ] = None,
) -> Table:
    """Residual spectra of keys and values, diversity of head maps, and ranks under a budget.

    Example: lrkv-plan inspect ./my-model --layers 0-3 --energy 0.95
    """
    if budget is None:
        refuse(("align", "position", "kv_dtype"), "is of the plan that --budget asks for")
    wanted = inputs.request(
        context, energy, fit_ranks, alternations, budget, align, position, kv_dtype,
        plan_file, plot,
    )  # fmt: skip
    inputs.one_library_thread()

    from lrkv_plan.checkpoint.inspection import inspect_layers
    from lrkv_plan.checkpoint.projections import attention_layers
    from lrkv_plan.report.inspect_views import inspect_table

    source = attention_layers(Path(checkpoint))
    chosen = inputs.chosen_layers(source, layers)
    source.check(chosen)
    plan_of = inputs.planner(source, chosen, wanted)
    found = inspect_layers(
        source,
        chosen,
        fit=wanted.fit,
        options=wanted.options,
        n_threads=inputs.n_threads(),
        done=inputs.progress(len(chosen), quiet=wanted.quiet),
    )
    stated = inputs.stated(source, checkpoint, chosen, wanted)
    plan = plan_of(found)
    table = inspect_table(stated, found, energy=wanted.energy, skipped=source.skipped, plan=plan)
    if plan is not None and plan_file is not None:
        from lrkv_plan.specs.writer import model_to_yaml

        inputs.write(plan_file, model_to_yaml(plan.model), wanted)
    if plot is not None:
        from lrkv_plan.report.plots import picture
        from lrkv_plan.report.spectra_figure import spectra_figure

        figure = spectra_figure(stated, found, energy=wanted.energy, remarks=table.remarks)
        inputs.write(plot, picture(figure, inputs.suffix(plot), width="double"), wanted)
    return table
