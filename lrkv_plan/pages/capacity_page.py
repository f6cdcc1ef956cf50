"""The page on one model's capacity on several GPUs, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.pages.model_page import Place, capacity_parts
from lrkv_plan.report.document import Document, Part, Section, joined
from lrkv_plan.report.tables import Column

if TYPE_CHECKING:
    from lrkv_plan.report.tables import Table


def capacity_page(
    model: Any,
    gpus: Sequence[str],
    *,
    command: str,
    progress: Callable[[str], None] = lambda _: None,
    **keywords: Any,
) -> Document:
    """Tokens and sequences that fit on each GPU, with pictures and memory budgets.

    Parameters
    ----------
    gpus : names of shipped GPUs, which become parts of file names.
    command : the command line that makes the report again.
    keywords : of ``designs``.
    """
    parts: list[tuple[Place, tuple[Part, ...]]] = []
    for gpu in gpus:
        progress(f"{model} on {gpu}")
        place = Place.of(model, gpu=gpu, **keywords)
        parts.append((place, capacity_parts(place)))
    first = parts[0][0]
    spec = first.point.model
    sections = [
        Section(
            key="capacity", title="Capacity",
            lead="Tokens and sequences that fit, per GPU, design and context.",
            parts=(_side_by_side(parts),),
        )
    ]  # fmt: skip
    for place, found in parts:
        name = place.gpu.name
        sections.append(
            Section(
                key=name, title=place.gpu.title,
                lead=f"{place.point.deployment.parallel.n_gpus} x {name}.",
                parts=tuple(replace(p, key=f"{p.key}-{name}") for p in found[1:]),
            )
        )  # fmt: skip
    shared = "" if first.tp_size == 1 else f", {first.tp_size} GPUs share the model"
    return Document(
        title=f"Capacity of {spec.name} on {', '.join(place.gpu.name for place, _ in parts)}",
        subtitle=f"{first.point.deployment.engine}; {first.kv_dtype} cache{shared}",
        command=command,
        sections=tuple(sections),
        sources=(
            (f"Model {spec.name}", spec.source),
            *((f"Hardware {p.gpu.name}", p.gpu.source) for p, _ in parts),
        ),
        common_remarks=(*spec.remarks, *_stated_weights(first)),
    )


def _side_by_side(parts: Sequence[tuple[Place, tuple[Part, ...]]]) -> Part:
    """The capacity tables of all GPUs as one, a column naming the GPU."""
    tables = [_named(place, found[0].table) for place, found in parts if found[0].table]
    refused = [f"{p.gpu.name}: {found[0].refused}" for p, found in parts if found[0].refused]
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
            title=f"Capacity of {parts[0][0].point.model.name}",
            columns=(gpu, *table.columns),
            notes=(*table.notes, *refused),
        ),
    )


def _named(place: Place, table: Table) -> Table:
    """Remarks of one GPU's table say which GPU they are about."""
    common, name = set(place.point.model.remarks), place.gpu.name
    notes = (n if str(n) in common else f"{name}: {n}" for n in table.notes)
    return replace(table, notes=tuple(notes))


def _stated_weights(place: Place) -> list[str]:
    stated = place.given.get("weights")
    return [] if stated is None else [f"weights were stated, not counted: {stated} per GPU"]
