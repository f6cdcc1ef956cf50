"""``lrkv-plan hardware``: list and show hardware profiles."""

from typing import Annotated

import typer

from lrkv_plan.cli.given import StrictGroup, StrictTyper, refuse_before
from lrkv_plan.cli.options import SpecDirOption, writes_table
from lrkv_plan.report.tables import Table

app = StrictTyper(
    cls=StrictGroup,
    help="List the shipped hardware profiles, or show one.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
@writes_table
def hardware(ctx: typer.Context, spec_dir: SpecDirOption = None) -> Table | None:
    """List the shipped hardware profiles, or show one."""
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx.invoked_subcommand)
        return None
    from lrkv_plan.loader import HARDWARE_FOLDER, load_hardware, shipped_files
    from lrkv_plan.report.views.specs import hardware_table

    return hardware_table([load_hardware(p) for p in shipped_files(HARDWARE_FOLDER, spec_dir)])


@app.command("show")
@writes_table
def show(
    profile: Annotated[str, typer.Argument(metavar="GPU", help="A shipped name or a YAML file.")],
    spec_dir: SpecDirOption = None,
) -> Table:
    """One hardware profile, with the comments and sources of its file.

    Example: lrkv-plan hardware show h100-sxm
    """
    from lrkv_plan.documents import read_text
    from lrkv_plan.loader import find_hardware
    from lrkv_plan.report.views.specs import hardware_document

    found, path = find_hardware(profile, spec_dir=spec_dir)
    return hardware_document(found, read_text(path))
