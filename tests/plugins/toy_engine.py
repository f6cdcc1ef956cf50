"""An engine of another package: all that one has to write.

Pages of 16 tokens, 8 from 1.2 on, and half of the memory for weights and cache.
"""

from __future__ import annotations

import math
from fractions import Fraction

from lrkv_plan.serving.budget import (
    BudgetInputs,
    MemoryBudget,
    memory_term,
    stages_of,
    utilisation_term,
    weight_terms,
)
from lrkv_plan.serving.engine import ByVersion, Engine
from lrkv_plan.serving.pool import Pool, equal_blocks, layer_kinds, rate
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int,
    dcp_size: int,
) -> Pool:
    kinds = layer_kinds(model, settings, tp_size)
    page_tokens = settings.page_tokens
    assert page_tokens is not None, "the record states a default"
    assert dcp_size == 1, "the record does not run it"
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page_tokens * rate(kinds))),
        block_tokens=page_tokens,
        bytes_per_token=rate(kinds),
        kinds=kinds,
        context_tokens=settings.context_tokens,
        remarks=("a toy",),
    )


def budget(inputs: BudgetInputs) -> MemoryBudget:
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    shared = [memory, utilisation_term(memory.n_bytes, inputs.utilisation)]
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
        remarks=(*remarks, *weight_remarks),
    )


ENGINE = Engine(
    name="toy",
    about="a toy of another package",
    aliases=("toy_server",),
    pool=pool,
    budget=budget,
    utilisation=ByVersion(Fraction(1, 2)),
    utilisation_doubt="nobody runs a toy",
    page_tokens=ByVersion(16, {(1, 2): 8}),
    sizes=frozenset({"tp_size"}),
    reads=frozenset({"page_tokens"}),
    small_kv_dtypes=("int8",),
    small_weight_dtype=None,
)
