"""Fitted paths as rows and as a table: constants, intervals, held-out errors, verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import CalibrationError
from lrkv_plan.report.calibration_views import share
from lrkv_plan.report.tables import Column, Table

if TYPE_CHECKING:
    from lrkv_plan.calibration.decode_fit import PathFit
    from lrkv_plan.calibration.fit_run import FitResult
    from lrkv_plan.calibration.table_fit import TableFit
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.kernels import KernelConstants

CONSTANTS = ("t0_s", "beta", "phi", "work_unit_s", "full_work_units")


def fit_rows(result: FitResult) -> list[dict[str, Any]]:
    """One row for each (path, dtype), those that could not be fitted included.

    ``heldout_*`` are of all held-out points, ``<role>_*`` of those of one role. A constant that is
    not ``identified`` is the prior's value and has no interval.
    """
    rows = [_row(result, fit) for fit in result.fits]
    for (path, dtype), reason in result.not_fitted.items():
        points = [p for p in result.points if (p.sample.path, p.sample.dtype) == (path, dtype)]
        empty = dict.fromkeys(rows[0]) if rows else {}
        rows.append(
            empty
            | {
                "path": path, "device": result.info.device, "dtype": dtype,
                "kernel": points[0].sample.kernel, "n_fit": sum(p.is_fitted for p in points),
                "n_heldout": sum(not p.is_fitted for p in points), "identified": [],
                "verdict": f"not fitted: {reason}",
            }
        )  # fmt: skip
    return rows


def _row(result: FitResult, fit: PathFit) -> dict[str, Any]:
    from lrkv_plan.calibration.points import noise

    row: dict[str, Any] = {
        "path": fit.path, "device": fit.device, "dtype": fit.dtype, "kernel": fit.kernel,
        "form": fit.fit.form, "n_fit": fit.fit.n_points, "n_heldout": fit.overall.n,
        "heldout_median_error": fit.overall.median, "heldout_p90_error": fit.overall.p90,
    }  # fmt: skip
    for role, error in fit.by_role.items():
        row |= {
            f"{role}_n": error.n,
            f"{role}_median_error": error.median,
            f"{role}_p90_error": error.p90,
        }
    for name in CONSTANTS:
        low, high = fit.intervals.get(name, (None, None))
        row |= {name: fit.fit.constants.get(name), f"{name}_low": low, f"{name}_high": high}
    return row | {
        "peak": fit.scale.peak_name,
        "bandwidth_bytes_per_s": fit.scale.bandwidth,
        "peak_flops_per_s": fit.scale.peak,
        "band90_low": fit.band90[0],
        "band90_high": fit.band90[1],
        "identified": list(fit.fit.identified),
        "noise": noise(e.point for e in fit.errors),
        "verdict": result.verdict(fit),
    }


def fit_table(result: FitResult, *, force: bool = False, remarks: Sequence[str] = ()) -> Table:
    """The fit as ``calibrate fit`` and ``calibrate run`` print it.

    A refused one is ``unmet``, and every format but CSV (whose rows have verdicts) says why:
    ``refused`` among the inputs, and the first remark.
    """
    refused = None if force else result.refusal
    return Table(
        title=f"Decode paths fitted on {result.info.device_name or result.info.device}",
        inputs={
            "folder": str(result.folder),
            "device": result.info.device,
            "device_name": result.info.device_name,
            "estimator": result.estimator,
            "noise": result.noise,
            "noise_limit": result.noise_limit,
            "control_spread": result.control_spread,
            "max_error": result.max_error,
            "refused": refused,
            "run": result.info.model_dump(mode="json", exclude_none=True),
        },
        rows=fit_rows(result),
        columns=FIT_COLUMNS,
        remarks=(*_refused(refused), *fit_remarks(result), *remarks),
        unmet=CalibrationError(refused) if refused else None,
    )


def _refused(reason: str | None) -> list[str]:
    return [f"refused: {reason}"] if reason else []


def microseconds(value: float) -> str:
    """A time in microseconds."""
    return f"{1e6 * value:,.3g}"


def _names(value: Sequence[str]) -> str:
    return ", ".join(value) or "none"


FIT_COLUMNS = (
    Column(key="path", title="path", is_number=False),
    Column(key="dtype", title="dtype", is_number=False),
    Column(key="form", title="form", is_number=False),
    Column(key="n_fit", title="fitted"),
    Column(key="n_heldout", title="held out"),
    Column(key="heldout_median_error", title="median", text=share),
    Column(key="heldout_p90_error", title="p90", text=share),
    Column(key="t0_s", title="t0 us", text=microseconds),
    Column(key="beta", title="beta", text=lambda v: f"{v:.3f}"),
    Column(key="phi", title="phi", text=lambda v: f"{v:.3f}"),
    Column(key="identified", title="identified", text=_names, is_number=False),
    Column(key="noise", title="noise", text=share),
    Column(key="verdict", title="verdict", is_number=False),
)


def fit_remarks(result: FitResult) -> list[str]:
    """What the shares refer to, how a point's time was made, and what is not identified."""
    profile = result.profile
    origin = "measured in this run" if result.profile_text is None else f"of {profile.name}"
    bandwidth = f"{profile.mem_bandwidth_bytes_per_s / 1e9:,.4g} GB/s"
    peaks = ", ".join(
        f"{name} {rate / 1e12:,.4g} TFLOP/s"
        for name, rate in profile.peak_flops_per_s.items()
        if name in {fit.scale.peak_name for fit in result.fits}
    )
    noise = "unknown" if result.noise is None else share(result.noise)
    lines = [
        f"beta is a share of {bandwidth}, phi of {peaks} ({origin})",
        f"a point's time is the {result.estimator} of its repeats, drift out; halves of its rounds "
        f"differ by {noise} (median of {len(result.points)} points)",
        "bands hold 90 % of single rounds of held-out points, drift left in",
        "held out, and never used by the fit: random points, an unmeasured rank, an unmeasured "
        "head count, unmeasured contexts",
    ]
    for fit in result.fits:
        held = [n for n in fit.fit.constants if n not in fit.fit.identified]
        if held:
            lines.append(
                f"{fit.path} {fit.dtype}: {', '.join(held)} not identified by the points, held at "
                "the prior"
            )
    return [*lines, *result.info.notes]


def shown_run(result: FitResult) -> Table:
    """The same with intervals, errors by role, provenance and the noisiest points as remarks."""
    table = fit_table(result, force=True)
    lines = [result.refusal or "every path is accepted"]
    for fit in result.fits:
        spans = ", ".join(f"{n} {a:.3g} to {b:.3g}" for n, (a, b) in fit.intervals.items())
        roles = ", ".join(
            f"{role} {share(e.median)} of {e.n}"
            for role, e in fit.by_role.items()
            if e.median is not None
        )
        lines.append(f"{fit.path} {fit.dtype}: 90 % intervals {spans}; held-out median {roles}")
    noisy = sorted(
        (p for p in result.points if p.instability() > result.noise_limit),
        key=lambda p: -p.instability(),
    )
    if noisy:
        worst = ", ".join(f"{p.sample.point} {share(p.instability())}" for p in noisy[:3])
        lines.append(
            f"{len(noisy)} of {len(result.points)} points differ between halves of their rounds by "
            f"more than {share(result.noise_limit)}: {worst}"
        )
    known = result.info.model_dump(mode="json", exclude_none=True, exclude={"skipped", "notes"})
    lines.append("run: " + "; ".join(f"{k} {v}" for k, v in known.items() if v != {}))
    lines += [f"left out: {point}: {reason}" for point, reason in result.info.skipped.items()]
    return replace(table, remarks=(*table.remarks, *lines))


def table_fit_table(result: TableFit, *, force: bool = False) -> Table:
    """Entries fitted from a table of calls; a refused fit is ``unmet``."""
    table = _entries_table(
        f"Kernels fitted to {result.path.name}, shares of {result.profile.title}", result.entries
    )
    rows = [
        {**row, "verdict": result.verdict(e)}
        for row, e in zip(table.rows, result.entries, strict=True)
    ]
    verdict = Column(key="verdict", title="verdict", is_number=False)
    refused = None if force else result.refusal
    return replace(
        table, rows=rows, columns=(*table.columns, verdict),
        inputs={"file": str(result.path), "profile": result.profile.name,
                "max_error": result.max_error, "refused": refused},
        remarks=(
            *_refused(refused),
            "errors are of calls fitted without: whole head configurations left out, or rows "
            "where those are too few",
            *table.remarks,
            *(f"{name}: not fitted: {why}" for name, why in result.not_fitted.items()),
        ),
        unmet=CalibrationError(refused) if refused else None,
    )  # fmt: skip


def profile_table(profile: HardwareProfile) -> Table:
    """The kernel constants of a profile: those of ``calibrate`` where it has any, else all."""
    own = [e for e in profile.kernels if e.backend.startswith("torch/")]
    table = _entries_table(f"Kernel constants of {profile.title}", own or profile.kernels)
    return replace(table, inputs={"profile": profile.name, "title": profile.title})


def _entries_table(title: str, entries: Sequence[KernelConstants]) -> Table:
    notes = [f"{e.backend} {e.kv_dtype}: {e.remark}" for e in entries if e.remark]
    sources = dict.fromkeys(f"source: {e.source} ({e.licence})" for e in entries)
    rows = [e.model_dump(mode="json") for e in entries]
    return Table(
        title=title,
        inputs={},
        rows=rows,
        columns=(
            Column(key="backend", title="backend", is_number=False),
            Column(key="kernel", title="kernel", is_number=False),
            Column(key="kv_dtype", title="cache", is_number=False),
            Column(key="form", title="form", is_number=False),
            Column(key="t0_s", title="t0 us", text=microseconds),
            Column(key="beta", title="beta", text=lambda v: f"{v:.3f}"),
            Column(key="phi", title="phi", text=lambda v: f"{v:.3f}"),
            Column(key="identified", title="identified", text=_names, is_number=False),
            Column(key="n_points", title="points"),
            Column(key="held_out_median_error", title="median", text=share),
            Column(key="held_out_p90_error", title="p90", text=share),
            Column(
                key="preferred", title="used", text=lambda v: "yes" if v else "", is_number=False
            ),
        ),
        remarks=(*notes, *sources) if rows else ("the profile holds no measured constants",),
    )
