"""Design points per second through the Python API: scalar calls, arrays, and the rank solver."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable

import numpy as np

from lrkv_plan import cache_bytes, load_model, rank_ceiling, swap_attention

N_REPEATS = 7


def rate(points: int, work: Callable[[], object]) -> str:
    """Median points per second over repeats, with the slowest and fastest."""
    rates = []
    for _ in range(N_REPEATS):
        started = time.perf_counter()
        work()
        rates.append(points / (time.perf_counter() - started))
    return f"{statistics.median(rates):>14,.0f} ({min(rates):,.0f} to {max(rates):,.0f})"


def main() -> None:
    """Print one line per way of asking."""
    paper = swap_attention(load_model("lrkv-paper-2.5b"), "lrkv:55")
    hybrid = load_model("gemma-3-12b")
    contexts = np.arange(1, 1_000_001)
    texts = [f"lrkv:{rank}" for rank in range(128)]
    print(f"load {os.getloadavg()[0]:.2f}; median points per second (slowest to fastest)")
    cases: list[tuple[str, int, Callable[[], object]]] = [
        ("cache_bytes, scalar", 2_000,
         lambda: [cache_bytes(paper, context_tokens=t) for t in range(1, 2_001)]),
        ("cache_bytes, array of contexts", contexts.size,
         lambda: cache_bytes(paper, context_tokens=contexts)),
        ("cache_bytes, array, two layer groups", contexts.size,
         lambda: cache_bytes(hybrid, context_tokens=contexts)),
        ("swap_attention by text", len(texts),
         lambda: [swap_attention(paper, text) for text in texts]),
        ("rank_ceiling with GQA and MLA beside it", 200,
         lambda: [rank_ceiling(paper, budget=f"{20 + i % 70}%") for i in range(200)]),
    ]  # fmt: skip
    for name, points, work in cases:
        print(f"{name:<42} {rate(points, work)}")


if __name__ == "__main__":
    main()
