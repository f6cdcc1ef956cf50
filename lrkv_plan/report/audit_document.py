"""The report on the LRKV documents: every claim audited, and the figures that can be made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.audit.claim_files import claim_files, read_claims
from lrkv_plan.audit.evaluate import Verdict, audit_file
from lrkv_plan.report.audit_figures import figure_parts, figure_sources
from lrkv_plan.report.audit_views import (
    EXPLAINED,
    INFERENCE,
    MATCH,
    audit_table,
    counts_table,
    file_input,
)
from lrkv_plan.report.document import Document, Highlight, Part, Section

if TYPE_CHECKING:
    from pathlib import Path

    from lrkv_plan.audit.claim import ClaimFile
    from lrkv_plan.audit.evaluate import AuditRow
    from lrkv_plan.report.tables import Table

# What is claimed leads: a phone shows the first columns.
_COLUMNS = ("says", "printed", "computed", "verdict", "found", "reason", "source", "claim")
DIFFERING = (Verdict.EXPLAINED.value, Verdict.MISMATCH.value)


def audit_document(command: str, progress: Callable[[str], None] = lambda _: None) -> Document:
    """The audit of all shipped claim files, and the figures of the review made again.

    Parameters
    ----------
    command : the command line that makes it again.
    progress : told the title of each document before its claims are computed.
    """
    documents: list[tuple[Path, ClaimFile]] = []
    rows: list[AuditRow] = []
    for path in claim_files(None):
        file = read_claims(path)
        progress(file.title)
        documents.append((path, file))
        rows += audit_file(path)
    progress("Figures")
    return Document(
        title="What the LRKV documents print, computed again",
        subtitle=(
            "Claims of a review of Low-Rank Key Value Attention, of the summary of an earlier "
            "version of that paper, and of an article on multi-head latent attention."
        ),
        command=command,
        highlights=tuple(_highlights(rows)),
        sections=(
            *_audit_sections(documents, rows),
            Section(
                key="figures",
                title="Figures made again",
                lead="Numbers are the review's figure numbers. Pictures are drawn from printed "
                "values and from computed caches; what no document read gives is left out.",
                parts=figure_parts(),
            ),
        ),
        sources=(*((file.title, file.source) for _, file in documents), *figure_sources()),
        common_remarks=(MATCH, INFERENCE, EXPLAINED),
    )


def _highlights(rows: Sequence[AuditRow]) -> Iterator[Highlight]:
    counted = Counter(row.verdict for row in rows)
    yield Highlight(label="Claims", value=str(len(rows)))
    for verdict, label, detail in (
        (Verdict.MATCH, "Match", "within the print's own precision"),
        (Verdict.EXPLAINED, "Differ, explained", "the recorded reason was checked and holds"),
        (Verdict.MISMATCH, "Differ, unexplained", ""),
        (Verdict.NOT_COMPUTABLE, "Not computable", "their inputs are not printed"),
    ):
        yield Highlight(label=label, value=str(counted[verdict]), detail=detail)


def _audit_sections(
    documents: Sequence[tuple[Path, ClaimFile]], rows: Sequence[AuditRow]
) -> Iterator[Section]:
    files = [file_input(path, file) for path, file in documents]

    def table(names: Sequence[str], verdicts: Sequence[str] = ()) -> Table:
        chosen = [file for file in files if file["name"] in names]
        return _plain(audit_table([r for r in rows if r.file in names], chosen, verdicts), chosen)

    names = [path.stem for path, _ in documents]
    only = " ".join(f"--verdict {verdict}" for verdict in DIFFERING)
    differing = table(names, DIFFERING)
    yield Section(
        key="differences",
        title="What does not add up",
        lead="Prints that their own inputs do not give. A reading is a change of inputs or units "
        "that gives the print: inference, not proof of what was done.",
        parts=(
            Part(key="verdicts", title="Claims by document", table=counts_table(rows, files),
                 commands=("lrkv-plan audit",)),
            Part(key="differences", title="Prints that differ", is_view=True,
                 table=_columns(
                     replace(differing, title=f"{len(differing.rows)} of {len(rows)} claims"),
                     without="verdict",
                 ),
                 commands=(f"lrkv-plan audit {only}",)),
        ),
    )  # fmt: skip
    yield Section(
        key="claims",
        title="Every claim",
        lead="Each printed value that could be computed from printed values, and those that "
        "could not. Readings are in the table above and in the CSV files.",
        parts=tuple(
            Part(
                key=f"claims-{path.stem}", title=file.title,
                table=_columns(table([path.stem]), without="found"),
                commands=(f"lrkv-plan audit {path.stem}",),
            )
            for path, file in documents
        ),
    )  # fmt: skip


def _columns(table: Table, *, without: str) -> Table:
    by_key = {column.key: column for column in table.columns}
    return replace(table, columns=[by_key[key] for key in _COLUMNS if key != without])


def _plain(table: Table, files: Sequence[Any]) -> Table:
    """Without the remarks that name sources: the report lists them once."""
    names = tuple(f"{file['name']}: " for file in files)
    return replace(table, remarks=tuple(r for r in table.remarks if not r.startswith(names)))
