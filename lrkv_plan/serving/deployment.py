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
    the place of the engine's rule. ``joined`` are GPUs of different kinds that one replica's
    pipeline stages lie on, each with its number, the first layers' first; ``hardware`` is then the
    first of them.
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
    joined: tuple[tuple[int, HardwareProfile], ...] = ()

    @property
    def stage_hardware(self) -> tuple[HardwareProfile, ...] | None:
        """The GPU of each pipeline stage where kinds differ, else None.

        Raises
        ------
        PlacementError
            If a stage would lie on two kinds, or the stages take more or fewer GPUs.
        """
        if not self.joined:
            return None
        parallel = self.parallel
        told = f"--gpu {self.gpu_name}"
        if parallel.dp_size > 1:
            raise PlacementError(f"{told}: names one replica's GPUs; leave --dp-size out")
        stages: list[HardwareProfile] = []
        for count, hardware in self.joined:
            if count % parallel.tp_size:
                raise PlacementError(
                    f"{told}: {count} {hardware.name} are no whole stages of --tp-size "
                    f"{parallel.tp_size}; a stage's GPUs are of one kind"
                )
            stages += [hardware] * (count // parallel.tp_size)
        if len(stages) != parallel.pp_size:
            raise PlacementError(
                f"{told}: {len(stages)} stages of --tp-size {parallel.tp_size}, not "
                f"{parallel.pp_size}; change --pp-size or --pp-layers"
            )
        return tuple(stages)

    @property
    def gpu_name(self) -> str | None:
        """The GPU's name, those of different kinds with their numbers; None where none is named."""
        if self.joined:
            return "+".join(f"{count}x{hardware.name}" for count, hardware in self.joined)
        return None if self.hardware is None else self.hardware.name

    @property
    def usd_per_gpu_hour(self) -> float | None:
        """The price of one GPU for an hour, as given or as its profile states it. [USD]

        The mean of GPUs of different kinds, where all their profiles state one.
        """
        if self.gpu_hour_usd is not None or self.hardware is None:
            return self.gpu_hour_usd
        if self.joined:
            prices = [(n, one.hourly_price) for n, one in self.joined]
            known = [(n, price.usd) for n, price in prices if price is not None]
            if len(known) < len(prices):
                return None
            return sum(n * usd for n, usd in known) / sum(n for n, _ in known)
        price = self.hardware.hourly_price
        return None if price is None else price.usd

    @property
    def price_source(self) -> str | None:
        """Where that price was read, or ``given``; None where there is none."""
        if self.gpu_hour_usd is not None:
            return "given"
        if self.joined:
            prices = [one.hourly_price for _, one in self.joined]
            known = dict.fromkeys(price.provenance for price in prices if price is not None)
            return "; ".join(known) if None not in prices else None
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
    PlacementError
        If stages of several kinds of GPU do not come out even.
    """
    hardware, stated = deployment.hardware, deployment.kv_memory_bytes
    if deployment.stage_hardware is not None:
        hardware = min(
            (one for _, one in deployment.joined), key=lambda one: one.mem_capacity_bytes
        )
    if hardware is not None and stated is not None and stated > hardware.mem_capacity_bytes:
        raise UsageError(
            f"--kv-memory {format_bytes(stated)}: {hardware.name} has "
            f"{format_bytes(hardware.mem_capacity_bytes)} in all; state the pool of one GPU"
        )


def known_weight_bytes(
    model: ModelSpec, deployment: Deployment, *, own: ModelSpec | None = None
) -> int | None:
    """Weights of one GPU as given, or from the checkpoint's files where no format was asked for.

    The files' bytes are dealt out as the spec's own arithmetic deals them; a swapped design adds
    the arithmetic difference to them. Of pipeline stages it is the fullest. ``own`` as in
    ``stage_weight_bytes``.
    """
    if deployment.weight_bytes is None and deployment.measured is not None:
        return _measured_weight_bytes(model, deployment, deployment.measured)
    stages = stage_weight_bytes(model, deployment, own=own)
    return deployment.weight_bytes if stages is None else max(stages)


def stage_weight_bytes(
    model: ModelSpec, deployment: Deployment, *, own: ModelSpec | None = None
) -> tuple[int, ...] | None:
    """Weights of one GPU of each pipeline stage from the checkpoint's files; None without them.

    A stage holds the part of the files' bytes that it holds of the counted ones. [bytes]

    Parameters
    ----------
    own : the checkpoint's model as far as it lies on GPUs; the whole of it when None.
    """
    checkpoint = deployment.checkpoint
    if deployment.weight_bytes is not None or deployment.weight_dtype or checkpoint is None:
        return None
    if deployment.measured is not None:
        return None
    dtype = checkpoint.model.weight_dtype or "bf16"

    def counted(of: ModelSpec, parallel: Parallelism) -> list[int]:
        found = weight_bytes_per_gpu(of, parallel=parallel, weight_dtype=dtype)
        return [stage.total for stage in found.stages]

    held_now = counted(checkpoint.model if own is None else own, deployment.parallel)
    (whole,) = counted(checkpoint.model, Parallelism())
    asked = counted(model, deployment.parallel)
    return tuple(
        max(1, -(-checkpoint.total_bytes * held // whole) + other - held)
        for held, other in zip(held_now, asked, strict=True)
    )


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
