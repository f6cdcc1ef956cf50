"""A queue of uneven sequences let into a pool one after the other."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any


def nearest_rank(ordered: list[int], percent: int) -> int:
    """The shortest length that at least that percentage of the sequences do not exceed."""
    return next(x for i, x in enumerate(ordered) if 100 * (i + 1) >= percent * len(ordered))


def account(
    lengths: list[int], pool: int, block_bytes: int,
    blocks_of: Callable[[int], int], payload_of: Callable[[int], int],
) -> dict[str, Any]:  # fmt: skip
    """What a simulated queue admits, and what the whole population would take."""
    free, admitted, blocked = pool, 0, False
    for length in lengths:
        need = blocks_of(length)
        blocked = blocked or need > free
        if not blocked:
            free -= need
            admitted += 1
    taken = block_bytes * sum(blocks_of(length) for length in lengths)
    payload = sum(payload_of(length) for length in lengths)
    mean = Fraction(sum(lengths), len(lengths))
    rounded = next(n for n in range(int(mean), int(mean) + 2) if n >= mean)
    equal = pool // blocks_of(rounded)
    ordered = sorted(lengths)
    return {
        "n_sequences": len(lengths), "total_tokens": sum(lengths), "mean_tokens": mean,
        "p50_tokens": nearest_rank(ordered, 50), "p95_tokens": nearest_rank(ordered, 95),
        "max_tokens": ordered[-1], "payload_bytes": payload, "allocated_bytes": taken,
        "waste_share": 1 - Fraction(payload, taken), "admitted_sequences": admitted,
        "equal_length_sequences": equal, "all_fit": admitted == len(lengths),
        "equal_length_error": (
            Fraction(min(equal, len(lengths)) - admitted, admitted) if admitted else None
        ),
        "oversized_sequences": sum(blocks_of(length) > pool for length in lengths),
    }  # fmt: skip
