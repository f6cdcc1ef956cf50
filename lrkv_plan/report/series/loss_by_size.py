"""Published losses against MHA's, by nominal size: who gains, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series

if TYPE_CHECKING:
    from lrkv_plan.specs.published import PublishedLoss, Run, Scale

REFERENCE = "mha"


def exact_loss(run: Run) -> Fraction:
    """The printed digits as a rational, so that differences are exact."""
    return Fraction(str(run.cross_entropy))


def families(facts: PublishedLoss) -> tuple[str, ...]:
    """Every family that any scale compares, in order of first use."""
    return tuple(dict.fromkeys(family for scale in facts.scales for family in scale.compared))


def compared_scales(facts: PublishedLoss) -> list[Scale]:
    """Scales at which every family was printed, smallest first."""
    wanted = set(families(facts))
    found = [scale for scale in facts.scales if set(scale.compared) == wanted]
    return sorted(found, key=lambda scale: scale.nominal_params)


def loss_by_size(facts: PublishedLoss) -> Figure:
    """Each family's loss minus MHA's; scales with fewer families as hollow points.

    Negative is better than MHA. Nothing is known about seeds: each point is one run.
    """
    scales = compared_scales(facts)
    lengths = {scale.sequence_tokens for scale in scales}
    lines = [
        _line(scales, family, style)
        for style, family in enumerate(families(facts))
        if family != REFERENCE
    ]
    styles = {family: style for style, family in enumerate(families(facts))}
    others = [scale for scale in facts.scales if scale not in scales]
    return Figure(
        kind="loss-by-size",
        title="Published loss against MHA's, by size",
        caption=caption(
            facts.source[0].citation or "",
            "one run a point, seeds unknown; below 0 is better than MHA",
            *(f"sequences of {length:,} tokens" for length in sorted(lengths)),
            *(f"hollow: {scale.sequence_tokens:,} tokens" for scale in others),
        ),
        inputs={
            "scales": [scale.name for scale in (*scales, *others)],
            "source": [one.model_dump(mode="json", exclude_none=True) for one in facts.source],
        },
        panels=(
            Panel(
                name="difference",
                x=Axis(key="nominal_params", label="Nominal size, billions of parameters",
                       scale="log10", factor=1e-9, low=0.1e9, high=8e9),
                y=Axis(key="difference_nats_per_token",
                       label="Cross-entropy minus MHA's, nats per token"),
                series=(*lines, *(one for scale in others for one in _hollow(scale, styles))),
                guides=(Guide(name="MHA", axis="y", value=Fraction(0), label="MHA"),),
            ),
        ),
    )  # fmt: skip


def difference(scale: Scale, family: str) -> Fraction:
    """Loss of the family's run minus MHA's at that scale."""
    return exact_loss(scale.compared[family]) - exact_loss(scale.compared[REFERENCE])


def _line(scales: Sequence[Scale], family: str, style: int) -> Series:
    return Series(
        name=family.upper(),
        role=Role.LINE,
        x=tuple(scale.nominal_params for scale in scales),
        y=tuple(difference(scale, family) for scale in scales),
        style=style,
        label=family.upper(),
    )


def _hollow(scale: Scale, styles: Mapping[str, int]) -> list[Series]:
    return [
        Series(
            name=f"{family.upper()} at {scale.sequence_tokens:,} tokens",
            role=Role.POINTS,
            x=(scale.nominal_params,),
            y=(difference(scale, family),),
            style=styles[family],
            texts=(f"{family.upper()} {scale.name}",),
            is_open=True,
        )
        for family in scale.compared
        if family != REFERENCE
    ]
