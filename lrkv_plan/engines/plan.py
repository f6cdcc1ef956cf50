"""One page for a decision: every family on one backbone, held, timed and priced side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from lrkv_plan.calculators.cache_bytes import ratio_to_mha
from lrkv_plan.calculators.crossover import Crossover, context_crossover
from lrkv_plan.calculators.parameters import kv_params_ratio_to_mha, parameter_count
from lrkv_plan.calculators.rank_ceiling import RankCeiling, rank_ceiling
from lrkv_plan.calculators.step_model import step_model
from lrkv_plan.calculators.step_time import StepModel, StepTime, step_time
from lrkv_plan.engines.deployment import Deployment
from lrkv_plan.engines.latency import Admission, Speculation, admission
from lrkv_plan.engines.plan_choices import compared_designs, own_budget, widened_to_fit
from lrkv_plan.engines.planning import CapacityRow, capacity_row
from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.specs.serving import Parallelism


@dataclass(frozen=True, kw_only=True)
class PlanRow:
    """One design: what it caches and weighs, what fits, how fast, and where the ranking changes.

    ``step`` is at the plan's common batch; ``admitted`` at the design's own largest.
    ``against_own`` compares with the model's own design along the context; None for itself.
    """

    attention: str
    role: str
    ratio_to_mha: Fraction | None
    kv_params_ratio: Fraction | None
    model_params: int | None
    capacity: CapacityRow
    step: StepTime
    admitted: Admission | None
    against_own: Crossover | None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The rows, the budget that chose the LRKV rank, and what the times rest on."""

    rows: tuple[PlanRow, ...]
    refused: tuple[str, ...]
    budget: str
    ceiling: RankCeiling
    parallel: Parallelism
    n_replicas: int
    batch_size: int
    context_tokens: int
    rests_on: tuple[str, ...]

    @property
    def n_gpus(self) -> int:
        """GPUs of all replicas."""
        return self.n_replicas * self.parallel.tp_size


def make_plan(
    model: ModelSpec,
    deployment: Deployment,
    *,
    budget: str | None = None,
    batch_size: int | None = None,
    tpot_s: float | None = None,
    speculation: Speculation | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> Plan:
    """MHA, GQA, MQA, MLA and LRKV on a model's backbone, on given GPUs.

    Parameters
    ----------
    deployment : ``parallel.tp_size`` is raised to the smallest power of two at which the model's
        own design fits one sequence, if it does not fit as given. ``n_gpus`` are shared out among
        as many replicas of that size as they hold; one replica when None.
    budget : cache budget for the LRKV rank and the MLA latent; the own design's cache when None,
        or half of MHA where the own design is MHA.
    batch_size : sequences at which steps are compared; when None, what the own design holds, at
        most 32.

    Raises
    ------
    UsageError
        If no GPU is named.
    RequirementError
        If the model's own design fits on no power of two of GPUs up to ``n_gpus``, or 64.
    SpecError, PlacementError
        As the calculators.
    """
    if deployment.hardware is None:
        raise UsageError("a plan needs a GPU: --gpu h100-sxm")
    most_gpus = deployment.n_gpus
    deployment = widened_to_fit(model, replace(deployment, n_gpus=None), most_gpus or 64)
    chosen = budget or own_budget(model)
    ceiling = rank_ceiling(
        model, budget=chosen, alignment=deployment.rank_alignment,
        tp_size=deployment.parallel.tp_size, kv_dtype=deployment.settings.kv_dtype,
    )  # fmt: skip
    own = capacity_row(model, deployment)
    batch = batch_size or min(32, max(1, own.max_sequences))
    timer = _Timer(deployment, relatives)
    own_step = timer.model_of(model)
    rows, refused = [], []
    for role, text in compared_designs(model, ceiling):
        design = model if text is None else swap_attention(model, text)
        try:
            rows.append(_row(role, design, deployment, timer, own_step, batch, tpot_s, speculation))
        except PlacementError as error:
            refused.append(f"{text}: {error}")
    return Plan(
        rows=tuple(rows),
        refused=tuple(refused),
        budget=chosen,
        ceiling=ceiling,
        parallel=deployment.parallel,
        n_replicas=(most_gpus or deployment.parallel.tp_size) // deployment.parallel.tp_size,
        batch_size=batch,
        context_tokens=deployment.settings.context_tokens,
        rests_on=timer.rests_on(),
    )


class _Timer:
    """Step models of one deployment, and the notes that all of them rest on."""

    def __init__(self, deployment: Deployment, relatives: Sequence[HardwareProfile]) -> None:
        self.deployment = deployment
        self.relatives = relatives
        self.notes: dict[str, None] = {}

    def model_of(self, design: ModelSpec) -> StepModel:
        deployment = self.deployment
        assert deployment.hardware is not None
        step = step_model(
            design,
            deployment.hardware,
            kv_dtype=deployment.settings.kv_dtype,
            weight_dtype=deployment.weight_dtype,
            tp_size=deployment.parallel.tp_size,
            relatives=self.relatives,
        )
        self.notes |= dict.fromkeys(step.remarks)
        return step

    def rests_on(self) -> tuple[str, ...]:
        return tuple(self.notes)


def _row(
    role: str,
    design: ModelSpec,
    deployment: Deployment,
    timer: _Timer,
    own_step: StepModel,
    batch: int,
    tpot_s: float | None,
    speculation: Speculation | None,
) -> PlanRow:
    spec = speculation or Speculation()
    context = deployment.settings.context_tokens
    capacity = capacity_row(design, deployment)
    step = timer.model_of(design)
    hardware = deployment.hardware
    assert hardware is not None
    is_own = role == "own design"
    return PlanRow(
        attention=capacity.attention,
        role=role,
        ratio_to_mha=ratio_to_mha(design, kv_dtype=deployment.settings.kv_dtype),
        kv_params_ratio=kv_params_ratio_to_mha(design),
        model_params=parameter_count(design).model_params,
        capacity=capacity,
        step=step_time(step, context, batch, spec.query_tokens),
        admitted=admission(
            step,
            context_tokens=context,
            max_sequences=capacity.max_sequences,
            n_gpus=deployment.parallel.tp_size,
            tpot_s=tpot_s,
            speculation=speculation,
            gpu_hour_usd=deployment.gpu_hour_usd or hardware.gpu_hour_usd,
            board_power_w=hardware.board_power_w,
        ),
        against_own=None if is_own else context_crossover(
            (own_step, step), high=max(context, design.max_context_tokens or context),
            batch_size=batch, query_tokens=spec.query_tokens,
        ),
    )  # fmt: skip
