"""The page on the LRKV documents: every claim audited, their figures made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lrkv_plan.pages.asked import Asked, part_of
from lrkv_plan.report.document import Document, Highlight, Part, Section
from lrkv_plan.report.series.published import FACTS, effective_ranks, loss_by_size
from lrkv_plan.report.tables import Column, Table
from lrkv_plan.report.views.audit import (
    EXPLAINED,
    INFERENCE,
    MATCH,
    counts_table,
    losses_table,
    rotation_table,
    scale_table,
    tasks_table,
)
from lrkv_plan.schema import Source
from lrkv_plan.specs.published import read_published_loss, read_published_scores

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Row
    from lrkv_plan.specs.published import PublishedLoss, PublishedScores

SCORES = FACTS.parent / "published_scores.yaml"
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
    scales = {scale.name: scale for scale in _losses().scales}
    ranks = {"heads": list(HEADS), "budget": BUDGET}
    return (
        part_of(
            "figure-3-cache-vs-rank", "Figure 3: cache by rank and heads",
            [_drawn("cache-vs-rank", MODEL, **ranks)],
            lead="Figure 3, for the heads of 128M, 512M, 2.5B and 6.3B.",
        ),
        part_of(
            "figure-4-payload-vs-loss", "Figure 4: cache against loss at 2.5B",
            [_drawn("payload-vs-loss", scale=["2.5B"])],
            lead="Figure 4. MLA's cache is as printed. GQA's six groups are the review's example: "
            "no document read says how many Table 1 has.",
        ),
        part_of(
            "figure-5-rank-sweep", "Figure 5: rank sweep at 128M",
            [_drawn("payload-vs-loss", scale=["128M"])],
            lead="Figure 5. The line joins the ranks of Table 8; other points are single runs.",
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


def _drawn(picture: str, model: str | None = None, **keywords: Any) -> Asked:
    file = ("-o", f"{picture}.svg")
    return Asked(command=f"plot {picture}", subject=model, name=model, keywords=keywords, also=file)


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
DIFFERING = ("explained", "mismatch")
_VERDICTS = (
    ("match", "Match", "within the print's own precision"),
    ("explained", "Differ, explained", "the recorded reason was checked and holds"),
    ("mismatch", "Differ, unexplained", ""),
    ("not_computable", "Not computable", "their inputs are not printed"),
)


def audit_page(command: str, progress: Callable[[str], None] = lambda _: None) -> Document:
    """The audit of all shipped claim files, and the figures of the review made again.

    Parameters
    ----------
    command : the command line that makes it again.
    progress : told the title of each document before its claims are computed.
    """
    progress("All claims")
    whole = Asked(command="audit")
    files = whole.table.inputs["files"]
    sections = _audit_sections(whole, files, progress)
    progress("Figures")
    return Document(
        title="What the LRKV documents print, computed again",
        subtitle=(
            "Claims of a review of Low-Rank Key Value Attention, of the summary of an earlier "
            "version of that paper, and of an article on multi-head latent attention."
        ),
        command=command,
        highlights=tuple(_highlights(whole.table.rows)),
        sections=(
            *sections,
            Section(
                key="figures",
                title="Figures made again",
                lead="Numbers are the review's figure numbers. Pictures are drawn from printed "
                "values and from computed caches; what no document read gives is left out.",
                parts=figure_parts(),
            ),
        ),
        sources=(
            *((file["title"], tuple(map(Source.model_validate, file["source"]))) for file in files),
            *figure_sources(),
        ),
        common_remarks=(MATCH, INFERENCE, EXPLAINED),
    )


def _highlights(rows: Sequence[Row]) -> Iterator[Highlight]:
    counted = Counter(row["verdict"] for row in rows)
    yield Highlight(label="Claims", value=str(len(rows)))
    for verdict, label, detail in _VERDICTS:
        yield Highlight(label=label, value=str(counted[verdict]), detail=detail)


def _audit_sections(
    whole: Asked, files: Sequence[Row], progress: Callable[[str], None]
) -> tuple[Section, ...]:
    n_claims = len(whole.table.rows)

    def differing(table: Table) -> Table:
        shown = _columns(_plain(table, files), without="verdict")
        return replace(shown, title=f"{len(table.rows)} of {n_claims} claims")

    documents = []
    for file in files:
        progress(file["title"])
        documents.append(
            part_of(
                f"claims-{file['name']}", file["title"],
                [Asked(command="audit", subject=file["name"], name=file["name"])],
                lambda table, file=file: _columns(_plain(table, [file]), without="found"),  # type: ignore[misc]
            )
        )  # fmt: skip
    return (
        Section(
            key="differences",
            title="What does not add up",
            lead="Prints that their own inputs do not give. A reading is a change of inputs or "
            "units that gives the print: inference, not proof of what was done.",
            parts=(
                part_of(
                    "verdicts", "Claims by document", [whole],
                    lambda table: counts_table(table.rows, files),
                ),
                part_of(
                    "differences", "Prints that differ",
                    [Asked(command="audit", keywords={"verdict": list(DIFFERING)})],
                    differing, is_view=True,
                ),
            ),
        ),
        Section(
            key="claims",
            title="Every claim",
            lead="Each printed value that could be computed from printed values, and those that "
            "could not. Readings are in the table above and in the CSV files.",
            parts=tuple(documents),
        ),
    )  # fmt: skip


def _columns(table: Table, *, without: str) -> Table:
    by_key = {column.key: column for column in table.columns}
    return replace(table, columns=[by_key[key] for key in _COLUMNS if key != without])


def _plain(table: Table, files: Sequence[Row]) -> Table:
    """Without the remarks that name sources: the report lists them once."""
    names = tuple(f"{file['name']}: " for file in files)
    return replace(table, notes=tuple(n for n in table.notes if not str(n).startswith(names)))
