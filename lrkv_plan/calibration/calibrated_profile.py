"""A hardware profile with a run's constants, as YAML that every command takes as ``--gpu``."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Literal

import numpy as np

from lrkv_plan.calculators.kernel_time import kernel_time
from lrkv_plan.calibration.decode_fit import PathFit, RoleError, role_error
from lrkv_plan.calibration.device_profiles import (
    MEASURED_NOTE,
    citation,
    profile_entry,
    profile_with,
    read_on,
    rounded,
)
from lrkv_plan.calibration.fit_run import FitResult
from lrkv_plan.calibration.run_info import RunInfo
from lrkv_plan.specs.base import Source
from lrkv_plan.specs.kernels import KernelConstants
from lrkv_plan.specs.profile_text import with_source

COMMENT = "torch/... entries: written by lrkv-plan calibrate; see specs/kernels.py"
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
