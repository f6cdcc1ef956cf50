"""SGLang: a pool of tokens, and one of recurrent states, in a fraction of the free memory.

States have slots of their own, taken from what weights leave before tokens are counted; a request
holds several. Rules of 0.5.7 and of mid-2026 as read in model_runner_kv_cache_mixin.py and
kv_cache_configurator.py; which release between them changed is not known, taken as 0.5.20.

Before pull request 11309 (0.5.4) the index keys of sparse attention were in neither the printed
size nor the budget. Sliding layers have a second pool of 0.8 of the tokens (the engine's default
swa_full_tokens_ratio), in versions with a hybrid pool.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from lrkv_plan.errors import PlacementError, UsageError, shown
from lrkv_plan.memory.exact import larger, smaller
from lrkv_plan.serving.budget import (
    ARITHMETIC,
    BudgetInputs,
    BudgetTerm,
    MemoryBudget,
    StageBudget,
    memory_term,
    non_torch_term,
    stages_of,
    taken,
    utilisation_term,
    weight_terms,
)
from lrkv_plan.serving.engine import ALL_SIZES, ByVersion, Engine, capped, stage_models
from lrkv_plan.serving.launch import Launch, above_one, decimal, options
from lrkv_plan.serving.log import LogFormat, LogLine
from lrkv_plan.serving.pool import LayerKind, Pool, all_full, equal_blocks, layer_kinds
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

SLIDING_TOKENS_RATIO = Fraction(8, 10)
STATE_TO_TOKENS_RATIO = Fraction(9, 10)
_NEW_SLOTS = (0, 5, 20)
# --mamba-scheduler-strategy -> slots that a running request holds: its state, one kept for the
# prefix cache and one in the making, and two more where a buffer lets the scheduler run ahead.
SLOTS_OF_REQUEST = {"no_buffer": 3, "lazy": 4, "extra_buffer": 5}
_OWN_STRATEGY = ByVersion("no_buffer", {_NEW_SLOTS: "extra_buffer"})
# Requests that run together where none are stated: 512 x tokens / context, kept between these.
_FEWEST_RUNNING, _MOST_RUNNING = 2048, 4096
_RUNNING_PER_CONTEXT = 512


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """Tokens = floor(budget / rate), in whole pages; a page is one token unless told otherwise.

    ``budget_bytes`` is the token pool, as the engine prints it: the budget took recurrent states
    off already. Where it did not, since the pool was stated, the remark says what a slot costs.
    Stated or counted slots cap the requests that run together.

    Raises
    ------
    PlacementError
        If no layer keeps rows, or decode-context parallelism is asked for.
    """
    if dcp_size > 1:
        raise PlacementError("SGLang has no decode-context parallelism here: leave --dcp-size out")
    kinds = layer_kinds(_as_of(model, engine), settings, tp_size)
    if settings.disable_hybrid_swa_memory:
        kinds = all_full(kinds)
    rows = [kind for kind in kinds if kind.keeps != "state"]
    share = settings.swa_full_tokens_ratio or SLIDING_TOKENS_RATIO
    per_token = sum(
        (kind.count * kind.row_bytes * (share if kind.keeps == "sliding" else 1) for kind in rows),
        Fraction(0),
    )
    if not per_token:
        raise PlacementError(f"{model.name}: no layer keeps a cache")
    page = settings.page_tokens or 1
    tokens = equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=per_token,
        kinds=rows,
        context_tokens=settings.context_tokens,
        encoder_tokens=settings.encoder_tokens or 0,
        shared_tokens=_shared_tokens(settings),
        remarks=tuple(_remarks(kinds, settings)),
    )
    running = default_running_requests(tokens.kv_tokens, settings.context_tokens)
    if settings.max_num_seqs is None:
        n_tokens = tokens.kv_tokens
        tokens = capped(
            tokens, running, "most sequences allowed",
            at=lambda contexts: default_running_requests(n_tokens, contexts),
        )  # fmt: skip
    slots = settings.max_mamba_cache_size
    if slots is None or len(rows) == len(kinds):
        return tokens
    return capped(tokens, slots // slots_of_request(settings, engine), "state slots")


def default_running_requests(n_tokens: int, context_tokens: Any) -> Any:
    """Requests that run together where ``--max-running-requests`` is not given.

    512 x tokens / context, at least 2,048 and at most 4,096 (python/sglang/srt/model_executor/
    model_runner.py, ``init_memory_pool``).

    Examples
    --------
    >>> default_running_requests(1_000_000, 8192), default_running_requests(1_000_000, 200)
    (4096, 4096)
    >>> default_running_requests(20_000, 8192)
    2048
    """
    asked = n_tokens * _RUNNING_PER_CONTEXT // context_tokens
    return smaller(larger(asked, _FEWEST_RUNNING), _MOST_RUNNING)


def _shared_tokens(settings: EngineSettings) -> int | None:
    """The common prefix; None without the tree that finds it.

    Raises
    ------
    PlacementError
        If a prefix is stated without it.
    """
    if not settings.disable_radix_cache:
        return settings.shared_prefix_tokens
    if settings.shared_prefix_tokens:
        raise PlacementError(
            "--disable-radix-cache: nothing is shared; leave it or --shared-prefix-tokens out"
        )
    return None


def slots_of_request(settings: EngineSettings, engine: EngineName) -> int:
    """State slots that a running request holds: one without a prefix cache.

    Raises
    ------
    UsageError
        If the strategy is unknown; the message lists them.
    """
    if settings.disable_radix_cache:
        return 1
    strategy = settings.mamba_scheduler_strategy or _OWN_STRATEGY.of(engine)
    if strategy not in SLOTS_OF_REQUEST:
        known = ", ".join(SLOTS_OF_REQUEST)
        raise UsageError(f"--mamba-scheduler-strategy {shown(strategy)} is unknown; known: {known}")
    return SLOTS_OF_REQUEST[strategy]


def _as_of(model: ModelSpec, engine: EngineName) -> ModelSpec:
    """The model as that version counts it: without index keys before 0.5.4."""
    if engine.at_least(0, 5, 4):
        return model
    layers = tuple(group.model_copy(update={"index": ()}) for group in model.layers)
    return model.model_copy(update={"layers": layers})


def _remarks(kinds: tuple[LayerKind, ...], settings: EngineSettings) -> list[str]:
    remarks = []
    slot = sum(kind.count * kind.fixed_bytes for kind in kinds)
    if slot and settings.max_mamba_cache_size is None:
        remarks.append(
            f"recurrent state is a separate pool: {slot:,} B per sequence on each GPU, not taken "
            "from this budget"
        )
    if settings.swa_full_tokens_ratio is None and any(kind.keeps == "sliding" for kind in kinds):
        remarks.append("sliding layers: a pool of 0.8 of the tokens (the default ratio), assumed")
    return remarks


def slot_bytes(model: ModelSpec, inputs: BudgetInputs) -> int:
    """Bytes of one state slot of those layers on one GPU. [bytes]"""
    undrafted = replace(inputs.settings, draft_layers=0, draft_tokens=0)
    kinds = layer_kinds(model, undrafted, inputs.parallel.tp_size)
    return sum(kind.count * kind.fixed_bytes for kind in kinds)


def state_slots(rest_bytes: int, slot: int, inputs: BudgetInputs) -> int:
    """Slots that are made of what weights leave.

    Stated ones; without a prefix cache as many as requests run; else the part r / (1 + r) of the
    memory, less one slot of padding in newer versions, where drafts share it: a request that
    verifies D tokens keeps D states beside its slots.
    """
    settings, engine = inputs.settings, inputs.engine
    if settings.max_mamba_cache_size is not None:
        return settings.max_mamba_cache_size // inputs.parallel.dp_size
    if settings.disable_radix_cache and settings.max_num_seqs is not None:
        return settings.max_num_seqs
    ratio = settings.mamba_full_memory_ratio or STATE_TO_TOKENS_RATIO
    memory = max(0, rest_bytes) * ratio / (1 + ratio)
    if not engine.at_least(*_NEW_SLOTS):
        return int(memory / slot)
    drafts = settings.draft_tokens
    each = 1 + Fraction(drafts, slots_of_request(settings, engine))
    return max(0, int((memory - slot * (1 + drafts)) / (slot * each)))


def _state_terms(slot: int, slots: int, inputs: BudgetInputs) -> tuple[BudgetTerm, ...]:
    """Slots with the one of padding, and the states that drafts keep until they are accepted."""
    settings, engine = inputs.settings, inputs.engine
    told = f"{ARITHMETIC}: {slots:,} slots of {slot:,} B and one of padding"
    terms = [taken("state slots", (slots + 1) * slot, told)]
    if settings.draft_tokens:
        running = slots // slots_of_request(settings, engine)
        asked = settings.max_num_seqs or _MOST_RUNNING
        rows = min(asked, running) + 1 if engine.at_least(*_NEW_SLOTS) else min(asked, running)
        taken_here = rows * settings.draft_tokens * slot
        told = f"{ARITHMETIC}: {rows:,} requests x {settings.draft_tokens} drafted tokens"
        terms.append(taken("draft states", taken_here, told))
    return tuple(terms)


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total - non-torch) * mem_fraction_static - weights - recurrent states.

    The fraction applies to the memory free before the weights are loaded, and covers weights and
    pool; activations and CUDA graphs live in the rest. A public case: 125.65 GB of weights of
    137.90 free need a fraction of 0.9112, and the engine printed 0.9113 (InferenceX issue 2128).
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    non_torch = non_torch_term(inputs)
    free = memory.n_bytes + non_torch.n_bytes
    shared = [memory, non_torch, utilisation_term(free, inputs.utilisation)]
    stages = stages_of(shared, [(term,) for term in weights])
    slots, stages = _with_states(stages, inputs)
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages,
        state_slots=slots,
        remarks=(
            *remarks,
            *weight_remarks,
            "activations and CUDA graphs live outside mem_fraction_static",
        ),
    )


_KEYS = {
    "model_path": "model", "context_length": "context_tokens", "context_len": "context_tokens",
    "tp_size": "tp_size", "pp_size": "pp_size", "dp_size": "dp_size", "ep_size": "ep_size",
    "mem_fraction_static": "utilisation", "kv_cache_dtype": "kv_dtype", "page_size": "page_tokens",
    "chunked_prefill_size": "max_batched_tokens", "max_running_requests": "max_sequences",
    "quantization": "quantisation", "dtype": "dtype", "enable_dp_attention": "dp_attention",
}  # fmt: skip
# python/sglang/srt: entrypoints/engine.py, model_executor/model_runner.py,
# mem_cache/memory_pool.py, managers/scheduler.py. "GB" is 2^30 there. A draft's pool follows the
# model's: the first counts.
LOG = LogFormat(
    server="sglang",
    lines=(
        LogLine(holds="server_args=ServerArgs(", starts="always", names_engine=1, keys=_KEYS),
        LogLine(holds="Load weight end", names_engine=1, pattern=re.compile(
            r"Load weight end\.(?:.*?mem usage=(?P<weights_gib>[\d.]+) GB)?")),
        LogLine(holds="KV Cache is allocated", names_engine=1, pattern=re.compile(
            r"#tokens: (?P<n_tokens>[\d,]+), (?:KV size: (?P<cache_gib>[\d.]+) GB|"
            r"K size: (?P<key_gib>[\d.]+) GB, V size: (?P<value_gib>[\d.]+) GB)")),
        LogLine(holds="max_total_num_tokens=", names_engine=1, keys={
            key: _KEYS[key] for key in ("context_len", "chunked_prefill_size")}),
    ),
    terms={"weights": ("weights",)},
    combine={
        "weights": "first", "cache": "first", "key": "first", "value": "first",
        "n_tokens": "first",
    },
)  # fmt: skip

# --kv-cache-dtype and --quantization of python/sglang/srt/server_args.py (0.5).
_KV_WORDS = {"bf16": "auto", "fp16": "auto", "fp8": "fp8_e4m3"}
_WEIGHT_WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "fp8"}


def launch(asked: Launch) -> list[str]:
    """``python -m sglang.launch_server``: flags of python/sglang/srt/server_args.py (0.5).

    Raises
    ------
    UsageError
        If there is no word for the cache's format, the weights', a stated pool or drafts.
    """
    settings, parallel = asked.settings, asked.parallel
    if asked.kv_memory_bytes is not None:
        raise asked.unsaid("--kv-memory", "its pool is a fraction or a number of tokens")
    if settings.draft_layers or settings.draft_tokens:
        raise asked.unsaid("--draft-layers", "--speculative-algorithm needs the draft's name")
    weights = asked.weight_dtype
    if weights is not None:
        weights = asked.word("--weight-dtype", weights, _WEIGHT_WORDS)
    split = parallel.pp_layers and ",".join(map(str, parallel.pp_layers))
    by_stage = ["env", f"SGLANG_PP_LAYER_PARTITION={split}"] if split else []
    program = [*by_stage, "python", "-m", "sglang.launch_server"]
    offload = settings.kv_offload  # of one replica; the engine is told each rank's, in 10^9 B
    each = None if offload is None else offload // (parallel.tp_size * parallel.pp_size)
    return [*program, "--model-path", asked.model, *options({
        "--tp-size": parallel.tp_size,
        "--pp-size": above_one(parallel.pp_size),
        "--dp-size": above_one(parallel.dp_size),
        "--ep-size": above_one(parallel.ep_size),
        "--context-length": settings.context_tokens,
        "--max-running-requests": asked.n_sequences,
        "--dtype": None if weights == "fp8" else weights,
        "--quantization": "fp8" if weights == "fp8" else None,
        "--kv-cache-dtype": asked.word("--kv-dtype", settings.kv_dtype, _KV_WORDS),
        "--page-size": settings.page_tokens,
        "--disable-hybrid-swa-memory": settings.disable_hybrid_swa_memory,
        "--enable-hierarchical-cache": offload is not None,
        "--hicache-size": None if each is None else each // 10**9,
        "--mem-fraction-static": decimal(asked.utilisation),
    })]  # fmt: skip


def _with_states(
    stages: tuple[StageBudget, ...], inputs: BudgetInputs
) -> tuple[int | None, tuple[StageBudget, ...]]:
    """The fewest slots of any stage, and the stages with their states taken off."""
    models = stage_models(inputs.model, inputs.parallel)
    sized = [
        (stage, slot_bytes(model, inputs)) for stage, model in zip(stages, models, strict=True)
    ]
    counts = [
        state_slots(stage.kv_bytes, slot, inputs)
        for index, (stage, slot) in enumerate(sized)
        if slot and inputs.stage in (None, index)
    ]
    if not counts:
        return None, stages
    slots = min(counts)
    return slots, tuple(
        StageBudget(terms=(*stage.terms, *_state_terms(slot, slots, inputs))) if slot else stage
        for stage, slot in sized
    )


ENGINE = Engine(
    name="sglang",
    about="SGLang; a fraction of the memory that is free before load",
    pool=pool,
    budget=budget,
    utilisation=ByVersion(Fraction(88, 100)),
    utilisation_doubt="mem_fraction_static 0.88 is assumed, range 0.79..0.91: SGLang derives it "
    "from the GPU, tp_size and CUDA graphs",
    page_tokens=ByVersion(1),
    sizes=ALL_SIZES - {"dcp_size"},
    reads=frozenset(
        {
            "page_tokens",
            "drafter",
            "max_num_seqs",
            "max_mamba_cache_size",
            "mamba_full_memory_ratio",
            "mamba_scheduler_strategy",
            "disable_radix_cache",
            "swa_full_tokens_ratio",
            "mamba_ssm_cache_dtype",
            "shared_prefix_tokens",
            "kv_offload",
            "disable_hybrid_swa_memory",
        }
    ),
    layer_split="SGLANG_PP_LAYER_PARTITION",
    log=LOG,
    launch=launch,
)
