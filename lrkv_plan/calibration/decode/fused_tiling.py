"""How the fused LRKV kernel cuts a decode step up, and what it is compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lrkv_plan.errors import UsageError

MAX_QUERY_TOKENS = 32
# Rows of one product: 32 hold 18 heads with one query token and keep four warps within registers.
TILE_ROWS = 32
PROGRAMS_PER_PROCESSOR = 4  # enough reads in flight on each streaming multiprocessor
MIN_PART_TOKENS = 256  # below that, writing and merging a part costs more than it spreads


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """How a step is cut up.

    ``heads_per_tile`` heads that share a key are served by one read of it; the context of every
    sequence is cut into ``n_parts``. ``rows`` and ``tokens`` are a tile's block sizes, ``stages``
    the tiles of private rows in flight.
    """

    heads_per_tile: int
    n_parts: int
    rows: int
    tokens: int = 64
    stages: int = 3
    warps: int = 4


def tiling(
    *,
    n_heads: int,
    n_groups: int,
    n_query: int,
    batch_size: int,
    longest: int,
    n_processors: int,
    itemsize: int = 2,
    paged: bool = False,
    heads_per_tile: int | None = None,
    n_parts: int | None = None,
) -> Tiling:
    """Blocks for a shape: few tiles per group, and parts enough to fill the processors.

    Raises
    ------
    UsageError
        If there are more query tokens than a tile holds.

    Examples
    --------
    One tile of 18 heads, so shared rows are read once; 132 processors want 528 programs, 8
    sequences give 8, so each context of 32,768 is cut into 66:

    >>> tiling(n_heads=18, n_groups=1, n_query=1, batch_size=8, longest=32768, n_processors=132)
    Tiling(heads_per_tile=18, n_parts=66, rows=32, tokens=64, stages=3, warps=4)
    """
    if n_query > MAX_QUERY_TOKENS:
        raise UsageError(
            f"query_tokens {n_query}: the fused kernel takes at most {MAX_QUERY_TOKENS}; "
            "use lrkv/factored"
        )
    sharing = n_heads // n_groups
    if heads_per_tile is None:
        tiles = -(-sharing // max(1, TILE_ROWS // n_query))
        heads_per_tile = -(-sharing // tiles)
    tiles = -(-sharing // heads_per_tile)
    if n_parts is None:
        wanted = -(-PROGRAMS_PER_PROCESSOR * n_processors // (tiles * n_groups * batch_size))
        n_parts = max(1, min(wanted, longest // MIN_PART_TOKENS))
    return Tiling(
        heads_per_tile=heads_per_tile,
        n_parts=n_parts,
        rows=block_side(heads_per_tile * n_query),
        tokens=64 if itemsize == 2 and not paged else 32,  # more spills, compiled for sm_90
    )


def block_side(width: int) -> int:
    """The power of two, at least 16, that a product's side is padded to in registers."""
    return max(16, 1 << (width - 1).bit_length()) if width else 16


def block_constants(
    widths: Mapping[str, int], cut: Tiling, *, n_query: int, paged: bool, widen: bool = False
) -> dict[str, Any]:
    """What the decode kernel is compiled for: stored row widths and block sizes.

    ``widths`` are those of the cached tensors by name; an absent one is 0. ``widen`` multiplies in
    fp32 for the interpreter, which cannot multiply bf16.
    """
    sides = {
        "KEY_DIM": "shared_key", "VALUE_DIM": "shared_value", "KEY_RANK": "private_key",
        "VALUE_RANK": "private_value", "ROPE_DIM": "rope_key",
    }  # fmt: skip
    constants: dict[str, Any] = {
        "HEADS": cut.heads_per_tile, "QUERIES": n_query, "ROWS": cut.rows,
        "TOKENS": cut.tokens, "SCALED": "key_scale" in widths, "PAGED": paged,
        "WIDEN": widen, "STAGES": cut.stages,
    }  # fmt: skip
    for name, tensor in sides.items():
        width = widths.get(tensor, 0)
        constants[name] = width
        constants[name.removesuffix("_DIM") + "_BLOCK"] = block_side(width)
    return constants
