"""Ranks for every layer's keys and values under one cache budget, where they lower errors most.

The loss that is lowered is the mean over tensors of the discarded share of energy, e_r^2, smooth
between fitted ranks (``ResidualSpectrum.planning_losses``). It is a property of the weights: what a
language model loses is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.attention.families.low_rank import plain_low_rank
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.checkpoint.inspection import LayerInspection
from lrkv_plan.checkpoint.projections import AttentionLayers, Order, groups_by_layer
from lrkv_plan.errors import SpecError, UsageError
from lrkv_plan.formats import storage_format
from lrkv_plan.memory.cache import bytes_per_token, reference_mha, row_bytes_per_layer
from lrkv_plan.memory.largest import budget_bytes, infeasible, largest
from lrkv_plan.specs.budget import parse_budget
from lrkv_plan.specs.design import first_backbone, sizes_of, swap_attention, with_size
from lrkv_plan.specs.model import LayerGroup, ModelSpec

Place = tuple[int, str]  # layer, "key" or "value"


@dataclass(frozen=True, kw_only=True)
class RankChoices:
    """One tensor's ranks with what each adds to the cache and leaves of the energy."""

    ranks: Sequence[int]
    bytes_per_token: Sequence[Fraction]  # above rank 0
    losses: Sequence[float]  # non-increasing


def greedy_ranks(choices: Mapping[Place, RankChoices], spare: Fraction) -> dict[Place, int]:
    """Ranks that lower the summed loss most within ``spare`` bytes per token.

    Notes
    -----
    Steps along each tensor's lower convex hull of (bytes, loss), steepest first; what is left over
    is spent on single moves, best loss per byte first. Exact where every hull step fits to the end
    of the budget; otherwise short of the optimum by less than one step.

    Examples
    --------
    >>> steep = RankChoices(ranks=(0, 1, 2), bytes_per_token=(0, 4, 8), losses=(0.9, 0.2, 0.1))
    >>> flat = RankChoices(ranks=(0, 1, 2), bytes_per_token=(0, 4, 8), losses=(0.5, 0.3, 0.0))
    >>> greedy_ranks({(0, "key"): steep, (0, "value"): flat}, Fraction(12))
    {(0, 'key'): 1, (0, 'value'): 2}
    """
    at = dict.fromkeys(choices, 0)
    steps = [
        (slope, place, start, end)
        for place, choice in choices.items()
        for slope, start, end in _hull_steps(choice)
    ]
    for _, place, start, end in sorted(steps, key=lambda item: -item[0]):
        price = choices[place].bytes_per_token[end] - choices[place].bytes_per_token[start]
        if at[place] == start and price <= spare:
            at[place], spare = end, spare - price
    while True:
        moves = [
            (gain / float(price), place, end, price)
            for place, choice in choices.items()
            for end in range(at[place] + 1, len(choice.ranks))
            if (price := choice.bytes_per_token[end] - choice.bytes_per_token[at[place]]) <= spare
            and (gain := choice.losses[at[place]] - choice.losses[end]) > 0
        ]
        if not moves:
            return {place: choices[place].ranks[index] for place, index in at.items()}
        _, place, end, price = max(moves, key=lambda move: move[0])
        at[place], spare = end, spare - price


def _hull_steps(choice: RankChoices) -> list[tuple[float, int, int]]:
    """(loss per byte, from, to) along the lower convex hull; slopes fall from step to step."""
    steps, start, last = [], 0, len(choice.ranks) - 1
    while start < last:
        slope, end = max(
            (
                (choice.losses[start] - choice.losses[end])
                / float(choice.bytes_per_token[end] - choice.bytes_per_token[start]),
                -end,
            )
            for end in range(start + 1, last + 1)
        )
        if slope <= 0:
            break
        steps.append((slope, start, -end))
        start = -end
    return steps


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """The planned ranks beside one rank for all. Losses are means over tensors of e_r^2."""

    model: ModelSpec
    ranks: Mapping[Place, int]
    loss: float
    bytes_per_token: int | Fraction
    budget_bytes_per_token: Fraction
    uniform_rank: int
    uniform_loss: float
    uniform_bytes_per_token: int | Fraction
    ratio_to_mha: Fraction


@dataclass(frozen=True, kw_only=True)
class PlanFrame:
    """All that a plan needs to know before any layer is inspected. Bytes are per token."""

    model: ModelSpec
    budget: str
    limit: Fraction
    floor: Fraction  # at rank 0
    mha_bytes: int | Fraction
    uniform_rank: int
    step: int
    kv_dtype: str
    variant: AttentionSpec  # at rank 0, on the model's first backbone


def plan_frame(
    source: AttentionLayers,
    chosen: Sequence[int],
    *,
    budget: str,
    kv_dtype: str = "bf16",
    alignment: int = 1,
    design: AttentionSpec | None = None,
) -> PlanFrame:
    """The budget in bytes and the uniform rank that fits it.

    Parameters
    ----------
    chosen : layers that will be inspected.
    budget : as ``rank_ceiling`` takes it, of one GPU.
    alignment : multiple that ranks must be. [scalars]
    design : the LRKV variant, with one shared group; plain when None.

    Raises
    ------
    RequirementError
        If not even rank 0 fits.
    SpecError, UsageError
        If a layer is left out, reads a latent or another layer's cache, or the budget is not one.
    """
    model = source.model
    _refuse_partial(source, chosen)
    wanted = parse_budget(budget)
    limit = budget_bytes(model, wanted, kv_dtype=kv_dtype)
    mha = bytes_per_token(reference_mha(model), kv_dtype=kv_dtype)
    variant = plain_low_rank(first_backbone(model)) if design is None else design
    varied = swap_attention(model, variant)
    sizes = [rank for rank in sizes_of(varied) if rank % alignment == 0]
    step = sizes[1] if len(sizes) > 1 else alignment

    def held(rank: int) -> Fraction:
        return Fraction(bytes_per_token(with_size(varied, rank), kv_dtype=kv_dtype))

    uniform, floor = largest(sizes, held, limit), held(0)
    if uniform is None:
        raise infeasible(wanted, limit, floor, floor / mha)
    return PlanFrame(
        model=model, budget=wanted.text, limit=limit, floor=floor, mha_bytes=mha,
        uniform_rank=uniform, step=step, kv_dtype=kv_dtype, variant=variant,
    )  # fmt: skip


def rank_plan(frame: PlanFrame, layers: Sequence[LayerInspection]) -> RankPlan:
    """Ranks per layer, for keys and values apart, within the frame's budget."""
    model, kv_dtype = frame.model, frame.kv_dtype
    choices = _choices(frame, layers)
    ranks = greedy_ranks(choices, frame.limit - frame.floor)
    same = dict.fromkeys(choices, frame.uniform_rank)
    if _mean_loss(choices, same) < _mean_loss(choices, ranks):
        ranks = same  # steps too coarse for the greedy order
    planned = planned_model(model, ranks, frame.variant, frame.budget)
    held = bytes_per_token(planned, kv_dtype=kv_dtype)
    uniform = with_size(swap_attention(model, frame.variant), frame.uniform_rank)
    return RankPlan(
        model=planned,
        ranks=ranks,
        loss=_mean_loss(choices, ranks),
        bytes_per_token=held,
        budget_bytes_per_token=frame.limit,
        uniform_rank=frame.uniform_rank,
        uniform_loss=_mean_loss(choices, same),
        uniform_bytes_per_token=bytes_per_token(uniform, kv_dtype=kv_dtype),
        ratio_to_mha=Fraction(held) / frame.mha_bytes,
    )


def planned_model(
    model: ModelSpec, ranks: Mapping[Place, int], variant: AttentionSpec, budget: str
) -> ModelSpec:
    """The model with these ranks, layers of equal design in one group."""
    numbers: dict[LayerGroup, int] = {}
    order = []
    for layer, group in enumerate(groups_by_layer(model)):
        one = group.model_copy(update={"count": 1})
        if group.attention is not None:
            design = variant.moved_to(group.attention.backbone()).model_copy(
                update={
                    "key_rank": ranks[layer, "key"],
                    "value_rank": ranks[layer, "value"],
                }
            )
            one = one.model_copy(update={"attention": design, "index": ()})
        order.append(numbers.setdefault(one, len(numbers)))
    groups = tuple(
        group.model_copy(update={"count": order.count(index)}) for group, index in numbers.items()
    )
    remark = (
        f"ranks planned from residual spectra of the checkpoint under a budget of {budget}: least "
        "Frobenius error, language-model loss not measured"
    )
    return model.model_copy(
        update={
            "name": f"{model.name[:180]}-lrkv-plan",
            "layers": groups,
            "layer_order": tuple(order) if len(groups) > 1 else None,
            "remarks": (*model.remarks, remark),
        }
    )


def _refuse_partial(source: AttentionLayers, chosen: Sequence[int]) -> None:
    name = source.model.name
    if any(group.reuses_cache for group in source.model.layers):
        raise SpecError(f"{name}: no rank plan where layers reuse another layer's cache")
    if any(source.names(layer).order is Order.LATENT for layer in chosen):
        raise SpecError(
            f"{name}: no rank plan for MLA, whose heads read a latent that is cached already"
        )
    missing = sorted(set(source.attention) - set(chosen))
    if missing:
        raise UsageError(f"--budget plans every layer, but --layers leaves out {missing[0]}")


def _choices(frame: PlanFrame, layers: Sequence[LayerInspection]) -> dict[Place, RankChoices]:
    storage, groups = storage_format(frame.kv_dtype), groups_by_layer(frame.model)
    found: dict[Place, RankChoices] = {}
    for layer in layers:
        attention = groups[layer.layer].attention
        assert attention is not None, "only attention layers are inspected"
        design = frame.variant.moved_to(attention.backbone())

        def held(name: str, rank: int, design: AttentionSpec = design) -> Fraction:
            changed = design.model_copy(update={f"{name}_rank": rank})
            return row_bytes_per_layer(layout_of(changed, frame.model.model_dim), storage)

        for name, spectrum in layer.spectra:
            ranks = range(0, spectrum.width + 1, frame.step)
            losses = spectrum.planning_losses or (0.0,) * (spectrum.width + 1)
            found[layer.layer, name] = RankChoices(
                ranks=ranks,
                bytes_per_token=[held(name, rank) - held(name, 0) for rank in ranks],
                losses=[losses[rank] for rank in ranks],
            )
    return found


def _mean_loss(choices: Mapping[Place, RankChoices], ranks: Mapping[Place, int]) -> float:
    lost = [choice.losses[choice.ranks.index(ranks[place])] for place, choice in choices.items()]
    return sum(lost) / len(lost)
