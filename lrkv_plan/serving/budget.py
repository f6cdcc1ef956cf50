"""Memory that is left for the cache on each GPU: signed terms, each with where it comes from.

The cache gets the sum. What an engine's terms are is said in that engine's own file; here are the
terms that several share, and ``budget_for``, which asks the engine's rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction

from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.formats import WeightFormat, weight_format
from lrkv_plan.memory.weights import WeightBytes, weight_bytes_per_gpu
from lrkv_plan.serving.engine import engine_record
from lrkv_plan.specs.deployment import EngineName, EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.measured import MeasuredBudget
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import GIB

GIVEN = "given"
ARITHMETIC = "spec arithmetic"
# Non-torch memory (driver context, NCCL and its buffers) of vLLM 0.19 on an H100: median of the
# fitted rows, and a range. One GPU: least and most of 9 rows. Pipeline and tensor parallel: one
# fitted row each, so the range is a guess. [GiB]
NON_TORCH_GIB = {
    "one": (0.25, 0.25, 0.26),
    "pipeline": (0.07, 0.05, 0.26),
    "tensor": (2.17, 2.0, 2.4),
}


def assumed(low_bytes: int, high_bytes: int, why: str) -> str:
    """Provenance of a guess, with its range."""
    return f"assumed, range {low_bytes / 2**30:.2f}..{high_bytes / 2**30:.2f} GiB: {why}"


@dataclass(frozen=True, kw_only=True)
class BudgetTerm:
    """One line of a budget: memory there is (positive) or that something takes (negative).

    ``low_bytes`` and ``high_bytes`` bound a figure that is not exact, with the same sign:
    ``low_bytes <= n_bytes <= high_bytes``. [bytes]
    """

    name: str
    n_bytes: int
    provenance: str
    low_bytes: int | None = None
    high_bytes: int | None = None


def taken(name: str, n_bytes: int, provenance: str, low: int = -1, high: int = -1) -> BudgetTerm:
    """A term that takes ``n_bytes``, between ``low`` and ``high`` where those are given."""
    bounds = {} if high < 0 else {"low_bytes": -high, "high_bytes": -low}
    return BudgetTerm(name=name, n_bytes=-n_bytes, provenance=provenance, **bounds)


@dataclass(frozen=True, kw_only=True)
class StageBudget:
    """The budget of one GPU of one pipeline stage; ``kv_bytes`` below 0 is what is short."""

    terms: tuple[BudgetTerm, ...]

    @property
    def kv_bytes(self) -> int:
        """What the terms leave for the cache. [bytes]"""
        return sum(term.n_bytes for term in self.terms)

    @property
    def kv_low_bytes(self) -> int:
        """The same with every uncertain term at its worst. [bytes]"""
        return sum(_or(term.low_bytes, term.n_bytes) for term in self.terms)

    @property
    def kv_high_bytes(self) -> int:
        """The same with every uncertain term at its best. [bytes]"""
        return sum(_or(term.high_bytes, term.n_bytes) for term in self.terms)

    def bytes_of(self, name: str) -> int:
        """The signed bytes of that term, 0 where it has none. [bytes]"""
        return sum(term.n_bytes for term in self.terms if term.name == name)


def _or(bound: int | None, value: int) -> int:
    return value if bound is None else bound


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """What one GPU of each pipeline stage has for the cache under an engine's own rule.

    ``state_slots`` are recurrent states whose memory a term took already. ``decides`` is the stage
    whose pool is the smallest, from 0; None where that is not known yet.
    """

    engine: EngineName
    utilisation: Fraction
    stages: tuple[StageBudget, ...]
    remarks: tuple[str, ...]
    state_slots: int | None = None
    decides: int | None = None

    @property
    def stage_kv_bytes_per_gpu(self) -> tuple[int, ...]:
        """Cache bytes of one GPU of each stage. [bytes]"""
        return tuple(stage.kv_bytes for stage in self.stages)

    @property
    def deciding(self) -> StageBudget:
        """The stage whose pool is the smallest; before pools are known the one with the least."""
        if self.decides is not None:
            return self.stages[self.decides]
        return min(self.stages, key=lambda stage: stage.kv_bytes)

    @property
    def kv_bytes_per_gpu(self) -> int:
        """Cache bytes of one GPU of the stage with the least. [bytes]"""
        return self.deciding.kv_bytes


@dataclass(frozen=True, kw_only=True)
class BudgetInputs:
    """What a budget rule reads; ``weight_bytes`` given per GPU replaces the arithmetic.

    ``stage_weight_bytes`` are those of each pipeline stage where they differ. ``stage`` is the only
    stage that lies on ``hardware``; None: all of them do.
    """

    engine: EngineName
    model: ModelSpec
    hardware: HardwareProfile
    parallel: Parallelism
    settings: EngineSettings
    utilisation: Fraction
    weight_dtype: str | None = None
    weight_bytes: int | None = None
    max_sequences: int | None = None
    stage_weight_bytes: tuple[int, ...] | None = None
    stage: int | None = None

    @property
    def storage(self) -> WeightFormat:
        """The weight format that was asked for, or the model's own.

        Raises
        ------
        UsageError
            If neither is stated.
        """
        name = self.weight_dtype or self.model.weight_dtype
        if name is None:
            raise UsageError(
                f"{self.model.name}: its weight format is not stated; give --weight-dtype, or "
                "the size with --weights"
            )
        return self.model.weights_in(name)

    @property
    def activation_scalar_bytes(self) -> int:
        """Bytes of an activation: 4 where the model runs in fp32, else 2. [bytes]"""
        name = self.weight_dtype or self.model.weight_dtype or "bf16"
        return 4 if weight_format(name).name == "fp32" else 2

    def weights(self) -> WeightBytes | None:
        """The counted weights; None where their size was given."""
        if self.weight_bytes is not None:
            return None
        return weight_bytes_per_gpu(
            self.model, parallel=self.parallel, weight_dtype=self.storage.name,
            with_drafts=self.settings.draft_layers > 0,
        )  # fmt: skip


def weight_terms(inputs: BudgetInputs) -> tuple[tuple[BudgetTerm, ...], tuple[str, ...]]:
    """One weights term per pipeline stage, and the remarks that go with them."""
    counted = inputs.weights()
    if counted is None:
        each = inputs.stage_weight_bytes or (inputs.weight_bytes or 0,) * inputs.parallel.pp_size
        return tuple(taken("weights", n_bytes, GIVEN) for n_bytes in each), ()
    provenance = f"{ARITHMETIC}, {inputs.storage.name}"
    terms = [taken("weights", stage.total, provenance) for stage in counted.stages]
    terms[-1] = _with_drafter(terms[-1], inputs)
    return tuple(terms), counted.remarks


def _with_drafter(weights: BudgetTerm, inputs: BudgetInputs) -> BudgetTerm:
    """The last stage's weights with a drafter's layers: it shares embedding and head, or not."""
    drafter = inputs.settings.drafter
    if drafter is None:
        return weights
    counted = weight_bytes_per_gpu(
        drafter,
        parallel=Parallelism(tp_size=inputs.parallel.tp_size),
        weight_dtype=drafter.weight_dtype or "bf16",
    ).fullest
    layers = counted.total - counted.embeddings - counted.head
    low, high = -weights.n_bytes + layers, -weights.n_bytes + counted.total
    told = assumed(low, high, f"with {drafter.name}, whose embedding and head may be shared")
    return taken("weights", low, told, low, high)


def memory_term(hardware: HardwareProfile) -> tuple[BudgetTerm, tuple[str, ...]]:
    """Memory that the driver shows, else the nominal size with a remark."""
    visible = hardware.mem_visible_bytes
    if visible is not None:
        return BudgetTerm(name="memory", n_bytes=visible, provenance="driver-visible"), ()
    nominal = hardware.mem_capacity_bytes
    remark = f"{hardware.name}: nominal memory; a driver shows up to 3 % less"
    low = nominal * 97 // 100
    term = BudgetTerm(
        name="memory", n_bytes=nominal, provenance="nominal", low_bytes=low, high_bytes=nominal
    )
    return term, (remark,)


def utilisation_term(total_bytes: int, utilisation: Fraction) -> BudgetTerm:
    """The part of the memory that the engine leaves alone."""
    kept = total_bytes - int(total_bytes * utilisation)
    return taken("outside utilisation", kept, f"1 - {float(utilisation):.4g} of all memory")


def share_of_free(terms: tuple[BudgetTerm, ...], fraction: Fraction) -> StageBudget:
    """A stage whose cache gets that fraction of what the terms leave."""
    free = StageBudget(terms=terms)
    kept = max(0, free.kv_bytes) * (1 - fraction)
    note = f"1 - {float(fraction):.4g} of the memory free after load"
    return StageBudget(terms=(*terms, taken("outside the fraction", int(kept), note)))


def stages_of(
    shared: Iterable[BudgetTerm], per_stage: Iterable[Iterable[BudgetTerm]]
) -> tuple[StageBudget, ...]:
    """Stage budgets from terms common to all and terms of each."""
    common = tuple(shared)
    return tuple(StageBudget(terms=(*common, *own)) for own in per_stage)


def non_torch_term(inputs: BudgetInputs) -> BudgetTerm:
    """Driver context and libraries of an engine without figures of its own: vLLM's, up to twice."""
    kind = "tensor" if inputs.parallel.tp_size > 1 else "one"
    runtime = int(NON_TORCH_GIB[kind][0] * GIB)
    return taken(
        "non-torch", runtime, assumed(runtime, 2 * runtime, "as vLLM's"), runtime, 2 * runtime
    )


def weights_only_budget(inputs: BudgetInputs) -> MemoryBudget:
    """total * utilisation - weights: an upper bound without any runtime."""
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    shared = [memory, utilisation_term(memory.n_bytes, inputs.utilisation)]
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
        remarks=(
            *remarks,
            *weight_remarks,
            "no activations and no runtime are taken off: an upper bound",
        ),
    )


def budget_for(
    engine: EngineName,
    model: ModelSpec,
    hardware: HardwareProfile,
    parallel: Parallelism,
    settings: EngineSettings,
    *,
    utilisation: Fraction | None = None,
    weight_dtype: str | None = None,
    weight_bytes: int | None = None,
    stage_weight_bytes: tuple[int, ...] | None = None,
    max_sequences: int | None = None,
    stage_hardware: tuple[HardwareProfile, ...] | None = None,
) -> MemoryBudget:
    """What one GPU of each pipeline stage has left for the cache.

    Parameters
    ----------
    engine : decides what the fraction applies to, and what is inside it.
    model, hardware, parallel, settings : ``settings.max_batched_tokens`` is profiled by vLLM.
    utilisation : the engine's fraction; None takes its default.
    weight_dtype : weight format; None takes the model's own.
    weight_bytes : weights on one GPU as known, instead of counting them. [bytes]
    stage_weight_bytes : those of one GPU of each pipeline stage, where they differ. [bytes]
    stage_hardware : the GPU of each pipeline stage, where they differ; ``hardware`` is any of them.
    max_sequences : vLLM's max_num_seqs; None takes its default for the GPU. [sequences]

    Returns
    -------
    Signed terms per stage whose sum is the budget; below 0 nothing fits and the sum is what is
    short.

    Raises
    ------
    UsageError
        If there is no such engine, the utilisation is not in 0..1, or the weight format is
        not stated anywhere.
    SpecError
        If the weights cannot be counted from the spec and are not given.
    PlacementError
        If the weights cannot be dealt out.

    Notes
    -----
    Each engine means something else by its fraction, so there is no common formula.
    vLLM: total u - weights - activation - non-torch (- CUDA graphs from 0.21).
    SGLang: (total - non-torch) f - weights.
    TensorRT-LLM: (total - weights - activation - non-torch) f.
    llama.cpp: total - weights - compute buffer.

    Examples
    --------
    >>> from lrkv_plan import load_hardware, load_model
    >>> from lrkv_plan.specs.deployment import parse_engine
    >>> budget = budget_for(
    ...     parse_engine("vllm@0.19.0"), load_model("llama-3.1-8b"), load_hardware("h100-sxm"),
    ...     Parallelism(), EngineSettings(context_tokens=8192), utilisation=Fraction(95, 100))
    >>> f"{budget.kv_bytes_per_gpu / 2**30:.1f} GiB"  # the engine printed 58.11
    '58.1 GiB'
    """
    record = engine_record(engine.name)
    fraction = record.utilisation.of(engine) if utilisation is None else utilisation
    if not 0 < fraction <= 1:
        raise UsageError(f"utilisation {float(fraction):g}: must be above 0 and at most 1")
    inputs = BudgetInputs(
        engine=engine, model=model, hardware=hardware, parallel=parallel, settings=settings,
        utilisation=fraction, weight_dtype=weight_dtype, weight_bytes=weight_bytes,
        max_sequences=max_sequences, stage_weight_bytes=stage_weight_bytes,
    )  # fmt: skip
    if stage_hardware is None:
        budget = record.budget(inputs)
    else:
        budget = _by_stage(record.budget, inputs, stage_hardware)
    return _with_remarks(budget, record.utilisation_doubt if utilisation is None else None)


def _by_stage(
    rule: Callable[[BudgetInputs], MemoryBudget],
    inputs: BudgetInputs,
    stage_hardware: tuple[HardwareProfile, ...],
) -> MemoryBudget:
    """The budget of stages on different GPUs: each stage's is the rule's on its own GPU.

    All stages have as many state slots as the stage with the fewest.
    """
    told = [
        replace(inputs, hardware=hardware, stage=index)
        for index, hardware in enumerate(stage_hardware)
    ]
    budgets = [rule(one) for one in told]
    slots = [one.state_slots for one in budgets if one.state_slots is not None]
    if slots:
        fewest = min(slots) * inputs.parallel.dp_size
        settings = replace(inputs.settings, max_mamba_cache_size=fewest)
        budgets = [rule(replace(one, settings=settings)) for one in told]
    remarks = dict.fromkeys(remark for one in budgets for remark in one.remarks)
    return replace(
        budgets[0],
        stages=tuple(budget.stages[index] for index, budget in enumerate(budgets)),
        state_slots=min(slots) if slots else None,
        remarks=tuple(remarks),
    )


def measured_budget(
    measured: MeasuredBudget,
    engine: EngineName,
    parallel: Parallelism,
    *,
    utilisation: Fraction | None,
    weight_bytes: int,
) -> MemoryBudget:
    """The budget that a log measured: memory, utilisation, weights, and all else as one term.

    Raises
    ------
    PlacementError
        If the GPUs share the model otherwise than when it was measured.
    """
    sizes = ("tp_size", "pp_size", "dp_size", "ep_size", "dcp_size")
    for size in sizes:
        told, had = getattr(parallel, size), getattr(measured, size, 1)
        if told != had:
            raise PlacementError(
                f"{size} {told}: the budget file was measured with {size} {had}; measure again, or "
                "leave --budget-file out"
            )
    fraction = measured.share if utilisation is None else utilisation
    where = measured.source.citation or measured.source.url
    why = f"measured: {where}"
    memory = BudgetTerm(name="memory", n_bytes=measured.memory_bytes, provenance=why)
    terms = (
        memory,
        utilisation_term(memory.n_bytes, fraction),
        taken("runtime", measured.runtime_bytes, why),
        taken("weights", weight_bytes, why),
    )
    remark = (
        f"runtime measured at {measured.context_tokens:,} tokens and "
        f"{measured.max_batched_tokens:,} tokens a step"
    )
    return MemoryBudget(
        engine=engine, utilisation=fraction, stages=(StageBudget(terms=terms),), remarks=(remark,)
    )


def _shortage(budget: MemoryBudget) -> str:
    """How much is short, and the utilisation from which something is left, if there is one."""
    stage = budget.deciding
    short = f"nothing is left for the cache: {-stage.kv_bytes / 2**30:.2f} GiB short on each GPU"
    missing = Fraction(-stage.kv_bytes, stage.bytes_of("memory"))
    least = math.floor((budget.utilisation + missing) * 10_000 + 1) / 10_000
    is_of_all = stage.bytes_of("outside utilisation") or budget.utilisation == 1
    if not is_of_all or least > 1:
        return f"{short}; spread the model over more GPUs"
    return f"{short}; needs a utilisation of at least {least:.4f}"


def _with_remarks(budget: MemoryBudget, doubt: str | None) -> MemoryBudget:
    """The budget with what is unsure about its fraction, and the fraction that would fit."""
    remarks = list(budget.remarks)
    if doubt:
        remarks.append(f"utilisation: {doubt}")
    if budget.kv_bytes_per_gpu <= 0:
        remarks.append(_shortage(budget))
    return replace(budget, remarks=tuple(remarks))
