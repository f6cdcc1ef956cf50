"""Where a run's samples come from: machine, software, date, command, and its measured peaks.

``run.json`` lies beside ``samples.csv``. Everything but the device may be missing: what is missing
is said so, never filled in.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from lrkv_plan.errors import CalibrationError, SpecError
from lrkv_plan.specs.base import ByteCount, BytesPerSecond, FlopsPerSecond, Frozen, Name, Remark
from lrkv_plan.specs.loader import validate
from lrkv_plan.specs.strict_files import read_json
from lrkv_plan.whole_files import write_whole

RUN_FILE = "run.json"
SAMPLES_FILE = "samples.csv"

Count = Annotated[int, Field(strict=True, ge=0, le=10**9)]
Load = Annotated[float, Field(ge=0, le=1e6)]


class RunInfo(Frozen):
    """Provenance of one run.

    ``stream_bytes_per_s`` and ``peak_flops_per_s`` (by storage format) are measured on the device
    at the threads used; the fitted shares of a CPU refer to them. ``mem_capacity_bytes`` is what
    the device has. ``cache_state`` is ``cold`` or ``hot`` as in the samples. ``load_average`` is
    the machine's one-minute load before the run, ``load_average_end`` after it; ``skipped`` says
    which points were left out and why.
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
