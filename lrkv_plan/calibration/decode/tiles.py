"""Tiles of a cache whose keys or values are rebuilt: small enough to stay near the processor.

Only the rebuilt tile is ever written; full keys and values are never laid out in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from lrkv_plan.calibration.decode import products
from lrkv_plan.calibration.decode.rotary import angles, frequencies

# Rebuilt scalars per tile. On a CPU 512 KiB in fp32, where 32 to 64 tokens of 18 heads x 128 were
# fastest on a core with 512 KiB of L2; on CUDA large tiles, so that few kernels are launched.
CPU_TILE_SCALARS = 1 << 17
CUDA_TILE_SCALARS = 1 << 26
ROW_STEP = 16  # rows that matrix libraries take at once


class Tile(NamedTuple):
    """Some tokens of some sequences."""

    sequences: slice
    tokens: slice


def tiles(
    batch_size: int,
    n_tokens: int,
    scalars_per_token: int,
    device: torch.device,
    tile_tokens: int | None = None,
) -> Iterator[Tile]:
    """All (sequence, token) pairs by tiles: one sequence at a time on a CPU, many on CUDA."""
    one_core = products.on_cpu(device)
    budget = CPU_TILE_SCALARS if one_core else CUDA_TILE_SCALARS
    tokens_each = tile_tokens or even_tile(n_tokens, max(ROW_STEP, budget // scalars_per_token))
    fitting = max(1, budget // (tokens_each * scalars_per_token))
    sequences_each = 1 if one_core else min(batch_size, fitting)
    for sequence in range(0, batch_size, sequences_each):
        for token in range(0, n_tokens, tokens_each):
            yield Tile(
                slice(sequence, min(sequence + sequences_each, batch_size)),
                slice(token, min(token + tokens_each, n_tokens)),
            )


def even_tile(n_tokens: int, most: int) -> int:
    """Tokens of a tile where about ``most`` fit: equal tiles of whole ``ROW_STEP``.

    Unequal or odd ones cost matrix products up to a fifth of their speed.

    Examples
    --------
    >>> even_tile(256, most=85), even_tile(40, most=85)  # four of 64 rather than 85, 85, 85, 1
    (64, 40)
    """
    n_tiles = -(-n_tokens // most)
    even = -(-n_tokens // n_tiles)
    return min(n_tokens, -(-even // ROW_STEP) * ROW_STEP)


def heads_flat(tensor: torch.Tensor) -> torch.Tensor:
    """(b, H, x, y) as (b H, x, y); a view wherever strides allow."""
    return tensor.flatten(0, 1)


def add_tile_scores(scores: torch.Tensor, query: torch.Tensor, keys: torch.Tensor) -> None:
    """Add q k^T per head to a part (b, H, q, t) of the scores, which must be a view."""
    out = scores.view(-1, *scores.shape[2:])
    torch.baddbmm(out, heads_flat(query), heads_flat(keys).transpose(1, 2), out=out)


def add_tile_values(outputs: torch.Tensor, shares: torch.Tensor, values: torch.Tensor) -> None:
    """Add shares (b, H, q, t) times values (b, H, t, d_v) to (b, H, q, d_v)."""
    out = outputs.view(-1, *outputs.shape[2:])
    torch.baddbmm(out, heads_flat(shares), heads_flat(values), out=out)


def score_tiles(
    scores: torch.Tensor, query: torch.Tensor, rows: Iterable[tuple[Tile, torch.Tensor]]
) -> None:
    """Fill ``scores`` (B, H, q, T) with q k^T over tiles of every head's full keys."""
    scores.zero_()
    for tile, keys in rows:
        part = scores[tile.sequences, :, :, tile.tokens]
        add_tile_scores(part, query[tile.sequences], keys)


def mix_tiles(
    outputs: torch.Tensor, shares: torch.Tensor, rows: Iterable[tuple[Tile, torch.Tensor]]
) -> None:
    """Fill ``outputs`` (B, H, q, d_v) with shares times values, over tiles of full values."""
    outputs.zero_()
    for tile, values in rows:
        part = shares[tile.sequences, :, :, tile.tokens]
        add_tile_values(outputs[tile.sequences], part, values)


class TileRotation:
    """Rotates tiles of keys (b, H, t, w) by the positions of their tokens, from a table."""

    def __init__(self, positions: torch.Tensor, width: int, device: torch.device) -> None:
        turned = angles(positions, frequencies(width))[:, None]  # (B or 1, 1, T, w/2)
        self._cos = turned.cos().float().to(device)
        self._sin = turned.sin().float().to(device)

    def __call__(self, keys: torch.Tensor, tile: Tile) -> torch.Tensor:
        """The turned keys, in a new tensor."""
        shared = self._cos.shape[0] == 1
        place = (slice(None) if shared else tile.sequences, slice(None), tile.tokens)
        cos, sin = self._cos[place], self._sin[place]
        first, second = keys.chunk(2, dim=-1)
        turned = torch.empty_like(keys)
        left, right = turned.chunk(2, dim=-1)
        torch.mul(first, cos, out=left).addcmul_(second, sin, value=-1)
        torch.mul(first, sin, out=right).addcmul_(second, cos)
        return turned
