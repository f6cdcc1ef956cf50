"""Concurrency that is both held and fast enough, and what its tokens cost.

Decode only: prefill of arriving requests takes time from every sequence and is not counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lrkv_plan.calculators.budget_fit import largest_fitting
from lrkv_plan.calculators.step_time import StepModel, StepTime, step_time
from lrkv_plan.errors import UsageError
from lrkv_plan.specs.hardware import HardwareProfile


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
    """What one engine core admits at one context, and how fast it then is.

    ``binds`` says whether memory or the time target limits it. Times are per output token and
    sequence; ``tpot_low_s`` and ``tpot_high_s`` are the step's band. Costs and energy are per
    million output tokens, energy at full board power (an upper bound).
    """

    sequences: int
    binds: str
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
    tpot_s: float | None = None,
    speculation: Speculation | None = None,
    gpu_hour_usd: float | None = None,
    board_power_w: float | None = None,
) -> Admission | None:
    """The smaller of what fits and what meets the target; None if not even one sequence does.

    Parameters
    ----------
    max_sequences : what the cache holds at this context, on one engine core. [sequences]
    n_gpus : GPUs of that core. [GPUs]
    tpot_s : the most that an output token may take; no target when None. [s]

    Notes
    -----
    Time per output token = step / accepted tokens. A step never gets faster with more sequences,
    so the largest batch within the target is found by bisection on the step itself.
    """
    spec = speculation or Speculation()

    def tpot(batch: int) -> float:
        step: StepTime = step_time(model, context_tokens, batch, spec.query_tokens)
        return float(step.step_s) / spec.accepted_tokens

    limit = float("inf") if tpot_s is None else tpot_s
    fast = largest_fitting(
        range(1, max_sequences + 1), lambda b: Fraction(tpot(b) > limit), Fraction(0)
    )
    if fast is None:
        return None
    step = step_time(model, context_tokens, fast, spec.query_tokens)
    per_token = [float(t) / spec.accepted_tokens for t in (step.step_s, step.low_s, step.high_s)]
    rate = fast / per_token[0]
    return Admission(
        sequences=fast,
        binds="time" if fast < max_sequences else "memory",
        tpot_s=per_token[0],
        tpot_low_s=per_token[1],
        tpot_high_s=per_token[2],
        tokens_per_s=rate,
        tokens_per_s_per_gpu=rate / n_gpus,
        usd_per_million_tokens=_per(gpu_hour_usd, n_gpus * 1e6 / (3600 * rate)),
        joules_per_token_at_most=_per(board_power_w, n_gpus / rate),
    )


def _per(price: float | None, factor: float) -> Any:
    return None if price is None else price * factor
