"""The whole measurement, as every worker goes through it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lrkv_plan.calculators.cache_bytes import bytes_per_token
from lrkv_plan.calibration.decode.paths import path_named
from lrkv_plan.calibration.machine import describe, free_bytes, load_average, stopwatch_of
from lrkv_plan.calibration.tensor_parallel import all_reduce
from lrkv_plan.calibration.tensor_parallel.arguments import Options
from lrkv_plan.calibration.tensor_parallel.group import Group
from lrkv_plan.calibration.tensor_parallel.local_step import Case
from lrkv_plan.calibration.tensor_parallel.profile import Link, base_profile
from lrkv_plan.calibration.tensor_parallel.sharded_decode import (
    PolicyResult,
    policies_of,
    run_case,
)
from lrkv_plan.calibration.tensor_parallel.shares import shares_of
from lrkv_plan.errors import CalibrationError, UsageError
from lrkv_plan.units import GIB

USUAL_DTYPE = {"cpu": "fp32", "cuda": "bf16"}
USUAL_CONTEXT = {"cpu": 1024, "cuda": 8192}
MEMORY_SHARE = 0.8  # of what is free, that all workers may take
Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Found:
    """What the workers measured, before anything is fitted."""

    results: list[PolicyResult]
    points: list[all_reduce.AllReducePoint]
    link: Link
    dtype: str
    device_name: str
    load_before: float | None


def progress_of(options: Options, index: int) -> Progress:
    """Lines on worker 0's stderr, where that is a terminal and nobody asked for quiet."""
    if index or options.quiet or not sys.stderr.isatty():
        return lambda _: None
    begun = time.monotonic()

    def say(text: str) -> None:
        sys.stderr.write(f"{time.monotonic() - begun:6.1f} s  {text}\n")

    return say


def cases_of(options: Options, kind: str) -> list[Case]:
    """One case per design and context."""
    return [
        Case(
            spec=spec, model_dim=options.model_dim, batch_size=options.batch_size,
            context_tokens=tokens,
            query_tokens=options.query_tokens, dtype=options.dtype or USUAL_DTYPE[kind],
            path=options.path, seed=options.seed,
        )
        for spec in options.designs
        for tokens in options.context_tokens or (USUAL_CONTEXT[kind],)
    ]  # fmt: skip


def check(group: Group, case: Case, policies: Sequence[str]) -> None:
    """Refuse what cannot run, before anything is measured.

    Raises
    ------
    UsageError
        If the case names a path that does not run its design, or a policy cannot spread its rows.
    CalibrationError
        If the workers' tensors would not fit into memory.

    Notes
    -----
    Every worker draws the whole cache and the whole output projection and holds its shares beside
    them, worker 0 a float64 copy of one head too: at most three and two times as much.
    """
    path_named(case.path_name, case.spec)
    for policy in policies:
        shares = shares_of(
            case.layout, policy, index=group.index, tp_size=group.n_workers,
            context_tokens=case.context_tokens,
        )  # fmt: skip
        if len(shares[0].tokens) < case.query_tokens:
            raise UsageError(
                f"context_tokens {case.context_tokens}: a GPU keeps {len(shares[0].tokens)} of "
                f"them under {policy}, fewer than the {case.query_tokens} query tokens' own"
            )
    free = free_bytes(group.device)
    if free is None:
        return
    rows = case.context_tokens * case.batch_size
    sharing = 1 if group.on_gpu else group.n_workers
    projection = 4 * case.model_dim * case.layout.n_heads * case.spec.backbone().v_head_dim
    cache = 3 * rows * bytes_per_token(case.model(), kv_dtype=case.dtype)
    needed = float((cache + 2 * projection) * sharing)
    if needed > MEMORY_SHARE * free:
        raise CalibrationError(
            f"{case.spec.label()} with {rows} tokens may need {needed / GIB:.2f} GiB for "
            f"{sharing} workers, and {free / GIB:.2f} GiB are free: use fewer --context-tokens"
        )


def measure(group: Group, options: Options, progress: Progress) -> Found:
    """Everything that needs all workers.

    Raises
    ------
    PlacementError
        If the heads of a design cannot be dealt out over the workers.
    UsageError, SpecError, CalibrationError
        If options do not fit together, or a worker is lost.
    """
    kind, load_before = group.device.type, load_average()
    cases = cases_of(options, kind)
    planned = [(case, policies_of(case, group.n_workers, options.policies)) for case in cases]
    used = {placement.policy for _, chosen in planned for placement in chosen}
    if idle := [policy for policy in options.policies if policy not in used]:
        raise UsageError(f"--policy {idle[0]}: none of the designs can be placed so")
    for case, chosen in planned:
        group.agree(partial(check, group, case, [p.policy for p in chosen]))
    link = link_of(group, options, progress)
    dtype = cases[0].dtype
    points = all_reduce.measure_all_reduce(
        group, dtypes=tuple(dict.fromkeys((dtype, "fp32", "bf16"))),
        largest_bytes=options.largest_bytes or all_reduce.LARGEST_BYTES[kind],
        n_repeats=options.n_repeats, progress=progress,
    )  # fmt: skip
    watch, results = stopwatch_of(group.device), []
    for case, chosen in planned:
        names = ", ".join(placement.policy for placement in chosen)
        progress(f"{case.spec.label()}, {case.context_tokens} tokens: {names}")
        results += run_case(group, case, chosen, n_repeats=options.n_repeats, watch=watch)
    return Found(
        results=results, points=points, link=link, dtype=dtype, load_before=load_before,
        device_name=str(describe(group.device).get("device_name", kind)),
    )  # fmt: skip


def link_of(group: Group, options: Options, progress: Progress) -> Link:
    """The profile's link where it states one, else the measured rate."""
    base = group.agree(lambda: base_profile(options.gpu, group.device))
    if base is not None and base[0].link is not None:
        link = base[0].link
        return Link(bytes_per_s=link.bandwidth_bytes_per_s, name=link.name, is_measured=False)
    progress("link: one large message from worker 0 to worker 1")
    largest = all_reduce.LARGEST_BYTES[group.device.type]
    rate = all_reduce.measure_link(group, n_bytes=largest, n_repeats=options.n_repeats)
    name = f"{group.backend}, one way between two workers, measured"
    return Link(bytes_per_s=rate, name=name, is_measured=True)
