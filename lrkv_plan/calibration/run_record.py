"""The record of a run, run.json: where it measured, with which yardsticks, what it left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from lrkv_plan.documents import read_json
from lrkv_plan.errors import CalibrationError, SpecError
from lrkv_plan.files import write_whole
from lrkv_plan.schema import (
    ByteCount,
    BytesPerSecond,
    FlopsPerSecond,
    Frozen,
    Name,
    Remark,
    validate,
)

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.csv"

Count = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Load = Annotated[float, Field(ge=0, le=1e6)]
Spread = Annotated[float, Field(ge=0, le=1e6)]


# What a share of the best measured rate may exceed 1 by. Points repeat to 5 % or the run is noisy;
# two runs of one machine that measured its rates once each had peaks 20 % apart
# (reports/calibration-cpu): so much is allowed where a run does not state how its rates repeated,
# and no run may allow itself more.
LEAST_EXCESS = 0.05
LARGEST_EXCESS = 0.25


class RunInfo(Frozen):
    """Provenance of one run.

    ``stream_bytes_per_s`` and ``peak_flops_per_s`` (by storage format) are measured on the device
    at the threads used; the fitted shares of a CPU refer to them. ``mem_capacity_bytes`` is what
    the device has. Both are the best of ``yardsticks`` measurements before and after the run, whose
    largest exceeded their least by ``stream_spread`` and ``peak_spread`` (a share; all absent in
    runs that measured once). ``dtypes``, ``paths`` and ``attention`` (the user's own designs) are
    what the run measures; a run is resumed with the same. ``cache_state`` is ``cold`` or ``hot`` as
    in the samples. ``load_average`` is the machine's one-minute load before the run,
    ``load_average_end`` after it; ``skipped`` says which points were left out and why.
    """

    device: Literal["cpu", "cuda"]
    device_name: Name | None = None
    torch: Name | None = None
    python: Name | None = None
    driver: Name | None = None
    threads: Count | None = None
    date: Name | None = None
    command: Remark | None = None
    seed: Count | None = None
    stream_bytes_per_s: BytesPerSecond | None = None
    peak_flops_per_s: dict[str, FlopsPerSecond] = Field(default_factory=dict)
    yardsticks: Count | None = None
    stream_spread: Spread | None = None
    peak_spread: dict[str, Spread] = Field(default_factory=dict)
    dtypes: tuple[Name, ...] | None = None
    paths: tuple[Name, ...] | None = None
    attention: tuple[Name, ...] | None = None
    mem_capacity_bytes: ByteCount | None = None
    l2_bytes: ByteCount | None = None
    l3_bytes: ByteCount | None = None
    n_sm: Count | None = None
    cache_state: Name | None = None
    load_average: Load | None = None
    load_average_end: Load | None = None
    clock_hz: Annotated[float, Field(gt=0, le=1e12)] | None = None
    budget_s: Annotated[float, Field(gt=0, le=1e7)] | None = None
    skipped: dict[str, Remark] = Field(default_factory=dict)
    notes: tuple[Remark, ...] = ()


def yardsticks(
    measured: Sequence[Mapping[str, Any]], earlier: RunInfo | None = None
) -> dict[str, Any]:
    """The best rates of several measurements of a device, and how far they lay apart.

    Parameters
    ----------
    measured : what ``machine.measured_peaks`` gave, once or more often.
    earlier : the run that is gone on with; its measurements count too.

    Returns
    -------
    The fields of ``RunInfo`` about them.

    Examples
    --------
    >>> once = {"stream_bytes_per_s": 10e9, "peak_flops_per_s": {"fp32": 50e9}}
    >>> again = {"stream_bytes_per_s": 8e9, "peak_flops_per_s": {"fp32": 50e9}}
    >>> yardsticks([once, again])["stream_spread"]
    0.25
    """
    streams = [one["stream_bytes_per_s"] for one in measured]
    peaks = {name: [one["peak_flops_per_s"][name] for one in measured]
             for name in measured[0]["peak_flops_per_s"]}  # fmt: skip
    count = len(measured)
    if earlier is not None and earlier.stream_bytes_per_s is not None:
        count += earlier.yardsticks or 1
        streams += _ends(earlier.stream_bytes_per_s, earlier.stream_spread)
        for name, rate in earlier.peak_flops_per_s.items():
            peaks.setdefault(name, []).extend(_ends(rate, earlier.peak_spread.get(name)))
    return {
        "yardsticks": count,
        "stream_bytes_per_s": max(streams),
        "stream_spread": _spread(streams),
        "peak_flops_per_s": {name: max(rates) for name, rates in peaks.items()},
        "peak_spread": {name: _spread(rates) for name, rates in peaks.items()},
    }


def _ends(best: float, spread: float | None) -> list[float]:
    """The best and the least of earlier measurements."""
    return [best, best / (1 + (spread or 0.0))]


def _spread(rates: Sequence[float]) -> float:
    return float(f"{max(rates) / min(rates) - 1:.4g}")


def largest_share(info: RunInfo, peak: str | None = None) -> float:
    """What a fitted share of the measured bandwidth may be, or of that measured ``peak``.

    Nothing is faster than the machine: 1, and what its own measurements differed by, from
    ``LEAST_EXCESS`` to ``LARGEST_EXCESS``; the latter where the run does not say.
    """
    spread = info.stream_spread if peak is None else info.peak_spread.get(peak)
    if spread is None or (info.yardsticks or 1) < 2:
        return 1 + LARGEST_EXCESS
    return 1 + min(max(spread, LEAST_EXCESS), LARGEST_EXCESS)


def read_run_info(folder: Path) -> RunInfo:
    """The ``run.json`` of a run's folder.

    Raises
    ------
    CalibrationError
        If it is missing, no JSON, or holds a key or value that is not understood.
    """
    path = folder / RUN_FILE
    try:
        return validate(RunInfo, read_json(path), path)
    except SpecError as error:
        raise CalibrationError(str(error)) from None


def write_run_info(folder: Path, info: RunInfo, *, force: bool = True) -> None:
    """Write ``run.json``, whole or not at all.

    Raises
    ------
    UsageError
        If it cannot be written, or exists and ``force`` is not given.
    """
    write_whole(
        folder / RUN_FILE, info.model_dump_json(indent=2, exclude_none=True) + "\n", force=force
    )
