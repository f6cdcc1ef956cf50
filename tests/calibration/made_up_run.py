"""Runs whose constants are known: samples of a made-up device, written as a real run writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from lrkv_plan.calibration.fit import predicted_s
from lrkv_plan.calibration.path_fit import DEVICE_PRIORS, Scale
from lrkv_plan.calibration.run_record import SAMPLES_FILE, RunInfo, write_run_info
from lrkv_plan.calibration.samples import (
    ROLES,
    DecodeSample,
    SampleFile,
    as_arrays,
    measured_points,
)

SCALE = Scale(bandwidth=10e9, peak=100e9, peak_name="fp32")  # the ridge is 10 FLOP per byte
TRUE = {
    "t0_s": 80e-6, "beta": 0.75, "phi": 0.35, "work_unit_s": 20e-6, "full_work_units": 16.0,
}  # fmt: skip
PRIORS = DEVICE_PRIORS["cpu"]
INFO = RunInfo(
    device="cpu", device_name="Made-up CPU", torch="2.0", threads=1, date="2026-11-30",
    command="lrkv-plan calibrate run", stream_bytes_per_s=10e9, peak_flops_per_s={"fp32": 100e9},
    mem_capacity_bytes=16 * 2**30, cache_state="cold", load_average=0.1,
)  # fmt: skip


def planned(
    n: int = 64,
    *,
    seed: int = 0,
    path: str = "lrkv/factored",
    kernel: str = "low_rank",
    n_bytes: tuple[float, float] = (1e4, 1e8),
    intensity: tuple[float, float] = (0.5, 200.0),
    held_out: int = 16,
    device: str = "cpu",
) -> list[DecodeSample]:
    """One row each for ``n`` fitted and ``held_out`` other points, log-uniform, without times."""
    rng = np.random.default_rng(seed)

    def draw(ends: tuple[float, float]) -> float:
        return float(np.exp(rng.uniform(*np.log(ends))))

    rows = []
    for index in range(n + held_out):
        size, units = draw(n_bytes), float(rng.choice([1, 2, 4, 8, 16, 32, 64]))
        role = "fit" if index < n else ROLES[1 + index % 4]
        rank = int(rng.choice([16, 32, 64]))
        rows.append(
            DecodeSample(
                point=f"{path} {index}", round=0, role=role, path=path, kernel=kernel,
                device=device, device_name=INFO.device_name or "", dtype="fp32",
                attention=f"lrkv:{rank}", n_heads=16, n_copies=16, head_dim=128, rank=rank,
                latent_dim=0, batch_size=1, context_tokens=64 + index, query_tokens=1,
                page_tokens=0, cache_state="cold", threads=1, n_bytes=size,
                flops=size * draw(intensity), work_units=units, allocated_bytes=1000,
                predicted_bytes=1000, peak_bytes=0, controls_s=(), repeats_s=(1.0,),
            )
        )  # fmt: skip
    return rows


def timed(
    rows: list[DecodeSample],
    form: str = "base",
    *,
    constants: Mapping[str, float] = TRUE,
    noise: float = 0.05,
    round_noise: float = 0.0,
    seed: int = 1,
) -> list[DecodeSample]:
    """The rows four times over, with the times of ``form``.

    ``noise`` is a point's own (log-normal, the same in all its rounds), ``round_noise`` that of
    each round. Repeats are up to 1 % slower than their round.
    """
    rng = np.random.default_rng(seed)
    arrays = as_arrays(measured_points(rows), bandwidth=SCALE.bandwidth, peak=SCALE.peak)
    times = predicted_s(form, constants, arrays) * np.exp(noise * rng.standard_normal(len(rows)))
    samples = []
    for number in range(4):
        for row, time_s in zip(rows, times, strict=True):
            base = time_s * np.exp(abs(round_noise * rng.standard_normal()))
            repeats = base * (1 + 0.01 * rng.random(5))
            repeats[0] = base
            samples.append(replace(row, round=number, repeats_s=tuple(repeats.tolist())))
    return samples


def written(folder: Path, samples: list[DecodeSample], info: RunInfo | None = INFO) -> Path:
    """The folder that a run with these samples would leave."""
    folder.mkdir(parents=True, exist_ok=True)
    file = SampleFile(folder / SAMPLES_FILE)
    for sample in samples:
        file.append(sample)
    file.close()
    if info is not None:
        write_run_info(folder, info)
    return folder
