"""``lrkv-plan schema``: the JSON Schema of what a command writes with ``--format json``."""

from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan.cli.options import writes_table

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("schema")(schema)


@writes_table
def schema(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="A command's words: plan, calibrate fit ..."),
    ],
) -> "Table":
    """JSON Schema (draft 2020-12) of what a command writes with --format json.

    Example: lrkv-plan schema capacity -o capacity.schema.json
    """
    from lrkv_plan.report.output_schema import output_schema
    from lrkv_plan.report.views.audit import schema_document

    found = output_schema(" ".join(command))
    return schema_document(found, title=str(found["title"]))
