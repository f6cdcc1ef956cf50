"""Calibrations for people: fits, held-out errors, validations, and the files of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import CalibrationError
from lrkv_plan.files import refuse_existing, write_together
from lrkv_plan.notes import Note
from lrkv_plan.report.screens.calibration import (
    evaluation_screen,
    fit_screen,
    profile_screen,
    table_fit_screen,
    validation_screen,
)
from lrkv_plan.report.series.calibration import predicted_vs_measured
from lrkv_plan.report.tables import Column, Row, Table, as_row, count, to_csv, to_markdown
from lrkv_plan.report.time_equations import kernel_equation

if TYPE_CHECKING:
    from lrkv_plan.calibration.evaluate import GroupError
    from lrkv_plan.calibration.fit_result import FitResult
    from lrkv_plan.calibration.path_fit import PathFit, PointError
    from lrkv_plan.calibration.samples import MeasuredPoint
    from lrkv_plan.calibration.table_fit import TableFit
    from lrkv_plan.calibration.validate import ValidatedPoint
    from lrkv_plan.specs.hardware import HardwareProfile, KernelConstants


def share(value: float) -> str:
    """A share as a percentage with one decimal."""
    return f"{value:.1%}".replace("%", " %")


def evaluation_table(name: str, held_out: bool, groups: Sequence[GroupError]) -> Table:
    """One row per GPU, backend, family, storage format and regime, and the median over groups."""
    how = (
        "constants refitted without the judged head configurations"
        if held_out
        else ("shipped constants")
    )
    table = Table(
        title=f"Kernel model against {name}, {how}: |predicted / measured - 1|",
        inputs={"file": name, "held_out": held_out},
        rows=[as_row(group) for group in groups],
        columns=(
            Column(key="gpu", title="GPU", is_number=False),
            Column(key="backend", title="backend", is_number=False),
            Column(key="family", title="family", is_number=False),
            Column(key="kv_dtype", title="cache", is_number=False),
            Column(key="regime", title="regime", is_number=False),
            Column(key="n", title="rows", text=count),
            Column(key="median_error", title="median", text=share),
            Column(key="p90_error", title="p90", text=share),
            Column(key="max_error", title="worst", text=share),
            Column(key="in_band", title="in 90 % band", text=share),
            Column(key="basis", title="rests on", is_number=False),
        ),
        notes=(*_summary(groups), *_notes(groups)),
        explain=_group_words,
    )
    return replace(
        table,
        screen=lambda: evaluation_screen(
            name, how, list(_by_regime(groups)), table.columns, table.rows
        ),
    )


def _group_words(row: Row) -> list[str]:
    """One group: what was judged by which constants."""
    told = " ".join(str(row[key]) for key in ("gpu", "backend", "family", "kv_dtype", "regime"))
    if row["median_error"] is None:
        return [f"{told}: {count(row['n'])} calls, none predicted"]
    return [
        f"{told}: |predicted / measured - 1| of {count(row['n'])} calls: median "
        f"{share(row['median_error'])}, p90 {share(row['p90_error'])}, most "
        f"{share(row['max_error'])}; constants {row['basis']}"
    ]


def _by_regime(groups: Sequence[GroupError]) -> Iterator[tuple[str, int, float, float, float]]:
    """(regime, groups, median of medians, median of p90, mean share inside the band)."""
    for regime in dict.fromkeys(group.regime for group in groups):
        chosen = [g for g in groups if g.regime == regime and "flag" not in g.note]
        medians = sorted(g.median_error for g in chosen if g.median_error is not None)
        tails = sorted(g.p90_error for g in chosen if g.p90_error is not None)
        bands = [g.in_band for g in chosen if g.in_band is not None]
        if medians:
            middle = medians[len(medians) // 2], tails[len(tails) // 2]
            yield regime, len(medians), *middle, sum(bands) / len(bands)


def _summary(groups: Sequence[GroupError]) -> list[str]:
    return [
        f"{regime}: {n} groups; median of medians {share(median)}, of p90 {share(tail)}; on "
        f"average {share(inside)} of a group inside its band"
        for regime, n, median, tail, inside in _by_regime(groups)
    ]


def _notes(groups: Sequence[GroupError]) -> list[str]:
    return [
        f"{g.gpu} {g.backend} {g.family} {g.kv_dtype} {g.regime}: {g.note}"
        for g in groups
        if g.note
    ]


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
    from lrkv_plan.calibration.samples import noise

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
    rows = fit_rows(result)
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
        rows=rows,
        columns=FIT_COLUMNS,
        notes=(*_refused(refused), *fit_remarks(result), *remarks),
        unmet=CalibrationError(refused) if refused else None,
        screen=lambda: fit_screen(result, FIT_COLUMNS, rows, remarks),
        explain=_path_equation,
    )


def _path_equation(row: Row) -> list[str]:
    """One decode path's model with its constants, or why there is none."""
    name = f"{row['path']} {row['dtype']}"
    if row["form"] is None:
        return [f"{name}: {row['verdict']}"]
    sum_ = kernel_equation(row, row["bandwidth_bytes_per_s"], row["peak_flops_per_s"])
    band = f"band {row['band90_low']:.2f} to {row['band90_high']:.2f}"
    return [f"{name}: {sum_}, {band}; {row['n_fit']} points fitted, {row['n_heldout']} held out"]


def _refused(reason: str | None) -> list[Note]:
    return [Note(kind="refusal", text=reason)] if reason else []


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
    screen = fit_screen(result, FIT_COLUMNS, table.rows, ())
    return replace(
        table, notes=(*table.notes, *lines), screen=lambda: replace(screen, following=())
    )


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
    columns = (*table.columns, verdict)
    return replace(
        table, rows=rows, columns=columns,
        inputs={"file": str(result.path), "profile": result.profile.name,
                "max_error": result.max_error, "refused": refused},
        notes=(
            *_refused(refused),
            "errors are of calls fitted without: whole head configurations left out, or rows "
            "where those are too few",
            *table.remarks,
            *(f"{name}: not fitted: {why}" for name, why in result.not_fitted.items()),
        ),
        unmet=CalibrationError(refused) if refused else None,
        screen=lambda: table_fit_screen(result, columns, rows),
        explain=lambda row: _entry_equation(result.profile, row),
    )  # fmt: skip


def _entry_equation(profile: HardwareProfile, row: Row) -> list[str]:
    """One entry's model with its constants, and what they were fitted to."""
    peak = profile.peak_flops_per_s[row["peak"]]
    sum_ = kernel_equation(row, profile.mem_bandwidth_bytes_per_s, peak)
    low, high = row["band90"]
    return [
        f"{row['backend']} {row['kernel']} {row['kv_dtype']}: {sum_}, band {low:.2f} to "
        f"{high:.2f}; {count(row['n_points'])} points"
    ]


def profile_table(profile: HardwareProfile) -> Table:
    """The kernel constants of a profile: those of ``calibrate`` where it has any, else all."""
    own = [e for e in profile.kernels if e.backend.startswith("torch/")]
    table = _entries_table(f"Kernel constants of {profile.title}", own or profile.kernels)
    return replace(
        table,
        inputs={"profile": profile.name, "title": profile.title},
        screen=lambda: profile_screen(profile, table.columns, table.rows),
        explain=lambda row: _entry_equation(profile, row),
    )


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
        notes=(*notes, *sources) if rows else ("the profile holds no measured constants",),
    )


_PATH = (
    Column(key="path", title="path", is_number=False),
    Column(key="dtype", title="dtype", is_number=False),
)


def constants_table(result: FitResult) -> Table:
    """Every constant with its interval."""
    rows = []
    for fit in result.fits:
        for name in (n for n in CONSTANTS if n in fit.fit.constants):
            low, high = fit.intervals.get(name, (None, None))
            rows.append(
                {"path": fit.path, "dtype": fit.dtype, "constant": name,
                 "value": fit.fit.constants[name], "low": low, "high": high,
                 "says": "identified" if low is not None else "not identified: the prior"}
            )  # fmt: skip
    return Table(
        title="Constants with 90 % intervals (bootstrap over points)", inputs={}, rows=rows,
        columns=(
            *_PATH, Column(key="constant", title="constant", is_number=False),
            Column(key="value", title="value", text=_figure),
            Column(key="low", title="low", text=_figure),
            Column(key="high", title="high", text=_figure),
            Column(key="says", title="", is_number=False),
        ),
    )  # fmt: skip


def role_table(result: FitResult) -> Table:
    """Held-out errors by what the points were held out by."""
    return _error_table(
        result, "Held-out errors by what was not measured: median / p90 (points)",
        ("random", "rank", "heads", "context"), lambda e: e.point.sample.role,
    )  # fmt: skip


def regime_table(result: FitResult) -> Table:
    """Held-out errors by what the predicted time mostly is."""
    from lrkv_plan.calibration.path_fit import REGIMES

    return _error_table(
        result, "Held-out errors by regime: median / p90 (points)", REGIMES, lambda e: e.regime
    )


def _error_table(
    result: FitResult, title: str, groups: Sequence[str], of: Callable[[PointError], str]
) -> Table:
    rows = []
    for fit in result.fits:
        held_out = [e for e in fit.errors if not e.point.is_fitted]
        row: dict[str, Any] = {"path": fit.path, "dtype": fit.dtype, "all": _errors(held_out)}
        rows.append(row | {g: _errors([e for e in held_out if of(e) == g]) for g in groups})
    columns = [Column(key=g, title=g) for g in (*groups, "all")]
    return Table(title=title, inputs={}, rows=rows, columns=(*_PATH, *columns))


def _errors(errors: Sequence[PointError]) -> str | None:
    from lrkv_plan.calibration.path_fit import role_error

    found = role_error(errors)
    if found.median is None or found.p90 is None:
        return None
    return f"{share(found.median)} / {share(found.p90)} ({found.n})"


def memory_table(result: FitResult) -> Table:
    """Bytes held against bytes predicted."""
    rows = []
    for fit in result.fits:
        points = [e.point for e in fit.errors]
        equal = sum(p.allocated_equals_predicted for p in points)
        peak = max(points, key=lambda p: p.peak_bytes)
        rows.append(
            {"path": fit.path, "dtype": fit.dtype, "points": len(points), "equal": equal,
             "largest": max(p.sample.allocated_bytes for p in points),
             "peak": peak.peak_bytes or None}
        )  # fmt: skip
    return Table(
        title="Cache bytes: allocated by torch against predicted", inputs={}, rows=rows,
        columns=(
            *_PATH, Column(key="points", title="points", text=count),
            Column(key="equal", title="exactly equal", text=count),
            Column(key="largest", title="largest cache B", text=count),
            Column(key="peak", title="peak of a call B", text=count),
        ),
        notes=("the peak is the allocator's, above the tensors that a call is given; it is "
                 "measured on CUDA only",),
    )  # fmt: skip


def latency_table(result: FitResult) -> Table:
    """Quantiles of single calls of each path's largest point, and of all against their estimate."""
    from lrkv_plan.calibration.samples import QUANTILES, quantile

    rows = []
    for fit in result.fits:
        points = [e.point for e in fit.errors]
        largest = max(points, key=lambda p: p.time_s)
        over = [t / p.time_s for p in points for t in p.latencies_s]
        row: dict[str, Any] = {"path": fit.path, "dtype": fit.dtype, "point": _short(largest),
                               "calls": len(largest.latencies_s)}  # fmt: skip
        for q in QUANTILES:
            row |= {f"p{q * 100:.0f}": quantile(largest.latencies_s, q),
                    f"over_p{q * 100:.0f}": quantile(over, q)}  # fmt: skip
        rows.append(row)
    names = [f"p{q * 100:.0f}" for q in QUANTILES]
    return Table(
        title="Latency of single calls as measured: the slowest point, and all over their time",
        inputs={}, rows=rows,
        columns=(
            *_PATH, Column(key="point", title="slowest point", is_number=False),
            Column(key="calls", title="calls"),
            *(Column(key=n, title=f"{n} us", text=microseconds) for n in names),
            *(Column(key=f"over_{n}", title=f"all {n}", text=lambda v: f"{v:.2f}") for n in names),
        ),
    )  # fmt: skip


def _short(point: MeasuredPoint) -> str:
    s = point.sample
    return f"{s.attention} {s.n_heads}x{s.head_dim} B{s.batch_size} T{s.context_tokens}"


def estimator_table(result: FitResult) -> Table:
    """Which statistic of the repeats repeats itself: even against odd rounds."""
    from lrkv_plan.calibration.samples import STATISTICS, noise

    groups = [(f.path, f.dtype, [e.point for e in f.errors]) for f in result.fits]
    rows = []
    for path, dtype, points in (*groups, ("all", "", list(result.points))):
        row: dict[str, Any] = {"path": path, "dtype": dtype}
        for name, estimate in STATISTICS.items():
            row |= {f"{name}_raw": noise(points, estimate, raw=True), name: noise(points, estimate)}
        rows.append(row)
    columns = [
        Column(key=key, title=title, text=share)
        for name in STATISTICS
        for key, title in ((f"{name}_raw", f"{name}, as measured"), (name, f"{name}, drift out"))
    ]
    return Table(
        title="Even against odd rounds by two estimators: median |ln of the ratio|",
        inputs={}, rows=rows, columns=(*_PATH, *columns),
        notes=(f"the {result.estimator} with the machine's drift taken out is a point's time; "
                 f"above {share(result.noise_limit)} a run counts as noisy",),
    )  # fmt: skip


def crossing_table(result: FitResult) -> Table:
    """Measured crossings of two designs beside the predicted ones."""
    from lrkv_plan.calibration.fit_run import describe

    rows = []
    for c in result.crossings:
        ahead = c.predicted_ratios[-1] if c.predicted_ratios else 1.0
        rows.append(
            {"first": _design(c.first), "second": _design(c.second), "dtype": c.dtype,
             "heads": f"{c.n_heads}x{c.head_dim} B{c.batch_size}",
             "contexts": f"{c.contexts[0]:,} to {c.contexts[-1]:,}",
             "ratio": f"{c.ratios[0]:.2f} to {c.ratios[-1]:.2f}",
             "interval": f"{c.ratios_low[-1]:.2f} to {c.ratios_high[-1]:.2f}",
             "measured": describe(c, c.measured, c.ratios[-1]),
             "predicted": describe(c, c.predicted, ahead),
             "resampled": f"{c.crossing_share:.0%} cross"
             + (f", first at {c.low:,.0f} to {c.high:,.0f}" if c.low and c.high else "")}
        )  # fmt: skip
    titles = {
        "first": "first", "second": "second", "dtype": "dtype", "heads": "heads, batch",
        "contexts": "contexts", "ratio": "time first / second",
        "interval": "90 % at the longest", "measured": "measured", "predicted": "predicted",
        "resampled": "repeats drawn again",
    }  # fmt: skip
    return Table(
        title="Crossings along the context, measured and predicted", inputs={}, rows=rows,
        columns=tuple(Column(key=k, title=t, is_number=False) for k, t in titles.items()),
        notes=("contexts between measured ones by log-linear interpolation; intervals from "
                 "drawing every point's repeats again",),
    )  # fmt: skip


def _design(design: Any) -> str:
    return f"{design.attention} ({design.path})"


def _figure(value: float) -> str:
    return f"{value:.4g}"


def error_rows(fits: Sequence[PathFit]) -> list[dict[str, Any]]:
    """One row for each point: what it is, prediction, measurement, error and regime."""
    return [
        {
            "path": fit.path, "dtype": fit.dtype, "attention": s.attention, "n_heads": s.n_heads,
            "head_dim": s.head_dim, "rank": s.rank, "latent_dim": s.latent_dim,
            "batch_size": s.batch_size, "context_tokens": s.context_tokens,
            "query_tokens": s.query_tokens, "role": s.role, "n_bytes": s.n_bytes,
            "flops": s.flops, "measured_s": error.point.time_s, "predicted_s": error.predicted_s,
            "error": error.error, "regime": error.regime,
            "instability": _finite(error.point.instability()),
            "n_repeats": len(error.point.repeats_s),
        }
        for fit in fits
        for error in fit.errors
        for s in (error.point.sample,)
    ]  # fmt: skip


def _finite(value: float) -> float | None:
    return value if value == value else None


REPORT, ERRORS, PICTURE = "report.md", "errors.csv", "predicted-vs-measured"
SECTIONS: tuple[Callable[[FitResult], Table], ...] = (
    constants_table, role_table, regime_table,
    crossing_table, memory_table, latency_table,
    estimator_table,
)  # fmt: skip


def written_files(result: FitResult, folder: Path) -> list[Path]:
    """Every file that ``write_result`` may write there."""
    from lrkv_plan.calibration.profile import profile_name

    names = (REPORT, ERRORS, f"{PICTURE}.png", f"{PICTURE}.svg", profile_name(result))
    return [folder / name for name in names]


def existing_results(folder: Path) -> list[str]:
    """Names of the results of some run or fit that lie there."""
    names = (REPORT, ERRORS, f"{PICTURE}.png", f"{PICTURE}.svg")
    profiles = sorted(path.name for path in folder.glob("*.calibrated.yaml"))
    return [name for name in names if (folder / name).exists()] + profiles


def write_result(
    result: FitResult, folder: Path, *, force: bool = False, overwrite: bool = False
) -> list[Path]:
    """Write the report, and the profile of what was accepted.

    Parameters
    ----------
    folder : usually where the samples are; made if missing.
    force : overwrite what is there, and put refused paths into the profile too, labelled.
    overwrite : overwrite what is there: results of fewer samples of the same run.

    Returns
    -------
    The files written; the profile, last, is missing where no path was accepted.

    Raises
    ------
    UsageError
        If a file exists and ``force`` is not given, or the folder cannot be written.
    """
    from lrkv_plan.calibration.profile import profile_text
    from lrkv_plan.report.plots import picture

    *reports, profile = written_files(result, folder)
    if not (force or overwrite):
        refuse_existing(folder, [path.name for path in (*reports, profile)])
    fits = result.fits if force else result.accepted
    figure = predicted_vs_measured(result)
    contents: dict[str, str | bytes] = {
        REPORT: report_text(result),
        ERRORS: to_csv(replace(fit_table(result), rows=error_rows(result.fits))),
        f"{PICTURE}.png": picture(figure, "png", width="double"),
        f"{PICTURE}.svg": picture(figure, "svg", width="double"),
    }
    if fits:
        contents[profile.name] = profile_text(result, fits)
    return write_together(folder, contents, force=force or overwrite)


def report_text(result: FitResult) -> str:
    """The report in markdown."""
    info = result.info
    known = info.model_dump(mode="json", exclude_none=True, exclude={"skipped", "notes"})
    facts = [f"- {name}: {_flat(value)}" for name, value in known.items() if value != {}]
    verdict = result.refusal or "every path is accepted"
    parts = [
        f"# Calibration of {info.device_name or info.device}\n",
        f"{verdict[0].upper()}{verdict[1:]}.\n",
        to_markdown(fit_table(result)),
        f"![predicted against measured]({PICTURE}.png)\n",
        *(to_markdown(section(result)) for section in SECTIONS),
        "**The run**\n",
        "\n".join(facts) + "\n",
    ]
    if info.skipped:
        lines = [f"- {point}: {reason}" for point, reason in info.skipped.items()]
        parts += ["**Points left out**\n", "\n".join(lines) + "\n"]
    return "\n".join(parts)


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_flat(one)}" for name, one in value.items())
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _microseconds(value: float) -> str:
    """A time in microseconds with one decimal."""
    return f"{value * 1e6:,.1f}"


def validation_table(
    points: Sequence[ValidatedPoint],
    inputs: dict[str, Any],
    failure: str | None,
    changed: Sequence[str] = (),
) -> Table:
    """One row per shape, with its verdict; ``failure`` is why the profile does not hold.

    It is ``refused`` among the inputs, so that the document says it too. ``changed`` says what was
    measured otherwise than asked.
    """
    rows = [
        as_row(p) | {"verdict": "inside the band" if p.in_band else "outside the band"}
        for p in points
    ]
    bases = dict.fromkeys(
        f"{p.kernel} predictions are {p.basis}" + (f", {p.backend}" if p.backend else "")
        for p in points
    )
    outside = sum(not p.in_band for p in points)
    table = Table(
        title=f"{inputs['model']} on {inputs['gpu']}: attention of one layer and decode step",
        inputs=inputs | {"holds": failure is None, "outside": outside, "refused": failure},
        rows=rows,
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="path", title="path", is_number=False),
            Column(key="batch_size", title="batch", text=count),
            Column(key="context_tokens", title="tokens", text=count),
            Column(key="predicted_s", title="predicted us", text=_microseconds),
            Column(key="measured_s", title="measured us", text=_microseconds),
            Column(key="error", title="error", text=lambda v: f"{v:+.1%}".replace("%", " %")),
            Column(key="low_s", title="band from us", text=_microseconds),
            Column(key="high_s", title="to us", text=_microseconds),
            Column(key="verdict", title="verdict", is_number=False),
        ),
        notes=(
            *([f"refused: {failure}"] if failure else []),
            *bases,
            *changed,
            f"{len(points) - outside} of {len(points)} inside their 90 % band; median error "
            f"{share(sorted(abs(p.error) for p in points)[len(points) // 2])}",
        ),
        unmet=None if failure is None else CalibrationError(failure),
        explain=_shape_words,
    )
    return replace(
        table,
        screen=lambda: validation_screen(table.inputs, table.columns, table.rows, changed),
    )


def _shape_words(row: Row) -> list[str]:
    """One shape: prediction, measurement and band."""
    return [
        f"{row['attention']} {row['path']}, batch {count(row['batch_size'])}, "
        f"{count(row['context_tokens'])} tokens: {_microseconds(row['predicted_s'])} us predicted "
        f"({_microseconds(row['low_s'])} to {_microseconds(row['high_s'])}, {row['basis']}) for "
        f"{count(row['n_bytes'])} B / {_microseconds(row['measured_s'])} us measured - 1 = "
        f"{100 * row['error']:+.1f} %"
    ]
