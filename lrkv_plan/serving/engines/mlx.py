"""MLX on Apple silicon: every sequence has a cache of its own, grown by 256 tokens.

Rule of mlx_lm/models/cache.py, read in 2026-08; no printed pool was compared. Windowed layers keep
their window in a rotating cache, recurrent layers a state.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.budget import weights_only_budget
from lrkv_plan.serving.engine import ByVersion, Engine
from lrkv_plan.serving.engines import paged
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

GROWTH_TOKENS = 256


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Bytes of a sequence: rows in steps of 256 tokens, windows and states.

    Raises
    ------
    PlacementError
        If no layer keeps rows, or decode-context parallelism is asked for.
    """
    if dcp_size > 1:
        raise PlacementError("MLX has no decode-context parallelism: leave --dcp-size out")
    grown = replace(settings, page_tokens=GROWTH_TOKENS)
    pool = paged.pool(model, budget_bytes, grown, engine=engine, tp_size=tp_size)
    return replace(pool, prefix_blocks_of=None)  # a cache of its own for each sequence


ENGINE = Engine(
    name="mlx",
    about="MLX on Apple silicon; a cache for each sequence",
    aliases=("mlx_lm",),
    pool=pool,
    budget=weights_only_budget,
    utilisation=ByVersion(Fraction(3, 4)),
    utilisation_doubt="0.75 of the memory is about what macOS lets a GPU wire",
    sizes=frozenset({"tp_size", "pp_size"}),
    reads=frozenset({"max_num_seqs"}),
    small_kv_dtypes=("int8_group64", "int4_group64"),
    small_weight_dtype=None,
    steps_of="llama_cpp",
)
