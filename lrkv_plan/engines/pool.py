"""The answer of every engine: a pool of blocks on the GPU that decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from lrkv_plan.calculators.exact import simplest
from lrkv_plan.engines.blocks import ceil_div
from lrkv_plan.engines.layer_kinds import LayerKind, payload_bytes, payload_of
from lrkv_plan.specs.engine_settings import EngineName


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Blocks of one engine replica on the GPU with the fewest.

    Bytes are of one GPU. ``kv_tokens`` and ``max_concurrency`` are what the engine prints;
    ``blocks_of`` gives the blocks that sequences of given lengths hold and ``payload_of`` the bytes
    of them that are used, for numbers and arrays.
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
    remarks: tuple[str, ...] = ()


def equal_blocks(
    engine: EngineName,
    *,
    n_blocks: int,
    block_tokens: int,
    bytes_per_token: Fraction,
    kinds: Sequence[LayerKind],
    context_tokens: int,
    encoder_tokens: int = 0,
    remarks: tuple[str, ...] = (),
) -> Pool:
    """A pool whose blocks hold ``block_tokens`` tokens of every layer.

    Tokens are blocks times that. Concurrency is tokens over the full length, without rounding up
    to blocks, as these engines print it.
    """
    block_bytes = block_tokens * bytes_per_token

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
        max_sequences=n_blocks // blocks_of(context_tokens),
        bytes_per_token_per_gpu=simplest(bytes_per_token),
        waste_share=max(Fraction(0), waste),
        blocks_of=blocks_of,
        payload_of=lambda tokens: payload_of(kinds, tokens, encoder_tokens),
        remarks=remarks,
    )


def waste_of(payload_bytes: int | Fraction, n_blocks: int, block_bytes: int | Fraction) -> Fraction:
    """Share of the blocks' bytes that is not payload, 0 to 1."""
    held = n_blocks * Fraction(block_bytes)
    return 1 - Fraction(payload_bytes) / held if held else Fraction(0)
