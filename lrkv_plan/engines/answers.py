"""Designs times deployments: a row each, or why not, and what to try where nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.engines.advice import what_to_try
from lrkv_plan.engines.planning import CapacityRow, Deployment, capacity_row, smallest_layout
from lrkv_plan.errors import PlacementError
from lrkv_plan.specs.attention_text import design_label
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.calculators.exact import IntArray


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One design in one deployment; exactly one of ``row`` and ``refused`` is set."""

    attention: str
    deployment: Deployment
    row: CapacityRow | None = None
    refused: str | None = None
    to_try: tuple[str, ...] = ()


def capacity_answers(
    models: Sequence[ModelSpec],
    deployments: Iterable[Deployment],
    *,
    lengths: IntArray | None = None,
) -> list[Answer]:
    """An answer per deployment and design.

    Raises
    ------
    PlacementError
        If every combination is refused; the message is the first one's.
    """
    answers = [_answer(m, d, lengths) for d in deployments for m in models]
    if answers and all(answer.row is None for answer in answers):
        raise PlacementError(answers[0].refused or "no combination can run")
    return answers


def _answer(model: ModelSpec, deployment: Deployment, lengths: IntArray | None) -> Answer:
    label = design_label(model)
    try:
        row = capacity_row(model, deployment, lengths=lengths)
    except PlacementError as error:
        return Answer(attention=label, deployment=deployment, refused=str(error))
    to_try = () if row.max_sequences else what_to_try(model, deployment)
    return Answer(attention=label, deployment=deployment, row=row, to_try=to_try)


def smallest_layouts(
    models: Sequence[ModelSpec], deployments: Iterable[Deployment], n_sequences: int
) -> list[Answer]:
    """The fewest GPUs per deployment and design; tensor-parallel sizes are searched.

    Raises
    ------
    UsageError
        If ``n_sequences`` is below 1.
    """
    answers = []
    for deployment in deployments:
        for model in models:
            label = design_label(model)
            row = smallest_layout(model, deployment, n_sequences)
            refused = None if row else f"no size up to 1,024 GPUs holds {n_sequences:,} sequences"
            answers.append(Answer(attention=label, deployment=deployment, row=row, refused=refused))
    return answers
