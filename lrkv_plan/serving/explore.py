"""Designs on a grid of contexts and batches: cache, users that fit, decode steps, work; and every
family's design at a model's own cache.

Every value comes from the calculator that its command uses. What a calculator refuses leaves its
whole quantity out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.registry import all_families
from lrkv_plan.errors import PlanError, one_line
from lrkv_plan.latency.basis import deciding_terms
from lrkv_plan.latency.step import step_time
from lrkv_plan.memory.arithmetic import arithmetic_ratio_to_mha
from lrkv_plan.memory.cache import bytes_per_token, cache_bytes
from lrkv_plan.memory.largest import rank_ceiling
from lrkv_plan.memory.weights import kv_params_ratio_to_mha
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.load import timed_step
from lrkv_plan.serving.plan import ComparedDesign
from lrkv_plan.specs.design import (
    design_label,
    design_text,
    first_backbone,
    layers_of,
    swap_attention,
    with_size,
)

if TYPE_CHECKING:
    from lrkv_plan.serving.capacity import CapacityRow
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Explored:
    """One quantity in the order design, context, batch; empty where ``refused`` says why."""

    values: tuple[Any, ...] = ()
    refused: str | None = None

    def each(self, value: Callable[[Any], Any]) -> Explored:
        """The same with ``value`` of each."""
        return replace(self, values=tuple(map(value, self.values)))


@dataclass(frozen=True, kw_only=True)
class ExploredStep:
    """A decode step at one point: the prediction and its band. [s]

    ``rests_on`` is the term of the step that says how well it is known.
    """

    step_s: float
    low_s: float
    high_s: float
    rests_on: str


def explored_token_bytes(models: Sequence[ModelSpec], deployment: Deployment) -> Explored:
    """Cached bytes of one more token on one GPU, per design. [bytes/token]"""
    kv_dtype, tp_size = deployment.settings.kv_dtype, deployment.parallel.tp_size
    return _explored(
        lambda: (bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size) for model in models)
    )


def explored_caches(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    deployment: Deployment,
) -> Explored:
    """Cache on one GPU of ``batch`` sequences, per design, context and batch. [bytes]"""
    place: dict[str, Any] = {
        "kv_dtype": deployment.settings.kv_dtype, "tp_size": deployment.parallel.tp_size,
    }  # fmt: skip
    at_contexts, at_batches = _grid(contexts, batches)
    return _explored(
        lambda: (
            n_bytes
            for model in models
            for n_bytes in _flat(
                cache_bytes(
                    model, context_tokens=at_contexts, batch_size=at_batches, **place
                ).total,
                contexts, batches,
            )
        )
    )  # fmt: skip


def explored_capacities(
    models: Sequence[ModelSpec], contexts: Sequence[int], deployment: Deployment
) -> Explored:
    """``CapacityRow`` per design and context."""
    at = [
        replace(deployment, settings=replace(deployment.settings, context_tokens=context))
        for context in contexts
    ]

    def rows() -> Iterable[CapacityRow]:
        return (capacity_row(model, one) for model in models for one in at)

    return _explored(rows)


def explored_steps(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    deployment: Deployment,
    target: LatencyTarget,
) -> Explored:
    """``ExploredStep`` per design, context and batch."""
    n_query = target.speculation.query_tokens
    at_contexts, at_batches = _grid(contexts, batches)

    def steps() -> Iterable[ExploredStep]:
        for model in models:
            step = timed_step(model, deployment, target)
            found = step_time(step, at_contexts, at_batches, n_query)
            told = (found.step_s, found.low_s, found.high_s, deciding_terms(step, found))
            for s, low, high, term in zip(
                *(_flat(one, contexts, batches) for one in told), strict=True
            ):
                yield ExploredStep(step_s=s, low_s=low, high_s=high, rests_on=term)

    return _explored(steps)


def explored_step_models(
    models: Sequence[ModelSpec], deployment: Deployment, target: LatencyTarget
) -> Explored:
    """``StepModel`` per design: the constants that its times take, and what they rest on."""
    return _explored(lambda: (timed_step(model, deployment, target) for model in models))


def explored_weights(models: Sequence[ModelSpec]) -> Explored:
    """Key and value weights over those of MHA, per design; None where nothing is projected."""
    return _explored(lambda: (kv_params_ratio_to_mha(model) for model in models))


def explored_work(models: Sequence[ModelSpec], contexts: Sequence[int]) -> Explored:
    """Multiply-adds of decoding over those of MHA, per design and context."""
    return _explored(
        lambda: (
            arithmetic_ratio_to_mha(model, context) for model in models for context in contexts
        )
    )


def designs_at_own_cache(model: ModelSpec, deployment: Deployment) -> list[ComparedDesign]:
    """What each family keeps in the bytes of the model's own cache.

    The largest size of each design that a plan sizes in a budget, unaligned: what ``rank`` gives
    for a budget of 100 % of own. Designs of one size are not here, nor is the model's own.
    """
    backbone, own = first_backbone(model), design_label(model)
    place: dict[str, Any] = {
        "tp_size": deployment.parallel.tp_size, "kv_dtype": deployment.settings.kv_dtype,
    }  # fmt: skip
    found: list[ComparedDesign] = []
    for planned in (one for family in all_families() for one in family.planned if one.in_budget):
        try:
            design = swap_attention(model, planned.on(backbone))
            ceiling = rank_ceiling(
                model, budget="100% of own", design=layers_of(design)[0], **place
            )
        except PlanError:
            continue  # not on this backbone or these GPUs, or none so small
        sized = with_size(design, ceiling.largest.value)
        text = design_text(sized)
        if text != own and text not in [one.text for one in found]:
            found.append(ComparedDesign(role=planned.role, model=sized, text=text))
    return found


def _grid(contexts: Sequence[int], batches: Sequence[int]) -> tuple[Any, Any]:
    """Contexts down, batches across."""
    import numpy as np

    return np.asarray(contexts)[:, None], np.asarray(batches)[None, :]


def _flat(values: Any, contexts: Sequence[int], batches: Sequence[int]) -> list[Any]:
    """Values on the grid as plain numbers, batch by batch of each context."""
    import numpy as np

    flat: list[Any] = np.broadcast_to(values, (len(contexts), len(batches))).ravel().tolist()
    return flat


def _explored(values: Callable[[], Iterable[Any]]) -> Explored:
    try:
        return Explored(values=tuple(values()))
    except PlanError as error:
        return Explored(refused=one_line(str(error)))
