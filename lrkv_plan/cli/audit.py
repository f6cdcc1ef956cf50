"""``lrkv-plan audit``: recompute printed claims and find what would print the same."""

from typing import Annotated

import typer

from lrkv_plan.cli.given import refuse
from lrkv_plan.cli.options import writes_table
from lrkv_plan.errors import UsageError, did_you_mean, shown
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
            help="Only these rows: match, explained, mismatch, not_computable. Repeatable.",
        ),
    ] = None,
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema of claim files instead.")
    ] = False,
) -> Table:
    """Recompute printed claims; exit 4 if one differs without an explanation that holds.

    Example: lrkv-plan audit mla
    """
    from lrkv_plan.auditing.claim import claim_files, read_claims
    from lrkv_plan.auditing.evaluate import Verdict, audit_file
    from lrkv_plan.report.views.audit import audit_table, file_input, schema_document

    if schema:
        refuse(["verdict"], "--schema prints the schema alone; leave it out")
        if claims is not None:
            raise UsageError("--schema prints the schema alone and takes no file")
        from lrkv_plan.auditing.claim import claim_schema

        return schema_document(claim_schema())
    known = [one.value for one in Verdict]
    for name in verdict or ():
        if name not in known:
            raise UsageError(
                f"--verdict {shown(name)}{did_you_mean(name, known)}; allowed: {', '.join(known)}"
            )
    files = claim_files(claims)
    rows = [row for path in files for row in audit_file(path)]
    return audit_table(rows, [file_input(path, read_claims(path)) for path in files], verdict or ())
