"""vLLM's V0 engine (before 0.8, or V1 switched off): every layer keeps every token.

Windows are ignored, and until 2025-03-15 (about 0.7.3) an MLA row of 576 scalars was padded to 640.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.activation import Step
from lrkv_plan.serving.budget import BudgetInputs, BudgetTerm, MemoryBudget, assumed, taken
from lrkv_plan.serving.engine import ByVersion, Engine
from lrkv_plan.serving.engines import vllm
from lrkv_plan.serving.launch import Launch
from lrkv_plan.serving.log import LogFormat, LogLine
from lrkv_plan.serving.pool import LayerKind, Pool, equal_blocks, layer_kinds
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

DEFAULT_PAGE_TOKENS = 16
DEFAULT_MAX_SEQUENCES = 256
# V0 turned chunked prefill on by itself beyond this length.
LONGEST_UNCUT_PROMPT = 32_768
_MLA_ROW_ALIGNMENT_BYTES = 256


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Blocks of one GPU: floor(budget / (page sum of rows)).

    Notes
    -----
    Concurrency is printed as tokens / maximum length, without rounding up to blocks.

    Raises
    ------
    PlacementError
        If the model has recurrent layers, decode-context parallelism is asked for, or an MLA cache
        of a version that could not keep latents.
    """
    kinds = layer_kinds(model, settings, tp_size)
    latent = [kind for kind in kinds if kind.is_latent]
    if latent and not engine.at_least(0, 7):
        option = latent[0].per_head_option
        raise PlacementError(
            "vLLM before 0.7 cannot keep one row for all heads, but only keys and values of each"
            + (f": use {option}" if option else "")
        )
    if dcp_size > 1 or any(kind.keeps == "state" for kind in kinds):
        raise PlacementError("vLLM's V0 engine has no pool for recurrent layers or --dcp-size")
    aligned = bool(latent) and not engine.at_least(0, 7, 4)
    rows = sum((kind.count * _row(kind, aligned) for kind in kinds), start=Fraction(0))
    page_tokens = settings.page_tokens or DEFAULT_PAGE_TOKENS
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page_tokens * rows)),
        block_tokens=page_tokens,
        bytes_per_token=rows,
        kinds=[replace(kind, keeps="full", window_tokens=None) for kind in kinds],
        context_tokens=settings.context_tokens,
        remarks=("MLA rows padded to 256 bytes",) if aligned else (),
    )


def _row(kind: LayerKind, aligned: bool) -> Fraction:
    if not aligned:
        return kind.row_bytes
    return Fraction(math.ceil(kind.row_bytes / _MLA_ROW_ALIGNMENT_BYTES) * _MLA_ROW_ALIGNMENT_BYTES)


def profiled_step(inputs: BudgetInputs) -> Step:
    """One whole prompt, unless it is so long that it is cut."""
    context = inputs.settings.context_tokens
    is_whole = context <= LONGEST_UNCUT_PROMPT
    return replace(
        vllm.profiled_step(inputs),
        max_sequences=inputs.max_sequences or DEFAULT_MAX_SEQUENCES,
        batched_tokens=context if is_whole else inputs.settings.max_batched_tokens,
    )


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """vLLM's budget with the step that V0 profiles.

    Raises
    ------
    SpecError
        If the weights cannot be counted from the spec and are not given.
    """
    return vllm.budget_of_step(inputs, profiled_step(inputs), _activation)


def _activation(inputs: BudgetInputs, step: Step, has_head: bool) -> BudgetTerm:
    fitted = vllm.activation_peak(inputs, step, has_head)
    low, high = fitted * 2 // 3, fitted * 3 // 2
    why = "0.17's form on one prompt; two rows of V0 agree within 0.12 GiB"
    return taken("activation peak", fitted, assumed(low, high, why), low, high)


# Lines of vLLM 0.4 to 0.9: vllm/engine/llm_engine.py, vllm/worker/worker.py.
LOG = LogFormat(
    server="vllm",
    lines=(
        LogLine(holds="Initializing an LLM engine", starts="new_model", names_engine=2,
                pattern=re.compile(r"engine \(v?(?P<version>[^)\s]+)\)"), keys=vllm.LOG_KEYS),
        LogLine(holds="Initializing a V0 LLM engine", starts="new_model", names_engine=2,
                pattern=re.compile(r"engine \(v?(?P<version>[^)\s]+)\)"), keys=vllm.LOG_KEYS),
        LogLine(holds="can use total_gpu_memory", pattern=re.compile(
            r"total_gpu_memory \((?P<memory_gib>[\d.]+) ?GiB\) x gpu_memory_utilization "
            r"\((?P<utilisation>[\d.]+)\)")),
        LogLine(holds="model weights take", pattern=re.compile(
            r"weights take (?P<weights_gib>[\d.]+) ?GiB")),
        LogLine(holds="non_torch_memory takes", pattern=re.compile(
            r"memory takes (?P<non_torch_gib>-?[\d.]+) ?GiB")),
        LogLine(holds="activation peak memory takes", pattern=re.compile(
            r"peak memory takes (?P<activation_gib>[\d.]+) ?GiB")),
        LogLine(holds="reserved for KV Cache is", pattern=re.compile(
            r"KV Cache is (?P<cache_gib>-?[\d.]+) ?GiB")),
        LogLine(holds="Memory profiling results", pattern=re.compile(
            r"total_gpu_memory=(?P<memory_gib>[\d.]+)GiB.*?"
            r"non_torch_memory=(?P<non_torch_gib>[\d.]+)GiB.*?"
            r"kv_cache_size=(?P<cache_gib>-?[\d.]+)GiB.*?"
            r"gpu_memory_utilization=(?P<utilisation>[\d.]+)")),
    ),
    terms=vllm.LOG.terms,
    combine=vllm.LOG.combine,
)  # fmt: skip


def launch(asked: Launch) -> list[str]:
    """vLLM's command line; from 0.8 on V0 is asked for by an environment variable (vllm/envs.py).

    Raises
    ------
    UsageError
        As vLLM's, or before 0.6, whose command line was another.
    """
    if not asked.engine.at_least(0, 6):
        raise asked.unsaid(f"--engine {asked.engine}", "`vllm serve` is known from 0.6 on")
    words = vllm.launch(asked)
    return ["env", "VLLM_USE_V1=0", *words] if asked.engine.at_least(0, 8) else words


ENGINE = Engine(
    name="vllm_v0",
    about="vLLM before 0.8 (V0)",
    pool=pool,
    budget=budget,
    utilisation=vllm.UTILISATION,
    page_tokens=ByVersion(DEFAULT_PAGE_TOKENS),
    sizes=frozenset({"tp_size", "pp_size"}),
    reads=frozenset({"page_tokens", "max_batched_tokens", "max_num_seqs"}),
    log=LOG,
    layer_split="VLLM_PP_LAYER_PARTITION",
    launch=launch,
)
