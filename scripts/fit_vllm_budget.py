"""Fits the constants of vLLM's activation peak on half of the printed budgets; prints the errors.

Reads tests/golden/vllm_memory_budgets.yaml and prints the table for lrkv_plan/serving/engines/
vllm_activation.py. The split: configurations (model architecture, tp, pp) are numbered in order of
first appearance; even ones are fitted, odd ones held out, so that all rows of one configuration
(other weights, cache formats, lengths) lie on one side. The form of the formula was found with all
rows in sight; only its constants are blind to the held-out half. Rows under only_totals came last
and shaped neither.

    python scripts/fit_vllm_budget.py
"""

from __future__ import annotations

import statistics
from dataclasses import astuple, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import yaml

import lrkv_plan
from lrkv_plan.serving.budget import BudgetInputs, MemoryBudget
from lrkv_plan.serving.budget_rules import budget_for
from lrkv_plan.serving.engine import pool_of
from lrkv_plan.serving.engines.vllm import placement, profiled_step
from lrkv_plan.serving.engines.vllm_activation import (
    FITTED,
    GIB,
    ActivationConstants,
    Step,
    activation_peak_bytes,
    forward_peak_bytes,
    kept_buffers_bytes,
    sampler_peak_bytes,
)
from lrkv_plan.specs.deployment import EngineSettings, Parallelism, parse_engine
from lrkv_plan.specs.model import ModelSpec

GOLDEN = Path(__file__).parent.parent / "tests" / "golden"
ZERO = ActivationConstants(base_bytes=0, forward_hidden_states=0, encoder_bytes=0)
# The fitted constants, and a unit of each that makes the columns of the system alike. [bytes]
UNITS = {"base_bytes": GIB, "forward_hidden_states": 1.0, "encoder_bytes": GIB}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One printed budget and what it was printed for."""

    row: dict[str, Any]
    model: ModelSpec
    parallel: Parallelism
    is_fitted: bool | None  # None: a row whose terms were not printed

    @property
    def prints_head(self) -> bool:
        """Whether the printed activation is that of a stage with the head."""
        return self.parallel.pp_size == 1

    def inputs(self, engine: str) -> BudgetInputs:
        """What the budget rule reads for this row."""
        return BudgetInputs(
            engine=parse_engine(f"vllm@{engine}"),
            model=self.model,
            hardware=lrkv_plan.load_hardware("h100-sxm"),
            parallel=self.parallel,
            settings=EngineSettings(
                context_tokens=self.row["max_model_len"], kv_dtype=self.row["kv"]
            ),
            utilisation=Fraction(str(self.row["utilisation"])),
            weight_dtype=self.row["weights"],
        )

    def budget(self, engine: str) -> MemoryBudget:
        """The predicted budget, from model, GPU, version and settings alone."""
        inputs = self.inputs(self.row.get("engine", engine))
        return budget_for(
            inputs.engine, inputs.model, inputs.hardware, inputs.parallel, inputs.settings,
            utilisation=inputs.utilisation, weight_dtype=inputs.weight_dtype,
        )  # fmt: skip


def cases() -> tuple[str, list[Case]]:
    """The engine version of the rows and all rows, split by configuration."""
    table = yaml.safe_load((GOLDEN / "vllm_memory_budgets.yaml").read_text())
    order: dict[tuple[str, int, int], int] = {}
    found = []
    for kind in ("rows", "only_totals"):
        for row in table[kind]:
            name = row["model"]
            path = str(GOLDEN / name) if name.startswith("models/") else name
            number = None
            if kind == "rows":
                number = order.setdefault((name, row["tp"], row["pp"]), len(order))
            found.append(
                Case(
                    row=row,
                    model=lrkv_plan.load_model(path),
                    parallel=Parallelism(tp_size=row["tp"], pp_size=row["pp"]),
                    is_fitted=None if number is None else number % 2 == 0,
                )
            )
    return table["engine"], found


def fitted_constants(engine: str, all_cases: list[Case]) -> ActivationConstants:
    """Least squares over one row per fitted configuration and weight format.

    Which of the two peaks a row shows is not known beforehand: it is taken from the constants so
    far and the fit repeated until it no longer changes.
    """
    distinct = {(c.row["model"], c.parallel, c.row["weights"]): c for c in all_cases if c.is_fitted}
    observed = [(c, profiled_step(c.inputs(engine))) for c in distinct.values()]
    constants = replace(ZERO, forward_hidden_states=4.0)
    for _ in range(10):
        rows, values = zip(*(_equation(c, step, constants) for c, step in observed), strict=True)
        solved = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
        amounts: dict[str, Any] = {
            n: float(x) * unit for (n, unit), x in zip(UNITS.items(), solved, strict=True)
        }
        updated = replace(constants, **amounts)
        if np.allclose(astuple(updated), astuple(constants), rtol=1e-9):
            break
        constants = updated
    rounded = replace(
        constants,
        base_bytes=round(constants.base_bytes / GIB, 3) * GIB,
        forward_hidden_states=round(constants.forward_hidden_states, 2),
        encoder_bytes=round(constants.encoder_bytes / GIB, 3) * GIB,
        n_rows=len(observed),
    )
    held_out = [c for c in all_cases if c.is_fitted is False]
    worst = max(abs(activation_error_gib(c, engine, rounded)) for c in held_out)
    return replace(rounded, band_bytes=round(worst * 100) * GIB // 100)


def placed_medians(all_cases: list[Case], term: str) -> dict[str, tuple[float, float, float]]:
    """Median, least and most of a printed term over the fitted rows, by placement. [GiB]"""
    found: dict[str, list[float]] = {}
    for case in all_cases:
        if case.is_fitted:
            found.setdefault(placement(case.parallel), []).append(float(case.row[term]))
    return {kind: (statistics.median(v), min(v), max(v)) for kind, v in found.items()}


def _equation(case: Case, step: Step, so_far: ActivationConstants) -> tuple[list[float], float]:
    """One row of the linear system in GiB: coefficients of the constants, what they explain."""
    sampler = sampler_peak_bytes(case.model, step, so_far) if case.prints_head else 0
    is_sampler = sampler > forward_peak_bytes(case.model, step, case.parallel, so_far)

    def bytes_with(constants: ActivationConstants) -> float:
        peak = (
            sampler_peak_bytes(case.model, step, constants)
            if is_sampler
            else forward_peak_bytes(case.model, step, case.parallel, constants)
        )
        return peak + kept_buffers_bytes(case.model, step, case.parallel, constants)

    known = bytes_with(ZERO)
    ones: list[dict[str, Any]] = [{name: unit} for name, unit in UNITS.items()]
    coefficients = [(bytes_with(replace(ZERO, **one)) - known) / GIB for one in ones]
    return coefficients, case.row["activation_gib"] - known / GIB


def activation_error_gib(case: Case, engine: str, constants: ActivationConstants) -> float:
    """Predicted minus printed activation peak. [GiB]"""
    predicted = activation_peak_bytes(
        case.model, profiled_step(case.inputs(engine)), case.parallel,
        has_head=case.prints_head, constants=constants,
    )  # fmt: skip
    return predicted / GIB - float(case.row["activation_gib"])


def main() -> None:
    """Print constants, and errors of both halves."""
    engine, found = cases()
    constants = fitted_constants(engine, found)
    print(constants)
    print("non-torch", placed_medians(found, "non_torch_gib"))
    print("CUDA graphs", placed_medians(found, "graphs_gib"))
    for name, state in (("fitted", True), ("held out", False), ("totals only", None)):
        group = [c for c in found if c.is_fitted is state]
        errors = [abs(tokens_error(case, engine)) for case in group]
        for case in group:
            print(f"{name:11} {_line(case, engine)}")
        print(f"{name}: median {statistics.median(errors):.2%} worst {max(errors):.2%}\n")


def _line(case: Case, engine: str) -> str:
    row, weights = case.row, weights_gib(case, engine)
    share = weights / float(row["weights_gib"]) - 1
    error = "" if case.is_fitted is None else f"{activation_error_gib(case, engine, FITTED):+.2f}"
    return (
        f"{row['hub'][-44:]:44} tp{row['tp']} pp{row['pp']} {row['weights']:5} weights "
        f"{weights:6.2f} of {row['weights_gib']:6} ({share:+.1%}) activation {error:5} "
        f"tokens {tokens_error(case, engine):+.2%}"
    )


def weights_gib(case: Case, engine: str) -> float:
    """What vLLM prints as the model's memory, for the stage that the row shows. [GiB]"""
    stages = case.budget(engine).stages
    stage = stages[0 if len(stages) < 3 else 1]  # the row of four stages shows an inner one
    parts = ("weights", "rotary tables", "expert padding")
    return -sum(stage.bytes_of(part) for part in parts) / GIB


def tokens_error(case: Case, engine: str) -> float:
    """Predicted over printed tokens, less 1."""
    budget = case.budget(engine)
    inputs = case.inputs(case.row.get("engine", engine))
    pool = pool_of(
        case.model, budget.stage_kv_bytes_per_gpu, inputs.settings,
        engine=inputs.engine, parallel=case.parallel,
    )  # fmt: skip
    return pool.kv_tokens / int(case.row["kv_tokens"]) - 1


if __name__ == "__main__":
    main()
