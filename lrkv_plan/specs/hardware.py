"""An accelerator: memory, bandwidth, dense peaks, links, and where each figure was read."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from lrkv_plan.errors import did_you_mean
from lrkv_plan.specs.base import ByteCount, BytesPerSecond, FlopsPerSecond, Frozen, Name
from lrkv_plan.specs.kernels import AllReduceConstants, KernelConstants
from lrkv_plan.specs.model import Sources

PEAK_NAMES = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "int4", "fp4")


class Link(Frozen):
    """GPU-to-GPU link; bandwidth is per direction and per GPU."""

    name: Name
    bandwidth_bytes_per_s: BytesPerSecond


class HardwareProfile(Frozen):
    """One accelerator. Peaks are dense; memory is nominal unless ``mem_visible_bytes``."""

    name: Name
    title: Name
    aliases: tuple[Name, ...] = ()
    vendor: Literal["nvidia", "amd", "intel", "generic"]
    generation: Name
    mem_capacity_bytes: ByteCount
    mem_visible_bytes: ByteCount | None = None
    mem_bandwidth_bytes_per_s: BytesPerSecond
    peak_flops_per_s: Annotated[dict[str, FlopsPerSecond], Field(min_length=1)]
    n_sm: Annotated[int, Field(strict=True, ge=1, le=100_000)] | None = None
    l2_bytes: ByteCount | None = None
    link: Link | None = None
    gpu_hour_usd: Annotated[float, Field(gt=0, le=10_000)] | None = None
    board_power_w: Annotated[float, Field(gt=0, le=100_000)] | None = None
    source: Sources
    kernels: tuple[KernelConstants, ...] = ()
    allreduce: tuple[AllReduceConstants, ...] = ()

    @property
    def matmul_peak(self) -> str:
        """Name of the peak that matrix products in 16 bit run at; wider formats where none is."""
        wide = ("bf16", "fp16", "tf32", "fp32")
        return next((name for name in wide if name in self.peak_flops_per_s), "fp16")

    @field_validator("peak_flops_per_s")
    @classmethod
    def _known_peaks(cls, peaks: dict[str, float]) -> dict[str, float]:
        for name in peaks:
            if name not in PEAK_NAMES:
                hint = did_you_mean(name, PEAK_NAMES)
                raise ValueError(f"{name!r} is unknown{hint}; known: {', '.join(PEAK_NAMES)}")
        return peaks
