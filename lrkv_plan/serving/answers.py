"""Designs times deployments: a row each, or why not, and what to try where nothing fits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lrkv_plan.errors import PlacementError, RequirementError
from lrkv_plan.serving.capacity import (
    CapacityRow,
    capacity_row,
    largest_context,
    sequences_between,
    what_to_try,
)
from lrkv_plan.serving.cheapest import RuledOut, Wish, cheapest_way
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.layouts import layouts_on, ranked_layouts, widest_that_runs
from lrkv_plan.serving.load import (
    Admission,
    LatencyTarget,
    admitted_between,
    admitted_by,
    timed_step,
    timed_unpadded,
)
from lrkv_plan.serving.stages import beyond_domain
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel
    from lrkv_plan.memory.exact import IntArray
    from lrkv_plan.specs.population import LengthCounts
    from lrkv_plan.specs.prefix_trace import PrefixTrace


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One design in one deployment; exactly one of ``row`` and ``refused`` is set.

    ``admitted`` is the load where times were asked for (``is_timed``) and there is one; ``step``
    its step, ``limits`` where its times stop being true. ``held_between`` and ``admitted_between``
    are ``total_sequences`` and the load with everything uncertain at its worst and at its best.
    ``is_smallest`` marks the fewest GPUs that do. ``layout`` says why the layout was chosen, None
    where it was stated; ``others`` are the layouts that serve less. ``pool_context_tokens`` is the
    longest context that the pool holds, where that was asked for, and ``context_between`` its
    range. ``launch`` are the words of the engine's command line, where that was asked for.
    """

    attention: str
    deployment: Deployment
    model: ModelSpec | None = None
    row: CapacityRow | None = None
    refused: str | None = None
    to_try: tuple[str, ...] = ()
    admitted: Admission | None = None
    step: StepModel | None = None
    rests_on: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    is_timed: bool = False
    is_smallest: bool = False
    held_between: tuple[int, int] = (0, 0)
    admitted_between: tuple[int, int] = (0, 0)
    layout: str | None = None
    others: tuple[Answer, ...] = ()
    pool_context_tokens: int | None = None
    context_between: tuple[int, int] = (0, 0)
    launch: tuple[str, ...] | None = None

    @property
    def served(self) -> int:
        """Sequences that it serves: those in time where times were asked for, else all held."""
        if self.row is None:
            return 0
        if not self.is_timed:
            return self.row.total_sequences
        return self.admitted.sequences if self.admitted is not None else 0


def capacity_answers(
    designs: Sequence[tuple[str, ModelSpec]],
    deployments: Iterable[Deployment],
    *,
    lengths: IntArray | LengthCounts | None = None,
    prefixes: PrefixTrace | None = None,
    target: LatencyTarget | None = None,
    chooses_layout: bool = False,
) -> list[Answer]:
    """An answer per deployment and labelled design; with a ``target`` also the load that meets it.

    Parameters
    ----------
    chooses_layout : where a deployment says how many GPUs, take the tensor-parallel size that
        serves most of them.

    Raises
    ------
    PlacementError
        If every combination is refused; the message is the first one's.
    """
    answers = [
        with_prefixes(_answer(design, deployment, lengths, target, chooses_layout), prefixes)
        for deployment in deployments
        for design in designs
    ]
    refuse_all(answers)
    return answers


def with_prefixes(answer: Answer, prefixes: PrefixTrace | None) -> Answer:
    """The answer with what requests that begin alike share in its layout."""
    if prefixes is None or answer.row is None or answer.model is None:
        return answer
    account = capacity_row(answer.model, answer.deployment, prefixes=prefixes).prefixes
    limits = answer.limits
    if account is None:
        engine = answer.deployment.engine.name
        limits += (f"{engine} shares no prefixes here: hash_ids are counted for each request",)
    return replace(answer, row=replace(answer.row, prefixes=account), limits=limits)


def refuse_all(answers: Sequence[Answer]) -> None:
    """Refuse answers of which none has a row.

    Raises
    ------
    PlacementError
        If every combination is refused; the message is the first one's.
    """
    if answers and all(answer.row is None for answer in answers):
        raise PlacementError(answers[0].refused or "no combination can run")


def refused_answers(
    designs: Sequence[tuple[str, ModelSpec]], deployments: Iterable[Deployment], why: str
) -> list[Answer]:
    """An answer without a row for each, all for the same reason."""
    return [
        Answer(attention=label, deployment=deployment, model=model, refused=why)
        for deployment in deployments
        for label, model in designs
    ]


def by_gpus(groups: Sequence[Sequence[Answer]]) -> list[Answer]:
    """Answers of several GPUs: fewest first, or cheapest where all prices are known.

    Each group is of one kind of GPU. Those that serve nobody stand last; of equals the one that
    serves most stands first. One kind of GPU stays in the order in which it was asked.
    """
    kinds = list(dict.fromkeys(map(_kind, groups)))
    if len(kinds) < 2:
        return [answer for group in groups for answer in group]
    is_priced = all(_usd_per_hour(answer) is not None for group in groups for answer in group)

    def cost(kind: tuple[str, int | None]) -> tuple[bool, float, int]:
        best = max(
            (answer for group in groups if _kind(group) == kind for answer in group),
            key=lambda answer: answer.served,
        )
        usd = _usd_per_hour(best) or 0.0
        return best.served == 0, usd if is_priced else _n_gpus(best), -best.served

    ranked = sorted(kinds, key=cost)
    return [
        answer
        for group in sorted(groups, key=lambda group: ranked.index(_kind(group)))
        for answer in group
    ]


def _kind(group: Sequence[Answer]) -> tuple[str, int | None]:
    name = group[0].deployment.gpu_name
    return (name or "", _n_gpus(group[0]) if not group[0].is_smallest else 0)


def _n_gpus(answer: Answer) -> int:
    return answer.row.n_gpus if answer.row is not None else answer.deployment.n_gpus or 1


def _usd_per_hour(answer: Answer) -> float | None:
    price = answer.deployment.usd_per_gpu_hour
    return None if price is None else price * _n_gpus(answer)


def _answer(
    design: tuple[str, ModelSpec],
    deployment: Deployment,
    lengths: IntArray | LengthCounts | None,
    target: LatencyTarget | None,
    chooses_layout: bool,
) -> Answer:
    _, model = design
    n_gpus = deployment.n_gpus or 1
    if not chooses_layout or n_gpus == 1:
        return _stated(design, deployment, lengths, target)
    try:
        layouts = ranked_layouts(model, deployment, n_gpus, target or LatencyTarget())
    except RequirementError:
        whole = widest_that_runs(model, deployment, n_gpus)
        return _stated(design, whole, lengths, target)
    best, *rest = (_stated(design, one.deployment, lengths, target) for one in layouts)
    others = tuple(one for one in rest if one.served)
    return replace(best, layout=layouts[0].reason, others=others)


def _stated(
    design: tuple[str, ModelSpec],
    deployment: Deployment,
    lengths: IntArray | LengthCounts | None,
    target: LatencyTarget | None,
) -> Answer:
    label, model = design
    try:
        row = replace(capacity_row(model, deployment, lengths=lengths), attention=label)
    except PlacementError as error:
        return Answer(attention=label, deployment=deployment, model=model, refused=str(error))
    to_try = () if row.max_sequences else what_to_try(model, deployment)
    answer = Answer(attention=label, deployment=deployment, model=model, row=row, to_try=to_try)
    return _bounded(answer, row, model, deployment, target)


def _bounded(
    answer: Answer,
    row: CapacityRow,
    model: ModelSpec,
    deployment: Deployment,
    target: LatencyTarget | None,
) -> Answer:
    """The answer with its range, and with its load where times are asked for."""
    held = sequences_between(model, deployment, row)
    answer = replace(answer, held_between=held, limits=tuple(beyond_domain(deployment)))
    if target is None:
        return answer
    step = timed_step(model, deployment, target)
    return replace(
        answer,
        admitted=admitted_by(step, row, deployment, target),
        admitted_between=admitted_between(step, row, deployment, target, held),
        step=step,
        rests_on=step.remarks,
        limits=(*answer.limits, *_untimed(model, deployment)),
        is_timed=True,
    )


def _untimed(model: ModelSpec, deployment: Deployment) -> Iterator[str]:
    """What times leave out."""
    if (unpadded := timed_unpadded(model, deployment)) is not None:
        yield unpadded
    if deployment.settings.max_loras:
        yield "the products of adapters are not timed: with --max-loras times are too low"


def longest_contexts(
    designs: Sequence[tuple[str, ModelSpec]],
    deployments: Iterable[Deployment],
    n_sequences: int,
    *,
    chooses_layout: bool = False,
) -> list[Answer]:
    """The longest context per deployment and labelled design of which ``n_sequences`` fit.

    The row is at that context, or at the model's own maximum where that is shorter.

    Parameters
    ----------
    chooses_layout : take the tensor-parallel size that holds the longest.

    Raises
    ------
    PlacementError
        If every combination is refused; the message is the first one's.
    """
    answers = [
        _longest(design, deployment, n_sequences, chooses_layout)
        for deployment in deployments
        for design in designs
    ]
    refuse_all(answers)
    return answers


def _longest(
    design: tuple[str, ModelSpec], deployment: Deployment, n_sequences: int, chooses_layout: bool
) -> Answer:
    label, model = design
    n_gpus = deployment.n_gpus or 1
    chooses = chooses_layout and n_gpus > 1
    tried = layouts_on(deployment, n_gpus) if chooses else [deployment]
    found: list[tuple[int, Deployment]] = []
    refused = "no size was tried"
    for one in tried:
        try:
            tokens = largest_context(model, one, n_sequences)
        except PlacementError as error:
            refused = str(error)
            continue
        found.append((tokens or 0, one))
    if not found:
        return Answer(attention=label, deployment=deployment, model=model, refused=refused)
    tokens, best = max(found, key=lambda one: one[0])
    most = model.max_context_tokens or tokens
    at = replace(best, settings=replace(best.settings, context_tokens=max(1, min(tokens, most))))
    reason = "holds the longest context" if len(tried) > 1 else None
    between = (largest_context(model, best, n_sequences, end=end) or 0 for end in (0, 1))
    low, high = between if deployment.kv_memory_bytes is None else (tokens, tokens)
    return replace(
        _stated(design, at, None, None),
        layout=reason, pool_context_tokens=tokens, context_between=(low, high),
    )  # fmt: skip


def smallest_layouts(
    designs: Sequence[tuple[str, ModelSpec]],
    deployments: Iterable[Deployment],
    n_sequences: int,
    *,
    stated: Mapping[str, int] | None = None,
    target: LatencyTarget | None = None,
) -> list[Answer]:
    """The fewest GPUs per deployment and labelled design that hold, and serve in time.

    Parameters
    ----------
    stated : sizes of each kind of parallelism that are not searched.
    target : the time that the sequences must be served in; none when None.

    Raises
    ------
    UsageError
        If ``n_sequences`` is below 1.
    SpecError
        As ``step_model``.
    """
    wish = Wish(
        n_sequences=n_sequences, target=target, most_gpus=MOST_GPUS_SEARCHED,
        stated=tuple((stated or {}).items()),
    )  # fmt: skip
    return [_smallest(design, deployment, wish) for deployment in deployments for design in designs]


MOST_GPUS_SEARCHED = 1024


def _smallest(design: tuple[str, ModelSpec], deployment: Deployment, wish: Wish) -> Answer:
    label, model = design
    found = cheapest_way(model, [deployment], wish, price="gpus")
    if isinstance(found, RuledOut):
        timed = wish.target is not None and wish.target.tpot_s is not None
        within = " in that time" if timed else ""
        refused = (
            f"no layout up to {MOST_GPUS_SEARCHED:,} GPUs holds {wish.n_sequences:,} "
            f"sequences{within}: {found.reason}"
        )
        return Answer(attention=label, deployment=deployment, model=model, refused=refused)
    row, settled = replace(found.row, attention=label), found.deployment
    answer = Answer(
        attention=label, deployment=settled, model=model, row=row, is_smallest=True,
        layout="the fewest GPUs",
    )  # fmt: skip
    return _bounded(answer, row, model, settled, wish.target)
