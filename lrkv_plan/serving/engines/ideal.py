"""No engine: payload only, no pages, no padding, every byte of the budget used."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.exact import simplest
from lrkv_plan.serving.budget import weights_only_budget
from lrkv_plan.serving.engine import Engine
from lrkv_plan.serving.pool import Pool, layer_kinds, payload_of, rate, sequences_beside
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """An upper bound: sequences of the maximum length that payload alone would let in.

    A block is one byte here, so that uneven lengths are counted without rounding.

    Raises
    ------
    PlacementError
        If no layer keeps a cache, or the heads cannot be dealt out.
    """
    kinds = layer_kinds(model, settings, tp_size)
    encoder, context = settings.encoder_tokens or 0, settings.context_tokens
    per_sequence = payload_of(kinds, context, encoder, dcp_size)
    per_token = sum(
        (k.count * k.payload_row_bytes for k in kinds if k.keeps != "cross"), Fraction(0)
    )
    if not per_sequence or not per_token:
        raise PlacementError(f"{model.name}: no layer keeps a cache")

    def blocks_of(tokens: Any) -> Any:
        return payload_of(kinds, tokens, encoder, dcp_size)

    full = [kind for kind in kinds if kind.keeps == "full"]

    def prefix_blocks_of(tokens: Any) -> Any:
        return payload_of(full, tokens, 0, dcp_size) if full else 0 * tokens

    shared = int(prefix_blocks_of(min(settings.shared_prefix_tokens, context - 1)))
    return Pool(
        engine=engine,
        n_blocks=budget_bytes,
        block_tokens=1,
        block_bytes=1,
        n_groups=1,
        kv_tokens=int(budget_bytes * dcp_size / per_token),
        max_concurrency=Fraction(budget_bytes, per_sequence),
        max_sequences=sequences_beside(shared, budget_bytes, per_sequence),
        bytes_per_token_per_gpu=simplest(rate(kinds)),
        waste_share=Fraction(0),
        blocks_of=blocks_of,
        payload_of=blocks_of,
        prefix_blocks_of=prefix_blocks_of,
        shared_blocks=shared,
    )  # fmt: skip


ENGINE = Engine(
    name="ideal",
    about="no engine: payload only, every byte used",
    pool=pool,
    budget=weights_only_budget,
    reads=frozenset({"shared_prefix_tokens", "kv_offload"}),
    layer_split="--pp-layers",
    joins_vendors=True,
    steps_of="vllm",
)
