"""Public runs of whole engines, row by row beside the predicted step.

A row is one deployment that decodes ``batch`` sequences together: a replica has ``batch /
replicas`` of them, an attention rank ``batch / replicas / dp_attention``, rounded up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lrkv_plan.calibration.samples import read_rows
from lrkv_plan.errors import CalibrationError, PlanError, shown
from lrkv_plan.latency.basis import basis_by_term, time_basis
from lrkv_plan.latency.evidence import Basis
from lrkv_plan.latency.step import StepModel, StepTime, step_model, step_time
from lrkv_plan.specs.deployment import EngineName, Parallelism, parse_engine
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

Row = Mapping[str, str]
REQUIRED = ("id", "model", "gpu", "engine", "batch", "context_tokens")
MEASURED = ("decode_ms", "tpot_ms")


@dataclass(frozen=True, kw_only=True)
class StepRun:
    """One measured deployment, read and checked.

    ``weight_dtype`` is as the row names it; ``batch_size`` is one replica's. [sequences, s]
    """

    id: str
    group: str
    model: str
    gpu: str
    engine: EngineName
    parallel: Parallelism
    n_nodes: int
    query_tokens: int
    weight_dtype: str | None
    kv_dtype: str
    batch_size: int
    context_tokens: int
    measured_s: float


@dataclass(frozen=True, kw_only=True)
class StepPrediction:
    """A run beside its prediction and the model behind it; ``refused`` says why there is none."""

    run: StepRun | None
    id: str
    group: str
    model: StepModel | None = field(default=None, repr=False, compare=False)
    step: StepTime | None = None
    basis: Basis | None = None
    terms: tuple[tuple[str, Basis, float], ...] = ()
    refused: str | None = None


def read_runs(path: Path) -> list[dict[str, str]]:
    """The rows of a table of runs.

    Raises
    ------
    CalibrationError
        If the file lacks a column, or has no row.
    """
    rows = read_rows(path, REQUIRED)
    if not rows:
        raise CalibrationError(f"{path}: has no row")
    if not any(name in rows[0] for name in MEASURED):
        raise CalibrationError(f"{path}: lacks the column {' or '.join(MEASURED)}")
    return rows


def group_of(row: Row) -> str:
    """The group that a row names; else its model, GPU and engine."""
    return row.get("group") or "|".join((row["model"], row["gpu"], row["engine"]))


def run_of(row: Row) -> StepRun:
    """One row as a deployment.

    Raises
    ------
    CalibrationError
        If a cell cannot be read, naming row and column.
    PlanError
        If no engine runs such a deployment, or its measured time is not that of a step.
    """
    replicas = _count(row, "replicas")
    dp_size, tp_size = _count(row, "dp_attention"), _count(row, "tp")
    _refuse_speculation(row)
    known = [name for name in MEASURED if (row.get(name) or "").strip()]
    measured = _number(row, known[0] if known else MEASURED[0])
    return StepRun(
        id=row["id"],
        group=group_of(row),
        model=row["model"],
        gpu=row["gpu"],
        engine=engine_of(row["engine"], row.get("engine_version") or ""),
        parallel=Parallelism(
            tp_size=tp_size, pp_size=_count(row, "pp"), dp_size=dp_size,
            ep_size=_count(row, "moe_ep"),
        ),
        n_nodes=_count(row, "nodes"),
        query_tokens=1,
        weight_dtype=row.get("weight_dtype") or None,
        kv_dtype=row.get("kv_dtype") or "bf16",
        batch_size=math.ceil(_number(row, "batch") / replicas),
        context_tokens=round(_number(row, "context_tokens")),
        measured_s=1e-3 * measured,
    )  # fmt: skip


def _refuse_speculation(row: Row) -> None:
    """A speculative step yields an unknown number of tokens, so a time per token is not its time.

    An empty cell says that speculation was on or is unknown; a table without the column has none.
    """
    if "draft_tokens" not in row:
        return
    if not row["draft_tokens"].strip():
        raise PlanError("speculation on or unknown: a time per token is not that of a step")
    if _count(row, "draft_tokens", least=0):
        raise PlanError("speculation: a time per token is not that of a step")


_NUMBERS = re.compile(r"\d+(?:\.\d+){1,3}")


def engine_of(name: str, version: str) -> EngineName:
    """An engine with the version that a free text begins with; none where it states no number.

    Examples
    --------
    >>> str(engine_of("sglang", "v0.5.9-cu130")), str(engine_of("vllm", "unknown 2025-10"))
    ('sglang@0.5.9', 'vllm')
    """
    found = _NUMBERS.search(version) if re.match(r"v?\d+\.\d", version) else None
    return parse_engine(f"{name}@{found[0]}" if found else name)


def _number(row: Row, name: str) -> float:
    text = (row.get(name) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise CalibrationError(
            f"row {row.get('id')}: {name} {shown(text)}: must be a number above 0"
        )
    return value


def _count(row: Row, name: str, *, least: int = 1, default: int = 1) -> int:
    text = (row.get(name) or "").strip()
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (least <= value < math.inf and value == int(value)):
        raise CalibrationError(
            f"row {row.get('id')}: {name} {shown(text)}: must be a whole number from {least}"
        )
    return int(value)


def weights_named(model: ModelSpec, name: str | None) -> str | None:
    """A row's weight format as ours.

    ``fp8`` names two formats. It is the one of the model's own checkpoint; else by blocks where the
    model has experts (as all public mixtures are) and by channel where it has none.
    """
    if name != "fp8":
        return name
    if model.weight_dtype in ("fp8", "fp8_block"):
        return model.weight_dtype
    return "fp8_block" if model.has_experts else "fp8"


def predict(
    rows: Sequence[Row],
    model_of: Callable[[str], ModelSpec],
    gpu_of: Callable[[str], HardwareProfile],
    *,
    relatives: Sequence[HardwareProfile] = (),
) -> Iterator[StepPrediction]:
    """The predicted step of each row; what cannot be predicted says why.

    Parameters
    ----------
    model_of, gpu_of : the spec and the profile of a name; raise ``PlanError``.
    """
    made: dict[tuple[object, ...], StepModel] = {}
    for row in rows:
        try:
            run = run_of(row)
            spec, gpu = model_of(run.model), gpu_of(run.gpu)
            dtype = weights_named(spec, run.weight_dtype)
            key = (run.model, run.gpu, run.engine, run.parallel, run.n_nodes, dtype, run.kv_dtype)
            if key not in made:
                made[key] = step_model(
                    spec, gpu, kv_dtype=run.kv_dtype, weight_dtype=dtype, parallel=run.parallel,
                    engine=run.engine, relatives=relatives,
                )  # fmt: skip
            step = step_time(made[key], run.context_tokens, run.batch_size, run.query_tokens)
        except PlanError as error:
            yield StepPrediction(run=None, id=row["id"], group=group_of(row), refused=str(error))
            continue
        yield StepPrediction(
            run=run,
            id=run.id,
            group=run.group,
            model=made[key],
            step=step,
            basis=time_basis(made[key], step),
            terms=tuple(
                (term, basis, float(seconds))
                for term, basis, seconds in basis_by_term(made[key], step)
            ),
        )
