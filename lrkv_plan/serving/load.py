"""A load that is both held and fast enough, and what its tokens cost: one batch, one scope.

Decode only: prefill of arriving requests takes time from every sequence and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lrkv_plan.errors import UsageError
from lrkv_plan.latency.basis import time_basis
from lrkv_plan.latency.evidence import Basis
from lrkv_plan.latency.step import UNSEEN_FACTOR, StepModel, StepTime, step_model, step_time
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.memory.largest import largest
from lrkv_plan.serving.capacity import CapacityRow
from lrkv_plan.serving.deployment import Deployment, known_weight_bytes
from lrkv_plan.serving.engine import timed_as
from lrkv_plan.specs.design import as_stored, design_label
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """``query_tokens`` verified per step, of which ``accepted_tokens`` count on average."""

    query_tokens: int = 1
    accepted_tokens: float = 1.0

    def __post_init__(self) -> None:
        if self.query_tokens < 1 or not 1 <= self.accepted_tokens <= self.query_tokens:
            raise UsageError(
                f"accepted tokens {self.accepted_tokens:g}: must be from 1 to the "
                f"{self.query_tokens} query tokens of a step"
            )


@dataclass(frozen=True, kw_only=True)
class LatencyTarget:
    """The most that an output token may take, how tokens are drafted, and lending profiles. [s]"""

    tpot_s: float | None = None
    speculation: Speculation = field(default_factory=Speculation)
    relatives: tuple[HardwareProfile, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Admission:
    """One load: a batch on each replica, how fast it is, and what all replicas give together.

    ``batch_size`` is one replica's, ``sequences``, ``tokens_per_s`` and costs are those of all
    ``n_replicas``. ``binds`` says what sets the batch: "memory", "time" (the target) or "stated".
    ``time_basis`` is the weakest evidence among terms over a tenth of the step.
    Times are per output token and sequence; ``tpot_low_s`` and ``tpot_high_s`` are the step's band.
    Costs and energy are per million output tokens, energy at full board power (an upper bound).
    """

    batch_size: int
    n_replicas: int
    sequences: int
    binds: str
    meets_target: bool
    step: StepTime
    time_basis: Basis
    tpot_s: float
    tpot_low_s: float
    tpot_high_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    usd_per_million_tokens: float | None
    joules_per_token_at_most: float | None


def admission(
    model: StepModel,
    *,
    context_tokens: int,
    max_sequences: int,
    n_gpus: int,
    n_replicas: int = 1,
    batch_size: int | None = None,
    tpot_s: float | None = None,
    speculation: Speculation | None = None,
    gpu_hour_usd: float | None = None,
    board_power_w: float | None = None,
) -> Admission | None:
    """The load that fits and meets the target, or the stated one; None if there is none.

    Parameters
    ----------
    max_sequences : what the cache of one replica holds at this context. [sequences]
    n_gpus : GPUs of one replica. [GPUs]
    n_replicas : replicas that share nothing, each with the same load.
    batch_size : the load of one replica; the largest that fits and meets the target when None.
    tpot_s : the most that an output token may take; no target when None. [s]

    Returns
    -------
    None where not one sequence fits or meets the target, or the stated batch does not fit.

    Notes
    -----
    Time per output token = step / accepted tokens. A step never gets faster with more sequences,
    so the largest batch within the target is found by bisection on the step itself.
    """
    spec = speculation or Speculation()
    limit = float("inf") if tpot_s is None else tpot_s

    def tpot(batch: int) -> float:
        step: StepTime = step_time(model, context_tokens, batch, spec.query_tokens)
        return float(step.step_s) / spec.accepted_tokens

    if batch_size is None:
        load = largest(
            range(1, max_sequences + 1), lambda b: Fraction(tpot(b) > limit), Fraction(0)
        )
    else:
        load = batch_size if batch_size <= max_sequences else None
    if load is None:
        return None
    step = step_time(model, context_tokens, load, spec.query_tokens)
    per_token = [float(t) / spec.accepted_tokens for t in (step.step_s, step.low_s, step.high_s)]
    rate = n_replicas * load / per_token[0]
    gpus = n_replicas * n_gpus
    bound = "time" if load < max_sequences else "memory"
    return Admission(
        batch_size=load,
        n_replicas=n_replicas,
        sequences=n_replicas * load,
        binds=bound if batch_size is None else "stated",
        meets_target=per_token[0] <= limit,
        step=step,
        time_basis=time_basis(model, step),
        tpot_s=per_token[0],
        tpot_low_s=per_token[1],
        tpot_high_s=per_token[2],
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / gpus,
        usd_per_million_tokens=_per(gpu_hour_usd, gpus * 1e6 / (3600 * rate)),
        joules_per_token_at_most=_per(board_power_w, gpus / rate),
    )


def timed_step(design: ModelSpec, deployment: Deployment, target: LatencyTarget) -> StepModel:
    """The step of a design in a deployment, with the weights that the deployment knows.

    Raises
    ------
    UsageError
        If no GPU is named, layers lie on the host, or pipeline stages differ: none of what was
        measured stands for those.
    SpecError, PlacementError
        As ``step_model``.
    """
    if deployment.hardware is None:
        raise UsageError("a time needs a GPU: name it (--gpu) beside --kv-memory")
    for option in ("n_gpu_layers", "cpu_offload_gb"):
        if getattr(deployment.settings, option) is not None:
            raise UsageError(
                f"--{option.replace('_', '-')}: times of layers on the host are not predicted; "
                "leave it or the time out"
            )
    layers = deployment.parallel.pp_layers
    if deployment.joined or (layers is not None and len(set(layers)) > 1):
        told = f"--gpu {deployment.gpu_name}" if deployment.joined else "--pp-layers"
        raise UsageError(
            f"{told}: times of stages that differ in GPU or layers are not predicted; leave the "
            "time out, or ask `capacity` without it"
        )
    step = step_model(
        design,
        deployment.hardware,
        kv_dtype=deployment.settings.kv_dtype,
        weight_dtype=deployment.weight_dtype,
        weight_bytes=known_weight_bytes(design, deployment),
        parallel=deployment.parallel,
        engine=timed_as(deployment.engine),
        relatives=target.relatives,
    )
    drafts = deployment.settings.draft_layers > 0 or target.speculation.query_tokens > 1
    return _with_drafts(step) if drafts else step


def _with_drafts(step: StepModel) -> StepModel:
    """The step with what is not known of the draft before it."""
    low, high = step.band
    told = (
        "drafts: the verification is timed, the draft itself is not; no measured step stands for "
        "it, so the band is wider"
    )
    return replace(step, band=(low, high * UNSEEN_FACTOR), remarks=(*step.remarks, told))


def timed_unpadded(design: ModelSpec, deployment: Deployment) -> str | None:
    """What to say where rows are stored wider than a step's time takes them; None where not."""
    alignment = deployment.rank_alignment

    def held(one: ModelSpec) -> str:
        size = bytes_per_token(
            one, kv_dtype=deployment.settings.kv_dtype, tp_size=deployment.parallel.tp_size
        )
        return f"{float(size):,.10g} B"

    kept, timed = held(as_stored(design, alignment)), held(design)
    if kept == timed:
        return None
    return (
        f"{design_label(design)}: its rows are stored padded to a multiple of {alignment}, {kept} "
        f"a token and GPU, and timed as if they were not, {timed}: times are too low"
    )


def admitted_by(
    step: StepModel,
    row: CapacityRow,
    deployment: Deployment,
    target: LatencyTarget,
    batch_size: int | None = None,
) -> Admission | None:
    """``admission`` of a capacity row on all replicas of its deployment."""
    hardware = deployment.hardware
    return admission(
        step,
        context_tokens=row.context_tokens,
        max_sequences=deployment.parallel.dp_size * row.max_sequences,
        n_gpus=deployment.parallel.n_gpus,
        n_replicas=deployment.n_replicas,
        batch_size=batch_size,
        tpot_s=target.tpot_s,
        speculation=target.speculation,
        gpu_hour_usd=deployment.usd_per_gpu_hour,
        board_power_w=hardware.board_power_w if hardware else None,
    )


def admitted_between(
    step: StepModel,
    row: CapacityRow,
    deployment: Deployment,
    target: LatencyTarget,
    held: tuple[int, int],
) -> tuple[int, int]:
    """Sequences served at the worst and at the best of memory and of the step's band.

    Parameters
    ----------
    held : ``total_sequences`` with the budget at its worst and at its best.
    """
    n_replicas = deployment.n_replicas

    def served(end: str, total: int) -> int:
        most = total // n_replicas
        if target.tpot_s is None or not most:
            return total
        limit = target.tpot_s * target.speculation.accepted_tokens

        def time(batch: int) -> float:
            one = step_time(step, row.context_tokens, batch, target.speculation.query_tokens)
            return float(getattr(one, end))

        fits = largest(range(1, most + 1), lambda b: Fraction(time(b) > limit), Fraction(0))
        return n_replicas * (fits or 0)

    return served("high_s", held[0]), served("low_s", held[1])


def _per(price: float | None, factor: float) -> Any:
    return None if price is None else price * factor
