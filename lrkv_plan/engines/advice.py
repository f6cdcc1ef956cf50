"""What to try when nothing fits: each suggestion is computed, not guessed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction

from lrkv_plan.calculators.budget_fit import largest_fitting
from lrkv_plan.engines.deployment import Deployment
from lrkv_plan.engines.planning import CapacityRow, capacity_row
from lrkv_plan.errors import PlanError
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.low_rank_options import LowRankOptions
from lrkv_plan.specs.model import ModelSpec

MOST_TP_SIZE = 64


def what_to_try(model: ModelSpec, deployment: Deployment) -> tuple[str, ...]:
    """Changes of one setting with which at least one sequence fits, each with what it gives.

    Wider tensor parallelism on the GPUs that there are, an fp8 cache, fp8 weights, and the longest
    context within the model's own maximum. Another design is no advice: it means training.
    """
    return tuple(_suggestions(model, deployment))


def _suggestions(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    parallel, settings = deployment.parallel, deployment.settings
    tp_size = parallel.tp_size * 2
    while tp_size <= min(MOST_TP_SIZE, deployment.n_gpus or MOST_TP_SIZE):
        wider = replace(deployment, parallel=replace(parallel, tp_size=tp_size))
        row = _fits(model, wider)
        if row is not None:
            yield f"--tp-size {tp_size} fits {row.max_sequences:,}"
            break
        tp_size *= 2
    if settings.kv_dtype not in ("fp8", "fp8_ds_mla"):
        row = _fits(model, replace(deployment, settings=replace(settings, kv_dtype="fp8")))
        if row is not None:
            yield f"--kv-dtype fp8 fits {row.max_sequences:,}"
    if deployment.kv_memory_bytes is None and deployment.weight_bytes is None:
        row = _fits(model, replace(deployment, weight_dtype="fp8"))
        if row is not None:
            yield f"--weight-dtype fp8 fits {row.max_sequences:,}"
    context = _longest_context(model, deployment)
    if context:
        yield f"--context-tokens {context} fits 1"


def _longest_context(model: ModelSpec, deployment: Deployment) -> int | None:
    """The longest context, in steps of 256 tokens, of which one sequence fits."""
    settings = deployment.settings
    most = settings.context_tokens - 1
    if model.max_context_tokens is not None:
        most = min(most, model.max_context_tokens)
    lengths = range(256, most + 1, 256)

    def unfit(tokens: int) -> Fraction:
        shorter = replace(deployment, settings=replace(settings, context_tokens=tokens))
        return Fraction(_fits(model, shorter) is None)

    return largest_fitting(lengths, unfit, Fraction(0))


def largest_rank(
    model: ModelSpec,
    deployment: Deployment,
    options: LowRankOptions,
    n_sequences: int,
    *,
    step: int = 1,
) -> int | None:
    """The largest LRKV rank, in steps, with which ``n_sequences`` of full length fit, or None.

    A larger rank has more weights and more cache, so what fits never grows with it.
    """
    return largest_design(
        model,
        deployment,
        range(0, _widest(model) + 1, math.lcm(step, options.rank_step)),
        options.text,
        n_sequences,
    )


def largest_design(
    model: ModelSpec,
    deployment: Deployment,
    values: range | list[int],
    text_of: Callable[[int], str],
    n_sequences: int,
) -> int | None:
    """The largest of ascending values whose design still fits ``n_sequences``, or None."""

    def unfit(value: int) -> Fraction:
        row = _fits(swap_attention(model, text_of(value)), deployment)
        return Fraction(row is None or row.total_sequences < n_sequences)

    return largest_fitting(values, unfit, Fraction(0))


def _widest(model: ModelSpec) -> int:
    backbones = [g.attention.backbone() for g in model.attention_groups if g.attention is not None]
    return min(min(b.head_dim, b.v_head_dim) for b in backbones)


def _fits(model: ModelSpec, deployment: Deployment) -> CapacityRow | None:
    """The row if at least one sequence fits, else None; a design that cannot run does not fit."""
    try:
        row = capacity_row(model, deployment)
    except PlanError:
        return None
    return row if row.max_sequences else None
