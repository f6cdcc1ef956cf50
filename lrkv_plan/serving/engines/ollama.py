"""Ollama: llama.cpp's cells with its own defaults, read in 2026-08 (envconfig, server/sched).

One sequence unless OLLAMA_NUM_PARALLEL says otherwise; a context that is not stated is 4,096,
32,768 from 23 GiB of memory on, 262,144 from 47 GiB on; here ``--context-tokens`` states it.
"""

from __future__ import annotations

from dataclasses import replace

from lrkv_plan.serving.engines import llama_cpp
from lrkv_plan.serving.pool import Pool
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
    """The most sequences of maximum length whose cells fit; num_ctx is of all of them.

    Raises
    ------
    PlacementError
        As llama.cpp's.
    """
    found = llama_cpp.pool(
        model, budget_bytes, settings, engine=engine, tp_size=tp_size, dcp_size=dcp_size
    )
    told = "Ollama runs one sequence unless OLLAMA_NUM_PARALLEL states more (--max-num-seqs here)"
    return replace(found, remarks=(*found.remarks, told))


ENGINE = replace(
    llama_cpp.ENGINE,
    name="ollama",
    about="Ollama; llama.cpp's cells, one sequence unless told otherwise",
    pool=pool,
    reads=frozenset({"max_batched_tokens", "max_num_seqs"}),
    steps_of="llama_cpp",
    launch=None,  # a model file and OLLAMA_CONTEXT_LENGTH, no command line
)
