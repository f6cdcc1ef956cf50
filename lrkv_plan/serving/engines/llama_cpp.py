"""llama.cpp's cells: n_ctx cells shared by all sequences, and a smaller cache for windows.

The pool is not what memory leaves but what ``-c`` asks for; here the largest number of sequences
whose cells fit the budget is found.
"""

from __future__ import annotations

import bisect
import re
from dataclasses import replace
from fractions import Fraction
from typing import Any

from lrkv_plan.errors import PlacementError
from lrkv_plan.memory.exact import ceil_div, over_each, simplest
from lrkv_plan.memory.largest import largest
from lrkv_plan.memory.weights import StageWeights, layers_in_order, weight_bytes_per_gpu
from lrkv_plan.serving.budget import (
    BudgetInputs,
    BudgetTerm,
    MemoryBudget,
    assumed,
    memory_term,
    stages_of,
    taken,
    utilisation_term,
    weight_terms,
)
from lrkv_plan.serving.engine import Engine, layers_of
from lrkv_plan.serving.launch import Launch, options
from lrkv_plan.serving.log import LogFormat, LogLine
from lrkv_plan.serving.pool import (
    LayerKind,
    Pool,
    layer_kinds,
    payload_bytes,
    payload_of,
    rate,
    state_in,
    waste_of,
    with_states,
)
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import FixedTensor, ModelSpec
from lrkv_plan.units import GIB, MIB

CELL_PADDING = 256
DEFAULT_MICRO_BATCH_TOKENS = 512  # --ubatch-size
CONTEXT_GIB = (0.4, 0.2, 0.7)  # CUDA context and libraries of a plain C++ program
_FP32_BYTES = 4
_MOST_SEQUENCES = 10**7


def kept_kinds(model: ModelSpec, settings: EngineSettings) -> tuple[LayerKind, ...]:
    """The kinds of layers as llama.cpp keeps them: states and convolution columns in fp32.

    With drafts a sequence has a whole state to go back to for each drafted token: n + 1 of them
    (448.88 MiB for n = 2 and 748.12 for n = 4 where one is 149.62: llama.cpp's own log).
    """
    n_states = 1 + settings.draft_tokens

    def kept(tensor: FixedTensor) -> FixedTensor:
        state = state_in(tensor, _FP32_BYTES)
        return state.model_copy(
            update={"bytes_per_copy": n_states * state.bytes_per_copy, "bytes_per_draft_token": 0}
        )

    return layer_kinds(with_states(model, kept), settings)


def on_gpus(model: ModelSpec, settings: EngineSettings) -> ModelSpec:
    """The model with the layers that ``--n-gpu-layers`` puts on GPUs: the output, then the last.

    Of n, the output counts as one and the others are the last n - 1 layers: i_gpu_start =
    max(n_layer + 1 - n, 0) (``load_tensors`` in src/llama-model.cpp, 2026). A layer's cache lies
    with its weights.

    Raises
    ------
    PlacementError
        If no layer would lie there.
    """
    asked, order = settings.n_gpu_layers, layers_in_order(model)
    if asked is None or asked > len(order):
        return model
    if asked == 1:
        raise PlacementError(
            "--n-gpu-layers 1: only the output would lie on the GPU, and the whole cache on the "
            f"host; from 2 to {len(order) + 1}"
        )
    return layers_of(model, order[len(order) + 1 - asked :])


def split_layers(n_layers: int, memory_bytes: tuple[int, ...]) -> tuple[int, ...]:
    """Layers of each GPU where ``--tensor-split`` is not given: in proportion to free memory.

    Layer i of the n + 1, the output last, goes to the first GPU whose running share of the memory
    exceeds i / (n + 1) (``load_tensors`` in src/llama-model.cpp, 2026). Memory that other programs
    take is not known here.

    Examples
    --------
    >>> split_layers(32, (24, 24)), split_layers(48, (32, 24))
    ((17, 15), (28, 20))
    """
    total, slots = sum(memory_bytes), n_layers + 1
    shares = [Fraction(sum(memory_bytes[: i + 1]), total) for i in range(len(memory_bytes))]
    places = [bisect.bisect_right(shares, Fraction(i, slots)) for i in range(n_layers)]
    return tuple(places.count(gpu) for gpu in range(len(memory_bytes)))


def cells(
    kind: LayerKind, n_sequences: int, tokens: int, micro_batch_tokens: int, *, unified: bool = True
) -> int:
    """Cells of one layer for ``n_sequences`` of ``tokens`` each.

    pad256(n_ctx) with n_ctx = n T; a windowed layer pad256(min(n_ctx, window n + micro batch)).
    Not ``unified``, every sequence has cells of its own: n times those of one.

    Examples
    --------
    >>> swa = LayerKind(keeps="sliding", count=20, window_tokens=1024)
    >>> cells(swa, 1, 102_400, 512)
    1536
    """
    if not unified:
        return n_sequences * cells(kind, 1, tokens, micro_batch_tokens)
    wanted = n_sequences * tokens
    if kind.window_tokens is not None:
        wanted = min(wanted, kind.window_tokens * n_sequences + micro_batch_tokens)
    return ceil_div(wanted, CELL_PADDING) * CELL_PADDING  # type: ignore[no-any-return]


def cache_bytes_for(
    kinds: tuple[LayerKind, ...], n_sequences: int, tokens: int, settings: EngineSettings
) -> Fraction:
    """Bytes of all layers and states for that many sequences. [bytes]"""
    micro_batch = min(settings.max_batched_tokens, DEFAULT_MICRO_BATCH_TOKENS)
    total = Fraction(0)
    for kind in kinds:
        rows = n_sequences * (settings.encoder_tokens or 0)
        if kind.keeps not in ("cross", "state"):
            unified = not settings.no_kv_unified
            rows = cells(kind, n_sequences, tokens, micro_batch, unified=unified)
        total += kind.count * (rows * kind.row_bytes + n_sequences * kind.fixed_bytes)
    return total


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
) -> Pool:
    """The most sequences of maximum length whose cells fit. A block is one byte.

    Raises
    ------
    PlacementError
        If no layer keeps rows, or tensor or context parallelism is asked for: llama.cpp splits
        layers over GPUs instead (--pp-size).
    """
    refuse_slices(tp_size, dcp_size)
    return pool_of_cells(model, kept_kinds(model, settings), budget_bytes, settings, engine)


def refuse_slices(tp_size: int, dcp_size: int) -> None:
    """Refuse tensor and decode-context parallelism (``PlacementError``)."""
    if tp_size > 1 or dcp_size > 1:
        raise PlacementError("llama.cpp splits layers over GPUs, not heads: use --pp-size")


def pool_of_cells(
    model: ModelSpec,
    kinds: tuple[LayerKind, ...],
    budget_bytes: int,
    settings: EngineSettings,
    engine: EngineName,
) -> Pool:
    """The pool of layers that are kept as ``kinds`` say.

    Raises
    ------
    PlacementError
        If no layer keeps rows.
    """
    per_token = rate([kind for kind in kinds if kind.keeps != "cross"])
    if not per_token:
        raise PlacementError(f"{model.name}: no layer keeps a cache")
    context = settings.context_tokens
    most = min(_MOST_SEQUENCES, int(budget_bytes / per_token) + 1)
    fitting = largest(
        range(1, most + 1),
        lambda n: cache_bytes_for(kinds, n, context, settings),
        Fraction(budget_bytes),
    )
    n_sequences = fitting or 0

    def bytes_of(tokens: int) -> int:
        return int(-(-cache_bytes_for(kinds, 1, tokens, settings) // 1))

    def blocks_of(tokens: Any) -> Any:
        return over_each("tokens", tokens, bytes_of)

    held = cache_bytes_for(kinds, max(1, n_sequences), context, settings)
    payload = max(1, n_sequences) * payload_bytes(kinds, context, settings.encoder_tokens or 0)
    return Pool(
        engine=engine,
        n_blocks=budget_bytes,
        block_tokens=1,
        block_bytes=1,
        n_groups=1,
        kv_tokens=n_sequences * context,
        max_concurrency=Fraction(n_sequences),
        max_sequences=n_sequences,
        bytes_per_token_per_gpu=simplest(per_token),
        waste_share=max(Fraction(0), waste_of(payload, int(held), 1)),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, settings.encoder_tokens or 0),
        remarks=("cells are reserved for the full context of every sequence (-c)",),
    )


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """total * utilisation - weights - compute buffer; the cache is what -c asks for, not a rest.

    The compute buffer is assumed to hold one micro batch of 512 tokens in float32: logits and two
    hidden states; the range goes to three times that.
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weights_on_gpus(inputs)
    vocab = inputs.model.vocab_size or 0
    buffer = DEFAULT_MICRO_BATCH_TOKENS * 4 * (vocab + 2 * inputs.model.model_dim)
    context, low, high = (int(gib * GIB) for gib in CONTEXT_GIB)
    shared = [
        memory,
        utilisation_term(memory.n_bytes, inputs.utilisation),
        taken("compute buffer", buffer,
              assumed(buffer, 3 * buffer, "one micro batch of 512"), buffer, 3 * buffer),
        taken("driver context", context, assumed(low, high, "CUDA context"), low, high),
    ]  # fmt: skip
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
        remarks=(*remarks, *weight_remarks, "llama.cpp has no budget: -c must ask for this much"),
    )


def weights_on_gpus(inputs: BudgetInputs) -> tuple[tuple[BudgetTerm, ...], tuple[str, ...]]:
    """One weights term per stage, without the token embeddings: the input layer is the host's.

    A table that is embedding and head is stored twice, and the head's copy is on the GPU
    (``dev_input`` and ``dev_output`` in src/llama-model.cpp). Where the host's memory is the
    GPU's, nothing is left out; nor of weights that were given.
    """
    terms, remarks = weight_terms(inputs)
    is_given = inputs.weight_bytes is not None and inputs.stage_weight_bytes is None
    if is_given or inputs.hardware.unified_memory:
        return terms, remarks
    dtype = inputs.weight_dtype or inputs.model.weight_dtype or "bf16"

    def counted(model: ModelSpec) -> tuple[StageWeights, ...]:
        return weight_bytes_per_gpu(
            model, parallel=inputs.parallel, weight_dtype=dtype,
            with_drafts=inputs.settings.draft_layers > 0,
        ).stages  # fmt: skip

    whole = counted(inputs.model)
    apart = counted(inputs.model.model_copy(update={"tied_embeddings": False}))
    kept = [stage.total - stage.embeddings for stage in apart]
    told = f"{terms[0].provenance}; token embeddings are the host's"
    return tuple(
        taken("weights", -(term.n_bytes * held // stage.total), told)
        if term.low_bytes is None
        else replace(term, n_bytes=term.n_bytes + stage.total - held)
        for term, held, stage in zip(terms, kept, whole, strict=True)
    ), remarks


def asked_bytes(model: ModelSpec, settings: EngineSettings, n_sequences: int) -> Fraction:
    """Bytes that it allots for ``n_sequences`` of ``settings.context_tokens`` each. [bytes]"""
    kinds = kept_kinds(model, settings)
    return cache_bytes_for(kinds, n_sequences, settings.context_tokens, settings)


_ALLOTTED = ("cache", "n_cells", "compute")
# src/llama-model-loader.cpp, llama-model.cpp, llama-context.cpp, llama-kv-cache.cpp and -iswa.cpp,
# llama-memory-recurrent.cpp; before 2025-05 llama.cpp itself ("KV self size").
LOG = LogFormat(
    server="llama_cpp",
    lines=(
        LogLine(holds="llama_model_loader: loaded meta data", starts="new_model", names_engine=1,
                pattern=re.compile(r"tensors from (?P<model>\S.*?)(?: \(version|$)")),
        LogLine(holds="general.name", pattern=re.compile(
            r"general\.name +(?:str +)?= (?P<model_title>\S.*)")),
        LogLine(holds=": file type", pattern=re.compile(
            r"(?:print_info|llm_load_print_meta): file type +=? *(?P<quantisation>\S.*)")),
        LogLine(holds="n_ctx ", pattern=re.compile(r"\bn_ctx +=? *(?P<context_tokens>\d+)\s*$"),
                clears=_ALLOTTED),
        LogLine(holds="n_seq_max", pattern=re.compile(r"n_seq_max +=? *(?P<sequences>\d+)\s*$")),
        LogLine(holds="n_ubatch", pattern=re.compile(
            r"n_ubatch +=? *(?P<max_batched_tokens>\d+)\s*$")),
        LogLine(holds=" cells, ", names_engine=1, pattern=re.compile(
            r"size = +(?P<cache_mib>[\d.]+) MiB \( *(?P<n_cells>\d+) cells, +\d+ layers, +"
            r"(?P<sequences>\d+)(?:/\d+)? seqs.*?\), K \((?P<kv_dtype>\w+)\).*"
            r"V \((?P<value_dtype>\w+)\)")),
        LogLine(holds=" rs_seq", pattern=re.compile(r"size = +(?P<cache_mib>[\d.]+) MiB \(")),
        LogLine(holds="llama_memory_recurrent: size", pattern=re.compile(
            r"size = +(?P<cache_mib>[\d.]+) MiB \((?!.* rs_seq)")),
        LogLine(holds="KV self size", names_engine=1, pattern=re.compile(
            r"KV self size += +(?P<cache_mib>[\d.]+) MiB, K \((?P<kv_dtype>\w+)\).*"
            r"V \((?P<value_dtype>\w+)\)")),
        LogLine(holds="loading draft model", ends=True),
    ),
    combine={"cache": "sum", "n_cells": "most"},
    asked_bytes=asked_bytes,
)  # fmt: skip

_KV_WORDS = {
    "fp32": "f32", "bf16": "bf16", "fp16": "f16", "q8_0": "q8_0", "q4_0": "q4_0",
}  # fmt: skip


def launch(asked: Launch) -> list[str]:
    """``llama-server``: options of common/arg.cpp (2026). ``-c`` is the cells of all sequences.

    Raises
    ------
    UsageError
        If there is no word for the cache's format or a stated pool, or the weights' format is not
        the file's own.
    """
    settings = asked.settings
    if asked.kv_memory_bytes is not None:
        raise asked.unsaid("--kv-memory", "-c asks for cells, not for bytes")
    if asked.weight_dtype is not None:
        raise asked.unsaid("--weight-dtype", "it is the GGUF file's own")
    if settings.draft_layers or settings.draft_tokens:
        raise asked.unsaid("--draft-layers", "-md needs the draft's file")
    word = asked.word("--kv-dtype", settings.kv_dtype, _KV_WORDS)
    if settings.kv_offload is not None and settings.kv_offload < MIB:
        raise asked.unsaid("--kv-offload", "--cache-ram is in MiB")
    layers = asked.parallel.pp_layers
    split = None  # ratios over the layers and the output, which is the last GPU's
    if layers is not None:
        split = ",".join(map(str, (*layers[:-1], layers[-1] + 1)))
    file = asked.model if asked.model.endswith(".gguf") else f"{asked.name}.gguf"
    return ["llama-server", "--model", file, *options({
        "--ctx-size": asked.n_sequences * settings.context_tokens,
        "--parallel": asked.n_sequences,
        "--ubatch-size": min(settings.max_batched_tokens, DEFAULT_MICRO_BATCH_TOKENS),
        "--cache-type-k": word,
        "--cache-type-v": word,
        "--n-gpu-layers": settings.n_gpu_layers or 999,
        "--split-mode": "layer" if asked.parallel.pp_size > 1 else None,
        "--tensor-split": split,
        "--cache-ram": None if settings.kv_offload is None else settings.kv_offload // MIB,
    })]  # fmt: skip


ENGINE = Engine(
    name="llama_cpp",
    about="llama.cpp; cells for the full context of every sequence",
    pool=pool,
    budget=budget,
    sizes=frozenset({"pp_size"}),
    reads=frozenset(
        {"max_batched_tokens", "max_num_seqs", "no_kv_unified", "n_gpu_layers", "kv_offload"}
    ),
    layer_split="--tensor-split",
    split_layers=split_layers,
    joins_vendors=True,  # over Vulkan or RPC
    on_gpus=on_gpus,
    small_kv_dtypes=("q8_0",),
    small_weight_dtype=None,  # its formats (GGUF's) are none of those whose bytes are known here
    log=LOG,
    launch=launch,
)
