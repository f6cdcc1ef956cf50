"""Series of cache, weights, arithmetic and sequences against the rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.series.capacity import deployment_text
from lrkv_plan.report.views.specs import model_inputs
from lrkv_plan.specs.design import backbones_of, widest_rank

if TYPE_CHECKING:
    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class RankLine:
    """Cache ratios of one head count by rank, and the ranks within the budget.

    ``largest`` and ``aligned`` are None without a budget, or where ``refused`` says why none fits.
    """

    n_heads: int
    ratios: Mapping[int, Fraction]
    largest: int | None = None
    aligned: int | None = None
    refused: str | None = None


def heads_of(model: ModelSpec) -> int:
    """Query heads, the most of any layer."""
    return max((b.n_heads for b in backbones_of(model)), default=0)


def rank_axis(model: ModelSpec, alignment: int) -> Axis:
    """The x axis, with ticks at multiples of the alignment."""
    widest = widest_rank(model)
    step = next((n * alignment for n in (1, 2, 4, 8, 16, 32) if widest <= 8 * n * alignment), None)
    return Axis(key="rank", label="Rank per head", low=0, high=widest, step=step)


def shared_inputs(kv_dtype: str, tp_size: int, design: LowRankSpec) -> dict[str, Any]:
    """Inputs that both rank pictures state."""
    return {
        "kv_dtype": kv_dtype,
        "tp_size": tp_size,
        "n_shared_groups": design.n_shared_groups,
        "position": design.position,
        "rope_dim": design.rope_dim,
        "key_norm": design.key_norm,
    }


def variant_text(design: LowRankSpec) -> str:
    """The LRKV options that differ from plain ones."""
    return design.text(0).partition(",")[2]


def cache_vs_rank(
    model: ModelSpec,
    lines: Sequence[RankLine],
    *,
    design: LowRankSpec,
    budget: str | None = None,
    share: Fraction | None = None,
    alignment: int = 16,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
) -> Figure:
    """Cache ratio against rank for several head counts on one backbone.

    Parameters
    ----------
    lines : one per head count.
    share : the budget as a share of MHA, the same for all of them.
    alignment : ranks marked on the lines, up to the budget. [scalars]
    """
    series: list[Series] = []
    remarks: list[str] = []
    for style, line in enumerate(lines):
        drawn, said = _of_heads(line, style, alignment, has_budget=budget is not None)
        series += drawn
        remarks += said
    guides = () if share is None else (
        Guide(name="budget", axis="y", value=share, label=f"budget {_percent(share)}"),
    )  # fmt: skip
    inputs = {
        "model": model_inputs(model),
        "n_heads": [line.n_heads for line in lines],
        "budget": budget,
        "align": alignment,
        **shared_inputs(kv_dtype, tp_size, design),
    }
    return Figure(
        kind="cache-vs-rank",
        title="LRKV cache against rank",
        caption=caption(
            f"{model.name}, head width {widest_rank(model)}",
            f"{kv_dtype} cache",
            gpus(tp_size),
            variant_text(design),
            ""
            if budget is None
            else f"dots: multiples of {alignment} in the budget, the largest named",
        ),
        inputs=inputs,
        panels=(
            Panel(
                name="cache",
                x=rank_axis(model, alignment),
                y=Axis(key="cache_ratio", label="Cache, % of MHA", factor=100, low=0),
                series=tuple(series),
                guides=guides,
            ),
        ),
        remarks=tuple(remarks),
    )


def _of_heads(
    line: RankLine, style: int, alignment: int, *, has_budget: bool
) -> tuple[list[Series], list[str]]:
    """The line of one head count with its marked ranks, and what to say of the budget."""
    name = f"{line.n_heads} heads" if line.n_heads != 1 else "1 head"
    shared: dict[str, Any] = {"facts": {"n_heads": line.n_heads}, "style": style}
    drawn = [
        Series(
            name=name, role=Role.LINE, x=tuple(line.ratios), y=tuple(line.ratios.values()),
            label=name, **shared,
        )
    ]  # fmt: skip
    if not has_budget:
        return drawn, []
    if line.aligned is None:
        return drawn, [f"{name}: {line.refused}"]
    marked = [r for r in line.ratios if r % alignment == 0 and r <= line.aligned]
    drawn.append(
        Series(
            name=f"{name}, aligned ranks in the budget",
            role=Role.POINTS,
            x=tuple(marked),
            y=tuple(line.ratios[r] for r in marked),
            texts=(*[""] * (len(marked) - 1), f"r {marked[-1]}"),
            **shared,
        )
    )
    said = (
        f"{name}: rank {line.largest} fits the budget, {line.aligned} as a multiple of {alignment}"
    )
    return drawn, [said]


def _percent(value: Fraction) -> str:
    return f"{float(100 * value):.4g} %"


_SWEPT = (
    ("cache", "cache_ratio", "Cache, % of MHA"),
    ("kv_params", "kv_params_ratio", "K/V weights, % of MHA"),
    ("arithmetic", "arithmetic_ratio", "Decode arithmetic, % of MHA"),
)


def rank_sweep(
    model: ModelSpec,
    rows: Sequence[Mapping[str, Any]],
    inputs: Mapping[str, Any],
    *,
    design: LowRankSpec,
    mha_sequences: int | None = None,
) -> Figure:
    """Every ratio against rank, one panel each.

    Parameters
    ----------
    rows, inputs : of ``ranks``.
    mha_sequences : with a deployment, those of MHA; adds a panel of the sequences that fit.
    """
    alignment, context = inputs["align"], inputs["context_tokens"]
    panels = [
        _sweep_panel(
            model, name, Axis(key=key, label=label, factor=100, low=0),
            {row["rank"]: row[key] for row in rows}, alignment,
            Guide(name="MHA", axis="y", value=Fraction(1), label="MHA"),
        )
        for name, key, label in _SWEPT
    ]  # fmt: skip
    placed = inputs["deployment"]
    if placed is not None:
        panels.append(
            _sweep_panel(
                model, "capacity",
                Axis(key="total_sequences", label="Sequences that fit", scale="log10"),
                {row["rank"]: row["total_sequences"] for row in rows}, alignment,
                Guide(name="MHA", axis="y", value=mha_sequences, label="MHA"),
            )
        )  # fmt: skip
    where = "" if placed is None else deployment_text(placed)
    kv_dtype, tp_size = inputs["kv_dtype"], inputs["tp_size"]
    return Figure(
        kind="rank-sweep",
        title="What a rank costs",
        caption=caption(
            f"{model.name}, {heads_of(model)} heads of {widest_rank(model)}, "
            f"width {model.model_dim:,}",
            f"{context:,} tokens",
            where or caption(f"{kv_dtype} cache", gpus(tp_size)),
            variant_text(design),
            f"dots: multiples of {alignment}",
        ),
        inputs={
            "model": model_inputs(model),
            "align": alignment,
            "context_tokens": context,
            "deployment": where or None,
            **shared_inputs(kv_dtype, tp_size, design),
        },
        panels=tuple(panels),
    )


def _sweep_panel(
    model: ModelSpec,
    name: str,
    axis: Axis,
    values: Mapping[int, Any],
    alignment: int,
    guide: Guide,
) -> Panel:
    found = {rank: value for rank, value in values.items() if value is not None}
    aligned = [rank for rank in found if rank % alignment == 0]
    series = (
        Series(name="lrkv", role=Role.LINE, x=tuple(found), y=tuple(found.values())),
        Series(
            name=f"lrkv, multiples of {alignment}",
            role=Role.POINTS,
            x=tuple(aligned),
            y=tuple(found[rank] for rank in aligned),
        ),
    )
    return Panel(name=name, x=rank_axis(model, alignment), y=axis, series=series, guides=(guide,))
