"""Decode steps of one layer under each placement policy: run by real workers, judged, timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from lrkv_plan.calculators.placement import Placement, placements
from lrkv_plan.calibration.decode.step import DecodeStep
from lrkv_plan.calibration.decode_samples import DecodeSample
from lrkv_plan.calibration.tensor_parallel.group import Group, loopback_bytes
from lrkv_plan.calibration.tensor_parallel.local_samples import sample_of
from lrkv_plan.calibration.tensor_parallel.local_step import Case
from lrkv_plan.calibration.tensor_parallel.sharded_step import ShardedStep
from lrkv_plan.calibration.tensor_parallel.timing import Repeats, time_together
from lrkv_plan.calibration.timing import Stopwatch
from lrkv_plan.errors import CalibrationError, UsageError, did_you_mean, shown

TOLERANCE = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}  # of the largest output


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """One case under one policy. Bytes are per GPU, one figure each where GPUs may differ.

    A GPU receives ``link_bytes`` of fetched rows and ``merge_bytes`` of queries and partial results
    in each step; its all-reduce sums ``message_bytes``. ``loopback_bytes`` is what the operating
    system saw all workers send for fetching and merging; None where unknown. ``attention`` times
    fetching to merging, ``whole_step`` the output projection and its all-reduce too; caches are not
    flushed between repeats. ``sample`` is a GPU's attention with cold caches, where nothing is
    fetched or merged.
    """

    case: Case
    policy: str
    n_workers: int
    predicted_bytes: int
    allocated_bytes: tuple[int, ...]
    scratch_bytes: int
    predicted_link_bytes: int
    link_bytes: tuple[int, ...]
    merge_bytes: int
    loopback_bytes: int | None
    max_error: float
    message_bytes: int
    attention: Repeats
    whole_step: Repeats
    sample: DecodeSample | None

    @property
    def bytes_agree(self) -> bool:
        """Whether every GPU holds and fetches exactly what the calculators say."""
        return {*self.allocated_bytes} == {self.predicted_bytes} and {*self.link_bytes} == {
            self.predicted_link_bytes
        }

    @property
    def is_exact(self) -> bool:
        """Whether outputs agree with the single-GPU reference within the format's tolerance."""
        return self.max_error <= TOLERANCE[self.case.dtype]


@dataclass(frozen=True, kw_only=True)
class _Part:
    """What one worker tells the others about its first step."""

    heads: torch.Tensor
    right_queries: bool
    kept_bytes: int
    link_bytes: int
    merge_bytes: int


def policies_of(case: Case, n_workers: int, wanted: tuple[str, ...] = ()) -> tuple[Placement, ...]:
    """The placements of that case by the calculators; the ``wanted`` ones among them, or all.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.
    UsageError
        If none of the wanted policies applies to the design.
    """
    model = case.model()
    found = placements(model, tp_size=n_workers, kv_dtype=case.dtype)
    chosen = tuple(p for p in found if not wanted or p.policy in wanted)
    if not chosen:
        names = [p.policy for p in found]
        raise UsageError(
            f"policy {shown(', '.join(wanted))}{did_you_mean(wanted[0], names)}: "
            f"{case.layout.label} on {n_workers} GPUs has {', '.join(names)}"
        )
    return chosen


def run_case(
    group: Group, case: Case, chosen: tuple[Placement, ...], *, n_repeats: int, watch: Stopwatch
) -> list[PolicyResult]:
    """Build, check and time one case under each policy; called by all workers together.

    Raises
    ------
    UsageError
        If a policy cannot spread the rows evenly.
    CalibrationError
        If the sizes do not fit this machine, or a worker is lost.
    """
    whole = group.agree(partial(case.whole, str(group.device)))
    wanted = group.first_does(lambda: whole.reference().cpu())
    return [_run_policy(group, case, whole, wanted, p, n_repeats, watch) for p in chosen]


def _run_policy(
    group: Group,
    case: Case,
    whole: DecodeStep,
    wanted: torch.Tensor | None,
    placement: Placement,
    n_repeats: int,
    watch: Stopwatch,
) -> PolicyResult:
    sharded = group.agree(partial(ShardedStep, group, case, whole, placement.policy))
    local, outputs = sharded.local, sharded.attend()
    summed = sharded.project(outputs)
    each = group.each(
        _Part(
            heads=outputs.double().cpu(), right_queries=sharded.has_the_right_queries,
            kept_bytes=local.kept_bytes, link_bytes=sharded.link_bytes,
            merge_bytes=sharded.merge_bytes,
        )
    )  # fmt: skip
    if not all(part.right_queries for part in each):
        raise CalibrationError("the gathered queries are not those of the single-GPU step")
    rows = case.context_tokens * case.batch_size
    return PolicyResult(
        case=case,
        policy=placement.policy,
        n_workers=group.n_workers,
        predicted_bytes=_whole_bytes(placement.cache_bytes_per_token_per_gpu * rows),
        allocated_bytes=tuple(part.kept_bytes for part in each),
        scratch_bytes=local.scratch_bytes,
        predicted_link_bytes=_whole_bytes(placement.link_bytes_per_token_per_gpu * rows),
        link_bytes=tuple(part.link_bytes for part in each),
        merge_bytes=max(part.merge_bytes for part in each),
        loopback_bytes=_seen_on_loopback(group, sharded),
        max_error=_largest_error(group, sharded, [part.heads for part in each], summed, wanted),
        message_bytes=sharded.message_bytes,
        attention=time_together(group, sharded.attend, n_repeats=n_repeats),
        whole_step=time_together(group, sharded.run, n_repeats=n_repeats),
        sample=None if local.fetched or sharded.merge_bytes else sample_of(
            group, case, local, watch, n_repeats
        ),
    )  # fmt: skip


def _whole_bytes(value: Any) -> int:
    if value != int(value):
        raise CalibrationError(f"{value} bytes per GPU is not whole; no tensors can hold it")
    return int(value)


def _largest_error(
    group: Group,
    sharded: ShardedStep,
    heads: list[torch.Tensor],
    summed: torch.Tensor,
    wanted: torch.Tensor | None,
) -> float:
    """The largest difference from the float64 reference, over the reference's largest value.

    Heads are compared, and the sum after the output projection. Worker 0 has the reference.
    """
    error = 0.0
    if wanted is not None:
        projected = wanted.transpose(1, 2).flatten(2) @ sharded.whole_projection().double()
        error = max(
            _relative(torch.cat(heads, dim=1), wanted),
            _relative(summed.double().cpu(), projected),
        )
    return max(group.each(error))


def _relative(found: torch.Tensor, wanted: torch.Tensor) -> float:
    error = float((found - wanted).abs().max() / wanted.abs().max())
    return error if math.isfinite(error) else math.inf


def _seen_on_loopback(group: Group, sharded: ShardedStep, n_steps: int = 3) -> int | None:
    """Bytes that the operating system sent over loopback for one step's fetches and merges.

    The least of some steps: other programs use loopback too, and only add to it.
    """
    if group.on_gpu or loopback_bytes() is None:
        return None
    seen = []
    for _ in range(n_steps):
        group.barrier()
        before = loopback_bytes()
        group.barrier()
        sharded.attend()
        group.barrier()
        seen.append((loopback_bytes() or 0) - (before or 0))
    return min(seen)
