"""A hardware profile with a run's constants, as YAML that every command takes as ``--gpu``."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from pydantic import ValidationError

from lrkv_plan.calibration.fit_result import FitResult
from lrkv_plan.calibration.path_fit import PathFit, RoleError, Scale, role_error
from lrkv_plan.calibration.run_record import RunInfo
from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.kernel import kernel_time
from lrkv_plan.schema import Source, explain
from lrkv_plan.specs.hardware import (
    PEAK_NAMES,
    HardwareProfile,
    KernelConstants,
    with_block,
    with_source,
)

MEASURED_NOTE = "measured on this machine at the stated threads, not a datasheet's figures"


# Words that make another card of one with the same number.
_OTHER_CARDS = {"d", "laptop", "max", "mobile", "pro", "sff", "super", "ti", "ultra"}


def profile_of_device(
    device_name: str, profiles: Iterable[HardwareProfile]
) -> HardwareProfile | None:
    """The profile whose name or alias the device's name holds word by word; the longest wins.

    A word such as Ti or Laptop makes another card: the profile's name must hold it too.

    Examples
    --------
    >>> from lrkv_plan.loader import load_all_hardware
    >>> profile_of_device("NVIDIA H200", load_all_hardware()).name
    'h200'
    >>> profile_of_device("NVIDIA A100-SXM4-80GB", load_all_hardware()).name
    'a100-sxm-80gb'
    >>> profile_of_device("NVIDIA GeForce RTX 3080 Laptop GPU", load_all_hardware())
    """
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    variant = words & _OTHER_CARDS
    best: tuple[int, HardwareProfile] | None = None
    for profile in profiles:
        for name in (profile.name, *profile.aliases):
            parts = name.lower().split("-")
            named = variant <= set(parts) <= words
            if named and (best is None or len(parts) > best[0]):
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


COMMENT = "torch/... entries: written by lrkv-plan calibrate; see lrkv_plan/latency/kernel.py"
LICENCE = "own measurement"
SUFFIX = ".calibrated.yaml"
CALIBRATED = ", calibrated"
PEAKS_NOTE = "Bandwidth: a plain read; peaks: square matrix products"


def profile_name(result: FitResult) -> str:
    """File name of the run's profile."""
    is_own = result.profile_text is None
    return f"{result.info.device if is_own else result.profile.name}{SUFFIX}"


def profile_text(result: FitResult, fits: Sequence[PathFit]) -> str:
    """The YAML of the run's profile with ``fits`` in it.

    A shipped profile keeps all its text; its entries of the same kernel and storage format lose
    ``preferred``.
    """
    entries = kernel_entries(result, fits)
    return profile_with(_base_text(result), result.profile, entries, COMMENT)


def kernel_entries(result: FitResult, fits: Sequence[PathFit]) -> list[KernelConstants]:
    """One profile entry for each fit; of several paths of one kernel the fastest is preferred."""
    fastest = _fastest(fits)
    return [_entry(result, fit, fit in fastest) for fit in fits]


def _entry(result: FitResult, fit: PathFit, preferred: bool) -> KernelConstants:
    method: Literal["design", "none"] = "design" if fit.overall.n else "none"
    judged = fit.overall if fit.overall.n else role_error(fit.errors)
    low, high = fit.band90
    constants = {name: rounded(value) for name, value in fit.fit.constants.items()}
    return profile_entry(
        f"{fit.path} {fit.dtype}",
        kernel=fit.kernel, kv_dtype=_kv_dtype(fit), form=fit.fit.form,
        regime="cold" if fit.cache_state == "cold" else "l2_hot",
        preferred=preferred, **constants, peak=fit.scale.peak_name,
        identified=fit.fit.identified, n_points=fit.fit.n_points, held_out_by=method,
        held_out_median_error=round(judged.median or 0.0, 4),
        held_out_p90_error=round(judged.p90 or 0.0, 4),
        band90=(rounded(low), rounded(high)), backend=f"torch/{fit.path}",
        backend_version=result.info.torch, source=citation(result.info)[:2000],
        licence=LICENCE, remark=_remark(result, fit)[:2000],
    )  # fmt: skip


def _remark(result: FitResult, fit: PathFit) -> str:
    """Intervals, errors by role, and what a reader must be warned of; the warning first."""
    verdict = result.verdict(fit)
    warnings = {
        "noisy": "FORCED: the run was noisy, constants may be far off",
        "impossible": f"FORCED: {'; '.join(result.impossible(fit))}: the machine's rates were "
        "measured too low",
        "false yardstick": "FORCED: the machine's rates were measured too low",
        "poor": "FORCED: held-out error above the stated limit",
        "not judged": "FORCED: no held-out points",
    }
    spans = [f"{n} {low:.3g} to {high:.3g}" for n, (low, high) in fit.intervals.items()]
    roles = [f"{r} {_share(e)}" for r, e in fit.by_role.items() if e.n]
    parts = (
        warnings.get(verdict, ""),
        f"90 % intervals: {', '.join(spans)}",
        f"held-out median by {', '.join(roles)}" if roles else "",
    )
    return "; ".join(part for part in parts if part)


def _share(error: RoleError) -> str:
    return "-" if error.median is None else f"{error.median:.1%} of {error.n}"


def _fastest(fits: Sequence[PathFit]) -> list[PathFit]:
    """Of the paths of one kernel and format, the one predicted faster over all their points."""
    groups: dict[tuple[str, str, str], list[PathFit]] = defaultdict(list)
    for fit in fits:
        groups[fit.kernel, _kv_dtype(fit), fit.cache_state].append(fit)
    return [min(group, key=partial(_mean_log_s, group=group)) for group in groups.values()]


def _kv_dtype(fit: PathFit) -> str:
    """The name that lookups use: fp16 and bf16 count as one."""
    return "bf16" if fit.dtype == "fp16" else fit.dtype


def _mean_log_s(fit: PathFit, group: Sequence[PathFit]) -> float:
    samples = [e.point.sample for other in group for e in other.errors]
    call = kernel_time(
        fit.model(),
        np.array([s.n_bytes for s in samples]),
        np.array([s.flops for s in samples]),
        np.array([s.work_units for s in samples]),
    )
    return float(np.log(call.time_s).mean())


def _base_text(result: FitResult) -> str:
    """The base profile's own file with the run among its sources, or one made from the run."""
    base = result.profile
    if result.profile_text is None:
        data = base.model_dump(mode="json", exclude_none=True, exclude={"source"})
        lines = [f"{key}: {json.dumps(value)}" for key, value in data.items() if value != []]
        text = f"# {MEASURED_NOTE}.\n# {PEAKS_NOTE}.\n" + "\n".join(lines) + "\n"
        return with_source(text, base.source[0])
    title = json.dumps(f"{base.title.removesuffix(CALIBRATED)}{CALIBRATED}")
    text = re.sub(r"(?m)^title:.*$", lambda _: f"title: {title}", result.profile_text, count=1)
    return with_source(text, _run_source(result.info))


def _run_source(info: RunInfo) -> Source:
    return Source(
        citation=citation(info), read_on=read_on(info), note="kernel constants of the torch/ paths"
    )
