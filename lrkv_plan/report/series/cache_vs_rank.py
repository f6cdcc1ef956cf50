"""Series of cache, weights, arithmetic and sequences against the rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.families.low_rank import LowRankSpec, plain_low_rank
from lrkv_plan.attention.registry import parse_attention
from lrkv_plan.attention.spec import Backbone
from lrkv_plan.errors import RequirementError, UsageError
from lrkv_plan.memory.arithmetic import arithmetic_ratio_to_mha
from lrkv_plan.memory.cache import bytes_per_token, ratio_to_mha, reference_mha
from lrkv_plan.memory.largest import budget_bytes, rank_ceiling
from lrkv_plan.memory.weights import kv_params_ratio_to_mha
from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.series.capacity import deployment_text
from lrkv_plan.report.views.specs import model_inputs
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.specs.budget import parse_budget
from lrkv_plan.specs.design import first_backbone, sizes_of, swap_attention, with_size

if TYPE_CHECKING:
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec


def with_heads(model: ModelSpec, n_heads: int) -> ModelSpec:
    """The same backbone as MHA with that number of heads of the same width.

    Raises
    ------
    SpecError
        If the model has no attention layers.
    """
    designs = tuple(
        parse_attention("mha", group.attention.backbone()._replace(n_heads=n_heads))
        for group in model.attention_groups
        if group.attention is not None
    )
    return model.with_attention(designs)


def cache_ratio(model: ModelSpec, kv_dtype: str, tp_size: int) -> Fraction:
    """Cache bytes of the model's design over MHA's on the same backbone, exact."""
    ratio = ratio_to_mha(model, kv_dtype=kv_dtype, tp_size=tp_size)
    if ratio is None:
        raise UsageError(f"{model.name}: no layer keeps keys and values")
    return ratio


def _backbones(model: ModelSpec) -> Iterator[Backbone]:
    yield from (g.attention.backbone() for g in model.attention_groups if g.attention is not None)


def widest_rank(model: ModelSpec) -> int:
    """The largest rank: a head's width in the narrowest layer."""
    widths = [min(b.head_dim, b.v_head_dim) for b in _backbones(model)]
    if not widths:
        raise UsageError(f"{model.name}: has no attention layers, so a rank changes nothing")
    return min(widths)


def heads_of(model: ModelSpec) -> int:
    """Query heads, the most of any layer."""
    return max((b.n_heads for b in _backbones(model)), default=0)


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
    *,
    heads: Sequence[int] = (),
    budget: str | None = None,
    alignment: int = 16,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    design: LowRankSpec | None = None,
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
    design = plain_low_rank(first_backbone(model)) if design is None else design
    backbones = [(h, with_heads(model, h)) for h in heads] or [(heads_of(model), model)]
    share = _budget_share(backbones, budget, kv_dtype, tp_size)
    series: list[Series] = []
    remarks: list[str] = []
    for style, (n_heads, backbone) in enumerate(backbones):
        name = f"{n_heads} heads" if n_heads != 1 else "1 head"
        shared: dict[str, Any] = {"facts": {"n_heads": n_heads}, "style": style}
        varied = swap_attention(backbone, design)
        ratios = {
            rank: cache_ratio(with_size(varied, rank), kv_dtype, tp_size)
            for rank in sizes_of(varied)
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
                kv_dtype=kv_dtype, design=design,
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


def rank_sweep(
    model: ModelSpec,
    *,
    alignment: int = 16,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    context_tokens: int = 8192,
    design: LowRankSpec | None = None,
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
    design = plain_low_rank(first_backbone(model)) if design is None else design
    varied = swap_attention(model, design)
    designs = {rank: with_size(varied, rank) for rank in sizes_of(varied)}
    ratios: dict[str, tuple[str, str, Mapping[int, Any]]] = {
        "cache": ("Cache, % of MHA", "cache_ratio", {
            rank: cache_ratio(one, kv_dtype, tp_size) for rank, one in designs.items()}),
        "kv_params": ("K/V weights, % of MHA", "kv_params_ratio", {
            rank: kv_params_ratio_to_mha(one) for rank, one in designs.items()}),
        "arithmetic": ("Decode arithmetic, % of MHA", "arithmetic_ratio", {
            rank: arithmetic_ratio_to_mha(one, context_tokens)
            for rank, one in designs.items()}),
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
            variant_text(design),
            f"dots: multiples of {alignment}",
        ),
        inputs={
            "model": model_inputs(model),
            "align": alignment,
            "context_tokens": context_tokens,
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
