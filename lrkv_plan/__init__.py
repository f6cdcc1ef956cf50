"""Which attention to cache with, how large its rank may be, and what that costs.

The public names are loaded on first use, so that ``import lrkv_plan`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_QUESTIONS = {
    "cache": "sizes", "rank": "sizes", "params": "sizes", "shard": "sizes",
    "capacity": "serving", "plan": "serving",
    "step_time": "times", "crossover": "times", "roofline": "times",
    "best": "best", "sweep": "sweeps",
    "audit": "checks", "inspect": "checks",
    "designs": "comparing", "explore": "exploring", "ranks": "ranks", "faster_map": "maps",
}  # fmt: skip
_HOMES = {
    "load_model": "lrkv_plan.loader",
    "load_gpu": "lrkv_plan.loader",
    "load_hardware": "lrkv_plan.loader",
    **{name: f"lrkv_plan.questions.{file}" for name, file in _QUESTIONS.items()},
    "Result": "lrkv_plan.questions.result",
    "swap_attention": "lrkv_plan.specs.design",
    "parse_attention": "lrkv_plan.attention.registry",
    "register_family": "lrkv_plan.attention.registry",
    "bytes_per_token": "lrkv_plan.memory.cache",
    "cache_bytes": "lrkv_plan.memory.cache",
    "ratio_to_mha": "lrkv_plan.memory.cache",
    "rank_ceiling": "lrkv_plan.memory.largest",
    "bytes_per_token_at_ranks": "lrkv_plan.memory.largest",
    "parameter_count": "lrkv_plan.memory.weights",
    "matched_feed_forward": "lrkv_plan.memory.weights",
    "placements": "lrkv_plan.memory.placement",
    "PlanError": "lrkv_plan.errors",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Registering the families first lets every spec name every family.
    importlib.import_module("lrkv_plan.attention.registry")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
