"""Points per second and peak memory of ``sweep``, beside the step model alone in the same run.

Each grid has the ranks and layouts of ``step_model.py`` with what fits, times, bands and the
reduction to a frontier. ``--points 1e8`` grows the axes; ``--executors`` compares the rows of a
million points that are kept whole, by their hash.

    python benchmarks/sweep.py --points 1e6,1e7
    python benchmarks/sweep.py --executors serial,processes,dask
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from typing import Any

import pandas

import lrkv_plan
from benchmarks.step_model import sweep as step_model_sweep

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

EACH = 8 * 4 * 512 * 64  # points of the smallest grid: ranks, sizes, contexts, batches


def axes(n_points: float) -> dict[str, Any]:
    """The axes of a grid of about so many points."""
    more = max(1, round(n_points / EACH))
    n_batches = 64 * min(more, 16)
    more = max(1, more // 16)
    gpus = ["h200", "h100-sxm", "b200"][: min(more, 3)]
    kv_dtypes = ["bf16", "fp8"] if more > 3 else ["bf16"]
    return {
        "gpus": gpus, "designs": "lrkv:16..128:16", "tp_size": [1, 2, 4, 8],
        "context_tokens": "256..131072:256", "batch_size": f"1..{n_batches}",
        "kv_dtype": kv_dtypes,
    }  # fmt: skip


def timed(**told: Any) -> tuple[lrkv_plan.Result, float]:
    """A sweep and its seconds."""
    started = time.perf_counter()
    answer = lrkv_plan.sweep("llama-3.1-8b", **told)
    return answer, time.perf_counter() - started


def peak_mb() -> float:
    """The most memory that this process held. [MB]"""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def rates(sizes: list[float]) -> None:
    """Print seconds, points per second, memory and what is left, per size."""
    started = time.perf_counter()
    n_points, _ = step_model_sweep()
    alone = n_points / (time.perf_counter() - started)
    print(f"step model alone: {alone:,.0f} points/s; load {os.getloadavg()[0]:.2f}")
    for size in sizes:
        answer, took = timed(
            executor="serial", reduce="pareto", where="tpot_high_s < 0.1", **axes(size)
        )
        counts: Any = answer.counts  # type: ignore[attr-defined]
        rate = counts.points / took
        print(
            f"{counts.points:>12,} points: {took:7.1f} s, {rate:>10,.0f} points/s, "
            f"{rate / alone:.2f} of the step model, peak {peak_mb():,.0f} MB, "
            f"{len(answer.rows):,} on the frontier; load {os.getloadavg()[0]:.2f}"
        )


def hashes(executors: list[str]) -> None:
    """Print the hash of all rows of a million points, per executor."""
    for name in executors:
        answer, took = timed(executor=name, **axes(1e6))
        found = pandas.util.hash_pandas_object(answer.frame, index=False).sum()
        print(f"{name:>10}: {len(answer.frame):,} rows, hash {found:020d}, {took:.1f} s")


def main() -> None:
    """Read what to measure, and print it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", default="1e6,1e7")
    parser.add_argument("--executors", default="")
    told = parser.parse_args()
    if told.executors:
        hashes(told.executors.split(","))
    else:
        rates([float(one) for one in told.points.split(",")])


if __name__ == "__main__":
    main()
