"""Text Generation Inference: nine tenths of what a warm-up leaves, in blocks of one token.

Rule of text_generation_server/models/flash_causal_lm.py with FlashInfer, read in 2026-08; no
printed pool was compared. The blocks that the warm-up used itself, a tenth of which come on top,
are left out: below 0.1 GiB. Other attention code has blocks of 16 (paged), 64 (IPEX) or 256 tokens
(flash-decoding): ``--page-tokens``.
"""

from __future__ import annotations

import math
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.activation import Step, activation_peak_bytes
from lrkv_plan.serving.budget import (
    BudgetInputs,
    MemoryBudget,
    assumed,
    memory_term,
    non_torch_term,
    share_of_free,
    taken,
    utilisation_term,
    weight_terms,
)
from lrkv_plan.serving.engine import ByVersion, Engine
from lrkv_plan.serving.pool import Pool, equal_blocks, layer_kinds, rate
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

SHARE_OF_FREE = Fraction(9, 10)


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Blocks = floor(budget / (block rate)); windowed layers keep every token.

    Raises
    ------
    PlacementError
        If no layer keeps rows, layers are recurrent, or decode-context parallelism is asked for.
    """
    kinds = layer_kinds(model, settings, tp_size)
    per_token = rate(kinds)
    if dcp_size > 1 or any(kind.keeps in ("state", "cross") for kind in kinds) or not per_token:
        raise PlacementError(
            "TGI here counts attention layers without recurrent state, encoder rows or --dcp-size"
        )
    page = settings.page_tokens or 1
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=per_token,
        kinds=kinds,
        context_tokens=settings.context_tokens,
        shared_tokens=settings.shared_prefix_tokens,
    )


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total * fraction - weights - non-torch - forward of one prefill) * 0.9."""
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    step = Step(
        max_sequences=0, batched_tokens=inputs.settings.max_batched_tokens,
        scalar_bytes=inputs.activation_scalar_bytes,
    )  # fmt: skip
    peak = activation_peak_bytes(inputs.model, step, inputs.parallel, has_head=False)
    low, high = peak // 2, peak * 2
    shared = (
        memory,
        utilisation_term(memory.n_bytes, inputs.utilisation),
        taken("activation peak", peak, assumed(low, high, "feed-forward of one step"), low, high),
        non_torch_term(inputs),
    )
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=tuple(share_of_free((*shared, term), SHARE_OF_FREE) for term in weights),
        remarks=(*remarks, *weight_remarks),
    )


ENGINE = Engine(
    name="tgi",
    about="Text Generation Inference; 0.9 of what its warm-up leaves",
    aliases=("text_generation_inference",),
    pool=pool,
    budget=budget,
    utilisation=ByVersion(Fraction(1)),
    page_tokens=ByVersion(1),
    sizes=frozenset({"tp_size"}),
    reads=frozenset({"page_tokens", "max_batched_tokens", "max_num_seqs", "shared_prefix_tokens"}),
    small_kv_dtypes=("fp8",),
    steps_of="vllm",
)
