"""The answer of every engine: a pool of blocks on the GPU that decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

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


def waste_of(payload_bytes: int | Fraction, n_blocks: int, block_bytes: int | Fraction) -> Fraction:
    """Share of the blocks' bytes that is not payload, 0 to 1."""
    held = n_blocks * Fraction(block_bytes)
    return 1 - Fraction(payload_bytes) / held if held else Fraction(0)
