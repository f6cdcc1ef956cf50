"""LMDeploy: blocks of 64 tokens from a share of what is free after load.

Rules of lmdeploy/pytorch/engine/executor and TurboMind, read in 2026-08; no printed pool was
compared. Blocks of 32 tokens for heads of 512 and wider are not modelled.
"""

from __future__ import annotations

import math
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.exact import simplest
from lrkv_plan.serving.budget import (
    ARITHMETIC,
    BudgetInputs,
    MemoryBudget,
    memory_term,
    non_torch_term,
    share_of_free,
    taken,
    weight_terms,
)
from lrkv_plan.serving.engine import ByVersion, Engine
from lrkv_plan.serving.pool import Pool, equal_blocks, layer_kinds, rate
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

PAGE_TOKENS = 64
DEFAULT_MAX_SEQUENCES = 256  # max_batch_size
_LOGIT_BYTES = 2


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
            "LMDeploy here counts attention layers without recurrent state, encoder rows or "
            "--dcp-size"
        )
    page = settings.page_tokens or PAGE_TOKENS
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=Fraction(simplest(per_token)),
        kinds=kinds,
        context_tokens=settings.context_tokens,
        shared_tokens=settings.shared_prefix_tokens,
    )


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total - weights - non-torch - logits) * cache_max_entry_count.

    The logits are those of one prefill and two of each sequence, in 16 bits.
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    sequences = inputs.max_sequences or DEFAULT_MAX_SEQUENCES
    rows = inputs.settings.max_batched_tokens + 2 * sequences
    logits = taken(
        "logits", rows * (inputs.model.vocab_size or 0) * _LOGIT_BYTES,
        f"{ARITHMETIC}: {rows:,} tokens of one prefill",
    )  # fmt: skip
    non_torch = non_torch_term(inputs)
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=tuple(
            share_of_free((memory, term, logits, non_torch), inputs.utilisation) for term in weights
        ),
        remarks=(*remarks, *weight_remarks, "the fraction applies to memory free after load"),
    )


ENGINE = Engine(
    name="lmdeploy",
    about="LMDeploy; a fraction of the memory that is free after load",
    pool=pool,
    budget=budget,
    utilisation=ByVersion(Fraction(8, 10)),
    page_tokens=ByVersion(PAGE_TOKENS),
    sizes=frozenset({"tp_size", "dp_size", "ep_size"}),
    reads=frozenset({"page_tokens", "max_batched_tokens", "max_num_seqs", "shared_prefix_tokens"}),
    small_kv_dtypes=("int8", "int4"),
    steps_of="vllm",
)
