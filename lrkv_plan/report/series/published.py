"""Series of published results: loss against cache and size, effective ranks, scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import ratio_to_mha, swap_attention
from lrkv_plan.auditing.quantities import Heads, effective_rank_ceiling_share
from lrkv_plan.errors import UsageError
from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.specs.published import PublishedLoss, read_published_loss

if TYPE_CHECKING:
    from lrkv_plan.specs.published import PublishedScores, Run, Scale


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
        if any(family in scale.others for scale in scales)
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
    """Loss of the family's run minus the reference's at that scale."""
    return exact_loss(scale.compared[family]) - exact_loss(scale.reference)


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
        for family in scale.others
    ]


FACTS = Path(__file__).parent.parent / "published_loss.yaml"


def payload_vs_loss(scales: Sequence[str] = ("2.5B", "128M")) -> Figure:
    """Cache ratio against final cross-entropy, one panel per scale.

    Ratios are computed on the scale's heads where the design is known, and printed ones are marked
    ``printed``. Runs of unknown width have no place on the axis and are left out.

    Raises
    ------
    UsageError
        If a scale is unknown, or none of its runs can be placed.
    """
    facts = read_published_loss(FACTS)
    chosen = [_scale(facts, name) for name in dict.fromkeys(scales)]
    placed = [(scale, placed_runs(scale)) for scale in chosen]
    left_out = [
        f"{scale.name}: {run.design} is left out, for its cache is not stated"
        for scale, runs in placed
        for run in scale.runs
        if run not in [one for one, _, _ in runs]
    ]
    # One style per family, the same in every panel.
    families = dict.fromkeys(run.family for scale in facts.scales for run in scale.runs)
    styles = {family: index for index, family in enumerate(families)}
    widest = max(ratio for _, runs in placed for _, ratio, _ in runs)
    citation = facts.source[0].citation or ""
    return Figure(
        kind="payload-vs-loss",
        title="Cache against published loss",
        caption=caption(
            f"{citation}",
            "each point is a single published run, seeds unknown",
            "lower and further left is better",
        ),
        inputs={
            "scales": [scale.name for scale in chosen],
            "source": [one.model_dump(mode="json", exclude_none=True) for one in facts.source],
        },
        panels=tuple(_panel(scale, runs, widest, styles) for scale, runs in placed),
        remarks=("points are single published runs: differences may be seeds", *left_out),
    )


def _scale(facts: PublishedLoss, name: str) -> Scale:
    for scale in facts.scales:
        if scale.name.lower() == name.lower():
            if not placed_runs(scale):
                raise UsageError(f"--scale {name}: no run's cache is stated")
            return scale
    known = ", ".join(scale.name for scale in facts.scales)
    raise UsageError(f"--scale {name}: no such scale; known: {known}")


def placed_runs(scale: Scale) -> list[tuple[Run, Fraction, str]]:
    """(run, cache ratio to MHA, computed or printed) of every run that has a ratio."""
    backbone = _backbone(scale)
    found = []
    for run in scale.runs:
        if run.attention is not None and backbone is not None:
            ratio = ratio_to_mha(swap_attention(backbone, run.attention))
            if ratio is not None:
                found.append((run, ratio, "computed"))
        elif run.printed_ratio is not None:
            found.append((run, Fraction(str(run.printed_ratio)), "printed"))
    return found


def _backbone(scale: Scale) -> ModelSpec | None:
    """One MHA layer of the scale's heads: the ratio depends on neither layers nor width."""
    if scale.n_heads is None or scale.head_dim is None:
        return None
    attention = {"family": "mha", "n_heads": scale.n_heads, "head_dim": scale.head_dim}
    fields: dict[str, Any] = {
        "name": scale.name,
        "source": {"citation": "published runs", "read_on": "2026-11-30"},
        "model_dim": scale.n_heads * scale.head_dim,
        "layers": [{"count": 1, "attention": attention}],
    }
    return ModelSpec.model_validate(fields)


def _panel(
    scale: Scale,
    runs: Sequence[tuple[Run, Fraction, str]],
    widest: Fraction,
    styles: dict[str, int],
) -> Panel:
    sweeps: dict[str, list[tuple[Run, Fraction, str]]] = {}
    for one in runs:
        if one[0].sweep:
            sweeps.setdefault(one[0].sweep, []).append(one)
    lines = tuple(
        Series(
            name=f"{name} sweep",
            role=Role.LINE,
            x=tuple(ratio for _, ratio, _ in points),
            y=tuple(run.cross_entropy for run, _, _ in points),
            style=styles[points[0][0].family],
            is_thin=True,
        )
        for name, points in sweeps.items()
    )
    dots = tuple(
        Series(
            name=run.design,
            role=Role.POINTS,
            x=(ratio,),
            y=(run.cross_entropy,),
            style=styles[run.family],
            texts=(run.design,),
            facts={"ratio_is": known, "table": run.table, "scale": scale.name},
        )
        for run, ratio, known in runs
    )
    tokens = f", {scale.training_tokens / 10**9:g}B tokens" if scale.training_tokens else ""
    reference = next((run for run, _, _ in runs if run.reference), None)
    guides = () if reference is None else (
        Guide(name="MHA", axis="y", value=reference.cross_entropy, label=""),
    )  # fmt: skip
    return Panel(
        name=scale.name,
        title=f"{scale.name}{tokens}",
        x=Axis(key="cache_ratio", label="Cache, % of MHA", factor=100, low=0,
               high=float(widest) + 0.06, step=0.25),
        y=Axis(key="cross_entropy_nats_per_token", label="Final cross-entropy, nats per token"),
        series=(*lines, *dots),
        guides=guides,
    )  # fmt: skip
