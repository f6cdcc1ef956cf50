"""``--plot FILE`` beside a table: checked before the work, drawn after it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from lrkv_plan.questions.picture import Picture


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
