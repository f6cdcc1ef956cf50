"""Published effective ranks of head maps beside the ceiling that centring sets."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from lrkv_plan.audit.design_quantities import effective_rank_ceiling_share
from lrkv_plan.audit.inputs import Heads
from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series

if TYPE_CHECKING:
    from lrkv_plan.specs.published import PublishedScores


def effective_ranks(facts: PublishedScores) -> Figure:
    """Centred and uncentred shares, with the ceiling (H - 1) / H of centred ones.

    Notes
    -----
    Centring H maps removes one direction, so at most H - 1 of H eigenvalues are positive (review
    of arXiv:2601.11471v3, section 6). Uncentred shares may reach 1.
    """
    ceiling = effective_rank_ceiling_share(Heads(n_heads=facts.n_heads))
    points = [
        Series(
            name=f"{run.design}, {'uncentred' if is_open else 'centred'}",
            role=Role.POINTS,
            x=(Fraction(share),),
            y=(run.design,),
            style=0,
            texts=(f"{float(100 * share):.1f} %",),
            facts={"centred": not is_open},
            is_open=is_open,
        )
        for run in facts.effective_ranks
        for share, is_open in ((run.centred, False), (run.uncentred, True))
        if share is not None
    ]
    lowest = min(x for series in points for x in series.x)
    return Figure(
        kind="effective-ranks",
        title=f"Effective rank of head maps at {facts.scale}",
        caption=caption(
            facts.source[0].citation or "",
            f"share of {facts.n_heads} heads; hollow: uncentred",
            f"dashed: ceiling of centred maps, {facts.n_heads - 1}/{facts.n_heads} = "
            f"{float(100 * ceiling):.2f} %",
            "the axis does not start at 0",
        ),
        inputs={
            "n_heads": facts.n_heads,
            "source": [one.model_dump(mode="json", exclude_none=True) for one in facts.source],
        },
        panels=(
            Panel(
                name="effective rank",
                x=Axis(key="effective_rank_ratio", label="Effective rank, % of heads", factor=100,
                       low=(float(lowest) - 0.02) // 0.05 * 0.05, high=1.0, step=0.05),
                y=Axis(key="design", label="", scale="category"),
                series=tuple(points),
                guides=(Guide(name="centred ceiling", axis="x", value=ceiling, label=""),),
            ),
        ),
    )  # fmt: skip
