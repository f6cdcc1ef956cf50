"""A memory budget as a list of signed terms, each with where its number comes from.

The cache gets the sum. What each engine's terms are is said in that engine's own module.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.errors import UsageError
from lrkv_plan.formats import WeightFormat, weight_format
from lrkv_plan.memory.weights import WeightBytes, weight_bytes_per_gpu
from lrkv_plan.specs.deployment import EngineName, EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

GIVEN = "given"
ARITHMETIC = "spec arithmetic"


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
    """What one GPU of each pipeline stage has for the cache under an engine's own rule."""

    engine: EngineName
    utilisation: Fraction
    stages: tuple[StageBudget, ...]
    remarks: tuple[str, ...]

    @property
    def stage_kv_bytes_per_gpu(self) -> tuple[int, ...]:
        """Cache bytes of one GPU of each stage. [bytes]"""
        return tuple(stage.kv_bytes for stage in self.stages)

    @property
    def deciding(self) -> StageBudget:
        """The stage with the least memory left."""
        return min(self.stages, key=lambda stage: stage.kv_bytes)

    @property
    def kv_bytes_per_gpu(self) -> int:
        """Cache bytes of one GPU of the stage with the least. [bytes]"""
        return self.deciding.kv_bytes


@dataclass(frozen=True, kw_only=True)
class BudgetInputs:
    """What a budget rule reads; ``weight_bytes`` given per GPU replaces the arithmetic."""

    engine: EngineName
    model: ModelSpec
    hardware: HardwareProfile
    parallel: Parallelism
    settings: EngineSettings
    utilisation: Fraction
    weight_dtype: str | None = None
    weight_bytes: int | None = None
    max_sequences: int | None = None

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
        return weight_format(name)

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
            self.model, parallel=self.parallel, weight_dtype=self.storage.name
        )


def weight_terms(inputs: BudgetInputs) -> tuple[tuple[BudgetTerm, ...], tuple[str, ...]]:
    """One weights term per pipeline stage, and the remarks that go with them."""
    counted = inputs.weights()
    if counted is None:
        given = taken("weights", inputs.weight_bytes or 0, GIVEN)
        return (given,) * inputs.parallel.pp_size, ()
    provenance = f"{ARITHMETIC}, {inputs.storage.name}"
    terms = tuple(taken("weights", stage.total, provenance) for stage in counted.stages)
    return terms, counted.remarks


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


def stages_of(
    shared: Iterable[BudgetTerm], per_stage: Iterable[Iterable[BudgetTerm]]
) -> tuple[StageBudget, ...]:
    """Stage budgets from terms common to all and terms of each."""
    common = tuple(shared)
    return tuple(StageBudget(terms=(*common, *own)) for own in per_stage)
