"""The distinct attention calls of a model's decode step, at stated batches and contexts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from lrkv_plan.attention.families import layout_of
from lrkv_plan.dtypes import storage_format
from lrkv_plan.specs.attention import AttentionSpec
from lrkv_plan.specs.model import ModelSpec

MAX_STEP_BYTES = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attention layer's design at one batch and context, heads dealt out over ``tp_size``."""

    spec: AttentionSpec
    model_dim: int
    batch_size: int
    context_tokens: int
    tp_size: int = 1


def model_shapes(
    model: ModelSpec, contexts: Sequence[int], batches: Sequence[int], tp_size: int, dtype: str
) -> list[Shape]:
    """Distinct shapes of the model's attention layers; those above ``MAX_STEP_BYTES`` left out."""
    found: dict[Shape, None] = {}
    for group in model.attention_groups:
        if group.attention is None or group.reuses_cache or group.cached_over != "context":
            continue
        layout_of(group.attention, model.model_dim).check_tp_size(tp_size)
        limits = [group.window_tokens, model.max_context_tokens]
        for context, batch in itertools.product(contexts, batches):
            tokens = min([context, *(n for n in limits if n is not None)])
            shape = Shape(
                spec=group.attention, model_dim=model.model_dim, batch_size=batch,
                context_tokens=tokens, tp_size=tp_size,
            )  # fmt: skip
            if _scalars(shape) * storage_format(dtype).bits_per_scalar / 8 <= MAX_STEP_BYTES:
                found[shape] = None
    return list(found)


def changed_shapes(
    model: ModelSpec, contexts: Sequence[int], batches: Sequence[int], dtype: str
) -> list[str]:
    """What of the asked contexts and batches is measured otherwise, or not at all, and why."""
    said: dict[str, None] = {}
    for group in model.attention_groups:
        if group.attention is None or group.reuses_cache or group.cached_over != "context":
            continue
        limits = [n for n in (group.window_tokens, model.max_context_tokens) if n is not None]
        for context, batch in itertools.product(contexts, batches):
            tokens = min([context, *limits])
            label = group.attention.label()
            if tokens < context:
                why = "its window" if tokens == group.window_tokens else "the model's maximum"
                said[f"{label}: {context:,} tokens are measured as {tokens:,}, {why}"] = None
            shape = Shape(
                spec=group.attention, model_dim=model.model_dim, batch_size=batch,
                context_tokens=tokens,
            )  # fmt: skip
            if _scalars(shape) * storage_format(dtype).bits_per_scalar / 8 > MAX_STEP_BYTES:
                what = f"{label}: batch {batch:,} at {tokens:,} tokens"
                said[f"{what} is left out: its cache is above {MAX_STEP_BYTES:,} bytes"] = None
    return list(said)


def _scalars(shape: Shape) -> int:
    layout = layout_of(shape.spec, shape.model_dim)
    return layout.scalars_per_token() * shape.batch_size * shape.context_tokens
