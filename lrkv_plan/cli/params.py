"""``lrkv-plan params``: what a design costs in weights."""

from typing import Annotated

import typer

from lrkv_plan.cli.options import AttentionOption, ModelsArgument, SpecDirOption, asks


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("params")(params)


@asks("params")
def params(
    model: ModelsArgument,
    attention: AttentionOption = None,
    match_params: Annotated[
        bool,
        typer.Option(
            "--match-params",
            help="Also the feed-forward width that keeps the count. That of parameters.",
        ),
    ] = False,
    spec_dir: SpecDirOption = None,
) -> None:
    """Key/value weights and the whole model's, per design.

    Example: lrkv-plan params llama-3.1-8b --attention mha --attention lrkv:24 --match-params
    """
