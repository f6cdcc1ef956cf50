"""``lrkv-plan models``: list, show, import and start model specs."""

from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan.cli.given import StrictGroup, StrictTyper, refuse_before
from lrkv_plan.cli.names import models as shipped
from lrkv_plan.cli.names import one_of
from lrkv_plan.cli.options import ModelArgument, NewNameArgument, SpecDirOption, load, writes_table

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table

app = StrictTyper(
    cls=StrictGroup,
    help="List the shipped models, show one, import a config.json, or start your own.",
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
@writes_table
def models(ctx: typer.Context, spec_dir: SpecDirOption = None) -> "Table | None":
    """List the shipped models, show one, import a config.json, or start your own."""
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
def show(model: ModelArgument, spec_dir: SpecDirOption = None) -> "Table":
    """One model as our YAML, whatever it was read from.

    Example: lrkv-plan models show qwen3-32b
    """
    from lrkv_plan.report.views.specs import model_document

    return model_document(load(model, spec_dir))


@app.command("import")
@writes_table
def import_model(model: ModelArgument) -> "Table":
    """A config.json as our YAML, with what was assumed as remarks.

    Example: lrkv-plan models import ./Qwen3-32B/config.json -o qwen3-32b.yaml
    """
    from lrkv_plan.report.views.specs import model_document

    return model_document(load(model))


@app.command("new")
@writes_table
def new(
    name: NewNameArgument,
    like: Annotated[
        str | None,
        typer.Option(
            "--like",
            metavar="MODEL",
            help="Start from the figures of this model.",
            autocompletion=one_of(shipped),
        ),
    ] = None,
    spec_dir: SpecDirOption = None,
) -> "Table":
    """A commented file for a model of your own, to fill in.

    Example: lrkv-plan models new my-model --like llama-3.1-8b -o my-model.yaml
    """
    from lrkv_plan.report.views.specs import template_document
    from lrkv_plan.specs.model import model_to_yaml
    from lrkv_plan.specs.template import MODEL_KEYS, blocks_of, model_template

    if like is None:
        text = model_template(name)
    else:
        found = load(like, spec_dir)
        text = model_template(name, like=blocks_of(model_to_yaml(found)), like_name=found.name)
    return template_document(f"A model's file: {name}", MODEL_KEYS, text)
