"""``lrkv-plan audit``: recompute printed claims and find what would print the same."""

from typing import TYPE_CHECKING, Annotated

import typer

from lrkv_plan.cli.options import ask, writes_table
from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("audit")(audit)


@writes_table
def audit(
    claims: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE.yaml|NAME",
            help="A claim file, or a shipped document: lrkv, mla. All shipped ones without it.",
        ),
    ] = None,
    verdict: Annotated[
        list[str] | None,
        typer.Option(
            "--verdict",
            metavar="VERDICT",
            help="Only these rows; repeatable. match, explained, mismatch, not_computable.",
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of claim files instead.")
    ] = False,
) -> "Table":
    """Recompute printed claims; exit 4 if one differs without an explanation that holds.

    Example: lrkv-plan audit mla
    """
    if not schema:
        return ask("audit", claims)
    from lrkv_plan.auditing.claim import claim_schema
    from lrkv_plan.report.views.audit import schema_document

    if claims is not None:
        raise UsageError("--schema prints the schema alone and takes no file")
    if verdict:
        raise UsageError("--verdict: --schema prints the schema alone; leave it out")
    return schema_document(claim_schema())
