"""TensorRT-LLM's block pool: whole blocks of 64 tokens (32 from 1.0), all layers alike."""

from __future__ import annotations

import math

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.pool import Pool, equal_blocks, layer_kinds, rate
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
    """Blocks = ceil(budget / (block rate)); tokens are blocks times the block.

    The engine rounds its last block up: 19.701 GiB of 1 MiB a token in blocks of 64 printed 631
    (630.4), NVIDIA/TensorRT-LLM issue 2268.

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
    windowed = any(kind.window_tokens for kind in kinds)
    return equal_blocks(
        engine,
        n_blocks=math.ceil(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=per_token,
        kinds=kinds,
        context_tokens=settings.context_tokens,
        encoder_tokens=settings.encoder_tokens or 0,
        remarks=("windowed layers are counted in full",) if windowed else (),
    )
