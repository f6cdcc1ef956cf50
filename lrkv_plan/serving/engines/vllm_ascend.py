"""vLLM on Ascend NPUs: vLLM's rules with longer pages.

Its budget is an assumption: the constants are those of vLLM on an H100.
"""

from __future__ import annotations

import re
from dataclasses import replace

from lrkv_plan.serving.engine import ByVersion
from lrkv_plan.serving.engines import vllm
from lrkv_plan.serving.log import LogFormat, LogLine

# vllm/platforms/__init__.py names the platform; vllm_ascend/worker/worker_v1.py prints bytes.
LOG = LogFormat(
    server="vllm",
    lines=(
        LogLine(holds="latform plugin ascend", names_engine=3),
        LogLine(holds="vllm_ascend", names_engine=3),
        LogLine(holds="Available memory:", pattern=re.compile(
            r"Available memory: (?P<cache_bytes>\d+), total memory: (?P<memory_bytes>\d+)")),
    ),
    terms=vllm.LOG.terms,
    combine=vllm.LOG.combine,
)  # fmt: skip

ENGINE = replace(
    vllm.ENGINE,
    name="vllm_ascend",
    about="vLLM on Ascend NPUs; pages of 128 tokens",
    before=None,
    page_tokens=ByVersion(128),
    utilisation_doubt="vLLM's default; the constants are those of vLLM on an H100",
    log=LOG,
)
