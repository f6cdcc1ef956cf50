"""How far predicted decode steps are from public runs of whole engines, run by run and by group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.calibration.samples import table_text
from lrkv_plan.calibration.serving_results import Served, is_result, serving_rows
from lrkv_plan.calibration.step_runs import (
    Row,
    StepPrediction,
    StepRun,
    predict,
    read_runs,
    run_of,
    weights_named,
)
from lrkv_plan.errors import ArgumentError, CalibrationError, PlanError, shown
from lrkv_plan.latency.evidence import Basis
from lrkv_plan.loader import load_all_hardware, load_hardware, load_model

if TYPE_CHECKING:
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

BATCHES = (1, 8, 32, 128, 512)  # the last of each band of batch sizes


@dataclass(frozen=True, kw_only=True)
class StepTerm:
    """One term of a predicted step. [s]"""

    term: str
    basis: Basis
    time_s: float


@dataclass(frozen=True, kw_only=True)
class StepRow:
    """One run beside its prediction; what is None could not be read or predicted.

    ``is_judged`` says whether its quality is one that was asked for: only such rows are counted in
    groups. ``ratio`` is predicted over measured.
    """

    id: str
    group: str
    model: str
    gpu: str
    engine: str
    quality: str | None
    is_judged: bool
    kind: str | None = None
    layout: str | None = None
    batch_band: str | None = None
    weight_dtype: str | None = None
    kv_dtype: str | None = None
    batch_size: int | None = None
    context_tokens: int | None = None
    predicted_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    measured_s: float | None = None
    ratio: float | None = None
    in_band: bool | None = None
    basis: Basis | None = None
    terms: tuple[StepTerm, ...] = field(default=())
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class StepGroup:
    """Errors |predicted / measured - 1| of runs that are alike; None where none was predicted.

    ``n`` runs are judged, ``expressible`` of them predicted. ``in_band`` is the share of those
    inside the 90 % band of their prediction.
    """

    by: str
    group: str
    n: int
    expressible: int
    median_error: float | None
    p90_error: float | None
    median_ratio: float | None
    in_band: float | None


# What runs are grouped by: the key of a row that says it.
GROUPED_BY: dict[str, Callable[[StepRow], str | None]] = {
    "group": lambda row: row.group,
    "gpu": lambda row: row.gpu,
    "engine": lambda row: row.engine.partition("@")[0],
    "kind": lambda row: row.kind,
    "batch": lambda row: row.batch_band,
    "layout": lambda row: row.layout,
    "weights": lambda row: row.weight_dtype,
}


def read_run_files(paths: Sequence[Path], served: Served) -> tuple[list[Row], list[Row]]:
    """Runs of tables and of benchmark results; beside all those, the ones of results.

    Raises
    ------
    CalibrationError
        If a file cannot be read as either.
    ArgumentError
        If something that a result does not say was not given, or was given without a result.
    """
    rows: list[Row] = []
    results: list[Row] = []
    for path in paths:
        if not is_result(table_text(path)):
            rows += read_runs(path)
            continue
        found = serving_rows(path, served)
        rows += found
        results += found
    if not results and served != Served():
        given = [one.name for one in fields(Served) if getattr(served, one.name) is not None]
        raise ArgumentError(given, f": is not used; {paths[0]} says it row by row")
    return rows, results


def evaluate_steps(
    runs: Sequence[Row],
    *,
    qualities: Sequence[str] = ("A",),
    spec_dir: Path | None = None,
) -> list[StepRow]:
    """Each run beside its predicted step, in their order.

    Parameters
    ----------
    runs : rows with the columns of ``step_runs``.
    qualities : of the ``quality`` column, those that are judged; a row without one is.
    spec_dir : a folder of YAML files, and of folders with a config.json, searched first.

    Raises
    ------
    CalibrationError
        If a cell of a judged row cannot be read, naming row and column, or no row is judged.
    SpecError
        If there is no such folder.
    """

    @cache
    def model_of(name: str) -> ModelSpec:
        return model_named(name, spec_dir)

    @cache
    def gpu_of(name: str) -> HardwareProfile:
        return load_hardware(name, spec_dir=spec_dir)

    relatives = load_all_hardware(spec_dir)
    judged = [not row.get("quality") or row["quality"] in qualities for row in runs]
    if not any(judged):
        there = ", ".join(sorted({row["quality"] for row in runs}))
        raise CalibrationError(
            f"no run is of quality {shown(','.join(qualities))}; there are {shown(there)}"
        )
    read = [_read(row, is_judged) for row, is_judged in zip(runs, judged, strict=True)]
    return [
        _row(row, run, is_judged, one, model_of)
        for row, run, is_judged, one in zip(
            runs, read, judged, predict(runs, model_of, gpu_of, relatives=relatives), strict=True
        )
    ]


def _read(row: Row, is_judged: bool) -> StepRun | None:
    """The run; None where its deployment, or a row that nobody judges, cannot be read."""
    try:
        return run_of(row)
    except CalibrationError:
        if is_judged:
            raise
    except PlanError:
        pass
    return None


def model_named(name: str, spec_dir: Path | None) -> ModelSpec:
    """The model of a name or path; ``spec_dir`` may hold its YAML or its folder with a config.json.

    Raises
    ------
    SpecError
        If nothing of that name exists, or the file is invalid.
    """
    if spec_dir is not None and Path(name).name == name:
        own = spec_dir / name
        if (own / "config.json").is_file():
            return load_model(own)
    return load_model(name, spec_dir=spec_dir)


def _row(
    row: Row,
    run: StepRun | None,
    is_judged: bool,
    found: StepPrediction,
    model_of: Callable[[str], ModelSpec],
) -> StepRow:
    told = StepRow(
        id=found.id, group=found.group, model=row["model"], gpu=row["gpu"],
        engine=row["engine"] if run is None else str(run.engine),
        quality=row.get("quality") or None, is_judged=is_judged, refused=found.refused,
    )  # fmt: skip
    if run is None:
        return told
    weights, kind = run.weight_dtype, None
    try:
        model = model_of(run.model)
        kind = kind_of(model)
        weights = weights_named(model, run.weight_dtype) or model.weight_dtype
    except PlanError:
        pass  # why is said by the prediction
    told = replace(
        told, kind=kind, layout=layout_words(run), batch_band=batch_band(run.batch_size),
        weight_dtype=weights, kv_dtype=run.kv_dtype, batch_size=run.batch_size,
        context_tokens=run.context_tokens, measured_s=run.measured_s,
    )  # fmt: skip
    if found.step is None:
        return told
    step = found.step
    low_s, high_s = float(step.low_s), float(step.high_s)
    return replace(
        told, predicted_s=float(step.step_s), low_s=low_s, high_s=high_s,
        ratio=float(step.step_s) / run.measured_s, in_band=low_s <= run.measured_s <= high_s,
        basis=found.basis,
        terms=tuple(StepTerm(term=t, basis=b, time_s=s) for t, b, s in found.terms),
    )  # fmt: skip


def kind_of(model: ModelSpec) -> str:
    """The designs of a model's layers, and whether tokens are routed to experts."""
    designs = dict.fromkeys(
        "recurrent" if group.attention is None else group.attention.family
        for group in model.layers
        if group.attention is not None or group.state
    )
    return f"{' + '.join(designs)}, {'experts' if model.has_experts else 'dense'}"


def layout_words(run: StepRun) -> str:
    """How one replica lies on its GPUs.

    Attention ranks are GPUs of their own groups: ``attention DP 8`` of one GPU each.
    """
    laid, n_nodes = run.parallel, run.n_nodes
    sizes = {
        "TP": laid.tp_size, "PP": laid.pp_size, "attention DP": laid.dp_size, "EP": laid.ep_size,
    }  # fmt: skip
    parts = [f"{name} {n}" for name, n in sizes.items() if n > 1]
    parts += [f"{n_nodes} nodes"] if n_nodes > 1 else []
    return ", ".join(parts) or "one GPU"


def batch_band(batch_size: int) -> str:
    """The band of batch sizes, of one replica.

    Examples
    --------
    >>> [batch_band(n) for n in (1, 2, 8, 9, 513)]
    ['1', '2 to 8', '2 to 8', '9 to 32', 'above 512']
    """
    first = 0
    for last in BATCHES:
        if batch_size <= last:
            return str(last) if last == first + 1 else f"{first + 1} to {last}"
        first = last
    return f"above {first}"


def step_groups(rows: Sequence[StepRow], by: str) -> list[StepGroup]:
    """Judged rows that are alike, worst median error first, those without a prediction last.

    Bands of batch sizes stand in their order.
    """
    members: dict[str, list[StepRow]] = {}
    for row in rows:
        if row.is_judged:
            members.setdefault(GROUPED_BY[by](row) or "unknown", []).append(row)
    if by == "batch":
        members = dict(sorted(members.items(), key=lambda one: one[1][0].batch_size or 0))
    found = [step_group(by, name, alike) for name, alike in members.items()]
    if by == "batch":
        return found
    return sorted(found, key=lambda one: -1.0 if one.median_error is None else one.median_error,
                  reverse=True)  # fmt: skip


def step_group(by: str, name: str, rows: Sequence[StepRow]) -> StepGroup:
    """The errors of some rows together."""
    import numpy as np

    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios:
        return StepGroup(
            by=by, group=name, n=len(rows), expressible=0, median_error=None, p90_error=None,
            median_ratio=None, in_band=None,
        )  # fmt: skip
    errors = np.abs(np.array(ratios) - 1)
    return StepGroup(
        by=by,
        group=name,
        n=len(rows),
        expressible=len(ratios),
        median_error=float(np.median(errors)),
        p90_error=float(np.quantile(errors, 0.9)),
        median_ratio=float(np.median(ratios)),
        in_band=sum(bool(row.in_band) for row in rows) / len(ratios),
    )


def reasons(rows: Sequence[StepRow]) -> Iterator[tuple[str, int]]:
    """(why judged rows are not predicted, how many), the most first."""
    found: dict[str, int] = {}
    for row in rows:
        if row.is_judged and row.refused is not None:
            found[row.refused] = found.get(row.refused, 0) + 1
    yield from sorted(found.items(), key=lambda one: -one[1])
