"""``lrkv-plan hardware``: list and show hardware profiles, and start one."""

from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan.cli.given import StrictGroup, StrictTyper, refuse_before
from lrkv_plan.cli.names import gpus, one_of
from lrkv_plan.cli.options import NewNameArgument, SpecDirOption, writes_table

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table

app = StrictTyper(
    cls=StrictGroup,
    help="List the shipped hardware profiles, show one, or start your own.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
@writes_table
def hardware(ctx: typer.Context, spec_dir: SpecDirOption = None) -> "Table | None":
    """List the shipped hardware profiles, show one, or start your own."""
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx.invoked_subcommand)
        return None
    from lrkv_plan.loader import HARDWARE_FOLDER, load_hardware, shipped_files
    from lrkv_plan.report.views.specs import hardware_table

    return hardware_table([load_hardware(p) for p in shipped_files(HARDWARE_FOLDER, spec_dir)])


@app.command("show")
@writes_table
def show(
    profile: Annotated[
        str,
        typer.Argument(
            metavar="GPU", help="A shipped name or a YAML file.", autocompletion=one_of(gpus)
        ),
    ],
    spec_dir: SpecDirOption = None,
) -> "Table":
    """One hardware profile, with the comments and sources of its file.

    Example: lrkv-plan hardware show h100-sxm
    """
    from lrkv_plan.documents import read_text
    from lrkv_plan.loader import find_hardware
    from lrkv_plan.report.views.specs import hardware_document

    found, path = find_hardware(profile, spec_dir=spec_dir)
    return hardware_document(found, read_text(path))


@app.command("new")
@writes_table
def new(
    name: NewNameArgument,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="GPU",
            help="Start from the figures of this GPU.",
            autocompletion=one_of(gpus),
        ),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> "Table":
    """A commented file for a GPU of your own, to fill in.

    Example: lrkv-plan hardware new my-gpu --like h100-sxm -o my-gpu.yaml
    """
    from lrkv_plan.documents import read_yaml
    from lrkv_plan.errors import UsageError
    from lrkv_plan.loader import find_hardware, load_all_hardware
    from lrkv_plan.report.views.specs import template_document
    from lrkv_plan.specs.template import GPU_KEYS, gpu_template

    for profile in load_all_hardware(spec_dir):
        if name.lower() in (profile.name, *profile.aliases):
            raise UsageError(
                f"NAME {name}: is the GPU {profile.name} already; choose another, "
                f"and start from its figures with --like {profile.name}"
            )
    if like is None:
        text = gpu_template(name)
    else:
        found, path = find_hardware(like, spec_dir=spec_dir)
        text = gpu_template(name, like=read_yaml(path), like_name=found.name)
    return template_document(f"A GPU's file: {name}", GPU_KEYS, text)
