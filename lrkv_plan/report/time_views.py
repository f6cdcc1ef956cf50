"""Plans, crossovers and rooflines for people: times with bands, and what they rest on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.crossover import describe
from lrkv_plan.report.tables import Column, Row, Table, as_row, count, percent
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.calculators.crossover import Crossover
    from lrkv_plan.calculators.roofline import RooflinePoint
    from lrkv_plan.engines.plan import Plan, PlanRow
    from lrkv_plan.specs.model import ModelSpec


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with four significant digits."""
    return f"{1e3 * seconds:.4g}"


_COUNTED = {"tp_size": "GPUs", "batch_size": "sequences"}
LRKV_POSITIONS = (
    "LRKV keeps rotary positions exact with position=rope_expand (keys rebuilt, more arithmetic); "
    "without it the basis must be trained for rotation in rank space, or positions are another kind"
)


def plan_table(model: ModelSpec, inputs: Row, plan: Plan) -> Table:
    """One page for a decision."""
    rows = [_plan_row(plan, row) for row in plan.rows]
    gpu, each = plan.rows[0].capacity.gpu, plan.parallel.tp_size
    replicas = f" in {plan.n_replicas} replicas of {each}" if plan.n_replicas > 1 else ""
    return Table(
        title=f"Plan for {model.name} on {plan.n_gpus} x {gpu}{replicas}, "
        f"{plan.context_tokens:,} tokens a sequence; steps at batch {plan.batch_size:,}",
        inputs=inputs,
        rows=rows,
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="ratio_to_mha", title="cache of MHA", text=percent),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="kv_params_ratio", title="K/V weights", text=percent),
            Column(key="max_sequences", title="fits", text=count),
            Column(key="step_s", title="step ms", text=milliseconds),
            Column(key="step_band", title="band", is_number=False),
            Column(key="admitted_sequences", title="admitted", text=count),
            Column(key="tokens_per_s_per_user", title="tok/s/user", text=lambda x: f"{x:.1f}"),
            Column(key="tokens_per_s_per_gpu", title="tok/s/GPU", text=lambda x: f"{x:,.0f}"),
            *_cost(rows),
            Column(key="against_own_design", title="against own design", is_number=False),
        ),
        remarks=(
            f"budget for LRKV, GQA and MLA: {plan.budget}; the largest rank in it is "
            f"{plan.ceiling.largest.value}, {plan.ceiling.aligned.value} as a multiple of "
            f"{plan.ceiling.alignment}",
            "fits: full-length sequences that the cache of one replica holds",
            "admitted: the smaller of what fits and what meets --tpot-ms; tok/s are at that batch, "
            "decode only",
            LRKV_POSITIONS,
            *(f"refused: {reason}" for reason in plan.refused),
            *(f"rests on: {note}" for note in plan.rests_on),
            *model.remarks,
        ),
    )


def _cost(rows: Sequence[Row]) -> tuple[Column, ...]:
    if not any(row["usd_per_million_tokens"] for row in rows):
        return ()
    return (Column(key="usd_per_million_tokens", title="USD/M tokens", text=lambda x: f"{x:.3g}"),)


def _plan_row(plan: Plan, row: PlanRow) -> dict[str, Any]:
    step, admitted, capacity = row.step, row.admitted, row.capacity
    seconds = {
        key: float(getattr(step, key))
        for key in ("step_s", "overlap_s", "low_s", "high_s", "attention_s", "linear_s",
                    "all_reduce_s", "overhead_s")
    }  # fmt: skip
    crossover = row.against_own
    return {
        "attention": row.attention,
        "role": row.role,
        "ratio_to_mha": row.ratio_to_mha,
        "kv_params_ratio": row.kv_params_ratio,
        "model_params": row.model_params,
        "bytes_per_token_per_gpu": capacity.bytes_per_token_per_gpu,
        "kv_budget_bytes_per_gpu": capacity.kv_budget_bytes_per_gpu,
        "kv_tokens": capacity.kv_tokens,
        "max_sequences": capacity.max_sequences,
        "batch_size": plan.batch_size,
        **seconds,
        "step_band": f"{milliseconds(seconds['low_s'])} to {milliseconds(seconds['high_s'])}",
        "admitted_sequences": admitted.sequences if admitted else 0,
        "binds": admitted.binds if admitted else "nothing is admitted",
        "tpot_s": admitted and admitted.tpot_s,
        "tokens_per_s_per_user": admitted and 1 / admitted.tpot_s,
        "tokens_per_s_per_gpu": admitted and admitted.tokens_per_s_per_gpu,
        "usd_per_million_tokens": admitted and admitted.usd_per_million_tokens,
        "joules_per_token_at_most": admitted and admitted.joules_per_token_at_most,
        "n_replicas": plan.n_replicas,
        "admitted_on_all_gpus": plan.n_replicas * (admitted.sequences if admitted else 0),
        "tokens_per_s_on_all_gpus": admitted and plan.n_gpus * admitted.tokens_per_s_per_gpu,
        "against_own_design": crossover and describe(crossover, ["own", row.attention], "tokens"),
        "crossings": [] if crossover is None else [as_row(c) for c in crossover.crossings],
    }


def step_parts_table(planned: Table) -> Table:
    """A plan's rows with the parts of each step instead of what fits and costs."""
    parts = (
        ("attention_s", "attention"), ("linear_s", "weights"), ("all_reduce_s", "all-reduce"),
        ("overhead_s", "overhead"), ("step_s", "step"), ("overlap_s", "all overlapped"),
        ("low_s", "at best"), ("high_s", "at worst"),
    )  # fmt: skip
    return replace(
        planned,
        title="Parts of a decode step, ms",
        columns=(
            planned.columns[0],
            *(Column(key=key, title=f"{title} ms", text=milliseconds) for key, title in parts),
        ),
        remarks=(
            "step: parts summed, nothing overlapped, which is the prediction; all overlapped: the "
            "slowest resource alone",
            "at best, at worst: all constants at the ends of their bands together",
        ),
    )


def crossover_table(
    model: ModelSpec,
    inputs: Row,
    labels: Sequence[str],
    crossover: Crossover,
    sides: Sequence[Row],
    rests_on: Sequence[str],
) -> Table:
    """Where the ranking of two designs changes, and what decides on either side."""
    variable = str(inputs["over"])
    answer = describe(crossover, labels, _COUNTED.get(variable, variable.replace("_", " ")))
    rows = [_crossing_row(labels, crossover, index) for index in range(len(crossover.crossings))]
    return Table(
        title=f"{labels[0]} against {labels[1]} for {model.name}: {answer}",
        inputs=inputs,
        rows=rows or [{"variable": variable, "answer": answer, "at": None}],
        shown_rows=list(sides),
        columns=(
            Column(
                key="place", title=_COUNTED.get(variable, variable.replace("_", " ")), text=count
            ),
            Column(key="design", title="design", is_number=False),
            Column(key="step_s", title="step ms", text=milliseconds),
            Column(key="low_s", title="at best", text=milliseconds),
            Column(key="high_s", title="at worst", text=milliseconds),
            Column(key="attention_s", title="attention ms", text=milliseconds),
            Column(key="bound", title="attention bound by", is_number=False),
        ),
        remarks=(
            *_band_remarks(labels, crossover),
            *(f"rests on: {note}" for note in rests_on),
        ),
    )


def _crossing_row(labels: Sequence[str], crossover: Crossover, index: int) -> dict[str, Any]:
    crossing = crossover.crossings[index]
    return {
        "at": crossing.at,
        "faster_before": labels[crossing.faster_before],
        "faster_after": labels[crossing.faster_after],
        "earliest": crossing.earliest,
        "latest": crossing.latest,
        "low": crossover.low,
        "high": crossover.high,
    }


def _band_remarks(labels: Sequence[str], crossover: Crossover) -> Iterator[str]:
    for crossing in crossover.crossings:
        early = "never" if crossing.earliest is None else f"{crossing.earliest:,}"
        late = "never" if crossing.latest is None else f"{crossing.latest:,}"
        yield (
            f"{labels[crossing.faster_after]} from {crossing.at:,}; from {early} with its "
            f"attention at the fast end of its band and the other's at the slow end, {late} the "
            "other way"
        )


def roofline_table(
    model: ModelSpec, inputs: Row, points: Sequence[tuple[str, RooflinePoint]]
) -> Table:
    """Intensity, ridge and bound of each design and path."""
    rows = [{"attention": label, **as_row(point)} for label, point in points]
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
        remarks=(
            "datasheet bandwidth and dense peak, no efficiencies: a bound, not a prediction",
            "units fp32 are ordinary units, the others tensor cores",
            *model.remarks,
        ),
    )
