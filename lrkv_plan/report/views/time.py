"""Plans, crossovers and rooflines for people: times with bands, and what they rest on."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.latency.basis import attention_basis, basis_by_term, time_basis
from lrkv_plan.latency.crossover import describe
from lrkv_plan.latency.evidence import STRONGEST_FIRST
from lrkv_plan.latency.sensitivity import of_two_designs
from lrkv_plan.memory.weights import uncounted_weights
from lrkv_plan.notes import Note, definition, limit
from lrkv_plan.report.screens.crossover import crossover_equations, crossover_screen
from lrkv_plan.report.screens.plan import LRKV_POSITIONS
from lrkv_plan.report.screens.roofline import roofline_equation, roofline_screen
from lrkv_plan.report.screens.step_time import design_step_equations, steps_screen
from lrkv_plan.report.screens.words import sharing_words
from lrkv_plan.report.tables import Column, Row, Table, as_row, count, percent
from lrkv_plan.report.views.assumed import assumed_notes
from lrkv_plan.report.views.calibration import share
from lrkv_plan.report.views.capacity import (
    beyond_maximum,
    bounded,
    deployment_inputs,
    price_note,
)
from lrkv_plan.report.views.specs import DESIGN, model_inputs
from lrkv_plan.specs.budget import parse_budget
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.latency.crossover import Crossover, PairAt
    from lrkv_plan.latency.step import StepModel, StepTime
    from lrkv_plan.report.screens.crossover import Ask, CrossoverAnswer
    from lrkv_plan.report.screens.roofline import RooflineAnswer
    from lrkv_plan.report.screens.step_time import StepsAnswer
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.serving.plan import Plan, PlanRow
    from lrkv_plan.specs.model import ModelSpec


def basis_table(model: ModelSpec, gpu: str, steps: Sequence[tuple[str, StepModel]]) -> Table:
    """Kernel, basis, constants' band and errors of each design's attention on one GPU.

    Parameters
    ----------
    steps : (label, design on the GPU).
    """
    rows = []
    for label, step in steps:
        for kernel in dict.fromkeys(step.kernels):
            rows.append(
                {
                    "attention": label,
                    "kernel": kernel.kernel,
                    "kv_dtype": kernel.kv_dtype,
                    "basis": kernel.basis,
                    "backend": kernel.backend or None,
                    "t0_s": kernel.t0_s,
                    "bytes_per_s": kernel.bytes_per_s,
                    "flops_per_s": kernel.flops_per_s,
                    "band90_low": kernel.band90[0],
                    "band90_high": kernel.band90[1],
                    "held_out_median_error": kernel.held_out_median_error,
                    "held_out_p90_error": kernel.held_out_p90_error,
                    "identified": list(kernel.identified),
                }
            )
    notes = dict.fromkeys(note for _, step in steps for note in step.remarks)
    return Table(
        title=f"What attention times of {model.name} on {gpu} rest on",
        inputs={"model": model_inputs(model), "gpu": gpu},
        rows=rows,
        columns=(
            DESIGN,
            Column(key="kernel", title="kernel", is_number=False),
            Column(key="basis", title="basis", is_number=False),
            Column(key="backend", title="constants of", is_number=False),
            Column(key="band90_low", title="90 % band, low", text=_factor),
            Column(key="band90_high", title="high", text=_factor),
            Column(key="held_out_median_error", title="held-out median", text=share),
            Column(key="held_out_p90_error", title="p90", text=share),
            Column(key="identified", title="identified", text=", ".join, is_number=False),
        ),
        notes=(
            definition(
                "basis: measured on this GPU; other_shape, measured there for another shape; "
                "generation, lent by a GPU of the same generation; datasheet, typical "
                "efficiencies; assumed, no such kernel was measured anywhere"
            ),
            definition(
                "band: factors on the predicted time that hold 90 % of held-out measurements"
            ),
            *(Note(kind="provenance", text=note) for note in notes),
        ),
    )


def _factor(value: float) -> str:
    return f"x {value:.3f}"


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with four significant digits."""
    return f"{1e3 * seconds:.4g}"


_COUNTED = {
    "tp_size": "GPUs", "dp_size": "attention ranks", "ep_size": "expert-parallel GPUs",
    "batch_size": "sequences",
}  # fmt: skip


def plan_inputs(
    model: ModelSpec, deployment: Deployment, target: LatencyTarget, plan: Plan
) -> dict[str, Any]:
    """The resolved inputs of a plan: the deployment with the layout that was settled."""
    settled = replace(deployment, parallel=plan.parallel, n_gpus=plan.n_gpus)
    return {
        "model": model_inputs(model),
        **deployment_inputs(settled),
        "budget": plan.budget,
        "batch_size": plan.batch_size,
        "tpot_ms": None if target.tpot_s is None else 1e3 * target.tpot_s,
        "speculative_tokens": target.speculation.query_tokens,
        "accepted_tokens": target.speculation.accepted_tokens,
    }


def plan_table(model: ModelSpec, inputs: Row, plan: Plan, launch: Sequence[str] = ()) -> Table:
    """One page for a decision: each row at its own load, all GPUs together.

    ``launch`` are the words of the engine's command line for the first row, the own design's.
    """
    rows = [{**_plan_row(model, plan, row), "launch": None} for row in plan.rows]
    rows[0]["launch"] = shlex.join(launch) or None
    has_load = inputs["tpot_ms"] is not None or any(
        row.load is not None and row.load.binds == "stated" for row in plan.rows
    )
    batch = "no batch" if plan.batch_size is None else f"batch {plan.batch_size:,}"
    return Table(
        title=bounded(plan.rows[0].capacity.weights_left_out) + _plan_title(model, plan),
        inputs=inputs,
        rows=rows,
        shown_rows=[{**row, "tpot_band": _band(row)} for row in rows],
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="ratio_to_mha", title="cache of MHA", text=percent),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="kv_params_ratio", title="K/V weights", text=percent),
            Column(key="total_sequences", title="fits", text=count),
            *((Column(key="admitted_sequences", title="served", text=count),) if has_load else ()),
            Column(key="tpot_s", title="ms/token", text=milliseconds),
            Column(key="tpot_band", title="band", is_number=False),
            Column(key="tokens_per_s", title="tok/s", text=lambda x: f"{x:,.0f}"),
            *_cost(rows),
            *((Column(key="binds", title="bound by", is_number=False),) if has_load else ()),
            Column(key="against_own_design", title=f"against own design, {batch}", is_number=False),
        ),
        notes=(
            *beyond_maximum(model, plan.context_tokens),
            f"budget for LRKV, GQA and MLA: {parse_budget(plan.budget).described}; the largest "
            f"rank in it is {plan.ceiling.largest.value}, {plan.ceiling.aligned.value} as a "
            f"multiple of {plan.ceiling.alignment}",
            *_load_remarks(plan, has_load),
            limit(LRKV_POSITIONS),
            *(limit(text) for text in plan.limits),
            *(Note(kind="refusal", text=reason) for reason in plan.refused),
            *assumed_notes((row.attention, row.step) for row in plan.rows),
            *(Note(kind="provenance", text=note) for note in plan.rests_on),
            *price_note(
                plan.rows[0].capacity.gpu, inputs["gpu_hour_usd"], inputs["gpu_hour_usd_source"]
            ),
            *model.remarks,
        ),
    )


def _plan_title(model: ModelSpec, plan: Plan) -> str:
    gpu, layout = plan.rows[0].capacity.gpu, sharing_words(plan.parallel)
    replicas = f" in {plan.n_replicas:,} replicas" if plan.n_replicas > 1 else ""
    chosen = "" if plan.layout is None or plan.n_gpus == 1 else f" (chosen: {plan.layout})"
    return (
        f"Plan for {model.name} on {plan.n_gpus:,} x {gpu}, {layout}{replicas}{chosen}, "
        f"{plan.context_tokens:,} tokens a sequence"
    )


def _load_remarks(plan: Plan, has_load: bool) -> Iterator[Note]:
    everywhere = "" if plan.n_replicas == 1 else f", on all {plan.n_replicas:,} replicas together"
    yield definition(f"fits: full-length sequences that the cache holds{everywhere}")
    if has_load:
        yield definition(
            "served: the load of the row; its times, tok/s and cost are at that load, decode only; "
            "a row without one shows none"
        )
    else:
        yield definition(
            "each row is timed at its own full load: ms/token, tok/s and cost with all that fits"
        )


def _cost(rows: Sequence[Row]) -> tuple[Column, ...]:
    if not any(row["usd_per_million_tokens"] for row in rows):
        return ()
    return (Column(key="usd_per_million_tokens", title="USD/M tokens", text=lambda x: f"{x:.3g}"),)


def _band(row: Row) -> str | None:
    low, high = row["tpot_low_s"], row["tpot_high_s"]
    return None if low is None else f"{milliseconds(low)} to {milliseconds(high)}"


def _plan_row(model: ModelSpec, plan: Plan, row: PlanRow) -> dict[str, Any]:
    capacity, crossover = row.capacity, row.against_own
    first = crossover.crossings[0] if crossover and crossover.crossings else None
    return {
        "model": model.name,
        "gpu": capacity.gpu,
        "kv_dtype": capacity.kv_dtype,
        "attention": row.attention,
        "role": row.role,
        "n_gpus": plan.n_gpus,
        "tp_size": plan.parallel.tp_size,
        "pp_size": plan.parallel.pp_size,
        "dp_size": plan.parallel.dp_size,
        "ep_size": plan.parallel.ep_size,
        "n_replicas": plan.n_replicas,
        "context_tokens": plan.context_tokens,
        "ratio_to_mha": row.ratio_to_mha,
        "kv_params_ratio": row.kv_params_ratio,
        "model_params": row.model_params,
        "weights_left_out": list(capacity.weights_left_out),
        "bytes_per_token_per_gpu": capacity.bytes_per_token_per_gpu,
        "kv_budget_bytes_per_gpu": capacity.kv_budget_bytes_per_gpu,
        "kv_tokens": capacity.kv_tokens,
        "max_sequences": capacity.max_sequences,
        "total_sequences": capacity.total_sequences,
        **_load_row(row),
        "against_own_design": crossover and describe(crossover, ["own", row.attention], "tokens"),
        "first_crossing_tokens": first and first.at,
        "first_crossing_low_tokens": first and first.earliest,
        "first_crossing_high_tokens": first and first.latest,
        "crossings": [] if crossover is None else [as_row(c) for c in crossover.crossings],
    }


_STEP_PARTS = (
    "step_s", "overlap_s", "low_s", "high_s", "attention_s", "linear_s", "all_reduce_s",
    "overhead_s", "matrices_s", "products_s", "experts_s", "small_kernels_s", "exchange_s",
    "engine_s",
)  # fmt: skip
_TERMS = (
    "attention", "matrices", "products", "experts", "small_kernels", "all_reduce", "exchange",
    "engine",
)  # fmt: skip


def _bases_of_terms(model: StepModel, step: StepTime) -> dict[str, str | None]:
    """The evidence of each term of a step; None for a term that it has not."""
    found = {
        re.sub("[ -]", "_", term): basis for term, basis, _ in basis_by_term(model, step)
    }  # fmt: skip
    return {term: found.get(term) for term in _TERMS}


_LOAD_KEYS = (
    "time_basis", "batch_size", "meets_target", "tpot_s", "tpot_low_s", "tpot_high_s",
    "tokens_per_s", "tokens_per_s_per_gpu", "usd_per_million_tokens", "joules_per_token_at_most",
)  # fmt: skip


def _load_row(row: PlanRow) -> dict[str, Any]:
    """A row's load and what it gives; empty values where there is none."""
    load = row.load
    if load is None:
        keys = (*_LOAD_KEYS, *_STEP_PARTS, "basis_by_term", "tokens_per_s_per_user")
        return {"admitted_sequences": 0, "binds": row.missing, **dict.fromkeys(keys)}
    return {
        "admitted_sequences": load.sequences,
        "binds": load.binds if load.meets_target else f"{load.binds}, misses the target",
        **{key: getattr(load, key) for key in _LOAD_KEYS},
        **{key: float(getattr(load.step, key)) for key in _STEP_PARTS},
        "basis_by_term": _bases_of_terms(row.step, load.step),
        "tokens_per_s_per_user": 1 / load.tpot_s,
    }


def step_parts_table(planned: Table) -> Table:
    """A plan's rows with the parts of each step instead of what fits and costs."""
    parts = (
        ("attention_s", "attention"), ("linear_s", "weights"), ("all_reduce_s", "all-reduce"),
        ("overhead_s", "rest"), ("step_s", "step"), ("overlap_s", "all overlapped"),
        ("low_s", "at best"), ("high_s", "at worst"),
    )  # fmt: skip
    return replace(
        planned,
        title="Parts of a decode step, ms",
        columns=(
            planned.columns[0],
            Column(key="batch_size", title="batch", text=count),
            *(Column(key=key, title=f"{title} ms", text=milliseconds) for key, title in parts),
        ),
        notes=(
            definition("batch: sequences of one replica, the row's own load"),
            definition(
                "step: parts summed, nothing overlapped, which is the prediction; all overlapped: "
                "the slowest resource alone"
            ),
            definition("at best, at worst: all constants at the ends of their bands together"),
        ),
    )


def steps_table(answer: StepsAnswer, ask: Ask | None = None) -> Table:
    """One decode step per design: its time, band and parts."""
    model, inputs = answer.model, answer.inputs
    left_out = uncounted_weights(model) if inputs.get("weight_bytes_per_gpu") is None else ()
    batch = int(inputs["batch_size"])
    rows = [
        {
            "attention": label,
            **{key: float(getattr(time, key)) for key in _STEP_PARTS},
            "tokens_per_s": batch / float(time.step_s),
            "weights_left_out": list(left_out),
            "model": model.name,
            "gpu": answer.gpu.name,
            **{key: inputs[key] for key in (*_KEYS, *_LAYOUT_KEYS)},
            "time_basis": time_basis(step, time),
            "attention_basis": attention_basis(step),
            "basis_by_term": _bases_of_terms(step, time),
        }
        for label, step, time in answer.steps
    ]
    notes = dict.fromkeys(note for _, step, _ in answer.steps for note in step.remarks)
    assumed = assumed_notes((label, step) for label, step, _ in answer.steps)
    beyond = tuple(beyond_maximum(model, int(inputs["context_tokens"])))
    return Table(
        title=(
            f"{bounded(left_out, 'Lower bound')}Decode step of {model.name} on {inputs['gpu']}, "
            f"{sharing_words(answer.parallel)}, batch {batch:,}, "
            f"{inputs['context_tokens']:,} tokens each"
        ),
        inputs=inputs,
        rows=rows,
        columns=(
            DESIGN,
            Column(key="step_s", title="step ms", text=milliseconds),
            Column(key="low_s", title="at best", text=milliseconds),
            Column(key="high_s", title="at worst", text=milliseconds),
            Column(key="attention_s", title="attention", text=milliseconds),
            Column(key="linear_s", title="weights", text=milliseconds),
            Column(key="all_reduce_s", title="all-reduce", text=milliseconds),
            Column(key="overhead_s", title="rest", text=milliseconds),
        ),
        notes=(
            *beyond,
            definition(
                "step: parts summed, nothing overlapped, of the named GPUs' sequences together"
            ),
            *assumed,
            *(Note(kind="provenance", text=note) for note in notes),
        ),
        screen=lambda: steps_screen(answer, ask, (*_lower_bound(left_out), *beyond)),
        explain=lambda row: design_step_equations(answer, str(row["attention"])),
    )


def _lower_bound(left_out: Sequence[str]) -> Iterator[Note]:
    if left_out:
        yield limit(f"times are lower bounds: weights leave out {'; '.join(left_out)}")


def crossover_table(answer: CrossoverAnswer, ask: Ask | None = None) -> Table:
    """Where the ranking of two designs changes, and what decides on either side."""
    model, inputs, labels = answer.model, answer.inputs, answer.labels
    variable, crossover = answer.over, answer.found.crossover
    what = _COUNTED.get(variable, variable.replace("_", " "))
    told = describe(crossover, labels, what)
    screened = (
        *_left_out_remarks(model, inputs),
        *beyond_maximum(model, int(inputs.get("context_tokens") or 0)),
    )
    return Table(
        title=f"{labels[0]} against {labels[1]} for {model.name}: {told}",
        inputs=inputs,
        rows=_crossing_rows(answer, told),
        shown_rows=list(answer.found.sides),
        columns=(
            Column(key="place", title=what, text=count),
            Column(key="design", title="design", is_number=False),
            Column(key="step_s", title="step ms", text=milliseconds),
            Column(key="low_s", title="at best", text=milliseconds),
            Column(key="high_s", title="at worst", text=milliseconds),
            Column(key="attention_s", title="attention ms", text=milliseconds),
            Column(key="bound", title="attention bound by", is_number=False),
        ),
        notes=(
            *screened,
            *_band_remarks(labels, crossover),
            *assumed_notes(
                (label, point.models[index])
                for point in answer.found.points
                for index, label in enumerate(labels)
            ),
            *(Note(kind="provenance", text=note) for note in answer.found.rests_on),
        ),
        screen=lambda: crossover_screen(answer, ask, screened),
        explain=lambda row: crossover_equations(answer, row["at"]),
        also={"sensitivity": _firmness_rows(answer)},
    )


def _firmness_rows(answer: CrossoverAnswer) -> list[dict[str, Any]]:
    """How firmly the faster design is ahead at each value that is shown."""
    rows = []
    for point in answer.found.points:
        firm = of_two_designs(point.models, point.steps)
        rows.append({
            "value": point.place, "faster": answer.labels[firm.winner], "ahead_share": firm.share,
            "n_draws": firm.n_draws, "seed": firm.seed,
        })  # fmt: skip
    return rows


def _left_out_remarks(model: ModelSpec, inputs: Row) -> Iterator[Note]:
    """What both designs' weights leave out; it lengthens both steps alike."""
    if inputs.get("weight_bytes_per_gpu") is None and uncounted_weights(model):
        yield limit(
            f"times are lower bounds: weights leave out {'; '.join(uncounted_weights(model))}; the "
            "difference of two designs does not depend on it"
        )


def _crossing_rows(answer: CrossoverAnswer, told: str) -> list[dict[str, Any]]:
    """One row per change, or one that says who leads all along."""
    crossover, labels = answer.found.crossover, answer.labels
    points = {point.place: point for point in answer.found.points}
    rows: list[dict[str, Any]] = [
        {
            "at": crossing.at,
            "faster_before": labels[crossing.faster_before],
            "faster_after": labels[crossing.faster_after],
            "earliest": crossing.earliest,
            "latest": crossing.latest,
            "low": crossover.low,
            "high": crossover.high,
        }
        for crossing in crossover.crossings
    ] or [{"answer": told, "at": None}]
    return [row | _compared(answer, points[row["at"] or crossover.high]) for row in rows]


def _compared(answer: CrossoverAnswer, point: PairAt) -> dict[str, Any]:
    """What was compared and what the comparison rests on there; the variable's own key is empty."""
    inputs = {**answer.inputs, answer.over: None}
    bases = [time_basis(*pair) for pair in zip(point.models, point.steps, strict=True)]
    kernels = [attention_basis(model) for model in point.models]
    crossover = answer.found.crossover
    return {
        "model": answer.model.name,
        "gpu": answer.gpu.name,
        **{key: inputs[key] for key in (*_KEYS, *_LAYOUT_KEYS)},
        "variable": answer.over,
        "first": answer.labels[0],
        "second": answer.labels[1],
        "too_close": not crossover.decided,
        "lead_at_end_s": abs(answer.found.points[-1].lead_s),
        "time_basis": max(bases, key=STRONGEST_FIRST.index),
        "attention_basis": max(kernels, key=STRONGEST_FIRST.index),
    }


# With model and gpu, what tells the rows of several answers apart.
_KEYS = ("context_tokens", "batch_size", "query_tokens", "tp_size", "kv_dtype")
_LAYOUT_KEYS = ("pp_size", "dp_size", "ep_size", "engine")


def _band_remarks(labels: Sequence[str], crossover: Crossover) -> Iterator[Note]:
    for crossing in crossover.crossings:
        early = "never" if crossing.earliest is None else f"{crossing.earliest:,}"
        late = "never" if crossing.latest is None else f"{crossing.latest:,}"
        yield limit(
            f"{labels[crossing.faster_after]} from {crossing.at:,}; from {early} with its "
            f"attention at the fast end of its band and the other's at the slow end, {late} the "
            "other way"
        )


def roofline_table(answer: RooflineAnswer, ask: Ask | None = None) -> Table:
    """Intensity, ridge and bound of each design and path."""
    model, gpu, inputs = answer.model, answer.gpu, answer.inputs
    keys = {"model": model.name, "gpu": gpu.name, **{key: inputs[key] for key in _KEYS}}
    rows = [{"attention": label, **as_row(point), **keys} for label, point in answer.points]
    bound = limit("datasheet bandwidth and dense peak, no efficiencies: a bound, not a prediction")
    return Table(
        title=f"Datasheet roofline of {model.name}'s decode attention on {inputs['gpu']}",
        inputs=inputs,
        rows=rows,
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="path", title="path", is_number=False),
            Column(key="units", title="units", is_number=False),
            Column(key="n_bytes", title="reads and writes", text=format_bytes),
            Column(key="intensity_flops_per_byte", title="FLOP/B", text=lambda x: f"{x:.4g}"),
            Column(key="ridge_flops_per_byte", title="ridge", text=lambda x: f"{x:.4g}"),
            Column(key="bound", title="bound by", is_number=False),
            Column(key="limit_share", title="of peak", text=percent),
            Column(key="memory_s", title="memory ms", text=milliseconds),
            Column(key="compute_s", title="compute ms", text=milliseconds),
        ),
        notes=(
            bound,
            definition("units fp32 are ordinary units, the others tensor cores"),
            *model.remarks,
        ),
        screen=lambda: roofline_screen(answer, ask),
        explain=lambda row: [roofline_equation(gpu, row)],
    )
