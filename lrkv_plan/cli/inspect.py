"""``lrkv-plan inspect``: what a checkpoint's heads share, and how large their residuals are."""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan.cli.names import kv_formats, some_of
from lrkv_plan.cli.options import writes_table
from lrkv_plan.cli.panels import DEPLOYMENT, LOW_RANK, OUTPUT
from lrkv_plan.errors import UsageError
from lrkv_plan.files import check_target, write_whole

if TYPE_CHECKING:
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
            help="Ranks at which the base is fitted. auto (what is quick), all, none, or 16,32,64.",
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
            help="Plan ranks per layer under it. 50%, 1/3, '96 KiB/token', gqa:6.",
        ),
    ] = None,
    align: Annotated[
        str | None,
        typer.Option(
            "--align",
            metavar="N",
            help="Multiple that planned ranks must be; 1.",
            rich_help_panel=DEPLOYMENT,
        ),
    ] = None,
    position: Annotated[
        str | None,
        typer.Option(
            "--position",
            metavar="HOW",
            help="Of the planned model: none (default), rope_expand, rope_rank.",
            rich_help_panel=LOW_RANK,
        ),
    ] = None,
    kv_dtype: Annotated[
        str | None,
        typer.Option(
            "--kv-dtype",
            metavar="FORMAT",
            help="Format of the planned cache; bf16.",
            rich_help_panel=DEPLOYMENT,
            autocompletion=some_of(kv_formats),
        ),
    ] = None,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan-file",
            metavar="FILE.yaml",
            help="Write the planned model there.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Picture of the spectra: png, svg or pdf.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
) -> "Table":
    """Spectra of keys and values, diversity of heads, ranks under a budget.

    Example: lrkv-plan inspect ./my-model --layers 0-3 --energy 0.95
    """
    import lrkv_plan

    force, quiet = bool(context.params.get("force")), bool(context.params.get("quiet"))
    _check_outputs(context, plan_file, plot, has_budget=budget is not None, force=force)
    answer = lrkv_plan.inspect(
        checkpoint, layers=layers, energy=energy, fit_ranks=fit_ranks, alternations=alternations,
        budget=budget, align=align, position=position, kv_dtype=kv_dtype,
        progress=_progress(quiet=quiet),
    )  # fmt: skip
    if answer.planned_model is not None and plan_file is not None:
        from lrkv_plan.specs.model import model_to_yaml

        _write(plan_file, model_to_yaml(answer.planned_model), force=force, quiet=quiet)
    if plot is not None:
        from lrkv_plan.report.plots import picture

        drawn = picture(answer.figure(), _suffix(plot), width="double")
        _write(plot, drawn, force=force, quiet=quiet)
    table: Table = answer.table
    return table


def _check_outputs(
    context: typer.Context,
    plan_file: Path | None,
    plot: Path | None,
    *,
    has_budget: bool,
    force: bool,
) -> None:
    """Check every output before hours of work.

    Raises
    ------
    UsageError
        If a file cannot be written, or exists and --force is not given.
    """
    if plan_file is not None and not has_budget:
        raise UsageError("--plan-file needs a --budget to plan for")
    if plan_file is not None and plan_file.suffix not in (".yaml", ".yml"):
        raise UsageError(f"--plan-file {plan_file}: a model file ends in .yaml")
    if plot is not None:
        from lrkv_plan.report.plots import check_suffix

        check_suffix(_suffix(plot))
    output = context.params.get("output", "-")
    table = None if output == "-" else Path(output)
    for path in filter(None, (plan_file, plot, table)):
        check_target(path, force=force)


def _progress(*, quiet: bool) -> Callable[[int, int], None] | None:
    """A counter on a terminal's stderr, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        return None
    start = time.monotonic()

    def done(count: int, n_layers: int) -> None:
        left = (time.monotonic() - start) / count * (n_layers - count)
        end = "\n" if count == n_layers else ""
        sys.stderr.write(f"\rlayer {count} of {n_layers}, about {left:,.0f} s left   {end}")
        sys.stderr.flush()

    return done


def _write(path: Path, content: str | bytes, *, force: bool, quiet: bool) -> None:
    """Write a file beside the table and say so."""
    write_whole(path, content, force=force)
    if not quiet:
        typer.echo(f"wrote {path}", err=True)


def _suffix(path: Path) -> str:
    """The suffix of a picture, without its dot."""
    return path.suffix.lower().removeprefix(".")
