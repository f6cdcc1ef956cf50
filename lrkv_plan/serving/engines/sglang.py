"""SGLang's token pool: rows of the attention layers; recurrent state has a pool of its own.

Before pull request 11309 (0.5.4) the index keys of sparse attention were in neither the printed
size nor the budget. Sliding layers have a second pool of 0.8 of the tokens (the engine's default
swa_full_tokens_ratio), in versions with a hybrid pool.
"""

from __future__ import annotations

import math
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.pool import LayerKind, Pool, equal_blocks, layer_kinds
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

SLIDING_TOKENS_RATIO = Fraction(8, 10)


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Tokens = floor(budget / rate), in whole pages; a page is one token unless told otherwise.

    ``budget_bytes`` is the token pool, as the engine prints it. Recurrent state is not taken from
    it; the remark says what one sequence's slot costs beside it.

    Raises
    ------
    PlacementError
        If no layer keeps rows, or decode-context parallelism is asked for.
    """
    if dcp_size > 1:
        raise PlacementError("SGLang has no decode-context parallelism here: leave --dcp-size out")
    kinds = layer_kinds(_as_of(model, engine), settings, tp_size)
    rows = [kind for kind in kinds if kind.keeps != "state"]
    per_token = sum((kind.count * kind.row_bytes * _share(kind) for kind in rows), Fraction(0))
    if not per_token:
        raise PlacementError(f"{model.name}: no layer keeps a cache")
    page = settings.page_tokens or 1
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=per_token,
        kinds=rows,
        context_tokens=settings.context_tokens,
        encoder_tokens=settings.encoder_tokens or 0,
        remarks=tuple(_remarks(kinds)),
    )


def _as_of(model: ModelSpec, engine: EngineName) -> ModelSpec:
    """The model as that version counts it: without index keys before 0.5.4."""
    if engine.at_least(0, 5, 4):
        return model
    layers = tuple(group.model_copy(update={"index": ()}) for group in model.layers)
    return model.model_copy(update={"layers": layers})


def _share(kind: LayerKind) -> Fraction:
    return SLIDING_TOKENS_RATIO if kind.keeps == "sliding" else Fraction(1)


def _remarks(kinds: tuple[LayerKind, ...]) -> list[str]:
    remarks = []
    slot = sum(kind.count * kind.fixed_bytes for kind in kinds)
    if slot:
        remarks.append(
            f"recurrent state is a separate pool: {slot:,} B per sequence on each GPU, not taken "
            "from this budget"
        )
    if any(kind.keeps == "sliding" for kind in kinds):
        remarks.append("sliding layers: a pool of 0.8 of the tokens (the default ratio), assumed")
    return remarks
