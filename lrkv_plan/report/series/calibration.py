"""Predicted against measured decode times, held-out points hollow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series

if TYPE_CHECKING:
    from lrkv_plan.calibration.fit_result import FitResult
    from lrkv_plan.calibration.path_fit import PathFit, PointError

COLUMNS = 4


def predicted_vs_measured(result: FitResult) -> Figure:
    """A panel and a marker for each path; filled points were fitted, hollow ones held out."""
    errors = [e for fit in result.fits for e in fit.errors]
    times = [t for e in errors for t in (e.point.time_s, e.predicted_s)]
    ends = (0.8 * min(times), 1.25 * max(times))
    device = result.info.device_name or result.info.device
    return Figure(
        kind="predicted_vs_measured",
        title="Decode calls of one layer: predicted against measured time",
        caption=f"{device}; filled: fitted, hollow: held out; shaded: within "
        f"{result.max_error:.0%} of the measurement",
        inputs={"folder": str(result.folder)},
        panels=tuple(
            _panel(fit, style, ends, result.max_error) for style, fit in enumerate(result.fits)
        ),
        columns=min(COLUMNS, len(result.fits)),
    )


def _panel(fit: PathFit, style: int, ends: tuple[float, float], limit: float) -> Panel:
    axis: dict[str, Any] = {"scale": "log10", "factor": 1e6, "low": ends[0], "high": ends[1]}
    series = [
        Series(
            name=f"within {limit:.0%}", role=Role.REGION, x=ends, y=ends, style=1,
            low=tuple((1 - limit) * t for t in ends), high=tuple((1 + limit) * t for t in ends),
        ),
        Series(name="equal", role=Role.LINE, x=ends, y=ends, is_thin=True),
    ]  # fmt: skip
    for held_out in (False, True):
        chosen = [e for e in fit.errors if e.point.is_fitted != held_out]
        if chosen:
            series.append(_points(chosen, style, held_out))
    return Panel(
        name=f"{fit.path} {fit.dtype}", title=f"{fit.path} {fit.dtype}",
        x=Axis(key="measured_s", label="measured (us)", **axis),
        y=Axis(key="predicted_s", label="predicted (us)", **axis), series=tuple(series),
    )  # fmt: skip


def _points(errors: Sequence[PointError], style: int, held_out: bool) -> Series:
    return Series(
        name="held out" if held_out else "fitted",
        role=Role.POINTS,
        x=tuple(e.point.time_s for e in errors),
        y=tuple(e.predicted_s for e in errors),
        style=style,
        is_open=held_out,
    )
