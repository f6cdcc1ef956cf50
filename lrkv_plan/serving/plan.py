"""One page for a decision: every family on one backbone, held, timed and priced side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from lrkv_plan.attention.registry import all_families
from lrkv_plan.errors import PlacementError, SpecError, UsageError
from lrkv_plan.latency.crossover import Crossover, context_crossover
from lrkv_plan.latency.step import StepModel
from lrkv_plan.memory.cache import bytes_per_token, ratio_to_mha
from lrkv_plan.memory.largest import RankCeiling, largest, rank_ceiling, runnable_sizes
from lrkv_plan.memory.weights import kv_params_ratio_to_mha, parameter_count
from lrkv_plan.serving.capacity import CapacityRow, capacity_row
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.layouts import with_layout
from lrkv_plan.serving.load import Admission, LatencyTarget, admitted_by, timed_step, timed_unpadded
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.design import (
    NamedDesign,
    design_label,
    design_text,
    first_backbone,
    swap_attention,
    with_size,
)
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.attention.family import Planned


def own_budget(model: ModelSpec) -> str:
    """The own design's cache as a budget, or half of MHA.

    Half where the own design saves nothing against MHA, or its layers differ.
    """
    share = ratio_to_mha(model)
    label = design_label(model)
    uniform = " " not in label
    return "50%" if share is None or share >= 1 or not uniform else label


@dataclass(frozen=True, kw_only=True)
class ComparedDesign:
    """A design on a model's backbone with its role in a plan; the model's own has no text.

    ``refused`` says why the backbone cannot have it; ``model`` is the model's own then.
    """

    role: str
    model: ModelSpec
    text: str | None = None
    refused: str | None = None


AS_ASKED = "as asked"


def compared_designs(
    model: ModelSpec,
    deployment: Deployment,
    limit: Fraction | int | None,
    extra: Sequence[NamedDesign] = (),
) -> list[ComparedDesign]:
    """The model's own design, what each family shows in a plan, and ``extra`` designs.

    Parameters
    ----------
    limit : the budget in which families size their designs; None leaves those out.
        [bytes/token/GPU]
    """
    own = design_label(model)
    designs = [ComparedDesign(role="own design", model=model)]
    if model.attention_groups:
        planned = (one for family in all_families() for one in family.planned)
        designs += filter(None, (_tried(model, deployment, limit, one) for one in planned))
    designs += [ComparedDesign(role=AS_ASKED, model=one, text=text) for text, one in extra]
    shown = {own, own.split(",")[0]}
    kept = []
    for one in designs:
        if one.text is None or one.text not in shown:
            kept.append(one)
            shown.add(one.text or own)
    return kept


def _tried(
    model: ModelSpec, deployment: Deployment, limit: Fraction | int | None, planned: Planned
) -> ComparedDesign | None:
    """``_sized``, or why the cache's format cannot hold the family's rows."""
    try:
        return _sized(model, deployment, limit, planned)
    except PlacementError as error:
        role = planned.role
        return ComparedDesign(role=role, model=model, text=role, refused=str(error))


def _sized(
    model: ModelSpec, deployment: Deployment, limit: Fraction | int | None, planned: Planned
) -> ComparedDesign | None:
    """A family's design at the size that a plan shows; None where none fits the budget."""
    backbone, role = first_backbone(model), planned.role
    try:
        design = swap_attention(model, planned.on(backbone))
    except SpecError as error:
        return ComparedDesign(role=role, model=model, text=role, refused=str(error))
    if planned.in_budget:
        if limit is None:
            return None
        tp_size, kv_dtype = deployment.parallel.tp_size, deployment.settings.kv_dtype
        step = deployment.rank_alignment if planned.aligned else 1
        sizes = [size for size in runnable_sizes(design, tp_size) if size % step == 0]

        def held(size: int) -> Fraction:
            sized = with_size(design, size)
            return Fraction(bytes_per_token(sized, kv_dtype=kv_dtype, tp_size=tp_size))

        size = largest(sizes, held, Fraction(limit))
        if size is None:
            return None
        if planned.most is not None:
            size = min(size, planned.most(backbone))
        if size == 0:
            if planned.role_at_zero is None:
                return None
            role = planned.role_at_zero
        design = with_size(design, size)
    return ComparedDesign(role=role, model=design, text=design_text(design))


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One design: what it caches and weighs, what fits, how fast, and where the ranking changes.

    ``load`` is the row's own: the stated batch, or the largest that fits and meets the target; None
    where there is none, and then no time is given. ``against_own`` compares with the model's own
    design along the context, at the plan's batch; None for itself. ``model`` and ``step`` are the
    design and its step; ``missing`` says what a row without a load lacks.
    """

    attention: str
    role: str
    ratio_to_mha: Fraction | None
    kv_params_ratio: Fraction | None
    model_params: int | None
    capacity: CapacityRow
    load: Admission | None
    against_own: Crossover | None
    model: ModelSpec = field(repr=False)
    step: StepModel = field(repr=False, compare=False)
    missing: Literal["memory", "time"] | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rows, the budget that chose the LRKV rank, the layout, and what the times rest on.

    ``batch_size`` is that of one replica at which designs are compared with the own one: the stated
    batch, or the own design's load; None where it has none. ``layout`` says how the
    tensor-parallel size was chosen, and is None where it was stated. ``limits`` say where figures
    stop being true.
    """

    rows: tuple[PlanRow, ...]
    refused: tuple[str, ...]
    budget: str
    ceiling: RankCeiling
    parallel: Parallelism
    n_replicas: int
    layout: str | None
    batch_size: int | None
    context_tokens: int
    rests_on: tuple[str, ...]
    limits: tuple[str, ...] = ()

    @property
    def n_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.n_replicas * self.parallel.n_gpus


def make_plan(
    model: ModelSpec,
    deployment: Deployment,
    *,
    budget: str | None = None,
    batch_size: int | None = None,
    target: LatencyTarget | None = None,
    is_layout_stated: bool = False,
    designs: Sequence[NamedDesign] = (),
) -> Plan:
    """Every family's designs on a model's backbone, on given GPUs.

    Parameters
    ----------
    deployment : with ``is_layout_stated`` its ``parallel`` is kept and ``n_gpus`` must be a
        multiple of it. Otherwise ``tp_size`` is chosen: of ``n_gpus`` the size that serves most
        sequences of the own design, in as many replicas as there is room for; without ``n_gpus``
        the smallest power of two that fits one sequence.
    budget : cache budget for the LRKV rank and the MLA latent; the own design's cache when None,
        or half of MHA where the own design is MHA.
    batch_size : the load of one replica in every row; each row's own largest when None.
    target : the most that an output token may take, how tokens are drafted, lending profiles.
    designs : more designs to compare, with the text that names each.

    Raises
    ------
    UsageError
        If no GPU is named.
    RequirementError
        If the model's own design fits on no size that may be chosen, or not on the stated one.
    SpecError, PlacementError
        As the calculators.
    """
    if deployment.hardware is None:
        raise UsageError("a plan needs a GPU: --gpu h100-sxm")
    wanted = target or LatencyTarget()
    chosen = with_layout(model, deployment, wanted, batch_size, is_stated=is_layout_stated)
    deployment = chosen.deployment
    share = own_budget(model) if budget is None else budget
    ceiling = rank_ceiling(
        model, budget=share, alignment=deployment.rank_alignment,
        tp_size=deployment.parallel.tp_size, kv_dtype=deployment.settings.kv_dtype,
    )  # fmt: skip
    own_step = timed_step(model, deployment, wanted)
    own_load = admitted_by(
        own_step, capacity_row(model, deployment), deployment, wanted, batch_size
    )
    batch = batch_size or (own_load.batch_size if own_load else None)
    rows, refused, limits, notes = [], [], [], dict.fromkeys(own_step.remarks)
    limit = ceiling.budget_bytes_per_token_per_gpu
    for compared in compared_designs(model, deployment, limit, designs):
        design, text = compared.model, compared.text
        if compared.refused is not None:
            refused.append(f"{text}: {compared.refused}")
            continue
        try:
            step = timed_step(design, deployment, wanted)
            row = _row(compared.role, design, deployment, step, wanted, batch_size)
        except PlacementError as error:
            refused.append(f"{text}: {error}")
            continue
        notes |= dict.fromkeys(step.remarks)
        if (unpadded := timed_unpadded(design, deployment)) is not None:
            limits.append(f"{unpadded}, and so is its share of MHA's cache")
        if text is not None and batch is not None:
            against = _against(own_step, step, design, deployment, batch, wanted)
            row = replace(row, against_own=against)
        rows.append(row)
    return Plan(
        rows=tuple(rows),
        refused=tuple(refused),
        budget=share,
        ceiling=ceiling,
        parallel=deployment.parallel,
        n_replicas=deployment.n_replicas,
        layout=chosen.reason,
        batch_size=batch,
        context_tokens=deployment.settings.context_tokens,
        rests_on=tuple(notes),
        limits=tuple(limits),
    )


def _row(
    role: str,
    design: ModelSpec,
    deployment: Deployment,
    step: StepModel,
    target: LatencyTarget,
    batch_size: int | None,
) -> PlanRow:
    capacity = capacity_row(design, deployment)
    load = admitted_by(step, capacity, deployment, target, batch_size)
    holds = deployment.parallel.dp_size * capacity.max_sequences >= (batch_size or 1)
    return PlanRow(
        attention=capacity.attention,
        role=role,
        ratio_to_mha=ratio_to_mha(design, kv_dtype=deployment.settings.kv_dtype),
        kv_params_ratio=kv_params_ratio_to_mha(design),
        model_params=parameter_count(design).model_params,
        capacity=capacity,
        load=load,
        missing=None if load else "time" if holds else "memory",
        against_own=None,
        model=design,
        step=step,
    )


def _against(
    own: StepModel,
    other: StepModel,
    design: ModelSpec,
    deployment: Deployment,
    batch: int,
    target: LatencyTarget,
) -> Crossover:
    context = deployment.settings.context_tokens
    return context_crossover(
        (own, other), high=max(context, design.max_context_tokens or context), batch_size=batch,
        query_tokens=target.speculation.query_tokens,
    )  # fmt: skip
