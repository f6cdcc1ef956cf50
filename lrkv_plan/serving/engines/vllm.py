"""vLLM's V1 engine: the pool of equal pages, and the budget that it leaves for it.

Rules as found in printed pools of 0.8 to 0.29; each is named where it is applied. A model whose
layers all keep everything is one group. Otherwise kinds are cut into groups of g layers, each kind
padded to a multiple of g, and all groups draw blocks of g pages from one pool.

The budget is total * utilisation - weights - activation peak - non-torch [- CUDA graphs]. CUDA
graphs were captured outside it up to 0.20 and are estimated inside it from 0.21
(VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS, on by default since 0.21.0). Constants are fitted on
H100 start logs of 0.19; other GPUs and versions carry a range.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lrkv_plan.attention.layout import Sharding
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.formats import STORAGE_FORMATS
from lrkv_plan.memory.exact import ceil_div, simplest, smaller
from lrkv_plan.serving.activation import (
    FITTED,
    ActivationConstants,
    Step,
    activation_peak_bytes,
)
from lrkv_plan.serving.adapters import linears, slot_bytes
from lrkv_plan.serving.budget import (
    ARITHMETIC,
    NON_TORCH_GIB,
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
from lrkv_plan.serving.engine import ByVersion, Engine, stage_models
from lrkv_plan.serving.launch import Launch, above_one, decimal, options
from lrkv_plan.serving.log import LogFormat, LogLine
from lrkv_plan.serving.media import limits_of, profiled_items
from lrkv_plan.serving.pool import (
    LayerKind,
    Pool,
    all_full,
    layer_kinds,
    payload_bytes,
    payload_of,
    rate,
    sequences_beside,
    waste_of,
)
from lrkv_plan.specs.deployment import EngineName, EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ExpertFeedForward, ModelSpec
from lrkv_plan.units import GIB

DEFAULT_PAGE_TOKENS = 16
# From 0.26 a window keeps the tokens of all batches in flight (max_in_flight_tokens): two under
# asynchronous scheduling, the default (vllm-project/vllm#49878, pull request 47728).
BATCHES_IN_FLIGHT = 2
# A longest kind within so much of the shortest pads up to it instead of splitting: a quarter up to
# 0.19, a half from 0.20 on (kv_cache_utils.py).
_NEARLY_EQUAL = ByVersion(Fraction(5, 4), {(0, 20): Fraction(3, 2)})


# Groups are made of the whole model, and each pipeline stage has its layers of them, from there on.
_GROUPS_OF_WHOLE = (0, 11)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Layers of one kind that share block numbers; ``n_groups`` such groups, ``g`` layers each."""

    kind: LayerKind
    n_groups: int
    block_tokens: int  # per GPU; decode-context parallel GPUs hold as many each


def pool(
    model: ModelSpec,
    budget_bytes: int,
    settings: EngineSettings,
    *,
    engine: EngineName,
    tp_size: int = 1,
    dcp_size: int = 1,
    whole: tuple[ModelSpec, EngineSettings] | None = None,
) -> Pool:
    """The block pool of one GPU.

    Parameters
    ----------
    budget_bytes : memory for the cache on this GPU. [bytes]
    dcp_size : decode-context parallel GPUs; each stores 1/n of a sequence's tokens.
    whole : the model and settings of which these layers are a pipeline stage; from 0.11 its groups
        are those of every stage.

    Raises
    ------
    PlacementError
        If the heads cannot be dealt out, or page sizes cannot be made equal.

    Notes
    -----
    n_blocks = floor(budget / (g page)). A request holds, per group: full ceil(T / block); sliding
    ceil(min(window - 1 + batched, T) / block) + 1; chunked the same with the chunk and without
    the + 1; state 1 block, 1 more with prefix caching, 1 more per draft token; cross-attention
    ceil(batched / block). From 0.26 a window counts two batches (as many as pipeline stages, if
    more: not modelled). Concurrency = n_blocks / blocks of a request of maximum length.
    Tokens are printed as floor(n_blocks / groups) block up to 0.20, from 0.21 as
    int(concurrency T).
    """
    kinds = layer_kinds(model, settings, tp_size)
    if not kinds:
        raise PlacementError(f"{model.name}: no layer keeps a cache")
    # Before the hybrid manager (0.10), and without it, a windowed layer keeps every token.
    is_hybrid = engine.at_least(0, 10) and not settings.disable_hybrid_kv_cache_manager
    if not is_hybrid:
        kinds = all_full(kinds)
    page_tokens = settings.page_tokens or DEFAULT_PAGE_TOKENS
    check_context_parallel(model, kinds, tp_size, dcp_size)
    groups, layers_per_block, page_bytes = _grouped(kinds, page_tokens, _NEARLY_EQUAL.of(engine))
    if whole is not None and engine.at_least(*_GROUPS_OF_WHOLE):
        all_kinds = layer_kinds(*whole, tp_size)
        if not is_hybrid:
            all_kinds = all_full(all_kinds)
        if _is_mixed(all_kinds):
            groups, _, page_bytes = _grouped(all_kinds, page_tokens, _NEARLY_EQUAL.of(engine))
            layers_per_block = _layers_on_stage(groups, kinds)
    block_bytes = layers_per_block * page_bytes
    n_blocks = math.floor(budget_bytes / block_bytes)

    batches = BATCHES_IN_FLIGHT if engine.at_least(0, 26) else 1

    def blocks_of(tokens: Any) -> Any:
        return sum(g.n_groups * _blocks(g, tokens, settings, batches, dcp_size) for g in groups)

    context = settings.context_tokens
    per_request = blocks_of(context)
    n_groups = sum(g.n_groups for g in groups)
    block_tokens = min(g.block_tokens for g in groups if g.kind.keeps != "state")
    aligned = math.lcm(*(g.block_tokens * dcp_size for g in groups if g.kind.keeps != "state"))
    prefix_blocks_of = _prefix_rule(groups, dcp_size, aligned)
    shared = _shared_blocks(prefix_blocks_of, kinds, settings)
    concurrency = Fraction(n_blocks, per_request)
    counted = n_blocks // n_groups * block_tokens * dcp_size
    if not engine.at_least(0, 9):
        concurrency = Fraction(counted, context)
    encoder = settings.encoder_tokens or 0
    return Pool(
        engine=engine,
        n_blocks=n_blocks,
        block_tokens=block_tokens,
        block_bytes=simplest(block_bytes),
        n_groups=n_groups,
        kv_tokens=int(concurrency * context) if engine.at_least(0, 21) else counted,
        max_concurrency=concurrency,
        max_sequences=sequences_beside(shared, n_blocks, per_request),
        bytes_per_token_per_gpu=simplest(rate(kinds)),
        waste_share=waste_of(
            payload_bytes(kinds, context, encoder) / dcp_size, per_request, block_bytes
        ),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, encoder, dcp_size),
        sequences_at=None if shared else lambda contexts: n_blocks // blocks_of(contexts),
        remarks=tuple(_remarks(groups, layers_per_block, page_bytes)),
        prefix_blocks_of=prefix_blocks_of if _caches_prefixes(kinds, settings) else None,
        prefix_tokens=aligned,
        shared_blocks=shared,
    )


def _is_mixed(kinds: Sequence[LayerKind]) -> bool:
    """Whether there are groups at all: layers that keep rows for different times, or states."""
    return len({(kind.keeps, kind.window_tokens) for kind in kinds}) > 1


def _layers_on_stage(groups: Sequence[Group], kinds: Sequence[LayerKind]) -> int:
    """Layers of a stage in the group that has most of them there.

    The n groups of a kind take its layers in turn, ``layers[i::n]``, so that c of them on a stage
    are at most ceil(c / n) of one group (``_get_kv_cache_groups_uniform_page_size`` in
    vllm/v1/core/kv_cache_utils.py, pull request 23974).
    """

    def alike(kind: LayerKind) -> LayerKind:
        return replace(kind, count=0, payload_row_bytes=Fraction(0))

    counts = {alike(kind): kind.count for kind in kinds}
    return max(int(ceil_div(counts.get(alike(g.kind), 0), g.n_groups)) for g in groups)


def _caches_prefixes(kinds: Sequence[LayerKind], settings: EngineSettings) -> bool:
    """Prefixes are cached by default, with recurrent layers only where that is asked for."""
    return settings.prefix_cache or not any(kind.keeps == "state" for kind in kinds)


def _prefix_rule(groups: Sequence[Group], dcp_size: int, aligned: int) -> Callable[[Any], Any]:
    """Blocks that a common prefix fills in layers that keep everything.

    A hit is a multiple of every group's block (``HybridKVCacheCoordinator`` in
    vllm/v1/core/kv_cache_coordinator.py); windows and states are each sequence's own.
    """
    full = [(g.n_groups, g.block_tokens * dcp_size) for g in groups if g.kind.keeps == "full"]

    def prefix_blocks_of(tokens: Any) -> Any:
        whole = tokens // aligned * aligned
        return sum((n * (whole // block) for n, block in full), 0 * tokens)

    return prefix_blocks_of


def _shared_blocks(
    prefix_blocks_of: Callable[[Any], Any], kinds: Sequence[LayerKind], settings: EngineSettings
) -> int:
    """Blocks of the stated prefix, without the last token of a prompt, which is computed anew."""
    if not settings.shared_prefix_tokens:
        return 0
    if not _caches_prefixes(kinds, settings):
        raise PlacementError(
            "vLLM caches no prefix of a model with recurrent layers unless told to: add "
            "--prefix-cache, or leave --shared-prefix-tokens out"
        )
    return int(prefix_blocks_of(min(settings.shared_prefix_tokens, settings.context_tokens - 1)))


def check_context_parallel(
    model: ModelSpec, kinds: tuple[LayerKind, ...], tp_size: int, dcp_size: int
) -> None:
    """Refuse decode-context parallelism that vLLM refuses at start.

    The GPUs that would hold the same heads share their tokens: tp / G of G key/value heads, all of
    a latent's. Windows and states are not shared.

    Raises
    ------
    PlacementError
        Saying which size there may be.
    """
    if dcp_size == 1:
        return
    if any(kind.keeps != "full" for kind in kinds):
        raise PlacementError("vLLM shares no windows, states or encoder rows: leave out --dcp-size")
    for group in model.attention_groups:
        assert group.attention is not None, "it attends"
        dealt = [
            tensor.copies_per_layer
            for tensor in layout_of(group.attention, model.model_dim).cached
            if tensor.sharding is Sharding.BY_COPY
        ]
        copies = tp_size // max(dealt, default=1)
        if copies < dcp_size or copies % dcp_size:
            raise PlacementError(
                f"dcp_size {dcp_size}: {max(dealt, default=1)} key/value heads are on {copies} of "
                f"{tp_size} GPUs each, which it must divide"
            )


def _grouped(
    kinds: tuple[LayerKind, ...], page_tokens: int, nearly_equal: Fraction
) -> tuple[list[Group], int, Fraction]:
    """Groups, layers per block and bytes per page (all layers of a block, if they differ)."""
    attention = [kind for kind in kinds if kind.keeps != "state"]
    if not _is_mixed(kinds) and attention:
        # One type of layer: one group, whatever the widths; a "page" is the whole block.
        whole = LayerKind(
            keeps=kinds[0].keeps, count=1, window_tokens=kinds[0].window_tokens,
            row_bytes=rate(kinds),
        )  # fmt: skip
        return (
            [Group(kind=whole, n_groups=1, block_tokens=page_tokens)],
            1,
            page_tokens * rate(kinds),
        )
    if not attention:
        raise PlacementError("a model whose layers all hold recurrent state has no block pool here")
    page_tokens = _raised_for_state(kinds, attention, page_tokens)
    page_bytes = page_tokens * max(kind.row_bytes for kind in attention)
    counts = [kind.count for kind in kinds]
    layers = max(counts) if max(counts) < nearly_equal * min(counts) else min(counts)
    groups = []
    for kind in kinds:
        tokens = page_tokens
        if kind.keeps != "state":
            widened = page_bytes / (page_tokens * kind.row_bytes)
            if widened.denominator != 1:
                raise PlacementError(
                    f"pages of {kind.row_bytes} and {max(k.row_bytes for k in attention)} bytes "
                    "per token cannot be made equal by a whole number of tokens"
                )
            tokens = page_tokens * int(widened)
        groups.append(Group(kind=kind, n_groups=ceil_div(kind.count, layers), block_tokens=tokens))
    return groups, layers, page_bytes


def _raised_for_state(
    kinds: tuple[LayerKind, ...], attention: list[LayerKind], page_tokens: int
) -> int:
    """An attention page must hold a state page: 16 ceil(state / (16 row)) tokens."""
    states = [kind.fixed_bytes for kind in kinds if kind.keeps == "state"]
    if not states:
        return page_tokens
    row = max(kind.row_bytes for kind in attention)
    needed = math.ceil(max(states) / (DEFAULT_PAGE_TOKENS * row)) * DEFAULT_PAGE_TOKENS
    return max(page_tokens, needed)


def _blocks(
    group: Group, tokens: Any, settings: EngineSettings, batches: int, dcp_size: int
) -> Any:
    """Blocks that one request of ``tokens`` holds in one group of that kind."""
    kind, block = group.kind, group.block_tokens * dcp_size
    window = kind.window_tokens or 0
    batched = settings.max_batched_tokens
    if kind.keeps == "state":
        return 1 + settings.prefix_cache + settings.draft_tokens
    if kind.keeps == "cross":
        # Reserved for the largest encoder batch, not for the encoder's own length.
        return ceil_div(batched, block)
    if kind.keeps == "sliding":
        # The + 1: a window of 1024 tokens that starts inside a block touches one block more.
        return ceil_div(smaller(tokens, window - 1 + batches * batched), block) + 1
    if kind.keeps == "chunked":
        return ceil_div(smaller(tokens, window + batches * batched), block)
    return ceil_div(tokens, block)


def _remarks(groups: list[Group], layers: int, page_bytes: Fraction) -> list[str]:
    remarks = []
    for group in groups:
        padding = group.n_groups * layers - group.kind.count
        if padding:
            remarks.append(
                f"{padding} padding layers beside {group.kind.count} {group.kind.keeps} layers "
                f"({padding / group.kind.count:.2%})"
            )
        if group.kind.keeps == "state":
            spare = page_bytes - group.kind.fixed_bytes
            remarks.append(
                f"a state page of {group.kind.fixed_bytes:,} B is padded to {int(page_bytes):,} B "
                f"({float(spare) / group.kind.fixed_bytes:.2%}), which makes blocks of "
                f"{max(g.block_tokens for g in groups):,} tokens"
            )
    return remarks


# CUDA graphs of the same rows as NON_TORCH_GIB. [GiB]
GRAPHS_GIB = {
    "one": (0.84, 0.62, 1.30),
    "pipeline": (0.54, 0.4, 0.8),
    "tensor": (1.09, 0.8, 2.0),
}
# What a logit took beside its own dtype before 0.17, so that Qwen3-14B's peak is 5.64 GiB.
OLDER_LOGIT_BYTES = 35.3
# 0.92 stands in vllm/config/cache.py of 0.25 and later, 0.9 was the default for most of vLLM's
# history. That it changed with the CUDA-graph estimate of 0.21 is an assumption; the budget's
# remarks repeat it.
UTILISATION = ByVersion(Fraction(9, 10), {(0, 21): Fraction(92, 100)})


def default_max_sequences(hardware: HardwareProfile) -> int:
    """1024 on GPUs of 70 GiB and more other than the A100, else 256 (vllm/engine/arg_utils.py)."""
    return 1024 if _is_large(hardware) else 256


def default_batched_tokens(hardware: HardwareProfile) -> int:
    """8192 on those GPUs, else 2048: the API server's defaults (vllm/engine/arg_utils.py)."""
    return 8192 if _is_large(hardware) else 2048


def _is_large(hardware: HardwareProfile) -> bool:
    """vLLM looks for "a100" in the device's name: NVIDIA's Ampere with that much memory."""
    is_ampere = hardware.vendor == "nvidia" and hardware.generation.lower() == "ampere"
    return hardware.mem_capacity_bytes >= 70 * GIB and not is_ampere


def budget(inputs: BudgetInputs) -> MemoryBudget:
    """The budget of one GPU of each pipeline stage, V1 engine.

    Raises
    ------
    SpecError
        If the weights cannot be counted from the spec and are not given.
    """
    return budget_of_step(inputs, profiled_step(inputs), _activation)


def budget_of_step(
    inputs: BudgetInputs, step: Step, activation: Callable[[BudgetInputs, Step, bool], BudgetTerm]
) -> MemoryBudget:
    """The budget with the step that is profiled and the term of (inputs, step, has_head) for it.

    Raises
    ------
    SpecError
        If the weights cannot be counted from the spec and are not given.
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    shared = [
        memory,
        utilisation_term(memory.n_bytes, inputs.utilisation),
        *_engine_copies(inputs),
        _placed("non-torch", NON_TORCH_GIB, inputs),
    ]
    if inputs.engine.at_least(0, 21):
        shared.append(_placed("CUDA graphs", GRAPHS_GIB, inputs))
    last = len(weights) - 1
    slots = adapter_terms(inputs) or ((),) * len(weights)
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(
            shared,
            [
                (
                    term,
                    *slots[index],
                    *_weights_on_host(inputs, index, -term.n_bytes),
                    _with_encoder(activation(inputs, step, index == last), inputs, step),
                )
                for index, term in enumerate(weights)
            ],
        ),
        remarks=(*remarks, *weight_remarks, *_budget_remarks(inputs, step)),
    )


def _weights_on_host(inputs: BudgetInputs, index: int, weight_bytes: int) -> tuple[BudgetTerm, ...]:
    """What ``--cpu-offload-gb`` leaves to the host, of the layers' weights on one GPU.

    Whole matrices until that many GiB are reached (``maybe_offload_to_cpu`` in
    vllm/model_executor/models/utils.py): embedding and head stay.
    """
    asked = inputs.settings.cpu_offload_gb
    if asked is None:
        return ()
    counted = inputs.weights()
    if counted is not None:
        stage = counted.stages[index]
        weight_bytes = stage.total - stage.embeddings - stage.head - stage.extra
    taken_off = min(int(asked * GIB), weight_bytes)
    return (
        BudgetTerm(name="weights on the host", n_bytes=taken_off, provenance="--cpu-offload-gb"),
    )


# --max-lora-rank takes no other (vllm/config/lora.py).
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
DEFAULT_LORA_RANK = 16
_EXPERT_ADAPTERS = (0, 11, 1)  # FusedMoE layers are wrapped from there on (pull request 21229)


def adapter_terms(inputs: BudgetInputs) -> tuple[tuple[BudgetTerm, ...], ...]:
    """Slots for adapters on one GPU of each stage; none where none are asked for.

    max_loras x rank x (inputs + outputs) of every linear layer of the language model, in the
    model's 16 bits (vllm/lora/model_manager.py wraps all that a model has, whichever an adapter
    changes). Embedding and head have slots in some model classes only: whole vocabularies on every
    GPU, counted at the high end.

    Raises
    ------
    UsageError
        If vLLM takes no such rank.
    """
    settings, parallel = inputs.settings, inputs.parallel
    if not settings.max_loras:
        return ()
    rank = settings.max_lora_rank or DEFAULT_LORA_RANK
    if rank not in LORA_RANKS:
        raise UsageError(
            f"--max-lora-rank {rank}: vLLM makes slots of rank {', '.join(map(str, LORA_RANKS))}"
        )
    scalar = inputs.activation_scalar_bytes
    table = rank * scalar * ((inputs.model.vocab_size or 0) + inputs.model.model_dim)
    stages = stage_models(inputs.model, parallel)
    terms = []
    for index, stage in enumerate(stages):
        found = list(
            linears(stage, parallel, with_experts=inputs.engine.at_least(*_EXPERT_ADAPTERS))
        )
        low, each, high = (
            slot_bytes(found, rank=rank, scalar_bytes=scalar, end=end)
            for end in ("low", "", "high")
        )
        ends = (index == 0) + (index == len(stages) - 1)
        low, each, high = (settings.max_loras * n for n in (low, each, high + ends * table))
        why = f"{settings.max_loras} slots of rank {rank}, high with embedding and head"
        terms.append((taken("LoRA slots", each, assumed(low, high, why), low, high),))
    return tuple(terms)


def _with_encoder(language: BudgetTerm, inputs: BudgetInputs, step: Step) -> BudgetTerm:
    """The peak of the language model, or that of a vision encoder where it is higher.

    The encoder runs before the language model does, so that the larger of them counts.
    """
    media, settings = inputs.model.media, inputs.settings
    limits = limits_of(settings.limit_mm_per_prompt)
    if media is None:
        return language
    items = profiled_items(
        media, inputs.engine, context_tokens=settings.context_tokens,
        batched_tokens=step.batched_tokens, max_sequences=step.max_sequences, limits=limits,
    )  # fmt: skip
    if items is None or items.n_bytes <= -language.n_bytes:
        return language
    low, high = items.low_bytes, items.high_bytes
    return taken("encoder peak", items.n_bytes, assumed(low, high, items.told), low, high)


def placement(parallel: Parallelism) -> str:
    """The kind of placement that tables of this module are keyed by."""
    if parallel.tp_size > 1:
        return "tensor"
    return "pipeline" if parallel.pp_size > 1 else "one"


# Memory of the GPUs of the fitted start logs, H100 of 80 and 94 GB, in whatever unit. [bytes]
_H100_BYTES = (74 * GIB, 95 * GIB)
# An H800 is an H100 with slower links; what communication buffers take there was not seen.
_H100_LINK_BYTES_PER_S = 300e9


def is_fitted_gpu(hardware: HardwareProfile) -> bool:
    """Whether the constants were fitted on GPUs of that kind, an H100: by its fields, not its name.

    That is a Hopper with that memory, and with an H100's links where links are stated.
    """
    low, high = _H100_BYTES
    return (
        hardware.vendor == "nvidia"
        and hardware.generation.lower() == "hopper"
        and low <= hardware.mem_capacity_bytes <= high
        and (hardware.link is None or hardware.link.bandwidth_bytes_per_s >= _H100_LINK_BYTES_PER_S)
    )


def _placed(
    name: str, table: dict[str, tuple[float, float, float]], inputs: BudgetInputs
) -> BudgetTerm:
    value, low, high = (int(gib * GIB) for gib in table[placement(inputs.parallel)])
    if not is_fitted_gpu(inputs.hardware):
        low, high = low // 2, high * 3 // 2
        return taken(name, value, assumed(low, high, "H100 figure of vLLM 0.19"), low, high)
    return taken(name, value, "fitted on H100 rows of vLLM 0.19, median", low, high)


def profiled_step(inputs: BudgetInputs) -> Step:
    """The step that vLLM profiles for these inputs: all sequences and tokens of one batch."""
    storage = inputs.storage if inputs.weight_dtype or inputs.model.weight_dtype else None
    is_8_bit = storage is not None and storage.quantised_parts and storage.bits_per_scalar == 8
    return Step(
        max_sequences=inputs.max_sequences or default_max_sequences(inputs.hardware),
        batched_tokens=inputs.settings.max_batched_tokens,
        scalar_bytes=inputs.activation_scalar_bytes,
        quantised_bytes=1 if is_8_bit else 0,
        keeps_expert_workspace=storage is None or storage.name != "mxfp4",
    )


def activation_peak(
    inputs: BudgetInputs, step: Step, has_head: bool, constants: ActivationConstants = FITTED
) -> int:
    """The peak of that step on a stage with or without the head. [bytes]"""
    return activation_peak_bytes(
        inputs.model, step, inputs.parallel, has_head=has_head, constants=constants
    )


def _activation(inputs: BudgetInputs, step: Step, has_head: bool) -> BudgetTerm:
    fitted = activation_peak(inputs, step, has_head)
    if not inputs.engine.at_least(0, 17):
        # Qwen3-14B on H100: 5.64 GiB with 0.15 and 0.16, 2.23 GiB from 0.17 on; nothing else known.
        constants = replace(FITTED, logit_bytes=OLDER_LOGIT_BYTES)
        older = activation_peak(inputs, step, has_head, constants)
        why = "before 0.17 one model was seen (Qwen3-14B: 5.64 GiB)"
        return taken("activation peak", older, assumed(fitted, older, why), fitted, older)
    if not is_fitted_gpu(inputs.hardware):
        low, high = fitted * 2 // 3, fitted * 3 // 2
        why = "H100 constants on another GPU"
        return taken("activation peak", fitted, assumed(low, high, why), low, high)
    band = FITTED.band_bytes
    provenance = (
        f"fitted on {FITTED.n_rows} rows: vLLM 0.19 on H100, worst unseen row {band / GIB:.2f} GiB"
    )
    return taken("activation peak", fitted, provenance, max(0, fitted - band), fitted + band)


def _engine_copies(inputs: BudgetInputs) -> list[BudgetTerm]:
    """What vLLM loads beside the checkpoint; part of weights that were given as printed."""
    if inputs.weight_bytes is not None:
        return []
    terms = []
    tables = rotary_table_bytes(inputs.model, inputs.activation_scalar_bytes)
    if tables:
        terms.append(
            taken("rotary tables", tables, f"{ARITHMETIC}: longest context x rotary width")
        )
    padding = mxfp4_padding_bytes(inputs)
    if padding:
        terms.append(taken("expert padding", padding, f"{ARITHMETIC}: Marlin's MXFP4 experts"))
    return terms


def rotary_table_bytes(model: ModelSpec, scalar_bytes: int) -> int:
    """Sine and cosine of every position of the model's longest context, once per rotary width.

    Whatever length is served, the table covers the config's own maximum: 2.5 GiB for Llama-4-Scout
    (10,485,760 x 128 x 2 B). [bytes]
    """
    if model.position_embeddings or model.max_context_tokens is None:
        return 0
    backbones = [g.attention.backbone() for g in model.attention_groups if g.attention is not None]
    widths = {b.rope_dim if b.rope_dim is not None else b.head_dim for b in backbones}
    return model.max_context_tokens * sum(widths) * scalar_bytes


def mxfp4_padding_bytes(inputs: BudgetInputs) -> int:
    """What Marlin adds to MXFP4 experts, rounding them to 128 x 256; spread over stages. [bytes]"""
    model, parallel = inputs.model, inputs.parallel
    if inputs.storage.name != "mxfp4":
        return 0
    bits = STORAGE_FORMATS["mxfp4"].bits_per_scalar_in_full_groups or Fraction(0)
    extra = 0
    for group in model.layers:
        block = group.feed_forward
        if isinstance(block, ExpertFeedForward):
            width = block.hidden_dim // parallel.expert_slices
            dim = block.expert_dim(model.model_dim)
            padded = _up(width, 128) * _up(dim, 256)
            n_matrices = (3 if block.gated else 2) * -(-block.n_experts // parallel.ep_size)
            extra += group.count * n_matrices * (padded - width * dim)
    return int(extra * bits / 8) // parallel.pp_size


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _budget_remarks(inputs: BudgetInputs, step: Step) -> tuple[str, ...]:
    remarks = [
        f"vLLM profiles {step.max_sequences} sequences and {step.batched_tokens} tokens per step"
    ]
    if not inputs.engine.at_least(0, 21):
        remarks.append("CUDA graphs are captured outside this budget: leave 0.5 to 2 GiB")
    if inputs.model.max_context_tokens is None and inputs.weight_bytes is None:
        remarks.append("rotary tables left out: the spec states no longest context")
    return tuple(remarks)


LOG_KEYS = {
    "model": "model", "model_tag": "model", "max_model_len": "context_tokens",
    "max_seq_len": "context_tokens", "tensor_parallel_size": "tp_size",
    "pipeline_parallel_size": "pp_size", "data_parallel_size": "dp_size",
    "decode_context_parallel_size": "dcp_size", "enable_expert_parallel": "expert_parallel",
    "gpu_memory_utilization": "utilisation", "kv_cache_dtype": "kv_dtype",
    "block_size": "page_tokens", "max_num_batched_tokens": "max_batched_tokens",
    "max_num_seqs": "max_sequences", "quantization": "quantisation", "dtype": "dtype",
    "enable_prefix_caching": "prefix_cache", "num_spec_tokens": "draft_tokens",
    "enable_lora": "enable_lora", "max_loras": "max_loras", "max_lora_rank": "max_lora_rank",
    "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
}  # fmt: skip
# Lines of vLLM 0.2 to 0.29: vllm/entrypoints/openai/api_server.py, vllm/v1/engine/core.py,
# vllm/v1/worker/gpu_worker.py and gpu_model_runner.py, vllm/v1/core/kv_cache_utils.py,
# vllm/utils/mem_utils.py, vllm/executor/executor_base.py.
LOG = LogFormat(
    server="vllm",
    lines=(
        LogLine(holds="vLLM API server version", starts="always",
                pattern=re.compile(r"server version (?P<version>\d[\w.+-]*)")),
        LogLine(holds="non-default args", keys=LOG_KEYS),
        LogLine(holds="args: Namespace(", keys=LOG_KEYS),
        LogLine(holds="Initializing a V1 LLM engine", starts="new_model", names_engine=1,
                pattern=re.compile(
                    r"engine \(v?(?P<version>[^)\s]+)\)"
                    r"(?:.*?speculative_config=SpeculativeConfig\(method='(?P<draft_method>\w+)')?"
                ), keys=LOG_KEYS),
        LogLine(holds="Using max model len",
                pattern=re.compile(r"max model len (?P<context_tokens>\d+)")),
        LogLine(holds="max_num_batched_tokens=",
                pattern=re.compile(r"max_num_batched_tokens=(?P<max_batched_tokens>\d+)")),
        LogLine(holds="Model loading took", pattern=re.compile(
            r"took (?P<weights_gib>[\d.]+) Gi?B")),
        LogLine(holds="Loading model weights took", pattern=re.compile(
            r"took (?P<weights_gib>[\d.]+) Gi?B")),
        LogLine(holds="torch peak memory increase", pattern=re.compile(
            r"peak memory increase: (?P<activation_gib>[\d.]+) ?GiB; "
            r"non-torch forward increase memory: (?P<non_torch_gib>[\d.]+) ?GiB"
        )),
        LogLine(holds="Free memory on device", pattern=re.compile(
            r"\([\d.]+/(?P<memory_gib>[\d.]+) GiB\) on startup.{1,60}?"
            r"utilization is \((?P<utilisation>[\d.]+),"
        )),
        LogLine(holds="for peak activation", pattern=re.compile(
            r"(?P<activation_gib>[\d.]+) GiB for peak activation"
            r"(?:, (?P<non_torch_gib>[\d.]+) GiB for non-torch memory)?"
        )),
        LogLine(holds="Available KV cache memory:", pattern=re.compile(
            r"KV cache memory: (?P<cache_gib>[\d.]+) GiB")),
        LogLine(holds="GPU KV cache size:", pattern=re.compile(
            r"cache size: (?P<n_tokens>[\d,]+) tokens")),
        LogLine(holds="Maximum concurrency for", pattern=re.compile(
            r"for (?P<context_tokens>[\d,]+) tokens per request: (?P<x_concurrency>[\d.]+)x")),
        LogLine(holds="# CPU blocks", pattern=re.compile(
            r"# (?:GPU|cuda|CUDA) blocks: (?P<n_blocks>[\d,]+)")),
        LogLine(holds="Graph capturing finished", pattern=re.compile(
            r"took (?P<graphs_gib>-?[\d.]+) GiB")),
    ),
    terms={
        "memory": ("memory",),
        "weights": ("weights", "rotary tables", "expert padding", "LoRA slots"),
        "activation": ("activation peak",),
        "non_torch": ("non-torch",),
        "graphs": ("CUDA graphs",),
    },
    combine={"weights": "most", "activation": "most", "non_torch": "most", "graphs": "most"},
)  # fmt: skip


# --kv-cache-dtype: auto is the model's own 16-bit format.
_KV_WORDS = {"bf16": "auto", "fp16": "auto", "fp8": "fp8", "fp8_ds_mla": "fp8_ds_mla"}
# What vLLM makes of a plain checkpoint at start; any other format must be the checkpoint's own.
_WEIGHT_WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp8": "fp8"}


def launch(asked: Launch) -> list[str]:
    """``vllm serve``: flags of vllm/engine/arg_utils.py (0.19), https://docs.vllm.ai/en/latest/cli.

    Raises
    ------
    UsageError
        If there is no word for the cache's format, the weights' or the experts' placement.
    """
    settings, parallel = asked.settings, asked.parallel
    shares_experts = parallel.ep_size > 1
    if shares_experts and parallel.ep_size != parallel.tp_size * parallel.dp_size:
        raise asked.unsaid(
            f"--ep-size {parallel.ep_size}",
            "--enable-expert-parallel deals experts over all tp_size x dp_size GPUs",
        )
    weights = asked.weight_dtype
    if weights is not None:
        weights = asked.word("--weight-dtype", weights, _WEIGHT_WORDS)
    if asked.kv_memory_bytes is not None and not asked.engine.at_least(0, 11):
        raise asked.unsaid("--kv-memory", "--kv-cache-memory-bytes came with 0.11")
    if settings.draft_layers or settings.draft_tokens:
        raise asked.unsaid("--draft-layers", "--speculative-config needs the draft's name")
    split = parallel.pp_layers and ",".join(map(str, parallel.pp_layers))
    offload = settings.kv_offload
    if offload is not None and not asked.engine.at_least(0, 12):
        raise asked.unsaid("--kv-offload", "--kv-offloading-size came with 0.12")
    by_stage = ["env", f"VLLM_PP_LAYER_PARTITION={split}"] if split else []
    return [*by_stage, "vllm", "serve", asked.model, *options({
        "--tensor-parallel-size": parallel.tp_size,
        "--pipeline-parallel-size": above_one(parallel.pp_size),
        "--data-parallel-size": above_one(parallel.dp_size),
        "--decode-context-parallel-size": above_one(parallel.dcp_size),
        "--enable-expert-parallel": shares_experts,
        "--max-model-len": settings.context_tokens,
        "--max-num-seqs": asked.n_sequences,
        "--max-num-batched-tokens": settings.max_batched_tokens,
        "--dtype": None if weights == "fp8" else weights,
        "--quantization": "fp8" if weights == "fp8" else None,
        "--kv-cache-dtype": asked.word("--kv-dtype", settings.kv_dtype, _KV_WORDS),
        "--block-size": settings.page_tokens,
        "--enable-prefix-caching": settings.prefix_cache,
        "--disable-hybrid-kv-cache-manager": settings.disable_hybrid_kv_cache_manager,
        "--cpu-offload-gb": settings.cpu_offload_gb and f"{float(settings.cpu_offload_gb):g}",
        "--enable-lora": settings.max_loras > 0,
        "--max-loras": settings.max_loras or None,
        "--max-lora-rank": settings.max_lora_rank,
        "--kv-offloading-size": None if offload is None else f"{offload / GIB:g}",
        "--gpu-memory-utilization": None if asked.kv_memory_bytes else decimal(asked.utilisation),
        "--kv-cache-memory-bytes": asked.kv_memory_bytes,
    })]  # fmt: skip


ENGINE = Engine(
    name="vllm",
    about="vLLM from 0.8 on (V1)",
    before=((0, 8), "vllm_v0"),
    pool=pool,
    budget=budget,
    utilisation=UTILISATION,
    utilisation_doubt="0.92 is vLLM's default of 0.25 and later, 0.9 of 0.20 and before; the "
    "release that changed it is assumed to be 0.21",
    page_tokens=ByVersion(DEFAULT_PAGE_TOKENS),
    reads=frozenset(
        {
            "page_tokens",
            "max_batched_tokens",
            "prefix_cache",
            "drafter",
            "max_num_seqs",
            "mamba_ssm_cache_dtype",
            "limit_mm_per_prompt",
            "shared_prefix_tokens",
            "max_loras",
            "max_lora_rank",
            "kv_offload",
            "cpu_offload_gb",
            "disable_hybrid_kv_cache_manager",
        }
    ),
    layer_split="VLLM_PP_LAYER_PARTITION",
    pools_whole=True,
    log=LOG,
    launch=launch,
)
