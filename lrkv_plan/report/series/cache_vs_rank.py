"""LRKV's cache against its rank, for several head counts, with the budget that it must meet."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.budget_fit import budget_bytes
from lrkv_plan.calculators.cache_bytes import bytes_per_token, reference_mha
from lrkv_plan.calculators.rank_ceiling import rank_ceiling
from lrkv_plan.errors import RequirementError, UsageError
from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.series.backbones import (
    PLAIN,
    cache_ratio,
    heads_of,
    rank_axis,
    shared_inputs,
    variant_text,
    widest_rank,
    with_heads,
)
from lrkv_plan.report.spec_views import model_inputs
from lrkv_plan.specs.budget_text import parse_budget

if TYPE_CHECKING:
    from lrkv_plan.specs.low_rank_options import LowRankOptions
    from lrkv_plan.specs.model import ModelSpec


def cache_vs_rank(
    model: ModelSpec,
    *,
    heads: Sequence[int] = (),
    budget: str | None = None,
    alignment: int = 16,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    options: LowRankOptions = PLAIN,
) -> Figure:
    """Cache ratio against rank for several head counts on one backbone.

    Parameters
    ----------
    heads : query heads, one line each; the model's own when empty.
    budget : a share of MHA; with a single head count also bytes or a design.
    alignment : ranks marked on the lines, up to the budget. [scalars]

    Raises
    ------
    UsageError
        If the budget is a different share for each head count.
    SpecError, PlacementError
        If a design does not fit its backbone or the GPUs.

    Notes
    -----
    ratio = P g'/H + r/d_h: the slope is the head width's, the number of heads moves the intercept
    (arXiv:2601.11471v3 eq. 9 and its review, section 4).
    """
    backbones = [(h, with_heads(model, h)) for h in heads] or [(heads_of(model), model)]
    share = _budget_share(backbones, budget, kv_dtype, tp_size)
    series: list[Series] = []
    remarks: list[str] = []
    for style, (n_heads, backbone) in enumerate(backbones):
        name = f"{n_heads} heads" if n_heads != 1 else "1 head"
        shared: dict[str, Any] = {"facts": {"n_heads": n_heads}, "style": style}
        ratios = {
            rank: cache_ratio(backbone, options.text(rank), kv_dtype, tp_size)
            for rank in range(0, widest_rank(backbone) + 1, options.rank_step)
        }
        line = Series(
            name=name,
            role=Role.LINE,
            x=tuple(ratios),
            y=tuple(ratios.values()),
            label=name,
            **shared,
        )
        series.append(line)
        if budget is None:
            continue
        try:
            ceiling = rank_ceiling(
                backbone, budget=budget, alignment=alignment, tp_size=tp_size,
                kv_dtype=kv_dtype, options=options,
            )  # fmt: skip
        except RequirementError as error:
            remarks.append(f"{name}: {error}")
            continue
        marked = [r for r in ratios if r % alignment == 0 and r <= ceiling.aligned.value]
        series.append(
            Series(
                name=f"{name}, aligned ranks in the budget",
                role=Role.POINTS,
                x=tuple(marked),
                y=tuple(ratios[r] for r in marked),
                texts=(*[""] * (len(marked) - 1), f"r {marked[-1]}"),
                **shared,
            )
        )
        remarks.append(
            f"{name}: rank {ceiling.largest.value} fits the budget, {ceiling.aligned.value} as a "
            f"multiple of {alignment}"
        )
    guides = () if share is None else (
        Guide(name="budget", axis="y", value=share, label=f"budget {_percent(share)}"),
    )  # fmt: skip
    inputs = {
        "model": model_inputs(model),
        "n_heads": [n for n, _ in backbones],
        "budget": budget,
        "align": alignment,
        **shared_inputs(kv_dtype, tp_size, options),
    }
    return Figure(
        kind="cache-vs-rank",
        title="LRKV cache against rank",
        caption=caption(
            f"{model.name}, head width {widest_rank(model)}",
            f"{kv_dtype} cache",
            gpus(tp_size),
            variant_text(options),
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


def _budget_share(
    backbones: Sequence[tuple[int, ModelSpec]], budget: str | None, kv_dtype: str, tp_size: int
) -> Fraction | None:
    """The budget as a share of MHA, the same for every backbone."""
    if budget is None:
        return None
    wanted = parse_budget(budget)
    shares = set()
    for _, model in backbones:
        mha = bytes_per_token(reference_mha(model), kv_dtype=kv_dtype, tp_size=tp_size)
        shares.add(budget_bytes(model, wanted, tp_size=tp_size, kv_dtype=kv_dtype) / mha)
    if len(shares) > 1:
        raise UsageError(
            f"--budget {budget}: another share of MHA for each head count; give a share such as "
            "50%, or one head count"
        )
    return shares.pop()


def _percent(value: Fraction) -> str:
    return f"{float(100 * value):.4g} %"
