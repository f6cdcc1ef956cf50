"""A GPU's own attention call inside a tensor-parallel group, as a row for the kernel fit.

All workers make the call at once, so it is timed under the traffic that its neighbours cause: none
on GPUs with memory of their own, shared memory bandwidth on CPU cores.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch

from lrkv_plan.calibration.decode_samples import DecodeSample, SampleFile
from lrkv_plan.calibration.machine import describe
from lrkv_plan.calibration.tensor_parallel.group import Group
from lrkv_plan.calibration.tensor_parallel.local_step import Case, LocalStep
from lrkv_plan.calibration.timing import Stopwatch


def sample_of(
    group: Group, case: Case, local: LocalStep, watch: Stopwatch, n_repeats: int
) -> DecodeSample:
    """The call with cold caches; of each repeat the slowest worker's time, and its flush's."""
    step, spec = local.step, case.spec
    group.barrier()
    timed = watch.time(local.attention.run, n_repeats=n_repeats, cold=True)
    everyone = group.each(timed)
    slowest = [max(times) for times in zip(*(t.repeats_s for t in everyone), strict=True)]
    flushes = [max(times) for times in zip(*(t.control_s for t in everyone), strict=True)]
    backbone, work = spec.backbone(), step.work
    return DecodeSample(
        point=(
            f"{step.path.name} {case.dtype} {spec.label()} {work.n_heads}x{backbone.head_dim} "
            f"B{case.batch_size} T{case.context_tokens} q{case.query_tokens} tp={group.n_workers}"
        ),
        round=0,
        role="fit",
        path=step.path.name,
        kernel=step.path.kernel,
        device=group.device.type,
        device_name=device_name(group.device),
        dtype=case.dtype,
        attention=spec.label(),
        n_heads=work.n_heads,
        n_copies=work.n_copies,
        head_dim=backbone.head_dim,
        rank=getattr(spec, "key_rank", 0),
        latent_dim=getattr(spec, "latent_dim", 0),
        batch_size=case.batch_size,
        context_tokens=case.context_tokens,
        query_tokens=case.query_tokens,
        page_tokens=0,
        cache_state="cold",
        threads=0 if group.on_gpu else 1,
        n_bytes=float(step.read_bytes),
        flops=float(step.flops),
        work_units=float(step.work_units),
        allocated_bytes=step.allocated_bytes,
        predicted_bytes=step.predicted_bytes,
        peak_bytes=max(t.peak_bytes for t in everyone),
        repeats_s=tuple(slowest),
        controls_s=tuple(flushes),
    )


@cache
def device_name(device: torch.device) -> str:
    """The device's name, or its kind where the system does not tell."""
    return str(describe(device).get("device_name", device.type))


def append_samples(path: Path, samples: list[DecodeSample]) -> None:
    """Add rows to a samples file; a point that is there already gets its next round.

    Raises
    ------
    CalibrationError
        If the file holds other columns or cannot be written.
    """
    file = SampleFile(path)
    try:
        for sample in samples:
            rounds = [s.round + 1 for s in file.rows if s.point == sample.point]
            file.append(replace(sample, round=max(rounds, default=0)))
    finally:
        file.close()
