"""Capacity as people read it: what fits, what binds, what to try, and the budget's terms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.spec_views import model_inputs
from lrkv_plan.report.tables import Column, Row, Table, as_row, count, percent
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.engines.answers import Answer
    from lrkv_plan.engines.deployment import Deployment
    from lrkv_plan.specs.lengths import Population
    from lrkv_plan.specs.model import ModelSpec


def capacity_table(
    model: ModelSpec, answers: Sequence[Answer], population: Population | None
) -> Table:
    """One row per deployment and design."""
    rows = [_row(answer) for answer in answers]
    first = answers[0].deployment
    gpu = first.hardware.name if first.hardware else "a stated pool"
    return Table(
        title=f"Capacity of {model.name} on {gpu}, {first.engine}, {first.settings.kv_dtype} cache",
        inputs=_inputs(model, answers, population),
        rows=rows,
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="n_gpus", title="GPUs", text=count),
            Column(key="tp_size", title="TP", text=count),
            Column(key="context_tokens", title="context", text=count),
            Column(key="kv_budget_bytes_per_gpu", title="budget/GPU", text=format_bytes),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="kv_tokens", title="kv tokens", text=count),
            Column(key="max_concurrency", title="concurrency", text=lambda x: f"{float(x):,.2f}"),
            Column(key="total_sequences", title="sequences", text=count),
            Column(key="waste_share", title="waste", text=percent),
            *_price_columns(rows),
            *(_TIME_COLUMNS if any(answer.rests_on for answer in answers) else ()),
            *(_POPULATION_COLUMNS if population is not None else ()),
            Column(key="binds", title="what binds", is_number=False),
        ),
        remarks=tuple(dict.fromkeys(_remarks(model, answers, population))),
    )


_POPULATION_COLUMNS = (
    Column(key="population_admitted_sequences", title="admitted", text=count),
    Column(key="population_equal_length_sequences", title="if equal", text=count),
    Column(key="population_waste_share", title="page waste", text=percent),
)


_TIME_COLUMNS = (
    Column(key="admitted_sequences", title="fast enough", text=count),
    Column(key="admitted_binds", title="limited by", is_number=False),
    Column(key="tpot_s", title="ms/token", text=lambda x: f"{1e3 * x:.4g}"),
    Column(key="tokens_per_s", title="tok/s", text=lambda x: f"{x:,.0f}"),
    Column(key="usd_per_million_tokens", title="USD/M tokens", text=lambda x: f"{x:.3g}"),
)


def _price_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    if not any(row.get("usd_per_sequence_hour") for row in rows):
        return ()
    return (Column(key="usd_per_sequence_hour", title="USD/sequence/h", text=lambda x: f"{x:.4g}"),)


def _row(answer: Answer) -> dict[str, Any]:
    if answer.row is None:
        parallel = answer.deployment.parallel
        return {
            "attention": answer.attention,
            "tp_size": parallel.tp_size,
            "context_tokens": answer.deployment.settings.context_tokens,
            "binds": "refused",
            "refused": answer.refused,
        }
    row = answer.row
    flat = {
        key: getattr(row, key)
        for key in row.__dataclass_fields__
        if key not in ("budget", "population", "remarks")
    }
    if row.population is not None:
        flat |= {f"population_{key}": value for key, value in as_row(row.population).items()}
    admitted = answer.admitted
    if answer.rests_on:
        flat |= {
            "admitted_sequences": admitted.sequences if admitted else 0,
            "admitted_binds": admitted.binds if admitted else "time or memory",
            **{key: getattr(admitted, key, None) for key in _ADMITTED},
        }
    return {**flat, "try": list(answer.to_try), "refused": None}


_ADMITTED = (
    "tpot_s", "tpot_low_s", "tpot_high_s", "tokens_per_s", "tokens_per_s_per_gpu",
    "usd_per_million_tokens", "joules_per_token_at_most",
)  # fmt: skip


def _remarks(
    model: ModelSpec, answers: Sequence[Answer], population: Population | None
) -> Iterator[str]:
    for answer in answers:
        where = f"{answer.attention}, TP {answer.deployment.parallel.tp_size}"
        if answer.refused:
            yield f"refused: {where}: {answer.refused}"
        if answer.to_try:
            context = answer.deployment.settings.context_tokens
            yield f"{where}, {context:,} tokens: nothing fits; try {'; '.join(answer.to_try)}"
    for answer in answers:
        if answer.row is not None:
            yield from (f"{answer.attention}: {remark}" for remark in answer.row.remarks)
    if any(answer.row and answer.row.budget for answer in answers):
        yield _budget_range(answers)
    yield from (f"rests on: {note}" for answer in answers for note in answer.rests_on)
    if population is not None:
        yield (
            f"{population.n_sequences:,} sequences of {population.name}: admitted in arrival "
            "order, against an estimate with all of them at the mean length"
        )
        yield from population.remarks
    yield from model.remarks


def _budget_range(answers: Sequence[Answer]) -> str:
    rows = [answer.row for answer in answers if answer.row is not None]
    low = max(
        (row.kv_budget_bytes_per_gpu - row.kv_budget_low_bytes_per_gpu for row in rows), default=0
    )
    high = max(
        (row.kv_budget_high_bytes_per_gpu - row.kv_budget_bytes_per_gpu for row in rows), default=0
    )
    return (
        f"the budget may be {format_bytes(low)} lower or {format_bytes(high)} higher; --detail "
        "shows each term and what it rests on"
    )


def _inputs(
    model: ModelSpec, answers: Sequence[Answer], population: Population | None
) -> dict[str, Any]:
    return {
        "model": model_inputs(model),
        **deployment_inputs(answers[0].deployment),
        "population": population and population.name,
    }


def deployment_inputs(first: Deployment) -> dict[str, Any]:
    """A deployment as JSON states it."""
    return {
        "gpu": (
            first.hardware.model_dump(mode="json", exclude_none=True) if first.hardware else None
        ),
        "engine": str(first.engine),
        "settings": as_row(first.settings),
        "parallelism": as_row(first.parallel),
        "n_gpus": first.n_gpus,
        "utilisation": first.utilisation,
        "weight_dtype": first.weight_dtype,
        "weight_bytes_per_gpu": first.weight_bytes,
        "kv_memory_bytes_per_gpu": first.kv_memory_bytes,
        "rank_alignment": first.rank_alignment,
        "gpu_hour_usd": first.gpu_hour_usd,
    }


def budget_table(model: ModelSpec, answers: Sequence[Answer]) -> Table:
    """Every term of each memory budget, with what it rests on."""
    rows = [row for answer in answers for row in _budget_rows(answer)]
    remarks = [
        remark
        for answer in answers
        if answer.row and answer.row.budget
        for remark in answer.row.budget.remarks
    ]
    if not rows:
        remarks.append("the pool was stated (--kv-memory), so there is no budget to show")
    return Table(
        title=f"Memory budget of {model.name}, one GPU of each pipeline stage",
        inputs=_inputs(model, answers, None),
        rows=rows,
        columns=(
            Column(key="attention", title="design", is_number=False),
            Column(key="tp_size", title="TP", text=count),
            Column(key="stage", title="stage", text=count),
            Column(key="term", title="term", is_number=False),
            Column(key="n_bytes", title="memory", text=format_bytes),
            Column(key="low_bytes", title="at worst", text=format_bytes),
            Column(key="high_bytes", title="at best", text=format_bytes),
            Column(key="provenance", title="rests on", is_number=False),
        ),
        remarks=tuple(dict.fromkeys((*remarks, *model.remarks))),
    )


def _budget_rows(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.row is None or answer.row.budget is None:
        return
    for index, stage in enumerate(answer.row.budget.stages):
        place = {
            "attention": answer.attention,
            "tp_size": answer.row.tp_size,
            "context_tokens": answer.row.context_tokens,
            "stage": index,
        }
        for term in stage.terms:
            yield {
                **place,
                "term": term.name,
                "n_bytes": term.n_bytes,
                "low_bytes": term.low_bytes,
                "high_bytes": term.high_bytes,
                "provenance": term.provenance,
            }
        yield {
            **place,
            "term": "cache",
            "n_bytes": stage.kv_bytes,
            "low_bytes": stage.kv_low_bytes,
            "high_bytes": stage.kv_high_bytes,
            "provenance": "sum of the terms",
        }
