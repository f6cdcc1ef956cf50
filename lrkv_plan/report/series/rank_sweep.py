"""What a rank costs: cache, weights, arithmetic and capacity against the rank, a panel each."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.cache_bytes import reference_mha
from lrkv_plan.calculators.decode_work import arithmetic_ratio_to_mha
from lrkv_plan.calculators.parameters import kv_params_ratio_to_mha
from lrkv_plan.engines.planning import capacity_row
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
)
from lrkv_plan.report.series.capacity import deployment_text
from lrkv_plan.report.spec_views import model_inputs
from lrkv_plan.specs.attention_text import swap_attention

if TYPE_CHECKING:
    from lrkv_plan.engines.deployment import Deployment
    from lrkv_plan.specs.low_rank_options import LowRankOptions
    from lrkv_plan.specs.model import ModelSpec


def rank_sweep(
    model: ModelSpec,
    *,
    alignment: int = 16,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    context_tokens: int = 8192,
    options: LowRankOptions = PLAIN,
    deployment: Deployment | None = None,
) -> Figure:
    """Every ratio against rank, one panel each.

    Parameters
    ----------
    context_tokens : where decode arithmetic is compared. [tokens]
    deployment : adds a panel of the sequences of its length that fit by rank.

    Raises
    ------
    SpecError, PlacementError
        As the calculators.
    """
    ranks = range(0, widest_rank(model) + 1, options.rank_step)
    designs = {rank: swap_attention(model, options.text(rank)) for rank in ranks}
    ratios: dict[str, tuple[str, str, Mapping[int, Any]]] = {
        "cache": ("Cache, % of MHA", "cache_ratio", {
            rank: cache_ratio(model, options.text(rank), kv_dtype, tp_size) for rank in ranks}),
        "kv_params": ("K/V weights, % of MHA", "kv_params_ratio", {
            rank: kv_params_ratio_to_mha(design) for rank, design in designs.items()}),
        "arithmetic": ("Decode arithmetic, % of MHA", "arithmetic_ratio", {
            rank: arithmetic_ratio_to_mha(design, context_tokens)
            for rank, design in designs.items()}),
    }  # fmt: skip
    panels = [
        _sweep_panel(
            model, name, Axis(key=key, label=label, factor=100, low=0), values, alignment,
            Guide(name="MHA", axis="y", value=Fraction(1), label="MHA"),
        )
        for name, (label, key, values) in ratios.items()
    ]  # fmt: skip
    if deployment is not None:
        fits = {r: capacity_row(one, deployment).total_sequences for r, one in designs.items()}
        mha = capacity_row(reference_mha(model), deployment).total_sequences
        panels.append(
            _sweep_panel(
                model, "capacity",
                Axis(key="total_sequences", label="Sequences that fit", scale="log10"), fits,
                alignment,
                Guide(name="MHA", axis="y", value=mha, label="MHA"),
            )
        )  # fmt: skip
    where = "" if deployment is None else deployment_text(deployment)
    return Figure(
        kind="rank-sweep",
        title="What a rank costs",
        caption=caption(
            f"{model.name}, {heads_of(model)} heads of {widest_rank(model)}, "
            f"width {model.model_dim:,}",
            f"{context_tokens:,} tokens",
            where or caption(f"{kv_dtype} cache", gpus(tp_size)),
            variant_text(options),
            f"dots: multiples of {alignment}",
        ),
        inputs={
            "model": model_inputs(model),
            "align": alignment,
            "context_tokens": context_tokens,
            "deployment": where or None,
            **shared_inputs(kv_dtype, tp_size, options),
        },
        panels=tuple(panels),
    )


def _sweep_panel(
    model: ModelSpec,
    name: str,
    axis: Axis,
    values: Mapping[int, Any],
    alignment: int,
    guide: Guide | None,
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
    guides = () if guide is None else (guide,)
    return Panel(name=name, x=rank_axis(model, alignment), y=axis, series=series, guides=guides)
