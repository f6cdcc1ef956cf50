"""The review's figures made again, as far as the documents print their values."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import lrkv_plan
from lrkv_plan.report.document import Part
from lrkv_plan.report.published_views import (
    losses_table,
    rotation_table,
    scale_table,
    tasks_table,
)
from lrkv_plan.report.series.cache_vs_rank import cache_vs_rank
from lrkv_plan.report.series.effective_ranks import effective_ranks
from lrkv_plan.report.series.loss_by_size import loss_by_size
from lrkv_plan.report.series.published import FACTS, payload_vs_loss
from lrkv_plan.report.tables import Column, Table
from lrkv_plan.specs.published import read_published_loss, read_published_scores

if TYPE_CHECKING:
    from lrkv_plan.specs.base import Source
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
        remarks=(
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
