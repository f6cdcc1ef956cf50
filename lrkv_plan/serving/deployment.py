"""What serves a model: GPUs, engine, settings and weights, before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.memory.weights import weight_bytes_per_gpu
from lrkv_plan.specs.deployment import EngineName, EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.measured import MeasuredBudget
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import format_bytes


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The weights that a model's own files hold, all GPUs together. [bytes]"""

    model: ModelSpec
    total_bytes: int
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A budget that a server's log measured, and the model that it served as it was."""

    budget: MeasuredBudget
    model: ModelSpec


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """GPUs, engine and settings; what is None takes the engine's or the profile's default.

    ``kv_memory_bytes`` bypasses the budget, and then no GPU needs naming. ``rank_alignment`` is the
    multiple that the engine's kernel stores low-rank rows at. ``measured`` is a budget that takes
    the place of the engine's rule.
    """

    engine: EngineName
    settings: EngineSettings
    hardware: HardwareProfile | None = None
    parallel: Parallelism = field(default_factory=Parallelism)
    n_gpus: int | None = None
    utilisation: Fraction | None = None
    weight_dtype: str | None = None
    weight_bytes: int | None = None
    checkpoint: Checkpoint | None = None
    kv_memory_bytes: int | None = None
    rank_alignment: int = 16
    gpu_hour_usd: float | None = None
    measured: Measured | None = None

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price of one GPU for an hour, as given or as its profile states it. [USD]"""
        if self.gpu_hour_usd is not None or self.hardware is None:
            return self.gpu_hour_usd
        price = self.hardware.hourly_price
        return None if price is None else price.usd

    @property
    def price_source(self) -> str | None:
        """Where that price was read, or ``given``; None where there is none."""
        if self.gpu_hour_usd is not None:
            return "given"
        price = None if self.hardware is None else self.hardware.hourly_price
        return None if price is None else price.provenance

    @property
    def n_replicas(self) -> int:
        """Engine replicas on all GPUs.

        Raises
        ------
        PlacementError
            If the GPUs are not a multiple of one replica's.
        """
        each = self.parallel.n_gpus
        total = each if self.n_gpus is None else self.n_gpus
        if total % each:
            raise PlacementError(
                f"n_gpus {total}: one replica takes {each} GPUs (tp x pp x dp); use a multiple"
            )
        return total // each


def check_pool(deployment: Deployment) -> None:
    """Refuse a stated pool that the named GPU's memory cannot hold.

    Raises
    ------
    UsageError
        If ``kv_memory_bytes`` exceeds the GPU's memory.
    """
    hardware, stated = deployment.hardware, deployment.kv_memory_bytes
    if hardware is not None and stated is not None and stated > hardware.mem_capacity_bytes:
        raise UsageError(
            f"--kv-memory {format_bytes(stated)}: {hardware.name} has "
            f"{format_bytes(hardware.mem_capacity_bytes)} in all; state the pool of one GPU"
        )


def known_weight_bytes(model: ModelSpec, deployment: Deployment) -> int | None:
    """Weights of one GPU as given, or from the checkpoint's files where no format was asked for.

    The files' bytes are dealt out as the spec's own arithmetic deals them; a swapped design adds
    the arithmetic difference to them. Of pipeline stages it is the fullest.
    """
    checkpoint = deployment.checkpoint
    if deployment.weight_bytes is None and deployment.measured is not None:
        return _measured_weight_bytes(model, deployment, deployment.measured)
    if deployment.weight_bytes is not None or checkpoint is None or deployment.weight_dtype:
        return deployment.weight_bytes
    dtype = checkpoint.model.weight_dtype or "bf16"

    def counted(of: ModelSpec, parallel: Parallelism) -> int:
        return weight_bytes_per_gpu(of, parallel=parallel, weight_dtype=dtype).fullest.total

    own = counted(checkpoint.model, deployment.parallel)
    whole = counted(checkpoint.model, Parallelism())
    exact = -(-checkpoint.total_bytes * own // whole)
    return max(1, exact + counted(model, deployment.parallel) - own)


def _measured_weight_bytes(model: ModelSpec, deployment: Deployment, measured: Measured) -> int:
    """The measured weights of one GPU, and what another design or format adds to them. [bytes]"""
    stored = measured.model.weight_dtype or "bf16"
    asked = deployment.weight_dtype or model.weight_dtype or "bf16"
    if asked == stored and model.layers == measured.model.layers:
        return measured.budget.weights_bytes

    def counted(of: ModelSpec, dtype: str) -> int:
        counts = weight_bytes_per_gpu(of, parallel=deployment.parallel, weight_dtype=dtype)
        return counts.fullest.total

    difference = counted(model, asked) - counted(measured.model, stored)
    return max(1, measured.budget.weights_bytes + difference)


def checkpoint_remarks(deployment: Deployment) -> tuple[str, ...]:
    """What the weights rest on where the checkpoint's files gave them."""
    checkpoint = deployment.checkpoint
    if checkpoint is None or deployment.weight_bytes is not None or deployment.weight_dtype:
        return ()
    if deployment.measured is not None:
        return ()
    read = f"weights: {checkpoint.total_bytes:,} B in the checkpoint's own files"
    return (read, *checkpoint.remarks)
