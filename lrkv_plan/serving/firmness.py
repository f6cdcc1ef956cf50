"""How firmly a way of serving is the cheapest: its memory and its times drawn within their bands.

Ways keep their layouts. A draw changes how many sequences fit and how long a step takes, with that
how many replicas a way needs, and with that its cost. Ways on the same GPU share what their memory
and the rest of their steps rest on; those with the same kernels share these too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lrkv_plan.latency.sensitivity import Constant, Sensitivity, sensitivity
from lrkv_plan.latency.step import step_time
from lrkv_plan.serving.capacity import sequences_between
from lrkv_plan.serving.cheapest import Way, Wish

_MOST_BATCHES = 4_096  # that a way is timed at


@dataclass(frozen=True, kw_only=True)
class _Option:
    """A way as draws see it: parts of its step by batch, what fits, and the constants of each."""

    memory: Constant
    attention: Constant | None
    rest: Constant | None
    held: float  # sequences of one replica
    batches: Any
    attention_s: Any
    rest_s: Any
    limit_s: float
    n_sequences: int
    cost_per_replica: float

    def costs(self, factors: Mapping[str, Any]) -> Any:
        """The cost in each draw; infinite where not one sequence is served."""
        held = np.floor(self.held * factors[self.memory.name] + 1e-9)
        if self.attention is not None and self.rest is not None:
            f_attention, f_rest = factors[self.attention.name], factors[self.rest.name]
            times = np.outer(f_attention, self.attention_s) + np.outer(f_rest, self.rest_s)
            # A step never gets faster with more sequences.
            in_time = np.count_nonzero(times <= self.limit_s, axis=1)
            served = np.concatenate([[0], self.batches])[in_time]
            held = np.where(in_time == len(self.batches), held, np.minimum(held, served))
        with np.errstate(divide="ignore"):
            return np.ceil(self.n_sequences / np.maximum(held, 0)) * self.cost_per_replica


def firmness(ways: Sequence[Way], wish: Wish, *, n_draws: int, seed: int) -> Sensitivity:
    """How often each of the ways is the cheapest, and which constants decide.

    Parameters
    ----------
    ways : the cheapest first.
    """
    options = [_option(one, wish) for one in ways]
    constants: dict[str, Constant] = {}
    for option in options:
        for one in (option.memory, option.attention, option.rest):
            if one is not None:
                known = constants.get(one.name, one)
                constants[one.name] = Constant(
                    name=one.name, low=min(known.low, one.low), high=max(known.high, one.high)
                )

    def costs(factors: Mapping[str, Any]) -> Any:
        return np.stack([option.costs(factors) for option in options])

    return sensitivity(list(constants.values()), costs, n_draws=n_draws, seed=seed)


def _option(one: Way, wish: Wish) -> _Option:
    deployment, row = one.deployment, one.row
    gpu = row.gpu or "the pool"
    low, high = sequences_between(one.model, deployment, row)
    middle = max(1, row.total_sequences)
    held = row.total_sequences / deployment.n_replicas
    memory = Constant(
        name=f"memory of {gpu}", low=max(low, 0.5) / middle, high=max(high, middle) / middle
    )
    told: dict[str, Any] = {
        "memory": memory, "held": held, "n_sequences": wish.n_sequences,
        "cost_per_replica": one.cost / deployment.n_replicas,
    }  # fmt: skip
    nothing = np.zeros(0)
    target = wish.target
    if one.step is None or target is None or target.tpot_s is None or one.load is None:
        return _Option(
            attention=None, rest=None, batches=nothing, attention_s=nothing, rest_s=nothing,
            limit_s=math.inf, **told,
        )  # fmt: skip
    most = max(1, math.ceil(held * memory.high))
    batches = np.unique(np.linspace(1, most, min(most, _MOST_BATCHES)).astype(np.int64))
    step = step_time(
        one.step, row.context_tokens, batches.astype(float), target.speculation.query_tokens
    )
    at, band = one.load.step, one.step.band
    kernels = ", ".join(dict.fromkeys(kernel.kernel for kernel in one.step.kernels))
    attention_s = float(at.attention_s) or 1.0
    return _Option(
        attention=Constant(
            name=f"attention kernels ({kernels}) on {gpu}",
            low=min(1.0, float(at.attention_low_s) / attention_s),
            high=max(1.0, float(at.attention_high_s) / attention_s),
        ),
        rest=Constant(name=f"rest of the step on {gpu}", low=band[0], high=band[1]),
        batches=batches,
        attention_s=np.broadcast_to(step.attention_s, batches.shape),
        rest_s=np.broadcast_to(step.step_s - step.attention_s, batches.shape),
        limit_s=target.tpot_s * target.speculation.accepted_tokens,
        **told,
    )
