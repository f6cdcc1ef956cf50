"""Layers of a model as an engine sorts them: by what they keep and for how long.

A kind is a set of layers whose pages are equal and freed at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, UsageError, shown
from lrkv_plan.formats import StorageFormat, storage_format
from lrkv_plan.memory.cache import (
    fixed_bytes_per_gpu,
    refuse_compressed_rows,
    row_bytes_per_layer,
)
from lrkv_plan.memory.exact import ceil_div, simplest, smaller
from lrkv_plan.specs.deployment import EngineName, EngineSettings
from lrkv_plan.specs.model import FixedTensor, LayerGroup, ModelSpec


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """``count`` equal layers. Bytes are per layer on one GPU.

    ``keeps`` is full, sliding, chunked, cross (encoder rows) or state. Rows grow with the tokens
    kept; ``fixed_bytes`` are per sequence. ``payload_row_bytes`` leaves out alignment.
    """

    keeps: str
    count: int
    row_bytes: Fraction = Fraction(0)
    payload_row_bytes: Fraction = Fraction(0)
    window_tokens: int | None = None
    fixed_bytes: int = 0
    is_latent: bool = False  # one row is key and value of all heads
    per_head_option: str | None = None  # the design's option that caches every head instead


def layer_kinds(
    model: ModelSpec, settings: EngineSettings, tp_size: int = 1
) -> tuple[LayerKind, ...]:
    """The kinds of a model's layers in order of first appearance; draft layers join full ones.

    Layers are alike whose stored rows are: an engine does not see how much of a row is payload,
    which is a kind's mean. Those of a drafter of its own shape are kinds like any others. Index
    keys of sparse attention are rows of their layer. Layers that reuse a cache keep none.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over ``tp_size`` GPUs.
    """
    refuse_compressed_rows(model)
    storage = storage_format(settings.kv_dtype)
    payloads: dict[LayerKind, list[tuple[int, Fraction]]] = {}
    drafter = settings.drafter
    parts = [(model, group) for group in model.layers]
    parts += [] if drafter is None else [(drafter, group) for group in drafter.layers]
    for owner, group in parts:
        for kind in _kinds_of(owner, group, storage, settings, tp_size):
            stored = replace(kind, count=1, payload_row_bytes=Fraction(0))
            payloads.setdefault(stored, []).append((kind.count, kind.payload_row_bytes))
    kinds = []
    for stored, held in payloads.items():
        count = sum(n for n, _ in held)
        payload = sum((n * row for n, row in held), Fraction(0)) / count
        kinds.append(replace(stored, count=count, payload_row_bytes=payload))
    return tuple(_with_drafts(kinds, settings.draft_layers))


def _kinds_of(
    model: ModelSpec,
    group: LayerGroup,
    storage: StorageFormat,
    settings: EngineSettings,
    tp_size: int,
) -> Iterable[LayerKind]:
    if group.state:
        draft = settings.draft_tokens
        state = (
            tensor.model_copy(
                update={
                    "bytes_per_copy": tensor.bytes_per_copy + draft * tensor.bytes_per_draft_token
                }
            )
            for tensor in (_state_of(settings, tensor) for tensor in group.state)
        )
        fixed = sum(fixed_bytes_per_gpu(tensor, tp_size) for tensor in state)
        yield LayerKind(keeps="state", count=group.count, fixed_bytes=fixed)
    if group.attention is None or group.reuses_cache:
        return
    layout, storage = layout_of(group.attention, model.model_dim), group.keeps_in(storage)
    row = row_bytes_per_layer(layout, storage, tp_size)
    payload_bits = sum(
        tensor.copies_per_gpu(tp_size)
        * tensor.format_in(storage).row_bits(
            tensor.width if tensor.payload_width is None else tensor.payload_width
        )
        for tensor in layout.cached
    )
    index = sum(fixed_bytes_per_gpu(tensor, tp_size) for tensor in group.index)
    keeps = "cross" if group.cached_over == "encoder" else group.window_kind or "full"
    yield LayerKind(
        keeps=keeps,
        count=group.count,
        row_bytes=row + index,
        payload_row_bytes=Fraction(payload_bits, 8) + index,
        window_tokens=group.window_tokens,
        is_latent=layout.has_latent_rows,
        per_head_option=layout.per_head_option,
    )


def _state_of(settings: EngineSettings, tensor: FixedTensor) -> FixedTensor:
    """The state in the stated format; convolution columns keep the model's."""
    name = settings.mamba_ssm_cache_dtype
    if name is None or tensor.bytes_per_draft_token:
        return tensor
    scalar_bytes = storage_format(name).row_bytes(1)
    if scalar_bytes not in (2, 4):
        raise UsageError(f"--mamba-ssm-cache-dtype {shown(name)}: states are kept in 16 or 32 bits")
    return state_in(tensor, int(scalar_bytes))


def _with_drafts(kinds: list[LayerKind], draft_layers: int) -> list[LayerKind]:
    """Draft layers cache like the model's last full layers (EAGLE, MTP).

    Raises
    ------
    PlacementError
        If there are draft layers and no full layer whose cache they could be like.
    """
    full = [i for i, kind in enumerate(kinds) if kind.keeps == "full"]
    if draft_layers and not full:
        raise PlacementError(
            f"{draft_layers} draft layers: no layer here attends to the whole context, so what "
            "drafts cache is not known"
        )
    if draft_layers:
        last = full[-1]
        kinds[last] = replace(kinds[last], count=kinds[last].count + draft_layers)
    return kinds


def all_full(kinds: Iterable[LayerKind]) -> tuple[LayerKind, ...]:
    """The kinds where windowed layers keep every token."""
    return tuple(
        replace(kind, keeps="full", window_tokens=None)
        if kind.keeps in ("sliding", "chunked")
        else kind
        for kind in kinds
    )


def rows_kept(kind: LayerKind, tokens: int, encoder_tokens: int) -> int:
    """Rows that one sequence of ``tokens`` needs in a layer of that kind: payload, no pages."""
    if kind.keeps == "state":
        return 0
    if kind.keeps == "cross":
        return encoder_tokens
    return min(tokens, kind.window_tokens or tokens)


def payload_bytes(kinds: Iterable[LayerKind], tokens: int, encoder_tokens: int = 0) -> Fraction:
    """Bytes that a sequence of ``tokens`` really uses on one GPU, state included. [bytes]"""
    return sum(
        (
            kind.count
            * (rows_kept(kind, tokens, encoder_tokens) * kind.payload_row_bytes + kind.fixed_bytes)
            for kind in kinds
        ),
        start=Fraction(0),
    )


def payload_of(
    kinds: Iterable[LayerKind], tokens: Any, encoder_tokens: int = 0, dcp_size: int = 1
) -> Any:
    """``payload_bytes`` of a length or an int64 array of lengths, rounded up. [bytes]

    With decode-context parallelism a GPU holds 1/n of the rows.
    """
    listed = list(kinds)
    scale = math.lcm(*(kind.payload_row_bytes.denominator for kind in listed)) * dcp_size
    total = 0 * tokens
    for kind in listed:
        kept = smaller(tokens, kind.window_tokens or 2**62)
        rows = encoder_tokens if kind.keeps == "cross" else kept
        per_row = int(kind.count * kind.payload_row_bytes * scale) // dcp_size
        fixed = kind.count * kind.fixed_bytes * scale
        total = total + (fixed if kind.keeps == "state" else rows * per_row + fixed)
    return ceil_div(total, scale)


def rate(kinds: Iterable[LayerKind], *keeps: str) -> Fraction:
    """Bytes per token on one GPU over layers that keep one of ``keeps`` (all rows when none)."""
    return sum(
        (kind.count * kind.row_bytes for kind in kinds if not keeps or kind.keeps in keeps),
        start=Fraction(0),
    )


def state_in(tensor: FixedTensor, scalar_bytes: int) -> FixedTensor:
    """A state whose scalars take so many bytes.

    A stated scalar size counts; else columns, which grow with draft tokens, have 2 bytes and other
    states 4.
    """
    own = tensor.scalar_bytes or (2 if tensor.bytes_per_draft_token else 4)
    return tensor.model_copy(
        update={
            "bytes_per_copy": tensor.bytes_per_copy * scalar_bytes // own,
            "bytes_per_draft_token": tensor.bytes_per_draft_token * scalar_bytes // own,
            "scalar_bytes": scalar_bytes,
        }
    )


def with_states(model: ModelSpec, change: Callable[[FixedTensor], FixedTensor]) -> ModelSpec:
    """The model with every recurrent state changed."""
    layers = tuple(
        group.model_copy(update={"state": tuple(change(tensor) for tensor in group.state)})
        for group in model.layers
    )
    return model.model_copy(update={"layers": layers})


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Blocks of one engine replica on the GPU with the fewest.

    Bytes are of one GPU. ``kv_tokens`` and ``max_concurrency`` are what the engine prints;
    ``blocks_of`` gives the blocks that sequences of given lengths hold and ``payload_of`` the bytes
    of them that are used, for numbers and arrays. ``sequences_at`` gives ``max_sequences`` at other
    contexts with the same memory, for arrays; None where the rule has to be asked again.
    ``prefix_blocks_of`` gives those of them that a
    first part of so many tokens fills, which sequences that begin alike hold once; None where the
    engine's sequences share nothing; a shared part is a multiple of ``prefix_tokens``.
    ``shared_blocks`` are those of a stated prefix, which ``max_sequences`` holds once and what the
    engine prints does not know. ``stage`` is
    the pipeline stage that it lies on, from 0.
    """

    engine: EngineName
    n_blocks: int
    block_tokens: int
    block_bytes: int | Fraction
    n_groups: int
    kv_tokens: int
    max_concurrency: Fraction
    max_sequences: int
    bytes_per_token_per_gpu: int | Fraction
    waste_share: Fraction  # of a full-length sequence's blocks: padding, slack, unused tail
    blocks_of: Callable[[Any], Any] = field(compare=False, repr=False)
    payload_of: Callable[[Any], Any] = field(compare=False, repr=False)
    sequences_at: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    remarks: tuple[str, ...] = ()
    binds: str = "cache memory"  # what limits the sequences
    prefix_blocks_of: Callable[[Any], Any] | None = field(default=None, compare=False, repr=False)
    prefix_tokens: int = 1
    shared_blocks: int = 0
    stage: int = 0


def equal_blocks(
    engine: EngineName,
    *,
    n_blocks: int,
    block_tokens: int,
    bytes_per_token: Fraction,
    kinds: Sequence[LayerKind],
    context_tokens: int,
    encoder_tokens: int = 0,
    shared_tokens: int | None = None,
    remarks: tuple[str, ...] = (),
) -> Pool:
    """A pool whose blocks hold ``block_tokens`` tokens of every layer.

    Tokens are blocks times that. Concurrency is tokens over the full length, without rounding up
    to blocks, as these engines print it.

    Parameters
    ----------
    shared_tokens : first tokens that all sequences have in common, of which whole blocks are held
        once; None where the engine's sequences share nothing. [tokens]
    """
    block_bytes = block_tokens * bytes_per_token
    prefix = shared_blocks(shared_tokens or 0, context_tokens, block_tokens)

    def blocks_of(tokens: Any) -> Any:
        return ceil_div(tokens, block_tokens)

    waste = waste_of(payload_bytes(kinds, context_tokens), blocks_of(context_tokens), block_bytes)
    return Pool(
        engine=engine,
        n_blocks=n_blocks,
        block_tokens=block_tokens,
        block_bytes=simplest(block_bytes),
        n_groups=1,
        kv_tokens=n_blocks * block_tokens,
        max_concurrency=Fraction(n_blocks * block_tokens, context_tokens),
        max_sequences=sequences_beside(prefix, n_blocks, blocks_of(context_tokens)),
        bytes_per_token_per_gpu=simplest(bytes_per_token),
        waste_share=max(Fraction(0), waste),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, encoder_tokens),
        sequences_at=None if prefix else lambda contexts: n_blocks // blocks_of(contexts),
        remarks=remarks,
        prefix_blocks_of=None if shared_tokens is None else lambda tokens: tokens // block_tokens,
        prefix_tokens=block_tokens,
        shared_blocks=prefix,
    )


def shared_blocks(shared_tokens: int, context_tokens: int, block_tokens: int) -> int:
    """Whole blocks of a common prefix: engines hash and share no part of one, nor the last token.

    floor(min(N, T - 1) / block): the last token of a prompt is always computed, for its logits
    (vLLM: ``get_computed_blocks`` in vllm/v1/core/kv_cache_manager.py).
    """
    return min(shared_tokens, context_tokens - 1) // block_tokens


def sequences_beside(shared: int, n_blocks: int, each: int) -> int:
    """Sequences of ``each`` blocks that fit where ``shared`` of each are held once.

    floor((n_blocks - shared) / (each - shared)); below one sequence there is nobody to share with.

    Examples
    --------
    >>> sequences_beside(6, 30, 10)  # 6 + 6 x 4 = 30
    6
    """
    return (n_blocks - shared) // (each - shared) if n_blocks >= each else 0


def waste_of(payload_bytes: int | Fraction, n_blocks: int, block_bytes: int | Fraction) -> Fraction:
    """Share of the blocks' bytes that is not payload, 0 to 1."""
    held = n_blocks * Fraction(block_bytes)
    return 1 - Fraction(payload_bytes) / held if held else Fraction(0)
