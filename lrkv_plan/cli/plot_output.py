"""What every ``plot`` command shares: a picture in a file, or its series in a table format."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import write_table
from lrkv_plan.errors import UsageError
from lrkv_plan.report.tables import Format
from lrkv_plan.whole_files import write_whole

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure

_PARAMETERS = {
    "output": (None, Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE",
            help="Picture to write: its suffix is png, svg or pdf. With --format, the series "
            "go there instead (- is stdout).",
        ),
    ]),
    "output_format": (None, Annotated[
        Format | None,
        typer.Option(
            "--format", "-f",
            help="Write the plotted series instead of a picture, to stdout or --output.",
        ),
    ]),
    "width": ("single", Annotated[
        str,
        typer.Option(
            "--width", metavar="COLUMN", help="single (3.4 inches) or double (7 inches)."
        ),
    ]),
    "force": (False, Annotated[
        bool, typer.Option("--force", help="Overwrite an existing output file.")
    ]),
    "no_color": (False, Annotated[
        bool, typer.Option("--no-color", help="Tables without colour.")
    ]),
    "quiet": (False, Annotated[
        bool, typer.Option("--quiet", "-q", help="Nothing on stderr but errors.")
    ]),
}  # fmt: skip


def writes_figure(command: Callable[..., "Figure"]) -> Callable[..., None]:
    """Give a command that returns a Figure the shared output options, and write what it returns."""

    @functools.wraps(command)
    def run(**values: Any) -> None:
        chosen = {name: values.pop(name) for name in _PARAMETERS}
        check_output(chosen["output"], chosen["output_format"])
        if chosen["output_format"] is not None:
            refuse(["width"], "is of a picture, and --format gives its series")
        write_figure(command(**values), **chosen)

    signature = inspect.signature(command)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)
        for name, (default, hint) in _PARAMETERS.items()
    ]
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*signature.parameters.values(), *added], return_annotation=None
    )
    hints = {name: hint for name, (_, hint) in _PARAMETERS.items()}
    run.__annotations__ = {**command.__annotations__, **hints, "return": None}
    del run.__wrapped__
    return run


def check_output(output: str | None, output_format: Format | None) -> None:
    """Refuse, before anything is computed, what cannot be written.

    Raises
    ------
    UsageError
        If neither a picture nor a format is asked for, both are, or the suffix is unknown.
    """
    from lrkv_plan.report.plots import SUFFIXES, check_suffix

    if output_format is None:
        if output is None or output == "-":
            raise UsageError(
                f"give --output FILE ending in {', '.join(SUFFIXES)}, or --format json or csv for "
                "the plotted series"
            )
        check_suffix(_suffix(output))
    elif output is not None and _suffix(output) in SUFFIXES:
        raise UsageError(
            f"--output {output} is a picture, --format {output_format.value} is the series; give "
            "one of them"
        )


def _suffix(output: str) -> str:
    return Path(output).suffix.lower().removeprefix(".")


def write_figure(
    figure: "Figure",
    *,
    output: str | None,
    output_format: Format | None,
    width: str,
    force: bool,
    no_color: bool,
    quiet: bool,
) -> None:
    """Write the picture, whole or not at all, or the series."""
    if output_format is not None:
        from lrkv_plan.report.figures import figure_table

        write_table(
            figure_table(figure), output_format=output_format, output=output or "-", force=force,
            no_color=no_color, quiet=quiet,
        )  # fmt: skip
        return
    from lrkv_plan.report.plots import picture

    assert output is not None, "checked before"
    write_whole(output, picture(figure, _suffix(output), width=width), force=force)
    if not quiet:
        for remark in figure.remarks:
            typer.echo(f"note: {remark}", err=True)
        typer.echo(f"wrote {output}", err=True)
