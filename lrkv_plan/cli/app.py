"""The Typer application; its error boundary is ``cli.boundary``."""

import gc
import os
import signal
from typing import Annotated

import typer

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
from lrkv_plan.cli.boundary import INTERRUPTED, PlanGroup
from lrkv_plan.cli.given import StrictTyper

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
    """Run the command line of this process."""
    # A short process frees nothing that matters: without collections, and with all objects exempt
    # from the one at exit, a command takes about a seventh less time (benchmarks/README.md).
    gc.disable()
    try:
        app()
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            os._exit(INTERRUPTED)  # threads that still compute are not waited for
        raise
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nothing is left to interrupt
        gc.freeze()
