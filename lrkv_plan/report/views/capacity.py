"""Capacity as people read it: what fits, what binds, what to try, and the budget's terms."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.notes import Note, definition, limit
from lrkv_plan.report.screens.capacity import (
    CapacityAsked,
    budget_screen,
    capacity_equations,
    capacity_screen,
    layout_words,
)
from lrkv_plan.report.tables import Column, Row, Table, as_row, count, percent
from lrkv_plan.report.views.assumed import assumed_notes
from lrkv_plan.report.views.specs import model_inputs
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec


def capacity_table(answers: Sequence[Answer], asked: CapacityAsked) -> Table:
    """One row per deployment and design; users, times and costs are those of all GPUs together."""
    rows = [_row(answer) for answer in answers]
    first, population = answers[0].deployment, asked.population
    notes = tuple(dict.fromkeys(_remarks(answers, asked)))
    table = Table(
        title=_title(answers, asked),
        inputs=_inputs(answers, asked),
        rows=rows,
        columns=(
            *_varied(rows),
            Column(key="attention", title="design", is_number=False),
            Column(key="n_gpus", title="GPUs", text=count),
            Column(key="tp_size", title="TP", text=count),
            *_size_columns(rows),
            Column(key="context_tokens", title="context", text=count),
            Column(key="kv_budget_bytes_per_gpu", title="budget/GPU", text=format_bytes),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            *_print_columns(first),
            Column(key="total_sequences", title="sequences", text=count),
            Column(key="waste_share", title="waste", text=percent),
            *_price_columns(rows),
            *(_TIME_COLUMNS if any(answer.is_timed for answer in answers) else ()),
            *(_POPULATION_COLUMNS if population is not None else ()),
            Column(key="bound_by", title="bound by", is_number=False),
        ),
        notes=notes,
        explain=lambda row: capacity_equations(answers[_place(rows, row)], asked),
    )
    bound = bounded(_left_out(answers), _bound_word(answers))
    return replace(
        table, screen=lambda: capacity_screen(answers, asked, _records(table.notes), bound)
    )


def _place(rows: Sequence[Row], row: Row) -> int:
    return next(index for index, one in enumerate(rows) if one is row)


def _records(notes: Sequence[str | Note]) -> list[Note]:
    return [note for note in notes if isinstance(note, Note)]


def _varied(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Model, GPU and cache format, where they differ."""
    titles = {"model": "model", "gpu": "GPU", "kv_dtype": "cache"}
    return tuple(
        Column(key=key, title=title, is_number=False)
        for key, title in titles.items()
        if len({row[key] for row in rows}) > 1
    )


def _bound_word(answers: Sequence[Answer]) -> str:
    return "Lower bound" if any(answer.is_smallest for answer in answers) else "Upper bound"


def _title(answers: Sequence[Answer], asked: CapacityAsked) -> str:
    smallest = any(answer.is_smallest for answer in answers)
    what = "Fewest GPUs for" if smallest else "Capacity of"
    if asked.is_longest:
        what = "Longest context of"
    bound = bounded(_left_out(answers), _bound_word(answers))
    models = ", ".join(dict.fromkeys(model.name for model in asked.models))
    gpus = ", ".join(dict.fromkeys(_gpu(answer) for answer in answers))
    formats = ", ".join(dict.fromkeys(answer.deployment.settings.kv_dtype for answer in answers))
    return f"{bound}{what} {models} on {gpus}, {answers[0].deployment.engine}, {formats} cache"


def _gpu(answer: Answer) -> str:
    return answer.deployment.gpu_name or "a stated pool"


def _left_out(answers: Sequence[Answer]) -> Sequence[str]:
    return next((a.row.weights_left_out for a in answers if a.row is not None), ())


def bounded(left_out: Sequence[str], bound: str = "Upper bound") -> str:
    """What a title begins with where weights are left out: the figures are then bounds."""
    return f"{bound}, weights leave out {'; '.join(left_out)}: " if left_out else ""


def beyond_maximum(model: ModelSpec, context_tokens: int) -> Iterator[Note]:
    """A warning where the context is longer than the model's own maximum."""
    most = model.max_context_tokens
    if most is not None and context_tokens > most:
        yield limit(
            f"{context_tokens:,} tokens exceed the model's own maximum of {most:,}: engines refuse "
            "them unless positions are rescaled (such as YaRN)"
        )


def _size_columns(rows: Sequence[Row]) -> tuple[Column, ...]:
    """Sizes other than tensor parallelism's, where any is above 1."""
    kinds = (("pp_size", "PP"), ("dp_size", "DP"), ("ep_size", "EP"), ("dcp_size", "DCP"))
    return tuple(
        Column(key=key, title=title, text=count)
        for key, title in kinds
        if any(row.get(key, 1) > 1 for row in rows)
    )


def _print_columns(first: Deployment) -> tuple[Column, ...]:
    """What the engine prints of one core; named so where there are several."""
    several = first.n_replicas > 1 or first.parallel.dp_size > 1
    of_one = " of one core" if several else ""
    return (
        Column(key="kv_tokens", title=f"kv tokens{of_one}", text=count),
        Column(
            key="max_concurrency", title=f"concurrency{of_one}", text=lambda x: f"{float(x):,.2f}"
        ),
    )


_POPULATION_COLUMNS = (
    Column(key="population_admitted_sequences", title="admitted", text=count),
    Column(key="population_equal_length_sequences", title="if equal", text=count),
    Column(key="population_waste_share", title="page waste", text=percent),
)


_TIME_COLUMNS = (
    Column(key="admitted_sequences", title="served", text=count),
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
        deployment = answer.deployment
        return {
            "model": answer.model and answer.model.name,
            "attention": answer.attention,
            "gpu": deployment.gpu_name,
            "tp_size": deployment.parallel.tp_size,
            "context_tokens": deployment.settings.context_tokens,
            "kv_dtype": deployment.settings.kv_dtype,
            "binds": "refused",
            "bound_by": "refused",
            "refused": answer.refused,
        }
    row = answer.row
    flat = {
        key: getattr(row, key)
        for key in row.__dataclass_fields__
        if key not in ("budget", "population", "prefixes", "remarks", "weights_left_out")
    }
    flat["weights_left_out"] = list(row.weights_left_out)
    flat["pp_layers"] = None if row.pp_layers is None else list(row.pp_layers)
    flat["stages"] = [as_row(stage) for stage in row.stages]
    flat["bound_by"] = row.binds
    low, high = answer.held_between
    flat |= {
        "total_sequences_low": low,
        "total_sequences_high": high,
        "layout": answer.layout,
        "launch": None if answer.launch is None else shlex.join(answer.launch),
        "other_layouts": [
            f"{layout_words(other)}: {other.served}" for other in answer.others
        ],
    }  # fmt: skip
    if answer.pool_context_tokens is not None:
        low, high = answer.context_between
        flat |= {
            "pool_context_tokens": answer.pool_context_tokens,
            "pool_context_tokens_low": low,
            "pool_context_tokens_high": high,
        }
    if row.population is not None:
        flat |= {f"population_{key}": value for key, value in as_row(row.population).items()}
    if row.prefixes is not None:
        shared = as_row(row.prefixes)
        shared["hit_rates"] = [as_row(one) for one in row.prefixes.hit_rates]
        flat |= {f"prefix_{key}": value for key, value in shared.items()}
    admitted = answer.admitted
    if answer.is_timed:
        by = admitted.binds if admitted else "time" if row.max_sequences else "memory"
        low, high = answer.admitted_between
        flat |= {
            "admitted_sequences": admitted.sequences if admitted else 0,
            "admitted_sequences_low": low,
            "admitted_sequences_high": high,
            "admitted_binds": by,
            "time_basis": admitted.time_basis if admitted else None,
            **{key: getattr(admitted, key, None) for key in _ADMITTED},
        }
        if by == "time":
            flat["bound_by"] = "time"
    return {**flat, "try": list(answer.to_try), "refused": None}


_ADMITTED = (
    "time_basis", "batch_size", "tpot_s", "tpot_low_s", "tpot_high_s", "tokens_per_s",
    "tokens_per_s_per_gpu", "usd_per_million_tokens", "joules_per_token_at_most",
)  # fmt: skip


def _remarks(answers: Sequence[Answer], asked: CapacityAsked) -> Iterator[str | Note]:
    population = asked.population
    for answer in answers:
        if answer.model is not None:
            yield from beyond_maximum(answer.model, answer.deployment.settings.context_tokens)
    several = {key: len({of(answer) for answer in answers}) > 1 for key, of in _ABOUT.items()}
    for answer in answers:
        where = f"{answer.attention}, TP {answer.deployment.parallel.tp_size}"
        where = ", ".join([*(of(answer) for key, of in _ABOUT.items() if several[key]), where])
        if answer.refused:
            yield Note(kind="refusal", subject=where, text=answer.refused)
        if answer.to_try:
            context = answer.deployment.settings.context_tokens
            yield Note(
                kind="hint",
                subject=f"{where}, {context:,} tokens",
                text=f"nothing fits; try {'; '.join(answer.to_try)}",
            )
    for answer in answers:
        if answer.row is not None:
            yield from (
                Note(kind="assumption", subject=answer.attention, text=remark)
                for remark in answer.row.remarks
            )
    if any(answer.row and answer.row.budget for answer in answers):
        yield limit(_budget_range(answers))
    yield from (limit(text) for answer in answers for text in answer.limits)
    yield from assumed_notes(
        (answer.attention, answer.step) for answer in answers if answer.step is not None
    )
    yield from (
        Note(kind="provenance", text=note) for answer in answers for note in answer.rests_on
    )
    for answer in answers:
        deployment = answer.deployment
        yield from price_note(
            deployment.gpu_name, deployment.usd_per_gpu_hour, deployment.price_source
        )
    if population is not None:
        yield definition(
            f"{population.n_sequences:,} sequences of {population.name}: admitted in arrival "
            "order, against an estimate with all of them at the mean length"
        )
        yield from population.remarks
    yield from _prefix_remarks(answers)
    for model in asked.models:
        yield from model.remarks


def _prefix_remarks(answers: Sequence[Answer]) -> Iterator[Note]:
    """What the hit rates rest on."""
    accounts = [one.row.prefixes for one in answers if one.row is not None and one.row.prefixes]
    if not accounts:
        return
    first = accounts[0]
    yield definition(
        f"prefixes by hash_ids, blocks of {first.block_tokens:,} tokens: a cache that forgets the "
        "least recently used block, replayed one request after another; a pool that many share at "
        "once finds less"
    )
    if not first.all_read:
        yield limit(f"prefixes of the first {first.n_sequences:,} requests of the file alone")


_ABOUT: dict[str, Callable[[Answer], str]] = {
    "model": lambda answer: answer.model.name if answer.model else "",
    "gpu": _gpu,
    "kv_dtype": lambda answer: f"{answer.deployment.settings.kv_dtype} cache",
}


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


def _inputs(answers: Sequence[Answer], asked: CapacityAsked) -> dict[str, Any]:
    """What was asked; of several models, GPUs or formats the first whole, and all by name."""
    combined = {
        key: list(dict.fromkeys(of(answer) for answer in answers))
        for key, of in (
            ("model", _ABOUT["model"]),
            ("gpu", _gpu),
            ("kv_dtype", lambda answer: answer.deployment.settings.kv_dtype),
        )
    }
    is_several = any(len(names) > 1 for names in combined.values())
    return {
        "model": model_inputs(asked.models[0]),
        **deployment_inputs(answers[0].deployment),
        "population": asked.population and asked.population.name,
        **({"alternatives": combined} if is_several else {}),
    }


def deployment_inputs(first: Deployment) -> dict[str, Any]:
    """A deployment as JSON states it."""
    return {
        "gpu": (
            first.hardware.model_dump(mode="json", exclude_none=True) if first.hardware else None
        ),
        "joined_gpus": [f"{count}x{gpu.name}" for count, gpu in first.joined],
        "engine": str(first.engine),
        "settings": as_row(replace(first.settings, drafter=None))
        | {"drafter": None if (draft := first.settings.drafter) is None else draft.name},
        "parallelism": as_row(first.parallel),
        "n_gpus": first.n_gpus,
        "utilisation": first.utilisation,
        "weight_dtype": first.weight_dtype,
        "weight_bytes_per_gpu": first.weight_bytes,
        "kv_memory_bytes_per_gpu": first.kv_memory_bytes,
        "rank_alignment": first.rank_alignment,
        "budget_file": None
        if first.measured is None
        else (first.measured.budget.model_dump(mode="json", exclude_none=True)),
        "gpu_hour_usd": first.usd_per_gpu_hour,
        "gpu_hour_usd_source": first.price_source,
    }


def price_note(gpu: str | None, usd: float | None, source: str | None) -> Iterator[Note]:
    """Which price costs are reckoned with, where it is the profile's and not the one given."""
    if usd is not None and source not in (None, "given"):
        told = f"{usd:g} USD an hour for one GPU, source: {source}; --gpu-hour-usd states another"
        yield Note(kind="provenance", subject=gpu, text=told)


def budget_table(answers: Sequence[Answer], asked: CapacityAsked) -> Table:
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
    bound = bounded(_left_out(answers))
    models = ", ".join(dict.fromkeys(model.name for model in asked.models))
    own = (remark for model in asked.models for remark in model.remarks)
    refusals = (
        note for note in _remarks(answers, asked)
        if isinstance(note, Note) and note.kind == "refusal"
    )  # fmt: skip
    table = Table(
        title=f"{bound}Memory budget of {models}, one GPU of each pipeline stage",
        inputs=_inputs(answers, replace(asked, population=None)),
        rows=rows,
        columns=(
            *_varied(rows),
            Column(key="attention", title="design", is_number=False),
            Column(key="tp_size", title="TP", text=count),
            Column(key="stage", title="stage", text=count),
            Column(key="term", title="term", is_number=False),
            Column(key="n_bytes", title="memory", text=format_bytes),
            Column(key="low_bytes", title="at worst", text=format_bytes),
            Column(key="high_bytes", title="at best", text=format_bytes),
            Column(key="provenance", title="rests on", is_number=False),
        ),
        notes=tuple(dict.fromkeys((*refusals, *remarks, *own))),
        explain=lambda row: [f"{row['term']}: {row['n_bytes']:,} B, {row['provenance']}"],
    )
    if not rows:
        return table
    return replace(table, screen=lambda: budget_screen(answers, rows, bound, _records(table.notes)))


def _budget_rows(answer: Answer) -> Iterator[dict[str, Any]]:
    if answer.row is None or answer.row.budget is None:
        return
    for index, stage in enumerate(answer.row.budget.stages):
        place = {
            "model": answer.row.model,
            "attention": answer.attention,
            "gpu": answer.row.stages[index].gpu if answer.row.stages else answer.row.gpu,
            "tp_size": answer.row.tp_size,
            "context_tokens": answer.row.context_tokens,
            "kv_dtype": answer.row.kv_dtype,
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
