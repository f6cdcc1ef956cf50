"""vLLM's V0 pool (before 0.8, or V1 switched off): every layer keeps every token.

Windows are ignored, and until 2025-03-15 (about 0.7.3) an MLA row of 576 scalars was padded to 640.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.pool import LayerKind, Pool, equal_blocks, layer_kinds
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

DEFAULT_PAGE_TOKENS = 16
_MLA_ROW_ALIGNMENT_BYTES = 256


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Blocks of one GPU: floor(budget / (page sum of rows)).

    Notes
    -----
    Concurrency is printed as tokens / maximum length, without rounding up to blocks.

    Raises
    ------
    PlacementError
        If the model has recurrent layers, decode-context parallelism is asked for, or an MLA cache
        of a version that could not keep latents.
    """
    kinds = layer_kinds(model, settings, tp_size)
    latent = [kind for kind in kinds if kind.is_latent]
    if latent and not engine.at_least(0, 7):
        option = latent[0].per_head_option
        raise PlacementError(
            "vLLM before 0.7 cannot keep one row for all heads, but only keys and values of each"
            + (f": use {option}" if option else "")
        )
    if dcp_size > 1 or any(kind.keeps == "state" for kind in kinds):
        raise PlacementError("vLLM's V0 engine has no pool for recurrent layers or --dcp-size")
    aligned = bool(latent) and not engine.at_least(0, 7, 4)
    rows = sum((kind.count * _row(kind, aligned) for kind in kinds), start=Fraction(0))
    page_tokens = settings.page_tokens or DEFAULT_PAGE_TOKENS
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page_tokens * rows)),
        block_tokens=page_tokens,
        bytes_per_token=rows,
        kinds=[replace(kind, keeps="full", window_tokens=None) for kind in kinds],
        context_tokens=settings.context_tokens,
        remarks=("MLA rows padded to 256 bytes",) if aligned else (),
    )


def _row(kind: LayerKind, aligned: bool) -> Fraction:
    if not aligned:
        return kind.row_bytes
    return Fraction(math.ceil(kind.row_bytes / _MLA_ROW_ALIGNMENT_BYTES) * _MLA_ROW_ALIGNMENT_BYTES)
