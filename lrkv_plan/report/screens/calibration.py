"""Screens of measured constants: what was accepted, how far predictions are off, what fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from lrkv_plan.notes import Note
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, short
from lrkv_plan.report.screens.words import WHY, counted, gpu_name

if TYPE_CHECKING:
    from lrkv_plan.calibration.fit_result import FitResult
    from lrkv_plan.calibration.table_fit import TableFit
    from lrkv_plan.specs.hardware import HardwareProfile


class _Column(Protocol):
    """A column of a table, as far as a screen reads it."""

    key: str
    title: str
    is_number: bool

    def cell(self, row: Row) -> str: ...


def picked(columns: Sequence[Any], drops: Mapping[str, int]) -> tuple[ScreenColumn, ...]:
    """The table's columns that have a place in the order in which they are left out."""
    chosen: list[_Column] = [one for one in columns if one.key in drops]
    return tuple(
        ScreenColumn(
            title=one.title, text=one.cell, is_number=one.is_number, drop=drops[one.key],
            tone=_judged if one.key == "verdict" else lambda _: None,
        )
        for one in chosen
    )  # fmt: skip


def _judged(row: Row) -> Any:
    return "good" if row["verdict"] in ("accepted", "inside the band") else "bad"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _span(shares: Iterable[float | None]) -> str:
    """The least and the most of some errors."""
    known = sorted(one for one in shares if one is not None)
    if not known:
        return "unknown"
    ends = [_percent(known[0]), _percent(known[-1])]
    return ends[0] if ends[0] == ends[1] else f"{ends[0].removesuffix(' %')} to {ends[1]}"


_FIT = {
    "path": 0, "dtype": 4, "form": 8, "n_fit": 6, "n_heldout": 6, "heldout_median_error": 0,
    "heldout_p90_error": 1, "t0_s": 2, "beta": 2, "phi": 2, "noise": 5, "identified": 9,
    "verdict": 0,
}  # fmt: skip


def fit_screen(
    result: FitResult, columns: Sequence[Any], rows: Sequence[Row], remarks: Sequence[str]
) -> Screen:
    """How many decode paths are accepted, and the errors on points that no fit saw."""
    device = result.info.device_name or result.info.device
    errors = _span(row["heldout_median_error"] for row in rows)
    accepted = sum(row["verdict"] == "accepted" for row in rows)
    return Screen(
        verdict=(
            f"{accepted} of {counted(len(rows), 'decode path')} on {device} accepted: median error "
            f"on held-out points {errors}.",
        ),
        rows=rows,
        columns=picked(columns, _FIT),
        foot=(
            f"Accepted up to {short(100 * result.max_error)} %, and no share above what the "
            f"machine can do. {WHY}",
        ),
        following=(["lrkv-plan", "calibrate", "show", str(result.folder)],),
        notes=[Note(kind="assumption", text=one) for one in remarks],
    )


_ENTRIES = {
    "backend": 0, "kernel": 5, "kv_dtype": 1, "form": 8, "t0_s": 3, "beta": 3, "phi": 4,
    "identified": 9, "n_points": 6, "held_out_median_error": 0, "held_out_p90_error": 2,
    "preferred": 1, "verdict": 0,
}  # fmt: skip


def _entry_columns(columns: Sequence[Any], rows: Sequence[Row]) -> tuple[ScreenColumn, ...]:
    """The table's columns, and the query heads per cached head where kernels differ in them."""
    backend, *others = picked(columns, _ENTRIES)
    if all(row["query_heads_per_kv_head"] is None for row in rows):
        return (backend, *others)
    heads = ScreenColumn(title="heads/KV", text=_heads, drop=2)
    return (backend, heads, *others)


def _heads(row: Row) -> str:
    span = row["query_heads_per_kv_head"]
    if span is None:
        return "all"
    return str(span[0]) if span[0] == span[1] else f"{span[0]} to {span[1]}"


def table_fit_screen(result: TableFit, columns: Sequence[Any], rows: Sequence[Row]) -> Screen:
    """How many kernels fitted to measured calls are accepted, and their errors."""
    errors = _span(row["held_out_median_error"] for row in rows)
    accepted = sum(row["verdict"] == "accepted" for row in rows)
    return Screen(
        verdict=(
            f"{accepted} of {counted(len(rows), 'kernel')} fitted to {result.path.name} accepted: "
            f"median error on held-out calls {errors}.",
        ),
        rows=rows,
        columns=_entry_columns(columns, rows),
        foot=(f"Accepted up to {short(100 * result.max_error)} %. {WHY}",),
        notes=[
            Note(kind="refusal", text=f"{name}: not fitted: {reason}")
            for name, reason in result.not_fitted.items()
        ],
    )


def profile_screen(profile: HardwareProfile, columns: Sequence[Any], rows: Sequence[Row]) -> Screen:
    """Which kernels a profile holds constants of, and how far those that are used are off."""
    name = gpu_name(profile.name, profile.title)
    if not rows:
        return Screen(
            verdict=(
                f"{name} has no measured kernel constants: its times are borrowed from its "
                "generation or typical of datasheets.",
            )
        )
    used = [row for row in rows if row["preferred"]]
    errors = _span(row["held_out_median_error"] for row in used)
    told = f", {errors} of the {len(used):,} that are used" if used else ", none of them used"
    if len(used) == len(rows):
        told = ""
    every = _span(row["held_out_median_error"] for row in rows)
    return Screen(
        verdict=(
            f"{len(rows):,} kernels measured on {name}: median error on held-out calls "
            f"{every}{told}.",
        ),
        rows=rows,
        columns=_entry_columns(columns, rows),
        foot=(f"beta and phi are shares of bandwidth and of peak. {WHY}",),
    )


_EVALUATION = {
    "gpu": 0, "backend": 0, "family": 1, "kv_dtype": 2, "regime": 4, "n": 6, "median_error": 0,
    "p90_error": 1, "max_error": 7, "in_band": 3, "basis": 5,
}  # fmt: skip


def evaluation_screen(
    name: str,
    how: str,
    by_regime: Sequence[tuple[str, int, float, float, float]],
    columns: Sequence[Any],
    rows: Sequence[Row],
) -> Screen:
    """How far predictions are off, over groups of measured calls.

    Parameters
    ----------
    by_regime : (regime, groups, median of medians, median of p90, mean share inside the band).
    """
    verdict = [
        f"{regime.capitalize()} calls are predicted to {_percent(median)} in the median, "
        f"{_percent(tail)} at p90, over {counted(n, 'group')}; {_percent(inside)} lie inside the "
        "90 % band."
        for regime, n, median, tail, inside in by_regime
    ]
    return Screen(
        verdict=verdict or (f"Nothing of {name} can be predicted.",),
        rows=rows,
        columns=picked(columns, _EVALUATION),
        foot=(f"{name}, {how}: |predicted / measured - 1|. {WHY}",),
    )


_VALIDATION = {
    "attention": 0, "path": 4, "batch_size": 0, "context_tokens": 0, "predicted_s": 2,
    "measured_s": 2, "error": 0, "low_s": 3, "high_s": 3, "verdict": 1,
}  # fmt: skip


def validation_screen(
    inputs: Mapping[str, Any],
    columns: Sequence[Any],
    rows: Sequence[Row],
    notes: Sequence[str],
) -> Screen:
    """Whether a profile predicts this machine, and each shape against its band."""
    inside = sum(bool(row["in_band"]) for row in rows)
    errors = sorted(abs(float(row["error"])) for row in rows)
    holds = "holds" if inputs["holds"] else "does not hold"
    return Screen(
        verdict=(
            f"{inputs['gpu']} {holds} for {inputs['model']}: {inside} of {len(rows)} shapes inside "
            f"their 90 % band, median error {_percent(errors[len(errors) // 2])}.",
        ),
        rows=rows,
        columns=picked(columns, _VALIDATION),
        foot=(f"Attention of one layer and decode step, {inputs['dtype']}. {WHY}",),
        notes=[Note(kind="limit", text=one) for one in notes],
    )


def policies_screen(
    n_workers: int, fitted: tuple[float, float], rows: Sequence[Row], name: str
) -> Screen:
    """Whether each placement moved the bytes that it must, and its times.

    Parameters
    ----------
    fitted : median and p90 error of the all-reduce fit on sizes left out.
    """
    agree = sum(bool(row["bytes_agree"]) for row in rows)

    def of(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
        return lambda row: "-" if row[key] is None else write(row[key])

    def us(value: float) -> str:
        return f"{1e6 * value:,.1f}"

    return Screen(
        verdict=(
            f"{agree} of {counted(len(rows), 'placement')} among {counted(n_workers, 'worker')} "
            "moved exactly the predicted bytes.",
            f"All-reduces are predicted to {_percent(fitted[0])} in the median, "
            f"{_percent(fitted[1])} at p90.",
        ),
        rows=rows,
        columns=(
            ScreenColumn(title="design", text=of("attention", str), is_number=False),
            ScreenColumn(title="tokens", text=of("context_tokens", "{:,}".format), drop=4),
            ScreenColumn(title="policy", text=of("policy", str), is_number=False),
            ScreenColumn(
                title="cache B/GPU", text=of("cache_bytes_per_gpu_predicted", "{:,}".format), drop=1
            ),
            ScreenColumn(
                title="fetched B", text=of("link_bytes_per_gpu_predicted", "{:,}".format), drop=3
            ),
            ScreenColumn(title="error", text=of("max_error", "{:.1e}".format), drop=5),
            ScreenColumn(title="attention us", text=of("attention_s", us)),
            ScreenColumn(title="step us", text=of("whole_step_s", us), drop=2),
        ),
        foot=(f"Bytes and times of one layer and decode step on {name}. {WHY}",),
    )
