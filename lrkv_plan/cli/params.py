"""``lrkv-plan params``: what a design costs in weights."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import AttentionOption, ModelArgument, SpecDirOption, load, writes_table
from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("params")(params)


@writes_table
def params(
    model: ModelArgument,
    attention: AttentionOption = None,
    match_params: Annotated[
        bool,
        typer.Option(
            "--match-params",
            help="Also the feed-forward width that restores the model's parameter count.",
        ),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> Table:
    """Key/value weights and the whole model's, per design.

    Example: lrkv-plan params llama-3.1-8b --attention mha --attention lrkv:24 --match-params
    """
    from lrkv_plan.memory.side_by_side import params_rows
    from lrkv_plan.report.views.cache import params_table

    spec = load(model, spec_dir)
    rows = params_rows(spec, attention or (), match_params=match_params)
    return params_table(spec, rows, match_params)
