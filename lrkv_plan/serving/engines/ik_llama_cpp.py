"""ik_llama.cpp, a fork of llama.cpp: windowed layers keep the full context.

Source: ikawrakow/ik_llama.cpp#1607.
"""

from __future__ import annotations

from dataclasses import replace

from lrkv_plan.serving.engines import llama_cpp
from lrkv_plan.serving.pool import LayerKind, Pool
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec


def kept_kinds(model: ModelSpec, settings: EngineSettings) -> tuple[LayerKind, ...]:
    """The kinds of layers as the fork keeps them: llama.cpp's, without windows."""
    kinds = llama_cpp.kept_kinds(model, settings)
    return tuple(replace(kind, window_tokens=None) for kind in kinds)


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """The most sequences of maximum length whose cells fit.

    Raises
    ------
    PlacementError
        As llama.cpp's.
    """
    llama_cpp.refuse_slices(tp_size, dcp_size)
    kinds = kept_kinds(model, settings)
    return llama_cpp.pool_of_cells(model, kinds, budget_bytes, settings, engine)


ENGINE = replace(
    llama_cpp.ENGINE,
    name="ik_llama_cpp",
    about="the fork ik_llama.cpp; windowed layers keep the full context",
    pool=pool,
)
