"""vLLM's V1 pool: pages of equal size, shared by groups of equally many layers.

Rules as found in printed pools of 0.8 to 0.29; each is named where it is applied. A model whose
layers all keep everything is one group. Otherwise kinds are cut into groups of g layers, each
kind padded to a multiple of g, and all groups draw blocks of g pages from one pool.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from lrkv_plan.calculators.exact import simplest
from lrkv_plan.engines.blocks import ceil_div, smaller
from lrkv_plan.engines.layer_kinds import LayerKind, layer_kinds, payload_bytes, payload_of, rate
from lrkv_plan.engines.pool import Pool, waste_of
from lrkv_plan.errors import PlacementError
from lrkv_plan.specs.engine_settings import EngineName, EngineSettings
from lrkv_plan.specs.model import ModelSpec

DEFAULT_PAGE_TOKENS = 16
ASCEND_PAGE_TOKENS = 128
# From 0.26 a window keeps the tokens of all batches in flight (max_in_flight_tokens): two under
# asynchronous scheduling, the default (vllm-project/vllm#49878, pull request 47728).
BATCHES_IN_FLIGHT = 2
# A longest kind within a quarter of the shortest pads up to it instead of splitting.
_NEARLY_EQUAL = Fraction(5, 4)


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
) -> Pool:
    """The block pool of one GPU.

    Parameters
    ----------
    budget_bytes : memory for the cache on this GPU. [bytes]
    dcp_size : decode-context parallel GPUs; each stores 1/n of a sequence's tokens.

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
    if not engine.at_least(0, 10):
        kinds = tuple(_all_full(kind) for kind in kinds)
    default = ASCEND_PAGE_TOKENS if engine.name == "vllm_ascend" else DEFAULT_PAGE_TOKENS
    page_tokens = settings.page_tokens or default
    groups, layers_per_block, page_bytes = _grouped(kinds, page_tokens)
    block_bytes = layers_per_block * page_bytes
    n_blocks = math.floor(budget_bytes / block_bytes)

    batches = BATCHES_IN_FLIGHT if engine.at_least(0, 26) else 1

    def blocks_of(tokens: Any) -> Any:
        return sum(g.n_groups * _blocks(g, tokens, settings, batches, dcp_size) for g in groups)

    context = settings.context_tokens
    per_request = blocks_of(context)
    n_groups = sum(g.n_groups for g in groups)
    block_tokens = min(g.block_tokens for g in groups if g.kind.keeps != "state")
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
        max_sequences=n_blocks // per_request,
        bytes_per_token_per_gpu=simplest(rate(kinds)),
        waste_share=waste_of(
            payload_bytes(kinds, context, encoder) / dcp_size, per_request, block_bytes
        ),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, encoder, dcp_size),
        remarks=tuple(_remarks(groups, layers_per_block, page_bytes)),
    )


def _all_full(kind: LayerKind) -> LayerKind:
    """Before the hybrid manager (0.10) a windowed layer kept every token."""
    windowed = kind.keeps in ("sliding", "chunked")
    return replace(kind, keeps="full", window_tokens=None) if windowed else kind


def _grouped(kinds: tuple[LayerKind, ...], page_tokens: int) -> tuple[list[Group], int, Fraction]:
    """Groups, layers per block and bytes per page (all layers of a block, if they differ)."""
    attention = [kind for kind in kinds if kind.keeps != "state"]
    if len({(kind.keeps, kind.window_tokens) for kind in kinds}) == 1 and attention:
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
    layers = max(counts) if max(counts) < _NEARLY_EQUAL * min(counts) else min(counts)
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
