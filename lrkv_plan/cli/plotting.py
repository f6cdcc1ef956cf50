"""``--plot FILE`` beside a table: checked before the work, drawn after it."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from lrkv_plan.cli.options import asked_result

if TYPE_CHECKING:
    from lrkv_plan.questions.picture import Picture
    from lrkv_plan.report.tables import Table


def answered(
    question: str,
    subject: Any,
    plot: Path | None,
    context: typer.Context,
    draw: "Callable[[Any], Picture]",
    *,
    apart: Iterable[str] = (),
    **more: Any,
) -> "Table":
    """The answer of a public function to the options on the command line, its picture written.

    Raises
    ------
    UsageError
        If the picture's file could not be written; told before any work.
    """
    check_plot(plot, context)
    found = asked_result(question, subject, apart=(*apart, "plot"), **more)
    if plot is not None:
        write_plot(draw(found), plot, context)
    table: Table = found.table
    return table


def check_plot(plot: Path | None, context: typer.Context) -> None:
    """Refuse a picture's file that could not be written.

    Raises
    ------
    UsageError
        If its ending is none of a picture, or it is there and --force is not given.
    """
    if plot is None:
        return
    from lrkv_plan.files import check_target
    from lrkv_plan.report.plots import check_suffix

    check_suffix(plot.suffix.lower().removeprefix("."))
    check_target(plot, force=_is(context, "force"))


def write_plot(picture: "Picture", plot: Path, context: typer.Context) -> None:
    """Write the picture and say so."""
    picture.save(plot, force=_is(context, "force"))
    if not _is(context, "quiet"):
        typer.echo(f"wrote {plot}", err=True)


def _is(context: typer.Context, flag: str) -> bool:
    value: Any = context.params.get(flag)
    return bool(value)
