"""Pages and nothing else: every layer's rows are rounded up to whole pages per sequence.

The textbook paged cache. Windowed layers keep as many pages as their window can touch; there is
no grouping, no padding layer and no shared page size.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.exact import ceil_div, simplest, smaller
from lrkv_plan.serving.budget import weights_only_budget
from lrkv_plan.serving.engine import ByVersion, Engine
from lrkv_plan.serving.pool import (
    LayerKind,
    Pool,
    layer_kinds,
    payload_bytes,
    payload_of,
    rate,
    sequences_beside,
    waste_of,
)
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

DEFAULT_PAGE_TOKENS = 16


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Bytes of a sequence: sum over layers of page ceil(rows / page) row, plus its state.

    A block is one byte, since pages of different layers differ in size.

    Raises
    ------
    PlacementError
        If no layer keeps a cache, or the heads cannot be dealt out.
    """
    kinds = layer_kinds(model, settings, tp_size)
    per_token = rate([kind for kind in kinds if kind.keeps != "cross"])
    if not per_token:
        raise PlacementError(f"{model.name}: no layer keeps a cache")
    page = settings.page_tokens or DEFAULT_PAGE_TOKENS
    encoder, context = settings.encoder_tokens or 0, settings.context_tokens
    scale = math.lcm(*(kind.row_bytes.denominator for kind in kinds))

    def blocks_of(tokens: Any) -> Any:
        scaled = sum(_scaled_bytes(kind, tokens, page * dcp_size, dcp_size, encoder, scale)
                     for kind in kinds)  # fmt: skip
        return ceil_div(scaled, scale)

    full = [kind for kind in kinds if kind.keeps == "full"]

    def prefix_blocks_of(tokens: Any) -> Any:
        whole = tokens // (page * dcp_size) * (page * dcp_size)
        scaled = sum(
            (_scaled_bytes(kind, whole, page * dcp_size, dcp_size, 0, scale) for kind in full),
            0 * tokens,
        )
        return scaled // scale

    per_sequence = blocks_of(context)
    payload = payload_bytes(kinds, context, encoder) / dcp_size
    shared = int(prefix_blocks_of(min(settings.shared_prefix_tokens, context - 1)))
    return Pool(
        engine=engine,
        n_blocks=budget_bytes,
        block_tokens=page,
        block_bytes=1,
        n_groups=1,
        kv_tokens=math.floor(budget_bytes / (page * per_token)) * page * dcp_size,
        max_concurrency=Fraction(budget_bytes, per_sequence),
        max_sequences=sequences_beside(shared, budget_bytes, per_sequence),
        bytes_per_token_per_gpu=simplest(rate(kinds)),
        waste_share=waste_of(payload, per_sequence, 1),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, encoder, dcp_size),
        prefix_blocks_of=prefix_blocks_of,
        shared_blocks=shared,
        prefix_tokens=page * dcp_size,
    )  # fmt: skip


def _scaled_bytes(
    kind: LayerKind, tokens: Any, page: int, dcp_size: int, encoder: int, scale: int
) -> Any:
    """``scale`` times the bytes of one sequence in the layers of a kind, in whole numbers."""
    rows = encoder if kind.keeps == "cross" else smaller(tokens, kind.window_tokens or 2**62)
    pages = 0 if kind.keeps == "state" else ceil_div(rows, page)
    row = int(kind.count * kind.row_bytes * scale)
    return pages * (page // dcp_size) * row + kind.count * kind.fixed_bytes * scale


ENGINE = Engine(
    name="paged",
    about="no engine in particular: every layer in pages, and no runtime",
    pool=pool,
    budget=weights_only_budget,
    utilisation=ByVersion(Fraction(9, 10)),
    utilisation_doubt="0.9 as engines commonly take",
    page_tokens=ByVersion(DEFAULT_PAGE_TOKENS),
    reads=frozenset({"page_tokens", "shared_prefix_tokens", "kv_offload"}),
    layer_split="--pp-layers",
    joins_vendors=True,
    steps_of="vllm",
)
