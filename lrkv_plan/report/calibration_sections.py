"""The tables of a calibration report, each with its own small question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.calibration_fit_views import CONSTANTS, microseconds
from lrkv_plan.report.calibration_views import share
from lrkv_plan.report.tables import Column, Table, count

if TYPE_CHECKING:
    from lrkv_plan.calibration.decode_fit import PathFit, PointError
    from lrkv_plan.calibration.fit_run import FitResult
    from lrkv_plan.calibration.points import MeasuredPoint

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
    from lrkv_plan.calibration.decode_fit import REGIMES

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
    from lrkv_plan.calibration.decode_fit import role_error

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
        remarks=("the peak is the allocator's, above the tensors that a call is given; it is "
                 "measured on CUDA only",),
    )  # fmt: skip


def latency_table(result: FitResult) -> Table:
    """Quantiles of single calls of each path's largest point, and of all against their estimate."""
    from lrkv_plan.calibration.points import QUANTILES, quantile

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
    from lrkv_plan.calibration.points import STATISTICS, noise

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
        remarks=(f"the {result.estimator} with the machine's drift taken out is a point's time; "
                 f"above {share(result.noise_limit)} a run counts as noisy",),
    )  # fmt: skip


def crossing_table(result: FitResult) -> Table:
    """Measured crossings of two designs beside the predicted ones."""
    from lrkv_plan.calibration.crossings import describe

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
        remarks=("contexts between measured ones by log-linear interpolation; intervals from "
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
