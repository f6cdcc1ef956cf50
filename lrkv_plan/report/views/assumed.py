"""What designs' steps assume of engines, as notes of every answer that a time stands in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from lrkv_plan.notes import Note

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel


def assumed_notes(steps: Iterable[tuple[str, StepModel]]) -> Iterator[Note]:
    """Each sentence once, with the designs that it is about.

    Parameters
    ----------
    steps : (label, design on the GPU).
    """
    about: dict[str, dict[str, None]] = {}
    for label, step in steps:
        for text in step.work.assumptions:
            about.setdefault(text, {})[label] = None
    for text, labels in about.items():
        yield Note(kind="assumption", subject=", ".join(labels), text=text)
