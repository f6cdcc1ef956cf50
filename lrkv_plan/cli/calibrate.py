"""``lrkv-plan calibrate``: how good are the constants?"""

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan.cli import (
    calibrate_fit,
    calibrate_run,
    calibrate_steps,
    calibrate_tensor_parallel,
)
from lrkv_plan.cli.given import StrictTyper
from lrkv_plan.cli.options import SpecDirOption, writes_table
from lrkv_plan.cli.plain_warnings import plain_warnings

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table
    from lrkv_plan.specs.hardware import HardwareProfile

app = StrictTyper(
    help="Measure decode calls, fit the kernel model to them, and judge it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
calibrate_fit.register(app)
calibrate_run.register(app)
calibrate_steps.register(app)
calibrate_tensor_parallel.register(app)


@app.callback()
def calibrate(context: typer.Context) -> None:
    """Measure decode calls, fit the kernel model to them, and judge it."""
    context.with_resource(plain_warnings())


@app.command("evaluate")
@writes_table
def evaluate(
    samples: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.csv[.gz]",
            help="One measured decode call a row. gpu, family, backend, kv_dtype, batch, kv_len, "
            "n_heads, n_kv_heads, head_dim, d_c, d_rope, latency_us [, regime, flag].",
        ),
    ],
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="Refit with whole head configurations left out. Needs scipy."
        ),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> "Table":
    """Errors of the shipped constants against measured calls.

    Example: lrkv-plan calibrate evaluate decode.csv.gz --format json
    """
    from lrkv_plan.calibration.evaluate import evaluate as evaluate_rows
    from lrkv_plan.calibration.samples import read_rows
    from lrkv_plan.loader import load_all_hardware, load_hardware
    from lrkv_plan.report.views.calibration import evaluation_table

    @cache
    def profile_of(gpu: str) -> "HardwareProfile":
        return load_hardware(gpu.replace("_", "-"), spec_dir=spec_dir)

    found = evaluate_rows(
        read_rows(samples),
        profile_of,
        relatives=load_all_hardware(spec_dir),
        held_out=held_out,
    )
    return evaluation_table(samples.name, held_out, found)


@app.command("evaluate-layers")
@writes_table
def evaluate_layers(
    tables: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.csv[.gz]|FOLDER",
            help="Measured operations of a layer. Matrices, experts, products, exchanges, "
            "recurrent updates, small kernels or whole MLA layers; columns say which.",
        ),
    ],
    held_out: Annotated[
        bool,
        typer.Option(
            "--held-out", help="Refit with whole shapes left out. Needs scipy and a minute."
        ),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> "Table":
    """Errors of shipped constants against measured operations.

    Example: lrkv-plan calibrate evaluate-layers matrices.csv --format json
    """
    from lrkv_plan.calibration.evaluate_layers import evaluate_layers as evaluate_tables
    from lrkv_plan.loader import load_all_hardware, load_hardware
    from lrkv_plan.report.views.layers import layer_evaluation_table

    @cache
    def profile_of(gpu: str) -> "HardwareProfile":
        return load_hardware(gpu.replace("_", "-"), spec_dir=spec_dir)

    found, unknown = evaluate_tables(
        tables, profile_of, relatives=load_all_hardware(spec_dir), held_out=held_out
    )
    return layer_evaluation_table(tables.name, held_out, found, unknown)
