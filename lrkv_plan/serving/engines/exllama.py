"""ExLlamaV3: a cache of whole pages of 256 tokens, as long as ``cache_size`` asks for.

Rule of exllamav3/cache, read in 2026-08; no printed pool was compared. Here the cache takes what
weights leave. Quantised, keys and values have 2 to 8 bits each: ``--kv-dtype exl3_8/exl3_4``.
"""

from __future__ import annotations

import math

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.budget import weights_only_budget
from lrkv_plan.serving.engine import Engine
from lrkv_plan.serving.pool import Pool, equal_blocks, layer_kinds, rate
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

PAGE_TOKENS = 256


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Pages = floor(budget / (256 rate)); windowed layers keep every token.

    Raises
    ------
    PlacementError
        If no layer keeps rows, layers are recurrent, or decode-context parallelism is asked for.
    """
    kinds = layer_kinds(model, settings, tp_size)
    per_token = rate(kinds)
    if dcp_size > 1 or any(kind.keeps in ("state", "cross") for kind in kinds) or not per_token:
        raise PlacementError(
            "ExLlama here counts attention layers without recurrent state, encoder rows or "
            "--dcp-size"
        )
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (PAGE_TOKENS * per_token)),
        block_tokens=PAGE_TOKENS,
        bytes_per_token=per_token,
        kinds=kinds,
        context_tokens=settings.context_tokens,
        shared_tokens=settings.shared_prefix_tokens,
    )


ENGINE = Engine(
    name="exllama",
    about="ExLlamaV3; pages of 256 tokens in what weights leave",
    aliases=("exllamav3",),
    pool=pool,
    budget=weights_only_budget,
    sizes=frozenset({"tp_size", "pp_size"}),
    reads=frozenset({"max_num_seqs", "shared_prefix_tokens"}),
    small_kv_dtypes=("exl3_8", "exl3_6", "exl3_4"),
    small_weight_dtype=None,
    steps_of="llama_cpp",
)
