"""The report on one model's capacity on several GPUs, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lrkv_plan.report.document import Document, Part, Section, joined
from lrkv_plan.report.model_report import capacity_parts
from lrkv_plan.report.request import Settled, settle
from lrkv_plan.report.tables import Column

if TYPE_CHECKING:
    from lrkv_plan.report.request import ReportRequest
    from lrkv_plan.report.tables import Table


def capacity_document(
    requests: Sequence[ReportRequest], command: str, progress: Callable[[str], None]
) -> Document:
    """Tokens and sequences that fit on each GPU, with pictures and memory budgets.

    Parameters
    ----------
    requests : the same model on one shipped GPU each; their names become parts of file names.
    command : the command line that makes the report again.
    """
    parts: list[tuple[Settled, tuple[Part, ...]]] = []
    for request in requests:
        progress(f"{request.model.name} on {request.gpu_text}")
        settled = settle(request)
        parts.append((settled, capacity_parts(settled)))
    first = parts[0][0]
    model = first.request.model
    sections = [
        Section(
            key="capacity", title="Capacity",
            lead="Tokens and sequences that fit, per GPU, design and context.",
            parts=(_side_by_side(parts),),
        )
    ]  # fmt: skip
    for settled, found in parts:
        name = settled.gpu.name
        sections.append(
            Section(
                key=name, title=settled.gpu.title,
                lead=f"{settled.deployment.parallel.n_gpus} x {name}.",
                parts=tuple(replace(p, key=f"{p.key}-{name}") for p in found[1:]),
            )
        )  # fmt: skip
    gpus = ", ".join(settled.gpu.name for settled, _ in parts)
    shared = "" if first.tp_size == 1 else f", {first.tp_size} GPUs share the model"
    return Document(
        title=f"Capacity of {model.name} on {gpus}",
        subtitle=f"{first.deployment.engine}; {first.kv_dtype} cache{shared}",
        command=command,
        sections=tuple(sections),
        sources=(
            (f"Model {model.name}", model.source),
            *((f"Hardware {s.gpu.name}", s.gpu.source) for s, _ in parts),
        ),
        common_remarks=(*model.remarks, *_stated_weights(first)),
    )


def _side_by_side(parts: Sequence[tuple[Settled, tuple[Part, ...]]]) -> Part:
    """The capacity tables of all GPUs as one, a column naming the GPU."""
    tables = [_named(settled, found[0].table) for settled, found in parts if found[0].table]
    refused = [f"{s.gpu.name}: {found[0].refused}" for s, found in parts if found[0].refused]
    commands = tuple(command for _, found in parts for command in found[0].commands)
    blank = Part(key="capacity", title="All GPUs side by side", commands=commands)
    if not tables:
        return replace(blank, refused="; ".join(refused))
    table = joined(tables)
    gpu = Column(key="gpu", title="GPU", is_number=False)
    return replace(
        blank,
        table=replace(
            table,
            title=f"Capacity of {parts[0][0].request.model.name}",
            columns=(gpu, *table.columns),
            notes=(*table.notes, *refused),
        ),
    )


def _named(settled: Settled, table: Table) -> Table:
    """Remarks of one GPU's table say which GPU they are about."""
    common, name = set(settled.request.model.remarks), settled.gpu.name
    notes = (n if str(n) in common else f"{name}: {n}" for n in table.notes)
    return replace(table, notes=tuple(notes))


def _stated_weights(settled: Settled) -> list[str]:
    stated = settled.request.options.get("--weights")
    return [] if stated is None else [f"weights were stated, not counted: {stated} per GPU"]
