"""Designs times deployments: a row each, or why not, and what to try where nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.serving.capacity import CapacityRow, capacity_row, what_to_try
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.layouts import smallest_layout
from lrkv_plan.serving.load import Admission, LatencyTarget, admitted_by, timed_step, timed_unpadded
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One design in one deployment; exactly one of ``row`` and ``refused`` is set.

    ``admitted`` is the load where times were asked for (``is_timed``) and there is one.
    ``limits`` say where its times stop being true, ``is_smallest`` marks the fewest GPUs that do.
    """

    attention: str
    deployment: Deployment
    row: CapacityRow | None = None
    refused: str | None = None
    to_try: tuple[str, ...] = ()
    admitted: Admission | None = None
    rests_on: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    is_timed: bool = False
    is_smallest: bool = False


def capacity_answers(
    designs: Sequence[tuple[str, ModelSpec]],
    deployments: Iterable[Deployment],
    *,
    lengths: IntArray | None = None,
    target: LatencyTarget | None = None,
) -> list[Answer]:
    """An answer per deployment and labelled design; with a ``target`` also the load that meets it.

    Raises
    ------
    PlacementError
        If every combination is refused; the message is the first one's.
    """
    answers = [
        _answer(d, deployment, lengths, target) for deployment in deployments for d in designs
    ]
    if answers and all(answer.row is None for answer in answers):
        raise PlacementError(answers[0].refused or "no combination can run")
    return answers


def _answer(
    design: tuple[str, ModelSpec],
    deployment: Deployment,
    lengths: IntArray | None,
    target: LatencyTarget | None,
) -> Answer:
    label, model = design
    try:
        row = replace(capacity_row(model, deployment, lengths=lengths), attention=label)
    except PlacementError as error:
        return Answer(attention=label, deployment=deployment, refused=str(error))
    to_try = () if row.max_sequences else what_to_try(model, deployment)
    answer = Answer(attention=label, deployment=deployment, row=row, to_try=to_try)
    return answer if target is None else _timed(answer, row, model, deployment, target)


def _timed(
    answer: Answer,
    row: CapacityRow,
    model: ModelSpec,
    deployment: Deployment,
    target: LatencyTarget,
) -> Answer:
    step = timed_step(model, deployment, target)
    load = admitted_by(step, row, deployment, target)
    unpadded = timed_unpadded(model, deployment)
    return replace(
        answer, admitted=load, rests_on=step.remarks, is_timed=True,
        limits=() if unpadded is None else (unpadded,),
    )  # fmt: skip


def smallest_layouts(
    designs: Sequence[tuple[str, ModelSpec]],
    deployments: Iterable[Deployment],
    n_sequences: int,
    *,
    tp_size: int | None = None,
    target: LatencyTarget | None = None,
) -> list[Answer]:
    """The fewest GPUs per deployment and labelled design that hold, and serve in time.

    Parameters
    ----------
    tp_size : searched when None.
    target : the time that the sequences must be served in; none when None.

    Raises
    ------
    UsageError
        If ``n_sequences`` is below 1.
    SpecError
        As ``step_model``.
    """
    return [
        _smallest(design, deployment, n_sequences, tp_size, target)
        for deployment in deployments
        for design in designs
    ]


def _smallest(
    design: tuple[str, ModelSpec],
    deployment: Deployment,
    n_sequences: int,
    tp_size: int | None,
    target: LatencyTarget | None,
) -> Answer:
    label, model = design

    def serves(row: CapacityRow, at: Deployment) -> int:
        if target is None:
            return row.total_sequences
        try:
            load = admitted_by(timed_step(model, at, target), row, at, target)
        except (UsageError, PlacementError):
            return 0  # a layout that times do not know, or whose weights cannot be dealt out
        return load.sequences if load is not None else 0

    layout = smallest_layout(model, deployment, n_sequences, tp_size=tp_size, serves=serves)
    if layout is None:
        within = "" if target is None or target.tpot_s is None else " in that time"
        refused = f"no layout up to 1,024 GPUs holds {n_sequences:,} sequences{within}"
        return Answer(attention=label, deployment=deployment, refused=refused)
    row, settled = layout.row, layout.deployment
    answer = Answer(
        attention=label, deployment=settled, row=replace(row, attention=label), is_smallest=True
    )
    return answer if target is None else _timed(answer, row, model, settled, target)
