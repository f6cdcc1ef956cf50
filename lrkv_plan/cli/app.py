"""The Typer application and its error boundary."""

import gc
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from lrkv_plan import __version__
from lrkv_plan.cli import (
    audit,
    cache,
    calibrate,
    calibrate_run,
    capacity,
    crossover,
    hardware,
    inspect,
    models,
    params,
    plan,
    plot,
    rank,
    report,
    roofline,
    shard,
    validate,
)
from lrkv_plan.cli.given import StrictTyper
from lrkv_plan.errors import PlanError


class PlanGroup(TyperGroup):
    """Turns a PlanError into one line on stderr and its exit code; --debug keeps the traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command behind the error boundary."""
        try:
            return super().invoke(ctx)
        except PlanError as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(error.exit_code) from None


app = StrictTyper(
    name="lrkv-plan",
    cls=PlanGroup,
    help="Which attention should a model cache with, how large may its rank be, what does it cost?",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lrkv-plan {__version__}")
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Which attention should a model cache with, how large may its rank be, what does it cost?"""


_ANSWERS = (plan, rank, cache, params, shard, capacity, crossover, roofline)
for _module in (*_ANSWERS, validate, audit, inspect, report):
    _module.register(app)
calibrate_run.register(calibrate.app)
app.add_typer(calibrate.app, name="calibrate")
app.add_typer(plot.app, name="plot")
app.add_typer(models.app, name="models")
app.add_typer(hardware.app, name="hardware")


def main() -> None:
    """Entry point of the installed script."""
    # A short process frees nothing that matters: without collections, and with all objects exempt
    # from the one at exit, a command takes about a seventh less time (benchmarks/README.md).
    gc.disable()
    try:
        app()
    except BrokenPipeError:
        # The reader (head, less) has seen enough; keep the interpreter from flushing again.
        sys.stdout = None
        sys.exit(0)
    finally:
        gc.freeze()
