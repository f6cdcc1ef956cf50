"""The report on the LRKV documents: every claim audited, their figures made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lrkv_plan
from lrkv_plan.auditing.claim import claim_files, read_claims
from lrkv_plan.auditing.evaluate import Verdict, audit_file
from lrkv_plan.report.document import Document, Highlight, Part, Section
from lrkv_plan.report.series.cache_vs_rank import cache_vs_rank
from lrkv_plan.report.series.published import FACTS, effective_ranks, loss_by_size, payload_vs_loss
from lrkv_plan.report.tables import Column, Table
from lrkv_plan.report.views.audit import (
    EXPLAINED,
    INFERENCE,
    MATCH,
    audit_table,
    counts_table,
    file_input,
    losses_table,
    rotation_table,
    scale_table,
    tasks_table,
)
from lrkv_plan.specs.published import read_published_loss, read_published_scores

if TYPE_CHECKING:
    from lrkv_plan.auditing.claim import ClaimFile
    from lrkv_plan.auditing.evaluate import AuditRow
    from lrkv_plan.schema import Source
    from lrkv_plan.specs.published import PublishedLoss, PublishedScores

SCORES = Path(__file__).parent / "published_scores.yaml"
HEADS = (6, 12, 18, 32)  # of 128M, 512M, 2.5B and 6.3B
MODEL, BUDGET = "lrkv-paper-2.5b", "50%"

# Figure of the review with its subject, and what is made again.
_INVENTORY = (
    ("1: architecture", "a drawing without values"),
    ("2: associative decoding", "a drawing without values"),
    ("3: cache by rank and heads", "computed, for four of the paper's head counts"),
    ("4: cache against loss, 2.5B", "all five families; MLA's cache as printed, GQA's assumed"),
    ("5: rank sweep, 128M", "four of five ranks; the fifth is not given"),
    ("6: change per task, 2.5B", "not the figure: two of five tasks, as a table"),
    ("7: loss at 8,192 tokens, 512M", "LRKV and MHA; other families' losses are not given"),
    ("8: effective rank, 2.5B", "the four values that are given"),
    ("9: rotation out of the residual's line", "computed, as a table"),
)


@cache
def _losses() -> PublishedLoss:
    return read_published_loss(FACTS)


@cache
def _scores() -> PublishedScores:
    return read_published_scores(SCORES)


def figure_sources() -> tuple[tuple[str, tuple[Source, ...]], ...]:
    """Where the plotted values were read."""
    return (
        ("Published losses", tuple(_losses().source)),
        ("Published scores and effective ranks", tuple(_scores().source)),
    )


def figure_parts() -> tuple[Part, ...]:
    """A list of the review's figures, then each in its order, and the losses they rest on."""
    return (
        Part(key="figures", title="Which figures, and how much of them", table=_inventory()),
        *_cache_and_loss(),
        *_scores_and_rotation(),
    )


def _inventory() -> Table:
    keys = ("figure", "here")
    return Table(
        title="Figures of the review",
        inputs={},
        rows=[dict(zip(keys, row, strict=True)) for row in _INVENTORY],
        columns=(
            Column(key="figure", title="figure", is_number=False),
            Column(key="here", title="made again", is_number=False),
        ),
        notes=(
            "training curves of the paper's earlier version cannot be drawn: only end values are "
            "printed",
        ),
    )


def _cache_and_loss() -> tuple[Part, ...]:
    heads = ",".join(map(str, HEADS))
    scales = {scale.name: scale for scale in _losses().scales}
    ranks = cache_vs_rank(lrkv_plan.load_model(MODEL), heads=HEADS, budget=BUDGET)
    plot = "lrkv-plan plot"
    return (
        Part(
            key="figure-3-cache-vs-rank", title="Figure 3: cache by rank and heads", figure=ranks,
            lead="Figure 3, for the heads of 128M, 512M, 2.5B and 6.3B.",
            commands=(
                f"{plot} cache-vs-rank {MODEL} --heads {heads} --budget {BUDGET} "
                "-o cache-vs-rank.svg",
            ),
        ),
        Part(
            key="figure-4-payload-vs-loss", title="Figure 4: cache against loss at 2.5B",
            figure=payload_vs_loss(["2.5B"]),
            lead="Figure 4. MLA's cache is as printed. GQA's six groups are the review's example: "
            "no document read says how many Table 1 has.",
            commands=(f"{plot} payload-vs-loss --scale 2.5B -o payload-vs-loss.svg",),
        ),
        Part(
            key="figure-5-rank-sweep", title="Figure 5: rank sweep at 128M",
            figure=payload_vs_loss(["128M"]),
            lead="Figure 5. The line joins the ranks of Table 8; other points are single runs.",
            commands=(f"{plot} payload-vs-loss --scale 128M -o payload-vs-loss.svg",),
        ),
        Part(
            key="loss-by-size", title="Losses by size, with figure 7's",
            figure=loss_by_size(_losses()),
            lead="The paper's Table 1, and hollow what is given of figure 7.",
        ),
        Part(key="runs-128m", title="Figure 5 as numbers", table=scale_table(scales["128M"])),
        Part(
            key="losses", title="Cross-entropies of the paper's Table 1",
            table=losses_table(_losses()),
        ),
        Part(
            key="runs-512m", title="Figure 7: what is given of it", is_narrow=True,
            table=scale_table(scales["512M"]),
        ),
    )  # fmt: skip


def _scores_and_rotation() -> tuple[Part, ...]:
    return (
        Part(
            key="task-changes", title="Figure 6: what is given of it", is_narrow=True,
            table=tasks_table(_scores()),
        ),
        Part(
            key="figure-8-effective-ranks", title="Figure 8: effective rank of head maps",
            lead="Figure 8, the values that are given.", figure=effective_ranks(_scores()),
        ),
        Part(
            key="rotation", title="Figure 9: a rotation that leaves the residual's line",
            lead="Exact counterexample to rotating the latent in place of the key.",
            table=rotation_table(), is_narrow=True,
        ),
    )  # fmt: skip


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
    return replace(table, notes=tuple(n for n in table.notes if not str(n).startswith(names)))
