"""vLLM on Ascend NPUs: vLLM's rules with longer pages.

Its budget is an assumption: the constants are those of vLLM on an H100.
"""

from __future__ import annotations

from dataclasses import replace

from lrkv_plan.serving.engine import ByVersion
from lrkv_plan.serving.engines import vllm

ENGINE = replace(
    vllm.ENGINE,
    name="vllm_ascend",
    about="vLLM on Ascend NPUs; pages of 128 tokens",
    before=None,
    page_tokens=ByVersion(128),
    utilisation_doubt="vLLM's default; the constants are those of vLLM on an H100",
)
