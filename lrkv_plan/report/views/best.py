"""The rows of ``best``: a way of serving per GPU and design, with what it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lrkv_plan.notes import Note
from lrkv_plan.report.screens.best import Answered, BestAnswer, best_screen
from lrkv_plan.report.tables import Column, Row, Table
from lrkv_plan.specs.deployment import SIZES


def best_table(answer: BestAnswer, given: Mapping[str, Any]) -> Table:
    """The answer; ``also`` holds what each uncertain constant does to the winner."""
    rows = [_row(one, answer, place) for place, one in enumerate(answer.answers)]
    return Table(
        title=f"{answer.model.name}: {answer.wish.n_sequences:,} users",
        inputs=_inputs(answer, given),
        rows=rows,
        columns=tuple(Column(key=key, title=key) for key in rows[0]),
        notes=tuple(_notes(answer)),
        screen=lambda: best_screen(answer),
        explain=lambda row: _explained(answer, row),
        also={"sensitivity": _sensitivity(answer)},
    )


def _inputs(answer: BestAnswer, given: Mapping[str, Any]) -> dict[str, Any]:
    target, firm = answer.wish.target, answer.firmness
    tpot_s = None if target is None else target.tpot_s
    return {
        "model": answer.model.name,
        "users": answer.wish.n_sequences,
        "context_tokens": answer.context_tokens,
        "tpot_ms": None if tpot_s is None else tpot_s * 1e3,
        "gpus": list(dict.fromkeys(one.hardware.name for one in answer.answers)),
        "designs": list(dict.fromkeys(one.attention for one in answer.answers)),
        "engine": str(answer.answers[0].base.engine),
        "budget_usd_hour": answer.wish.most_usd_per_hour,
        "max_gpus": answer.wish.most_gpus,
        **{name: dict(answer.wish.stated).get(name) for name in SIZES},
        "n_draws": 0 if firm is None else firm.n_draws,
        "seed": 0 if firm is None else firm.seed,
        "families": bool(given["families"]),
    }


def _row(one: Answered, answer: BestAnswer, place: int) -> dict[str, Any]:
    way, load = one.way, None if one.way is None else one.way.load
    weights = None if way is None else way.deployment.weight_dtype or way.model.weight_dtype
    row = None if way is None else way.row
    firm = answer.firmness
    is_ranked = firm is not None and way is not None and place < len(firm.shares)
    return {
        "model": answer.model.name,
        "attention": one.attention,
        "gpu": one.hardware.name,
        "kv_dtype": row.kv_dtype if row else None,
        "weight_dtype": weights,
        "n_gpus": row.n_gpus if row else None,
        "n_replicas": None if way is None else way.deployment.n_replicas,
        **{name: getattr(row, name) if row else None for name in SIZES},
        "context_tokens": answer.context_tokens,
        "bytes_per_token_per_gpu": row.bytes_per_token_per_gpu if row else None,
        "max_sequences": row.max_sequences if row else None,
        "total_sequences": row.total_sequences if row else None,
        "served_per_replica": way.served if way else None,
        "batch_size": load.batch_size if load else None,
        "tpot_s": load.tpot_s if load else None,
        "tpot_low_s": load.tpot_low_s if load else None,
        "tpot_high_s": load.tpot_high_s if load else None,
        "time_basis": load.time_basis if load else None,
        "tokens_per_s": load.tokens_per_s if load else None,
        "usd_per_hour": way.usd_per_hour if way else None,
        "usd_per_million_tokens": load.usd_per_million_tokens if load else None,
        "ahead_share": firm.shares[place] if is_ranked and firm is not None else None,
        "launch": " ".join(answer.launch) if place == 0 and answer.launch else None,
        "refused": one.refused,
    }


def _sensitivity(answer: BestAnswer) -> list[dict[str, Any]]:
    firm = answer.firmness
    if firm is None:
        return []
    found = [one for one in answer.answers if one.way is not None]

    several = answer.has_several_designs

    def name(place: int) -> str:
        gpu = found[place].hardware.name
        return f"{gpu} {found[place].attention}" if several else gpu

    return [
        {
            "constant": row.name, "low_factor": row.low, "high_factor": row.high,
            "low_cost": _finite(row.low_cost), "high_cost": _finite(row.high_cost),
            "low_winner": name(row.low_winner), "high_winner": name(row.high_winner),
        }
        for row in firm.one_at_a_time
    ]  # fmt: skip


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None


def _notes(answer: BestAnswer) -> list[Note]:
    notes = [Note(kind="limit", text="decode only: prefill of arriving requests is not counted")]
    if answer.has_several_designs:
        text = "designs differ in what a model learns with them, which is not judged here"
        notes.append(Note(kind="limit", text=text))
    for one in answer.answers:
        if one.way is not None and one.way.step is not None:
            notes += [
                Note(kind="assumption", subject=one.hardware.name, text=told)
                for told in one.way.step.remarks
                if "band is wider" in told
            ]
    unpriced = [one.hardware.name for one in answer.answers
                if one.way is not None and one.way.usd_per_hour is None]  # fmt: skip
    if unpriced and len(unpriced) < len(answer.answers):
        names = ", ".join(dict.fromkeys(unpriced))
        text = f"no hourly price is known of {names}: compared by their number, after all others"
        notes.append(Note(kind="limit", text=text))
    return notes


def _explained(answer: BestAnswer, row: Row) -> list[str]:
    """How the cost of a row comes about; of the first also what decides."""
    if row["refused"] is not None:
        return [f"{row['gpu']}: {row['refused']}"]
    n, each = row["n_replicas"], row["n_gpus"] // row["n_replicas"]
    told = (
        f"{row['gpu']}: {answer.wish.n_sequences:,} users / {row['served_per_replica']:,} a "
        f"replica -> {n:,} x {each} GPUs = {row['n_gpus']:,} GPUs"
    )
    if row["usd_per_hour"] is not None:
        told += f" x ${row['usd_per_hour'] / row['n_gpus']:,.2f} = ${row['usd_per_hour']:,.2f}"
    lines = [told]
    winner = answer.answers[0]
    if (row["gpu"], row["attention"]) == (winner.hardware.name, winner.attention):
        lines += [
            f"  {one['constant']} x {one['low_factor']:.3g} to {one['high_factor']:.3g}: "
            f"{_cost(one['low_cost'])} to {_cost(one['high_cost'])}; ahead: {one['low_winner']}, "
            f"{one['high_winner']}"
            for one in _sensitivity(answer)
        ]
    return lines


def _cost(value: float | None) -> str:
    return "serves nobody" if value is None else f"{value:,.4g}"
