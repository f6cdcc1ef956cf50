"""TensorRT-LLM's block pool: whole blocks of 64 tokens (32 from 1.0), all layers alike."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from lrkv_plan.calculators.exact import simplest
from lrkv_plan.engines.blocks import ceil_div
from lrkv_plan.engines.layer_kinds import layer_kinds, payload_bytes, payload_of, rate
from lrkv_plan.engines.pool import Pool, waste_of
from lrkv_plan.errors import PlacementError
from lrkv_plan.specs.engine_settings import EngineName, EngineSettings
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
    """Blocks = floor(budget / (block rate)); tokens are blocks times the block.

    Windowed layers are counted in full: the engine's separate pools per window are not modelled,
    which under-states what fits.

    Raises
    ------
    PlacementError
        If no layer keeps rows, layers are recurrent, or decode-context parallelism is asked for.
    """
    kinds = layer_kinds(model, settings, tp_size)
    per_token = rate([kind for kind in kinds if kind.keeps != "cross"])
    if dcp_size > 1 or any(kind.keeps == "state" for kind in kinds) or not per_token:
        raise PlacementError(
            "TensorRT-LLM here counts attention layers without recurrent state or --dcp-size"
        )
    page = settings.page_tokens or (32 if engine.at_least(1) else 64)
    block_bytes = page * per_token
    n_blocks = math.floor(budget_bytes / block_bytes)
    context = settings.context_tokens

    def blocks_of(tokens: Any) -> Any:
        return ceil_div(tokens, page)

    windowed = any(kind.window_tokens for kind in kinds)
    return Pool(
        engine=engine,
        n_blocks=n_blocks,
        block_tokens=page,
        block_bytes=simplest(block_bytes),
        n_groups=1,
        kv_tokens=n_blocks * page,
        max_concurrency=Fraction(n_blocks * page, context),
        max_sequences=n_blocks // blocks_of(context),
        bytes_per_token_per_gpu=simplest(per_token),
        waste_share=waste_of(payload_bytes(kinds, context), blocks_of(context), block_bytes),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, settings.encoder_tokens or 0),
        remarks=("windowed layers are counted in full",) if windowed else (),
    )
