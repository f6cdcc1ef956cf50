"""ik_llama.cpp, a fork of llama.cpp: windowed layers keep the full context.

Source: ikawrakow/ik_llama.cpp#1607.
"""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

from lrkv_plan.serving.engines import llama_cpp
from lrkv_plan.serving.log import LogLine
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


def asked_bytes(model: ModelSpec, settings: EngineSettings, n_sequences: int) -> Fraction:
    """Bytes that it allots for ``n_sequences`` of ``settings.context_tokens`` each. [bytes]"""
    kinds = kept_kinds(model, settings)
    return llama_cpp.cache_bytes_for(kinds, n_sequences, settings.context_tokens, settings)


# Its latents have a line of their own (src/llama.cpp of the fork, 2025).
LOG = replace(
    llama_cpp.LOG,
    lines=(
        LogLine(holds="c^KV (", names_engine=2, clears=("cache",), pattern=re.compile(
            r"KV self size += +(?P<cache_mib>[\d.]+) MiB, c\^KV \((?P<kv_dtype>\w+)\)")),
    ),
    asked_bytes=asked_bytes,
)  # fmt: skip

ENGINE = replace(
    llama_cpp.ENGINE,
    name="ik_llama_cpp",
    about="the fork ik_llama.cpp; windowed layers keep the full context",
    pool=pool,
    log=LOG,
)
