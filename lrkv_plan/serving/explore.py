"""Designs on a grid of contexts and batches: cache, sequences that fit, and decode steps.

Every value comes from the calculator that its command uses. What a calculator refuses leaves its
whole quantity out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import PlanError, one_line
from lrkv_plan.latency.step import step_time
from lrkv_plan.memory.cache import cache_bytes
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.load import timed_step

if TYPE_CHECKING:
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Explored:
    """One quantity in the order design, context, batch; empty where ``refused`` says why."""

    values: tuple[Any, ...] = ()
    refused: str | None = None


def explored_caches(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    *,
    kv_dtype: str,
    tp_size: int,
) -> Explored:
    """Cache on one GPU of ``batch`` sequences, per design, context and batch. [bytes]"""
    return _explored(
        lambda: (
            cache_bytes(
                model, context_tokens=context, batch_size=batch, kv_dtype=kv_dtype, tp_size=tp_size
            ).total
            for model in models
            for context in contexts
            for batch in batches
        )
    )


def explored_sequences(
    models: Sequence[ModelSpec], contexts: Sequence[int], deployment: Deployment
) -> Explored:
    """Sequences that one replica holds, per design and context."""
    at = [
        replace(deployment, settings=replace(deployment.settings, context_tokens=context))
        for context in contexts
    ]
    return _explored(
        lambda: (capacity_row(model, one).max_sequences for model in models for one in at)
    )


def explored_steps(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    deployment: Deployment,
    target: LatencyTarget,
) -> Explored:
    """``StepTime`` per design, context and batch."""
    n_query = target.speculation.query_tokens
    return _explored(
        lambda: (
            step_time(one, context, batch, n_query)
            for one in [timed_step(model, deployment, target) for model in models]
            for context in contexts
            for batch in batches
        )
    )


def _explored(values: Callable[[], Iterable[Any]]) -> Explored:
    try:
        return Explored(values=tuple(values()))
    except PlanError as error:
        return Explored(refused=one_line(str(error)))
