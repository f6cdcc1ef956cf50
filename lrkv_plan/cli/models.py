"""``lrkv-plan models``: list, show and import model specs."""

import typer

from lrkv_plan.cli.given import StrictGroup, StrictTyper, refuse_before
from lrkv_plan.cli.options import ModelArgument, SpecDirOption, load, writes_table
from lrkv_plan.report.tables import Table

app = StrictTyper(
    cls=StrictGroup,
    help="List the shipped models, show one, or import a Hugging Face config.json.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
@writes_table
def models(ctx: typer.Context, spec_dir: SpecDirOption = None) -> Table | None:
    """List the shipped models, show one, or import a Hugging Face config.json."""
    if ctx.invoked_subcommand is not None:
        refuse_before(ctx.invoked_subcommand)
        return None
    from lrkv_plan.loader import MODEL_FOLDER, shipped_files
    from lrkv_plan.report.views.specs import models_table
    from lrkv_plan.specs.design import design_label

    found = [load(str(path)) for path in shipped_files(MODEL_FOLDER, spec_dir)]
    return models_table(found, [design_label(model) for model in found])


@app.command("show")
@writes_table
def show(model: ModelArgument, spec_dir: SpecDirOption = None) -> Table:
    """One model as our YAML, whatever it was read from.

    Example: lrkv-plan models show qwen3-32b
    """
    from lrkv_plan.report.views.specs import model_document

    return model_document(load(model, spec_dir))


@app.command("import")
@writes_table
def import_model(model: ModelArgument) -> Table:
    """Our YAML from a Hugging Face config.json, with what was assumed as remarks.

    Example: lrkv-plan models import ./Qwen3-32B/config.json -o qwen3-32b.yaml
    """
    from lrkv_plan.report.views.specs import model_document

    return model_document(load(model))
