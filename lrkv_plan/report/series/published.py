"""Cache payload against published loss: what a smaller cache cost in quality, as far as printed."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import swap_attention  # from the root: the families are registered
from lrkv_plan.calculators.cache_bytes import ratio_to_mha
from lrkv_plan.errors import UsageError
from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.specs.published import PublishedLoss, read_published_loss

if TYPE_CHECKING:
    from lrkv_plan.specs.published import Run, Scale

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
    reference = next((run for run, ratio, _ in runs if ratio == 1), None)
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
