"""The page on one model and several GPUs: their plans side by side, then what is of each."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from lrkv_plan.pages.asked import part_of
from lrkv_plan.pages.model_page import (
    SECTIONS,
    Place,
    Progress,
    common_remarks,
    highlights,
    page_command,
    plan_of,
    sources,
    subtitle,
)
from lrkv_plan.report.document import Document, Highlight, Part, Section

_OF_NO_GPU = ("cache", "rank", "placement")  # sections about bytes and sizes alone
_LONGEST_KEY = 40


def several_page(
    model: Any,
    gpus: Sequence[Any],
    *,
    output: str | None = None,
    progress: Progress = lambda _: None,
    **keywords: Any,
) -> Document:
    """The whole report on one model and several GPUs.

    What depends on no GPU is shown once, where all of them share the model alike.

    Parameters
    ----------
    gpus : as people write them, ``8xh100-sxm`` for eight.
    output : the folder's name, for the command line that makes it again.
    keywords : of ``designs``, but ``gpu``.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``designs``, of the first GPU that is refused.
    """
    places = []
    for gpu in gpus:
        progress(f"Plan of {gpu}")
        places.append(Place.of(model, gpu=gpu, **keywords))
    first = places[0]
    spec = first.point.model
    whole = replace(first, given={"gpu": list(gpus), **keywords_given(keywords)})
    shared = _OF_NO_GPU if _is_alike(places) else ()
    sections = [_side_by_side(whole, first)]
    for key, title, lead, parts in SECTIONS:
        if key in shared:
            progress(title)
            sections.append(Section(key=key, title=title, lead=lead, parts=parts(first)))
    for place, name in zip(places, _keys(places), strict=True):
        for key, title, lead, parts in SECTIONS:
            if key == "plan" or key in shared:
                continue
            progress(f"{place.gpu.name}: {title}")
            sections.append(
                Section(
                    key=f"{key}-{name}", title=f"{place.gpu.title}: {title}", lead=lead,
                    parts=tuple(_of_gpu(part, name) for part in parts(place)),
                )
            )  # fmt: skip
    return Document(
        title=f"{spec.name} on {', '.join(map(str, gpus))}",
        subtitle=" · ".join(map(subtitle, places)),
        command=page_command(whole, "report", output),
        highlights=tuple(_highlights(places)),
        sections=tuple(sections),
        sources=tuple(dict.fromkeys(one for place in places for one in sources(place))),
        common_remarks=tuple(dict.fromkeys(r for place in places for r in common_remarks(place))),
    )


def keywords_given(keywords: dict[str, Any]) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in keywords.items() if value is not None}


def _side_by_side(whole: Place, first: Place) -> Section:
    """The plans of all GPUs under one another, and where sliders are."""
    explore = shlex.quote(str(first.given["gpu"]))
    part = part_of(
        "plan", "The plans", [plan_of(whole)],
        lead=f"With sliders, for one of them: lrkv-plan explore {whole.name} --gpu {explore}",
    )  # fmt: skip
    return Section(
        key="plan", title="All GPUs side by side",
        lead="Every attention family on the model's backbone, on each of the GPUs.", parts=(part,),
    )  # fmt: skip


def _is_alike(places: Sequence[Place]) -> bool:
    """Whether sections about bytes are the same of all: designs, layout and batch."""
    return len({(tuple(p.texts), p.tp_size, p.point.batch_size) for p in places}) == 1


def _keys(places: Sequence[Place]) -> list[str]:
    """A plain word for each GPU, for names of files."""
    found: list[str] = []
    for n, place in enumerate(places, 1):
        word = re.sub(r"[^a-z0-9]+", "-", place.gpu.name.lower())[:_LONGEST_KEY].strip("-")
        found.append(word if word and word not in found else f"gpu-{n}")
    return found


def _of_gpu(part: Part, name: str) -> Part:
    return replace(part, key=f"{part.key}-{name}")


def _highlights(places: Sequence[Place]) -> Iterator[Highlight]:
    """What fits and how fast, of the own design on each GPU."""
    for place in places:
        for one in highlights(place):
            if one.label.endswith("own design"):
                yield replace(one, label=f"{place.gpu.title}: {one.label}")
