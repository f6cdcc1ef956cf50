"""``lrkv-plan calibrate fit`` and ``show``: constants from samples, and what a profile rests on."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan import words
from lrkv_plan.cli.names import gpus, some_of
from lrkv_plan.cli.options import SpecDirOption, writes_table
from lrkv_plan.cli.panels import OUTPUT
from lrkv_plan.cli.result_folder import is_folder, result_folder

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("fit")(fit)
    app.command("show")(show)


@writes_table
def fit(
    samples: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|SAMPLES.csv",
            help="What `calibrate run` left, or measured calls. Those have the columns that "
            "`calibrate evaluate` takes, and --gpu says where they were measured.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            parser=result_folder,
            help="Folder for the profile and the report. Default: that of the samples.",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="PROFILE",
            help="Profile that the fitted shares refer to. Its bandwidth and peaks. Default: the "
            "shipped one of the measured device, or what the run measured.",
            autocompletion=some_of(gpus),
        ),
    ] = None,
    max_error: Annotated[
        str,
        typer.Option(
            "--max-error",
            metavar="SHARE",
            help="Held-out median error above which a path is refused.",
        ),
    ] = "15%",
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Overwrite earlier results, and keep a noisy or poor fit, labelled.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Nothing on stderr but errors.", rich_help_panel=OUTPUT),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> "Table":
    """Fit the kernel model to measured calls, judge it on others.

    Example: lrkv-plan calibrate fit here --max-error 10%
    """
    from lrkv_plan.calibration.fit_run import holds_decode_samples, require_scipy
    from lrkv_plan.cli.progress import progress_line

    require_scipy()
    limit = float(words.share("max_error", max_error))
    is_run = is_folder(samples)
    folder = output or (samples if is_run else samples.parent)
    with progress_line(quiet) as told:
        told("fitting")
        if is_run or holds_decode_samples(samples):
            table, written = _fit_run(samples, folder, gpu, limit, force, spec_dir)
        else:
            table, written = _fit_table(samples, folder, gpu, limit, force, spec_dir)
    if not quiet:
        for path in written:
            typer.echo(f"wrote {path}", err=True)
    return table


def _fit_run(
    samples: Path, folder: Path, gpu: str | None, limit: float, force: bool, spec_dir: Path | None
) -> "tuple[Table, list[Path]]":
    from lrkv_plan.calibration.fit_run import fit_run
    from lrkv_plan.report.views.calibration import fit_table, write_result

    result = fit_run(samples, gpu=gpu, max_error=limit, spec_dir=spec_dir)
    written = write_result(result, folder, force=force)
    return fit_table(result, force=force), written


def _fit_table(
    samples: Path, folder: Path, gpu: str | None, limit: float, force: bool, spec_dir: Path | None
) -> "tuple[Table, list[Path]]":
    from lrkv_plan.calibration.table_fit import fit_table, write_profile
    from lrkv_plan.report.views.calibration import table_fit_table

    result = fit_table(samples, gpu=gpu, max_error=limit, spec_dir=spec_dir)
    written = write_profile(result, folder, force=force)
    return table_fit_table(result, force=force), written


@writes_table
def show(
    source: Annotated[
        str,
        typer.Argument(
            metavar="DIR|PROFILE",
            help="Folder of a run, or a profile. A YAML file or a shipped name.",
        ),
    ],
    spec_dir: SpecDirOption = None,
) -> "Table":
    """Constants, intervals, errors and provenance.

    Example: lrkv-plan calibrate show here
    """
    if "\0" not in source and is_folder(Path(source)):
        from lrkv_plan.calibration.fit_run import fit_run, require_scipy
        from lrkv_plan.report.views.calibration import shown_run

        require_scipy()
        return shown_run(fit_run(Path(source), spec_dir=spec_dir))
    from lrkv_plan.loader import load_hardware
    from lrkv_plan.report.views.calibration import profile_table

    return profile_table(load_hardware(source, spec_dir=spec_dir))
