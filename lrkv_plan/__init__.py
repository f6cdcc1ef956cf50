"""Which attention to cache with, how large its rank may be, and what that costs.

The public names are loaded on first use, so that ``import lrkv_plan`` stays cheap.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load_model": "lrkv_plan.specs.loader",
    "load_hardware": "lrkv_plan.specs.loader",
    "swap_attention": "lrkv_plan.specs.attention_text",
    "parse_attention": "lrkv_plan.specs.attention_text",
    "register_family": "lrkv_plan.attention.families",
    "bytes_per_token": "lrkv_plan.calculators.cache_bytes",
    "cache_bytes": "lrkv_plan.calculators.cache_bytes",
    "ratio_to_mha": "lrkv_plan.calculators.cache_bytes",
    "rank_ceiling": "lrkv_plan.calculators.rank_ceiling",
    "LowRankOptions": "lrkv_plan.specs.low_rank_options",
    "bytes_per_token_at_ranks": "lrkv_plan.calculators.rank_ceiling",
    "parameter_count": "lrkv_plan.calculators.parameters",
    "matched_feed_forward": "lrkv_plan.calculators.parameters",
    "placements": "lrkv_plan.calculators.placement",
    "PlanError": "lrkv_plan.errors",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Registering the families first lets every spec name every family.
    importlib.import_module("lrkv_plan.attention.families")
    return getattr(importlib.import_module(_HOMES[name]), name)
