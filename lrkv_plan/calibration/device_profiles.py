"""The hardware profile that a measured device belongs to, and what fitted shares refer to."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from lrkv_plan.calibration.decode_fit import Scale
from lrkv_plan.calibration.run_info import RunInfo
from lrkv_plan.errors import CalibrationError
from lrkv_plan.specs.base import Source
from lrkv_plan.specs.explain import explain
from lrkv_plan.specs.hardware import PEAK_NAMES, HardwareProfile
from lrkv_plan.specs.kernels import KernelConstants
from lrkv_plan.specs.profile_text import with_block

MEASURED_NOTE = "measured on this machine at the stated threads, not a datasheet's figures"


def profile_of_device(
    device_name: str, profiles: Iterable[HardwareProfile]
) -> HardwareProfile | None:
    """The profile whose name or alias the device's name holds word by word; the longest wins.

    Examples
    --------
    >>> from lrkv_plan.specs.loader import load_all_hardware
    >>> profile_of_device("NVIDIA H200", load_all_hardware()).name
    'h200'
    >>> profile_of_device("NVIDIA A100-SXM4-80GB", load_all_hardware()).name
    'a100-sxm-80gb'
    """
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    best: tuple[int, HardwareProfile] | None = None
    for profile in profiles:
        for name in (profile.name, *profile.aliases):
            parts = name.lower().split("-")
            if set(parts) <= words and (best is None or len(parts) > best[0]):
                best = (len(parts), profile)
    return best[1] if best else None


def measured_profile(info: RunInfo) -> HardwareProfile:
    """A profile of what the run measured: bandwidth of a plain read, peaks of square products.

    Raises
    ------
    CalibrationError
        If the run states no bandwidth, peak or memory size.
    """
    peaks = {name: rate for name, rate in info.peak_flops_per_s.items() if name in PEAK_NAMES}
    if info.stream_bytes_per_s is None or not peaks or info.mem_capacity_bytes is None:
        raise CalibrationError(
            "run.json states no stream_bytes_per_s, peak_flops_per_s or mem_capacity_bytes, which "
            "a profile needs; --gpu names one to take them from"
        )
    name = info.device_name or info.device
    return HardwareProfile(
        name=_slug(name),
        title=f"{name} (measured, {threads(info) or 'threads unstated'})"[:200],
        vendor="nvidia" if info.device == "cuda" else "generic",
        generation=_slug(name),
        mem_capacity_bytes=info.mem_capacity_bytes,
        mem_bandwidth_bytes_per_s=rounded(info.stream_bytes_per_s),
        peak_flops_per_s={n: rounded(rate) for n, rate in peaks.items()},
        n_sm=info.n_sm or None,
        l2_bytes=info.l2_bytes,
        source=(Source(citation=citation(info), read_on=read_on(info), note=MEASURED_NOTE),),
    )


def scale_for(profile: HardwareProfile, dtype: str) -> Scale:
    """Bandwidth and peak of a profile for one storage format; wider peaks where it has none."""
    name = dtype if dtype in profile.peak_flops_per_s else profile.matmul_peak
    if name not in profile.peak_flops_per_s:
        known = ", ".join(profile.peak_flops_per_s)
        raise CalibrationError(f"{profile.name}: no peak for {dtype}; known: {known}")
    return Scale(
        bandwidth=profile.mem_bandwidth_bytes_per_s,
        peak=profile.peak_flops_per_s[name],
        peak_name=name,
    )


def profile_with(
    text: str, profile: HardwareProfile, entries: Sequence[KernelConstants], comment: str
) -> str:
    """The profile's text with ``entries`` before its own.

    Own entries of the same backend are replaced; others of the same kernel, storage format and
    regime lose ``preferred`` to a preferred new one.
    """
    slots = {(e.kernel, e.kv_dtype, e.regime, e.backend) for e in entries}
    taken = {(e.kernel, e.kv_dtype, e.regime) for e in entries if e.preferred}
    kept = (
        e.model_copy(update={"preferred": False})
        if (e.kernel, e.kv_dtype, e.regime) in taken
        else e
        for e in profile.kernels
        if (e.kernel, e.kv_dtype, e.regime, e.backend) not in slots
    )
    return with_block(text, "kernels", [*entries, *kept], comment)


def profile_entry(name: str, **fields: Any) -> KernelConstants:
    """One set of fitted constants as a profile states it.

    Raises
    ------
    CalibrationError
        If a profile may not hold one of them: the calls were no decode steps of this device.
    """
    try:
        return KernelConstants(**fields)
    except ValidationError as error:
        raise CalibrationError(
            f"{name}: no profile may state what was fitted: {explain(error, KernelConstants)}"
        ) from None


def citation(info: RunInfo) -> str:
    """Device, software, threads, date and command in one line."""
    parts = (
        "lrkv-plan calibrate",
        info.device_name or info.device,
        f"driver {info.driver}" if info.driver else "",
        f"torch {info.torch}" if info.torch else "",
        threads(info),
        info.date or "",
        f"command: {info.command}" if info.command else "",
    )
    return ", ".join(part for part in parts if part)[:2000]


def threads(info: RunInfo) -> str:
    """How many threads the run used, if it says so."""
    return f"{info.threads} thread{'s' * (info.threads > 1)}" if info.threads else ""


def read_on(info: RunInfo) -> dt.date:
    """The day of the run; today where it is not stated or no date."""
    try:
        return dt.date.fromisoformat((info.date or "")[:10])
    except ValueError:
        return dt.date.today()


def rounded(value: float, digits: int = 4) -> float:
    """A figure as it is written down."""
    return float(f"{value:.{digits}g}")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "device"
