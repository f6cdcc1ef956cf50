"""TensorRT-LLM: whole blocks, all layers alike, from a fraction of what is free after load."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.activation import Step, activation_peak_bytes
from lrkv_plan.serving.budget import (
    BudgetInputs,
    MemoryBudget,
    assumed,
    memory_term,
    non_torch_term,
    share_of_free,
    taken,
    weight_terms,
)
from lrkv_plan.serving.engine import ALL_SIZES, ByVersion, Engine, capped
from lrkv_plan.serving.launch import Launch, above_one, decimal, options
from lrkv_plan.serving.log import LogFormat, LogLine
from lrkv_plan.serving.pool import LayerKind, Pool, equal_blocks, layer_kinds, rate
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

PAGE_TOKENS = ByVersion(64, {(1,): 32})


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Blocks = ceil(budget / (block rate)); tokens are blocks times the block.

    The engine rounds its last block up: 19.701 GiB of 1 MiB a token in blocks of 64 printed 631
    (630.4), NVIDIA/TensorRT-LLM issue 2268.

    Windowed layers are counted in full: the engine's separate pools per window are not modelled,
    which under-states what fits.

    Raises
    ------
    PlacementError
        If no layer keeps rows, layers are recurrent, or decode-context parallelism is asked for.
    """
    kinds = layer_kinds(model, settings, tp_size)
    per_token = rate([kind for kind in kinds if kind.keeps != "cross"])
    if dcp_size > 1 or any(kind.keeps == "state" for kind in kinds) or not per_token:
        raise PlacementError(
            "TensorRT-LLM here counts attention layers without recurrent state or --dcp-size"
        )
    page = settings.page_tokens or PAGE_TOKENS.of(engine)
    cross = rate(kinds, "cross")
    if cross:
        return _with_cross_pool(kinds, cross, budget_bytes, page, settings, engine)
    windowed = any(kind.window_tokens for kind in kinds)
    return equal_blocks(
        engine,
        n_blocks=math.ceil(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=per_token,
        kinds=kinds,
        context_tokens=settings.context_tokens,
        encoder_tokens=settings.encoder_tokens or 0,
        shared_tokens=settings.shared_prefix_tokens,
        remarks=("windowed layers are counted in full",) if windowed else (),
    )


def _with_cross_pool(
    kinds: Sequence[LayerKind], cross: Fraction, budget_bytes: int, page: int,
    settings: EngineSettings, engine: EngineName,
) -> Pool:  # fmt: skip
    """Encoder-decoder: ``crossKvCacheFraction`` of the memory is a pool of encoder rows.

    Each pool has its own blocks, rounded up; a sequence needs both (NVIDIA/TensorRT-LLM issue
    2773, batch_manager of 0.13 to 0.17).
    """
    share = settings.cross_kv_cache_fraction
    if share is None:
        raise PlacementError(
            "TensorRT-LLM needs the share of the pool that cross-attention takes: "
            "--cross-kv-cache-fraction 0.5"
        )
    rows = [kind for kind in kinds if kind.keeps != "cross"]
    pool = equal_blocks(
        engine,
        n_blocks=math.ceil(budget_bytes * (1 - share) / (page * rate(rows))),
        block_tokens=page,
        bytes_per_token=rate(rows),
        kinds=rows,
        context_tokens=settings.context_tokens,
    )
    encoder = settings.encoder_tokens or 0
    n_cross = math.ceil(budget_bytes * share / (page * cross))
    told = f"{float(share):g} of the memory is a pool of {n_cross:,} blocks for encoder rows"
    pool = replace(pool, remarks=(told,))
    fit = n_cross // max(1, -(-encoder // page)) if encoder else None
    return capped(pool, fit, "encoder rows")


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total - weights - activation - non-torch) * fraction: a fraction of what is FREE after load.

    A printed case: 17.83 GiB free, fraction 0.9, 16.05 GiB of pool. Activation and non-torch are
    vLLM's forms without the sampler's float32 copies, with a wide range.
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    peak = _forward_only(inputs, inputs.settings.max_batched_tokens)
    low, high = peak // 2, peak * 2
    activation = taken(
        "activation peak", peak, assumed(low, high, "feed-forward of one step"), low, high
    )
    non_torch = non_torch_term(inputs)
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=tuple(
            share_of_free((memory, term, activation, non_torch), inputs.utilisation)
            for term in weights
        ),
        remarks=(*remarks, *weight_remarks, "the fraction applies to memory free after load"),
    )


def _forward_only(inputs: BudgetInputs, tokens: int) -> int:
    """The feed-forward's peak: the formula without sequences to sample."""
    step = Step(max_sequences=0, batched_tokens=tokens, scalar_bytes=inputs.activation_scalar_bytes)
    return activation_peak_bytes(inputs.model, step, inputs.parallel, has_head=False)


# cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp and trtGptModelInflightBatching.cpp,
# tensorrt_llm/_torch/pyexecutor/_util.py and py_executor_creator.py.
LOG = LogFormat(
    server="tensorrt_llm",
    lines=(
        LogLine(holds="TensorRT-LLM version: ", starts="new_model", names_engine=1,
                pattern=re.compile(r"TensorRT-LLM version: (?P<version>\d[\w.+-]*)")),
        LogLine(holds="found in the config file", names_engine=1,
                pattern=re.compile(r"Engine version (?P<version>\d[\w.]*)")),
        LogLine(holds="max_num_tokens=", names_engine=1, pattern=re.compile(
            r"max_seq_len=(?P<context_tokens>\d+),.*max_num_tokens=(?P<max_batched_tokens>\d+)")),
        LogLine(holds="Number of tokens per block", names_engine=1,
                pattern=re.compile(r"per block: (?P<page_tokens>\d+)")),
        LogLine(holds="Number of blocks in KV cache primary pool", names_engine=1,
                pattern=re.compile(r"primary pool: (?P<n_blocks>\d+)")),
        LogLine(holds="available KV cache memory when calculating max tokens", names_engine=1,
                pattern=re.compile(
                    r"fraction is set (?P<utilisation>[\d.]+\d).*?"
                    r"total memory (?P<memory_gib>[\d.]+) GiB")),
        LogLine(holds="when calculating max tokens in paged kv cache", names_engine=1,
                pattern=re.compile(r"total: (?P<memory_gib>[\d.]+) GiB")),
        # The pool may be allotted twice: a small one to profile with, then the one that serves.
        LogLine(holds="for max tokens in paged KV cache", names_engine=1,
                clears=("cache", "n_tokens"), pattern=re.compile(
            r"Allocated (?P<cache_gib>[\d.]+) GiB for max tokens in paged KV cache "
            r"\((?P<n_tokens>\d+)\)")),
    ),
    terms={"memory": ("memory",)},
)  # fmt: skip

_KV_WORDS = {"bf16": "auto", "fp16": "auto", "fp8": "fp8"}


def launch(asked: Launch) -> list[str]:
    """``trtllm-serve``: options of tensorrt_llm/commands/serve.py.

    Those of 1.0 (https://nvidia.github.io/TensorRT-LLM/1.0.0/commands/trtllm-serve), and
    ``--kv_cache_dtype``, which 1.1 did not have.

    Raises
    ------
    UsageError
        If there is no word for the cache's format, the weights', data parallelism, pages, layers of
        stages, a host tier, a stated pool or drafts: those are keys of its YAML file.
    """
    settings, parallel = asked.settings, asked.parallel
    in_yaml = {
        "--dp-size": parallel.dp_size > 1,
        "--page-tokens": settings.page_tokens is not None,
        "--kv-memory": asked.kv_memory_bytes is not None,
        "--weight-dtype": asked.weight_dtype is not None,
        "--pp-layers": parallel.pp_layers is not None,
        "--kv-offload": settings.kv_offload is not None,
        "--draft-layers": bool(settings.draft_layers or settings.draft_tokens),
    }
    for option, is_asked in in_yaml.items():
        if is_asked:
            raise asked.unsaid(option, "trtllm-serve takes it from a YAML file or the checkpoint")
    word = asked.word("--kv-dtype", settings.kv_dtype, _KV_WORDS)
    if word != "auto" and not asked.engine.at_least(1, 2):
        raise asked.unsaid(f"--kv-dtype {word}", "before 1.2 a YAML file states it")
    return ["trtllm-serve", asked.model, *options({
        "--tp_size": parallel.tp_size,
        "--pp_size": above_one(parallel.pp_size),
        "--ep_size": above_one(parallel.ep_size),
        "--max_seq_len": settings.context_tokens,
        "--max_batch_size": asked.n_sequences,
        "--max_num_tokens": settings.max_batched_tokens,
        "--kv_cache_dtype": None if word == "auto" else word,
        "--kv_cache_free_gpu_memory_fraction": decimal(asked.utilisation),
    })]  # fmt: skip


ENGINE = Engine(
    name="tensorrt_llm",
    about="NVIDIA TensorRT-LLM; a fraction of the memory that is free after load",
    aliases=("trtllm",),
    pool=pool,
    budget=budget,
    utilisation=ByVersion(Fraction(9, 10)),
    page_tokens=PAGE_TOKENS,
    sizes=ALL_SIZES - {"dcp_size"},
    reads=frozenset(
        {
            "page_tokens",
            "max_batched_tokens",
            "max_num_seqs",
            "cross_kv_cache_fraction",
            "shared_prefix_tokens",
            "kv_offload",
        }
    ),
    layer_split="pp_partition of its YAML file",
    log=LOG,
    launch=launch,
)
