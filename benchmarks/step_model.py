"""Points per second of the whole step model with capacity: context x batch x rank x GPUs, one core.

A point is one design (rank and tensor-parallel size) at one context and batch: attention, weights'
pass, all-reduce, overhead, both bounds and the band, and whether the batch fits the pool.
"""

from __future__ import annotations

import os
import resource
import statistics
import time

import numpy as np

from lrkv_plan import load_hardware, load_model, swap_attention
from lrkv_plan.latency.step import step_grid, step_model
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.engine import engine_named, pool_of
from lrkv_plan.specs.deployment import EngineSettings, Parallelism

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))


RANKS = range(16, 129, 16)
TP_SIZES = (1, 2, 4, 8)
CONTEXTS = np.arange(1, 513) * 256
BATCHES = np.arange(1, 257)
N_REPEATS = 5


def sweep() -> tuple[int, int]:
    """Evaluate the whole grid; points seen, and how many of them fit."""
    base, hardware = load_model("llama-3.1-8b"), load_hardware("h200")
    engine = engine_named("vllm")
    settings = EngineSettings(context_tokens=int(CONTEXTS[-1]))
    n_points = n_fitting = 0
    for tp_size in TP_SIZES:
        deployment = Deployment(engine=engine, settings=settings, kv_memory_bytes=100 * 2**30)
        for rank in RANKS:
            design = swap_attention(base, f"lrkv:{rank}")
            step = step_model(design, hardware, tp_size=tp_size)
            pool = pool_of(
                design, (deployment.kv_memory_bytes or 0,), settings, engine=engine,
                parallel=Parallelism(tp_size=tp_size),
            )  # fmt: skip
            held = pool.n_blocks // pool.blocks_of(CONTEXTS)
            fits = (BATCHES[:, None] <= held).ravel()
            for part, times in step_grid(step, CONTEXTS, BATCHES):
                n_points += times.step_s.size
                n_fitting += int(np.count_nonzero(fits[part] & (times.step_s < 0.05)))
    return n_points, n_fitting


def main() -> None:
    """Print the rate, its spread, and the peak memory."""
    rates = []
    for _ in range(N_REPEATS):
        started = time.perf_counter()
        n_points, n_fitting = sweep()
        rates.append(n_points / (time.perf_counter() - started))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{n_points:,} points, {n_fitting:,} fit within 50 ms; load {os.getloadavg()[0]:.2f}")
    print(f"{statistics.median(rates):,.0f} points/s ({min(rates):,.0f} to {max(rates):,.0f})")
    print(f"peak memory {peak_mb:.0f} MB")


if __name__ == "__main__":
    main()
