"""Designs times deployments: a row each, or why not, and what to try where nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lrkv_plan.calculators.step_model import step_model
from lrkv_plan.engines.advice import what_to_try
from lrkv_plan.engines.deployment import Deployment
from lrkv_plan.engines.latency import Admission, LatencyTarget, admission
from lrkv_plan.engines.planning import CapacityRow, capacity_row, smallest_layout
from lrkv_plan.errors import PlacementError, UsageError
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
    admitted: Admission | None = None
    rests_on: tuple[str, ...] = ()


def capacity_answers(
    models: Sequence[ModelSpec],
    deployments: Iterable[Deployment],
    *,
    lengths: IntArray | None = None,
    target: LatencyTarget | None = None,
) -> list[Answer]:
    """An answer per deployment and design; with a ``target`` also what is fast enough.

    Raises
    ------
    PlacementError
        If every combination is refused; the message is the first one's.
    """
    answers = [_answer(m, d, lengths, target) for d in deployments for m in models]
    if answers and all(answer.row is None for answer in answers):
        raise PlacementError(answers[0].refused or "no combination can run")
    return answers


def _answer(
    model: ModelSpec,
    deployment: Deployment,
    lengths: IntArray | None,
    target: LatencyTarget | None,
) -> Answer:
    label = design_label(model)
    try:
        row = capacity_row(model, deployment, lengths=lengths)
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
    hardware, settings = deployment.hardware, deployment.settings
    if hardware is None:
        raise UsageError("a time needs a GPU: name it (--gpu) beside --kv-memory")
    step = step_model(
        model, hardware, kv_dtype=settings.kv_dtype, weight_dtype=deployment.weight_dtype,
        tp_size=deployment.parallel.tp_size, relatives=target.relatives,
    )  # fmt: skip
    admitted = admission(
        step,
        context_tokens=settings.context_tokens,
        max_sequences=row.max_sequences,
        n_gpus=deployment.parallel.tp_size,
        tpot_s=target.tpot_s,
        speculation=target.speculation,
        gpu_hour_usd=deployment.gpu_hour_usd or hardware.gpu_hour_usd,
        board_power_w=hardware.board_power_w,
    )
    return replace(answer, admitted=admitted, rests_on=step.remarks)


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
