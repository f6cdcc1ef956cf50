"""Audits for people: claims with what would print the same, and published figures made again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

from lrkv_plan.auditing.quarter_turns import TurnedResidual, score, turned_residual
from lrkv_plan.notes import Note, limit
from lrkv_plan.report.screens.audit import Ask, audit_equation, audit_screen
from lrkv_plan.report.series.published import (
    compared_scales,
    difference,
    exact_loss,
    families,
    placed_runs,
)
from lrkv_plan.report.tables import Column, Row, Table, percent, table_notes

if TYPE_CHECKING:
    from pathlib import Path

    from lrkv_plan.auditing.claim import ClaimFile
    from lrkv_plan.auditing.evaluate import AuditRow
    from lrkv_plan.auditing.readings import Reading
    from lrkv_plan.specs.published import PublishedLoss, PublishedScores, Scale, TaskScore

MATCH = (
    "a match is exact arithmetic within half a unit of the last printed digit; at a mismatch "
    "inputs and units are changed one and two at a time"
)
INFERENCE = (
    "readings are inference: they reproduce the print and do not prove what was done; "
    "one found among all ranks of other rows says how many such hits chance would give"
)
EXPLAINED = "explained: the recorded reason was checked and holds"
_SHOWN_READINGS = 4
_VERDICTS = ("match", "explained", "mismatch", "not_computable")
_WORDS = {"not_computable": "not computable"}


def audit_table(
    rows: Sequence[AuditRow],
    files: Sequence[Mapping[str, Any]],
    verdicts: Sequence[str] = (),
    ask: Ask | None = None,
) -> Table:
    """One line per claim; ``verdicts`` keeps only those. Counts and failure are of all claims."""
    wanted = [row for row in rows if not verdicts or row.verdict.value in verdicts]
    failed = [row.claim for row in rows if row.verdict.value == "mismatch"]
    several = len({row.file for row in wanted}) > 1
    shown = [_shown(row, several) for row in wanted]
    table = Table(
        title=f"Audit of {len(rows)} claims: {_counts(rows)}",
        inputs={"files": list(files), "verdicts": list(verdicts)},
        rows=[_flat(row) for row in wanted],
        shown_rows=shown,
        columns=(
            Column(key="claim", title="claim", is_number=False),
            Column(key="says", title="what", is_number=False),
            Column(key="source", title="source", is_number=False),
            Column(key="printed", title="printed"),
            Column(key="computed", title="computed"),
            Column(key="verdict", title="verdict", is_number=False),
            Column(key="found", title="readings that print it", is_number=False),
            Column(key="reason", title="recorded reason", is_number=False),
        ),
        notes=(*_remarks(rows, wanted), *_sources(files)),
        unmet=_unmet(failed, len(rows)),
        explain=audit_equation,
    )
    return replace(
        table, screen=lambda: audit_screen(rows, shown, verdicts, table_notes(table), ask)
    )


def file_input(path: Path, file: ClaimFile) -> Row:
    """A claim file as the audit's inputs name it."""
    sources = [source.model_dump(mode="json") for source in file.source]
    return {"name": path.stem, "title": file.title, "source": sources}


def counts_table(rows: Sequence[Row], files: Sequence[Mapping[str, Any]]) -> Table:
    """How many claims of each document came out how, and of all; ``rows`` are of ``audit``."""
    documents = [(file["title"], file["name"]) for file in files]
    counted = [_counted(title, [r for r in rows if r["file"] == name]) for title, name in documents]
    return Table(
        title=f"{len(rows)} claims of {len(files)} documents",
        inputs={"files": list(files)},
        rows=[*counted, _counted("all", rows)],
        columns=(
            Column(key="document", title="document", is_number=False),
            *(Column(key=key, title=_WORDS.get(key, key)) for key in ("claims", *_VERDICTS)),
        ),
    )


def _counted(name: str, rows: Sequence[Row]) -> Row:
    counted = Counter(row["verdict"] for row in rows)
    verdicts = {verdict: counted[verdict] for verdict in _VERDICTS}
    return {"document": name, "claims": len(rows), **verdicts}


def _counts(rows: Sequence[AuditRow]) -> str:
    counted = Counter(row.verdict.value for row in rows)
    return ", ".join(f"{counted[name]} {_WORDS.get(name, name)}" for name in _VERDICTS)


def _unmet(failed: Sequence[str], n_claims: int) -> str | None:
    if not failed:
        return None
    more = f" and {len(failed) - 10} more" if len(failed) > 10 else ""
    return (
        f"{len(failed)} of {n_claims} claims differ from their print without an explanation that "
        f"holds: {', '.join(failed[:10])}{more}"
    )


def _flat(row: AuditRow) -> Row:
    """JSON and CSV: values in base units beside their text in the printed unit."""
    return {
        "claim": row.claim,
        "says": row.says,
        "source": f"{row.document}, {row.place}",
        "file": row.file,
        "document": row.document,
        "place": row.place,
        "quantity": row.quantity,
        "equation": row.equation,
        "printed": row.printed,
        "comparison": row.comparison,
        "computed": row.computed,
        "computed_exact": None if row.computed is None else str(row.computed),
        "computed_text": row.computed_text,
        "verdict": row.verdict.value,
        "readings": [
            _reading(reading, text)
            for reading, text in zip(row.readings, row.reading_texts, strict=True)
        ],
        "nearest": row.nearest and _reading(row.nearest, row.nearest_text),
        "readings_tried": row.tried,
        "search_complete": row.search_complete,
        "chance_hits": row.chance_hits,
        "explanation": row.explanation,
        "missing": row.missing,
        "tolerance": row.tolerance,
        "note": row.note,
    }


def _reading(reading: Reading, text: str | None) -> Row:
    return {
        "reading": reading.text,
        "computed": reading.value,
        "computed_text": text,
        "inference": True,
    }


def _shown(row: AuditRow, several: bool) -> Row:
    return {
        "claim": row.claim,
        "says": row.says,
        "source": f"{row.file}, {row.place}" if several else row.place,
        "printed": row.printed,
        "computed": _computed(row),
        "verdict": _WORDS.get(row.verdict.value, row.verdict.value),
        "found": "; ".join(_found(row)) or None,
        "reason": f"missing: {row.missing}" if row.missing else row.explanation,
    }


def _computed(row: AuditRow) -> str | None:
    is_bound = row.comparison == "at_most" and row.computed_text is not None
    return f"at most {row.computed_text}" if is_bound else row.computed_text


def _found(row: AuditRow) -> Iterator[str]:
    pairs = list(zip(row.readings, row.reading_texts, strict=True))
    for reading, text in pairs[:_SHOWN_READINGS]:
        by_chance = reading.swept and len(reading.names) > 1 and row.chance_hits is not None
        chance = f" (by chance {row.chance_hits:.1f} expected)" if by_chance else ""
        yield f"{reading.text} = {text}{chance}"
    if len(pairs) > _SHOWN_READINGS:
        yield f"{len(pairs) - _SHOWN_READINGS} more"
    if row.nearest is not None:
        yield f"no rank here prints it, nearest {row.nearest.text} = {row.nearest_text}"
    elif row.verdict.value == "mismatch" and not pairs:
        yield f"none of {row.tried:,} readings"


def _remarks(rows: Sequence[AuditRow], wanted: Sequence[AuditRow]) -> Iterator[str | Note]:
    yield MATCH
    if any(row.readings for row in wanted):
        yield INFERENCE
    if any(row.verdict.value == "explained" for row in rows):
        yield EXPLAINED
    if any(not row.search_complete for row in wanted):
        cut = ", ".join(row.claim for row in wanted if not row.search_complete)
        yield limit(f"not all readings were tried for {cut}")
    yield from (f"{row.claim}: within {row.tolerance}" for row in wanted if row.tolerance)
    yield from (f"{row.claim}: {row.note}" for row in wanted if row.note)


def _sources(files: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for file in files:
        places = (source["citation"] or source["url"] for source in file["source"])
        yield f"{file['name']}: {'; '.join(places)}"


def schema_document(schema: Mapping[str, Any], title: str = "JSON schema of claim files") -> Table:
    """A JSON schema as a document; that of claim files unless ``title`` says otherwise."""
    import json

    text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
    return Table(title=title, inputs={}, rows=[schema], columns=(), text=text)


_ALONG, _ACROSS = (1, 0), (0, 1)


def _signed(value: Fraction) -> str:
    return f"{float(value):+.3f}"


def _relative(value: Fraction) -> str:
    return f"{float(100 * value):+.2f} %"


def _loss(value: Fraction) -> str:
    return f"{float(value):.3f}"


def _points(value: Fraction) -> str:
    return f"{float(100 * value):+.1f} points"


def _share(value: Fraction) -> str:
    return f"{float(100 * value):.1f} %"


def losses_table(facts: PublishedLoss) -> Table:
    """Final losses of every family at every scale that has all of them, and the lowest."""
    scales, names = compared_scales(facts), families(facts)
    rows: list[dict[str, Any]] = []
    for family in names:
        row: dict[str, Any] = {"family": family.upper()}
        for scale in scales:
            row[scale.name] = exact_loss(scale.compared[family])
            row[f"{scale.name}_minus_mha"] = difference(scale, family)
        rows.append(row)
    columns = [Column(key="family", title="attention", is_number=False)]
    for scale in scales:
        columns.append(Column(key=scale.name, title=scale.name, text=_loss))
        columns.append(Column(key=f"{scale.name}_minus_mha", title="minus MHA", text=_signed))
    lowest = {scale.name: min(names, key=partial(difference, scale)).upper() for scale in scales}
    return Table(
        title="Final held-out cross-entropy, nats per token",
        inputs={},
        rows=rows,
        columns=columns,
        notes=(
            "lowest: " + ", ".join(f"{best} at {name}" for name, best in lowest.items()),
            "one run each: how much another seed would change is not known",
        ),
    )


def scale_table(scale: Scale) -> Table:
    """Every run of one scale: its cache, where that can be placed, and its loss against MHA's."""
    reference = exact_loss(scale.reference)
    ratios = {run.design: (ratio, known) for run, ratio, known in placed_runs(scale)}
    rows = [
        {
            "design": run.design,
            "cache_ratio": ratios.get(run.design, (None, None))[0],
            "ratio_is": ratios.get(run.design, (None, None))[1],
            "cross_entropy_nats_per_token": exact_loss(run),
            "difference_nats_per_token": exact_loss(run) - reference,
            "relative_difference": (exact_loss(run) - reference) / reference,
            "table": run.table,
        }
        for run in scale.runs
    ]
    return Table(
        title=f"Runs at {scale.name}, sequences of {scale.sequence_tokens:,} tokens",
        inputs={},
        rows=sorted(rows, key=lambda row: (row["cache_ratio"] is None, row["cache_ratio"] or 0)),
        columns=(
            Column(key="design", title="design", is_number=False),
            Column(key="cache_ratio", title="cache of MHA", text=percent),
            Column(key="cross_entropy_nats_per_token", title="cross-entropy", text=_loss),
            Column(key="difference_nats_per_token", title="minus MHA", text=_signed),
            Column(key="relative_difference", title="relative", text=_relative),
            Column(key="table", title="printed in", is_number=False),
        ),
        notes=tuple(
            f"{name}: the cache is printed, not computed"
            for name, (_, known) in ratios.items()
            if known == "printed"
        ),
    )


def tasks_table(facts: PublishedScores) -> Table:
    """LRKV minus MHA per task, for the tasks whose scores are known."""
    missing = facts.n_tasks - len(facts.task_scores)
    return Table(
        title=f"Downstream scores at {facts.scale}, LRKV minus MHA",
        inputs={},
        rows=[_task(one) for one in (*facts.task_scores, facts.mean_of_tasks)],
        columns=(
            Column(key="task", title="task", is_number=False),
            Column(key="mha", title="MHA", text=_share),
            Column(key="lrkv", title="LRKV", text=_share),
            Column(key="difference", title="difference", text=_points),
        ),
        notes=(
            f"the figure cannot be made again: scores of {missing} of {facts.n_tasks} tasks are in "
            "none of the documents read, so the mean is as printed",
        ),
    )


def _task(one: TaskScore) -> Mapping[str, Any]:
    mha, lrkv = Fraction(one.mha), Fraction(one.lrkv)
    return {"task": one.task, "mha": mha, "lrkv": lrkv, "difference": lrkv - mha}


def rotation_table() -> Table:
    """A residual on the first axis under quarter turns, and what the latent can give instead."""
    return Table(
        title="Residual (1, 0) of rank one, turned by its position",
        inputs={"basis": list(_ALONG), "query": list(_ACROSS)},
        rows=[_turn(turned_residual(_ALONG, turns)) for turns in range(4)],
        columns=(
            Column(key="degrees", title="turn", text=lambda v: f"{v}°"),
            Column(key="turned", title="true row", text=_row),
            Column(key="nearest", title="nearest from the latent", text=_row),
            Column(key="true_score", title="true score", text=str),
            Column(key="pulled_score", title="its score", text=str),
            Column(key="lost_ratio", title="squared length lost", text=percent),
        ),
        notes=(
            "scores are against a query along the second axis, (0, 1)",
            "with one latent number every reconstruction stays on the first axis",
        ),
    )


def _turn(one: TurnedResidual) -> Mapping[str, Any]:
    return {
        "degrees": 90 * one.quarter_turns,
        "turned": one.turned,
        "nearest": one.nearest,
        "true_score": score(one.turned, _ACROSS),
        "pulled_score": score(one.nearest, _ACROSS),
        "lost_ratio": one.lost_ratio,
    }


def _row(value: tuple[Fraction, Fraction]) -> str:
    return f"({value[0]}, {value[1]})"
