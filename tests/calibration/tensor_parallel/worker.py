"""A group of workers for a test: ``python worker.py N_WORKERS RENDEZVOUS OUTPUT``.

Worker 0 writes what was found as JSON. At the end worker 1 dies without a word.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from lrkv_plan.attention.registry import parse_attention
from lrkv_plan.attention.spec import Backbone
from lrkv_plan.calibration.machine import stopwatch_of
from lrkv_plan.calibration.tensor_parallel import measure as all_reduce
from lrkv_plan.calibration.tensor_parallel.group import Group, Place, joined
from lrkv_plan.calibration.tensor_parallel.sharded import Case, policies_of, run_case
from lrkv_plan.errors import PlacementError, PlanError, UsageError

# 8 heads of 16 on 4 GPUs: as many copies as GPUs or more, fewer, and one.
DESIGNS = (
    "gqa:4", "gqa:2,sinks=true", "mla:24+8", "lrkv:5", "lrkv:5,groups=2,align=4",
    "lrkv:5,groups=4,key_norm=rms_cached", "lrkv:5,position=rope_decoupled,rope=8",
)  # fmt: skip
TOKENS, BATCH, QUERIES = 32, 2, 2


def case_of(design: str) -> Case:
    spec = parse_attention(design, Backbone(n_heads=8, head_dim=16, v_head_dim=16))
    return Case(
        spec=spec, model_dim=64, batch_size=BATCH, context_tokens=TOKENS, query_tokens=QUERIES
    )


def policies(group: Group) -> list[dict[str, Any]]:
    watch, rows = stopwatch_of(group.device), []
    cases = [(design, case_of(design)) for design in DESIGNS]
    cases.append(("lrkv:5 in bf16", replace(case_of("lrkv:5"), dtype="bf16")))
    for design, case in cases:
        chosen = policies_of(case, group.n_workers)
        for found in run_case(group, case, chosen, n_repeats=1, watch=watch):
            rows.append({
                "design": design, "policy": found.policy, "dtype": case.dtype,
                "predicted": found.predicted_bytes, "allocated": found.allocated_bytes,
                "predicted_link": found.predicted_link_bytes, "link": found.link_bytes,
                "merge": found.merge_bytes, "loopback": found.loopback_bytes,
                "error": found.max_error, "scratch": found.scratch_bytes,
                "sample": found.sample and [
                    found.sample.n_heads, found.sample.n_copies, found.sample.n_bytes,
                    found.sample.allocated_bytes, found.sample.predicted_bytes,
                ],
            })  # fmt: skip
    return rows


def errors(group: Group) -> list[str]:
    """What this worker sees when others fail."""

    def last_fails() -> None:
        if group.index == group.n_workers - 1:
            raise PlacementError("the last worker cannot")

    def first_fails() -> None:
        raise UsageError("the first worker cannot")

    def memory_fails() -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried")

    seen = []
    for work in (lambda: group.agree(last_fails), lambda: group.first_does(first_fails),
                 lambda: group.agree(memory_fails)):  # fmt: skip
        try:
            work()
        except PlanError as error:
            seen.append(f"{type(error).__name__}: {error}")
    return seen


def main(index: int, n_workers: int, rendezvous: str, output: Path) -> None:
    place = Place(
        index=index, local_index=index, n_workers=n_workers, init_method=f"file://{rendezvous}"
    )
    with joined(place, "cpu", timeout_s=50) as group:
        rows = policies(group)
        points = all_reduce.measure_all_reduce(
            group, dtypes=("fp32", "bf16"), largest_bytes=2048, n_repeats=2, n_rounds=1
        )
        link = all_reduce.measure_link(group, n_bytes=1 << 16, n_repeats=2)
        seen = group.each(errors(group))
        lost = ""
        if index == 1:
            os._exit(9)
        try:
            group.barrier()
        except PlanError as error:
            lost = f"{type(error).__name__}: {error}"
        if index == 0:
            table = all_reduce.as_csv(points, gpu="test", backend="gloo", version="0")
            found = {"rows": rows, "csv": table, "link": link, "errors": seen, "lost": lost}
            output.write_text(json.dumps(found))
            os._exit(0)  # leaving the group would wait for the dead worker


def start(n_workers: int, rendezvous: str, output: Path) -> int:
    """Fork the workers, so that torch is imported once; worker 0's exit code."""
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=main, args=(index, n_workers, rendezvous, output), daemon=True)
        for index in range(n_workers)
    ]
    for worker in workers:
        worker.start()
    workers[0].join()
    for worker in workers:
        worker.kill()
    return int(workers[0].exitcode or 0)


if __name__ == "__main__":
    sys.exit(start(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))
