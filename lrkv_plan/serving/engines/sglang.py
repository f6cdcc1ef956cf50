"""SGLang: a pool of tokens, and one of recurrent states, in a fraction of the free memory.

Before pull request 11309 (0.5.4) the index keys of sparse attention were in neither the printed
size nor the budget. Sliding layers have a second pool of 0.8 of the tokens (the engine's default
swa_full_tokens_ratio), in versions with a hybrid pool.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from lrkv_plan.errors import PlacementError
from lrkv_plan.serving.budget import (
    BudgetInputs,
    MemoryBudget,
    memory_term,
    non_torch_term,
    stages_of,
    utilisation_term,
    weight_terms,
)
from lrkv_plan.serving.engine import ALL_SIZES, ByVersion, Engine
from lrkv_plan.serving.launch import Launch, above_one, decimal, options
from lrkv_plan.serving.log import LogFormat, LogLine
from lrkv_plan.serving.pool import LayerKind, Pool, equal_blocks, layer_kinds
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

SLIDING_TOKENS_RATIO = Fraction(8, 10)


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

    ``budget_bytes`` is the token pool, as the engine prints it. Recurrent state is not taken from
    it; the remark says what one sequence's slot costs beside it.

    Raises
    ------
    PlacementError
        If no layer keeps rows, or decode-context parallelism is asked for.
    """
    if dcp_size > 1:
        raise PlacementError("SGLang has no decode-context parallelism here: leave --dcp-size out")
    kinds = layer_kinds(_as_of(model, engine), settings, tp_size)
    rows = [kind for kind in kinds if kind.keeps != "state"]
    per_token = sum((kind.count * kind.row_bytes * _share(kind) for kind in rows), Fraction(0))
    if not per_token:
        raise PlacementError(f"{model.name}: no layer keeps a cache")
    page = settings.page_tokens or 1
    return equal_blocks(
        engine,
        n_blocks=math.floor(budget_bytes / (page * per_token)),
        block_tokens=page,
        bytes_per_token=per_token,
        kinds=rows,
        context_tokens=settings.context_tokens,
        encoder_tokens=settings.encoder_tokens or 0,
        remarks=tuple(_remarks(kinds)),
    )


def _as_of(model: ModelSpec, engine: EngineName) -> ModelSpec:
    """The model as that version counts it: without index keys before 0.5.4."""
    if engine.at_least(0, 5, 4):
        return model
    layers = tuple(group.model_copy(update={"index": ()}) for group in model.layers)
    return model.model_copy(update={"layers": layers})


def _share(kind: LayerKind) -> Fraction:
    return SLIDING_TOKENS_RATIO if kind.keeps == "sliding" else Fraction(1)


def _remarks(kinds: tuple[LayerKind, ...]) -> list[str]:
    remarks = []
    slot = sum(kind.count * kind.fixed_bytes for kind in kinds)
    if slot:
        remarks.append(
            f"recurrent state is a separate pool: {slot:,} B per sequence on each GPU, not taken "
            "from this budget"
        )
    if any(kind.keeps == "sliding" for kind in kinds):
        remarks.append("sliding layers: a pool of 0.8 of the tokens (the default ratio), assumed")
    return remarks


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total - non-torch) * mem_fraction_static - weights.

    The fraction applies to the memory free before the weights are loaded, and covers weights and
    pool; activations and CUDA graphs live in the rest. A public case: 125.65 GB of weights of
    137.90 free need a fraction of 0.9112, and the engine printed 0.9113 (InferenceX issue 2128).
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    non_torch = non_torch_term(inputs)
    free = memory.n_bytes + non_torch.n_bytes
    shared = [memory, non_torch, utilisation_term(free, inputs.utilisation)]
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
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
    family="sglang",
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
    return ["python", "-m", "sglang.launch_server", "--model-path", asked.model, *options({
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
        "--mem-fraction-static": decimal(asked.utilisation),
    })]  # fmt: skip


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
    reads=frozenset({"page_tokens"}),
    log=LOG,
    launch=launch,
)
