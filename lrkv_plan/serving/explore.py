"""Designs on a grid of rank, context, batch and cache format: cache, users that fit, decode steps,
work; around a point, with every family's design in a budget and at the model's own cache.

Every value comes from the calculator that its command uses. What a calculator refuses leaves its
whole quantity out, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.families.low_rank import plain_low_rank, rotated_low_rank
from lrkv_plan.attention.registry import all_families
from lrkv_plan.errors import PlanError, one_line
from lrkv_plan.latency.basis import deciding_terms
from lrkv_plan.latency.step import step_time
from lrkv_plan.memory.arithmetic import arithmetic_ratio_to_mha
from lrkv_plan.memory.cache import bytes_per_token, cache_bytes
from lrkv_plan.memory.largest import rank_ceiling
from lrkv_plan.memory.weights import kv_params_ratio_to_mha
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.engine import engine_record
from lrkv_plan.serving.load import timed_step, timed_unpadded
from lrkv_plan.serving.plan import AS_ASKED, ComparedDesign, compared_designs
from lrkv_plan.specs.design import (
    default_contexts,
    design_label,
    design_text,
    first_backbone,
    layers_of,
    swap_attention,
    widest_rank,
    with_size,
)

if TYPE_CHECKING:
    from lrkv_plan.serving.capacity import CapacityRow
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.serving.load import LatencyTarget
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec

MOST_RANKS, MOST_CONTEXTS = 17, 9
_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_VARIANTS = (("LRKV", plain_low_rank), ("LRKV, keys rotated", rotated_low_rank))
OWN_ROLE = "own design"
PLANNED, EQUAL = "planned", "equal"  # sizes of a plan and the rank slider; all in the own cache


@dataclass(frozen=True, kw_only=True)
class Explored:
    """One quantity in the order design, context, batch; empty where ``refused`` says why."""

    values: tuple[Any, ...] = ()
    refused: str | None = None

    def each(self, value: Callable[[Any], Any]) -> Explored:
        """The same with ``value`` of each."""
        return replace(self, values=tuple(map(value, self.values)))


@dataclass(frozen=True, kw_only=True)
class ExploredStep:
    """A decode step at one point: the prediction and its band. [s]

    ``rests_on`` is the term of the step that says how well it is known.
    """

    step_s: float
    low_s: float
    high_s: float
    rests_on: str


@dataclass(frozen=True, kw_only=True)
class ExploredLine:
    """A design on the grid: one model, or one per rank, and what was computed of it.

    ``computed`` has a mapping per cache format: token, cache, capacity, step, model, weights, work.
    ``unpadded`` says of models whose rows are stored wider than they are timed. ``sets`` are the
    views that show it: ``PLANNED``, ``EQUAL``.
    """

    role: str
    models: tuple[ModelSpec, ...]
    names: tuple[str, ...]
    sets: tuple[str, ...]
    computed: tuple[Mapping[str, Explored], ...] = ()
    unpadded: tuple[str, ...] = ()

    @property
    def identity(self) -> str:
        """Its design with any size; lines of equal identity are one line at two sizes."""
        if self.role == OWN_ROLE:
            return OWN_ROLE
        is_fixed = self.role == AS_ASKED or self.role in _fixed_roles()
        return self.names[0] if is_fixed else design_text(self.models[0], "N")


@dataclass(frozen=True, kw_only=True)
class ExploredGrid:
    """Axes around a point, and every design's line on them.

    ``at`` is the point: rank, context, batch and cache format. ``own_row`` is the capacity of the
    model's own design there, None where it is not known.
    """

    model: ModelSpec
    deployment: Deployment
    ranks: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    formats: tuple[str, ...]
    at: tuple[int, int, int, str]
    lines: tuple[ExploredLine, ...]
    own_row: CapacityRow | None


def explored_grid(
    model: ModelSpec,
    deployment: Deployment,
    *,
    batch_size: int,
    rank: int | None,
    limit: Any,
    designs: Sequence[NamedDesign],
    target: LatencyTarget,
) -> ExploredGrid:
    """The grid around a deployment's own context and format.

    Parameters
    ----------
    batch_size : the point's. [sequences]
    rank : the aligned rank in the budget; None where there is none.
    limit : the budget, in which families size their designs. [bytes/token/GPU]
    designs : more designs to compare.

    Raises
    ------
    UsageError, SpecError
        If the model has no attention layers.
    """
    ranks = _ranks(model, deployment.rank_alignment, rank)
    own_context, own_format = deployment.settings.context_tokens, deployment.settings.kv_dtype
    contexts = sorted({*default_contexts(model)[-MOST_CONTEXTS:], own_context})
    batches = sorted({*_BATCHES, batch_size})
    lines = [
        *_planned(model, deployment, limit, designs),
        *_varied(model, ranks),
        *_at_own_cache(model, deployment),
    ]
    computed = {
        kv_dtype: [
            _computed(line.models, contexts, batches, _in_format(deployment, kv_dtype), target)
            for line in lines
        ]
        for kv_dtype in _formats(deployment)
    }
    formats = _usable(computed)
    here = explored_capacities([model], [own_context], deployment).values
    first = rank or next((one for one in ranks if one), 0)  # rank 0 is no LRKV
    return ExploredGrid(
        model=model,
        deployment=deployment,
        ranks=tuple(ranks),
        contexts=tuple(contexts),
        batches=tuple(batches),
        formats=tuple(formats),
        at=(first, own_context, batch_size, own_format),
        lines=tuple(
            replace(
                line,
                computed=tuple(computed[kv_dtype][n] for kv_dtype in formats),
                unpadded=_unpadded(line.models, deployment),
            )
            for n, line in enumerate(lines)
        ),
        own_row=here[0] if here else None,
    )


def _ranks(model: ModelSpec, step: int, own: int | None) -> list[int]:
    """Multiples of the alignment up to a head's width, thinned, with the point's own."""
    widest = widest_rank(model)
    while widest // step + 1 > MOST_RANKS:
        step *= 2
    return sorted({*range(0, widest + 1, step), *(() if own is None else (own,))})


def _formats(deployment: Deployment) -> list[str]:
    """The point's own cache format, and one of about half or twice its width."""
    own = deployment.settings.kv_dtype
    small = engine_record(deployment.engine.name).small_kv_dtypes
    other = "bf16" if own in small else next(iter(small), None)
    return [own, *([other] if other is not None and other != own else [])]


def _in_format(deployment: Deployment, kv_dtype: str) -> Deployment:
    return replace(deployment, settings=replace(deployment.settings, kv_dtype=kv_dtype))


def _unpadded(models: Iterable[ModelSpec], deployment: Deployment) -> tuple[str, ...]:
    return tuple(filter(None, (timed_unpadded(one, deployment) for one in models)))


def _planned(
    model: ModelSpec, deployment: Deployment, limit: Any, designs: Sequence[NamedDesign]
) -> Iterator[ExploredLine]:
    """What a plan compares, but the designs that follow the rank."""
    follows = {
        design_text(swap_attention(model, variant(first_backbone(model))), "N")
        for _, variant in _VARIANTS
    }
    for one in compared_designs(model, deployment, limit, designs):
        if one.refused is not None:
            continue
        line = _line(one, (PLANNED,))
        if one.text is None or one.role == AS_ASKED or line.identity not in follows:
            stays = one.text is None or one.role in _fixed_roles()
            yield replace(line, sets=(PLANNED, EQUAL)) if stays else line


def _fixed_roles() -> set[str]:
    """Roles of designs that no budget sizes; they stay as they are at equal cache."""
    planned = (one for family in all_families() for one in family.planned)
    return {one.role for one in planned if not one.in_budget}


def _line(one: ComparedDesign, sets: tuple[str, ...]) -> ExploredLine:
    name = one.text or design_label(one.model)
    return ExploredLine(role=one.role, models=(one.model,), names=(name,), sets=sets)


def _varied(model: ModelSpec, ranks: Sequence[int]) -> Iterator[ExploredLine]:
    """LRKV at every rank, plain and with keys rotated as they are rebuilt."""
    for role, variant in _VARIANTS:
        varied = swap_attention(model, variant(first_backbone(model)))
        swapped = tuple(with_size(varied, rank) for rank in ranks)
        names = tuple(map(design_text, swapped))
        yield ExploredLine(role=role, models=swapped, names=names, sets=(PLANNED,))


def _at_own_cache(model: ModelSpec, deployment: Deployment) -> Iterator[ExploredLine]:
    for one in designs_at_own_cache(model, deployment):
        yield replace(_line(one, (EQUAL,)), role="in the own cache")


def _computed(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    deployment: Deployment,
    target: LatencyTarget,
) -> Mapping[str, Explored]:
    """All quantities of a line in the deployment's cache format."""
    return {
        "token": explored_token_bytes(models, deployment),
        "cache": explored_caches(models, contexts, batches, deployment),
        "capacity": explored_capacities(models, contexts, deployment),
        "step": explored_steps(models, contexts, batches, deployment, target),
        "model": explored_step_models(models, deployment, target),
        "weights": explored_weights(models),
        "work": explored_work(models, contexts),
    }


def _usable(computed: Mapping[str, Sequence[Mapping[str, Explored]]]) -> list[str]:
    """The first format, and those that lose nothing that the first has."""
    own, *others = computed
    return [
        own,
        *(
            other
            for other in others
            if all(
                found[key].refused is None or first[key].refused is not None
                for first, found in zip(computed[own], computed[other], strict=True)
                for key in first
            )
        ),
    ]


def explored_token_bytes(models: Sequence[ModelSpec], deployment: Deployment) -> Explored:
    """Cached bytes of one more token on one GPU, per design. [bytes/token]"""
    kv_dtype, tp_size = deployment.settings.kv_dtype, deployment.parallel.tp_size
    return _explored(
        lambda: (bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size) for model in models)
    )


def explored_caches(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    deployment: Deployment,
) -> Explored:
    """Cache on one GPU of ``batch`` sequences, per design, context and batch. [bytes]"""
    place: dict[str, Any] = {
        "kv_dtype": deployment.settings.kv_dtype, "tp_size": deployment.parallel.tp_size,
    }  # fmt: skip
    at_contexts, at_batches = _grid(contexts, batches)
    return _explored(
        lambda: (
            n_bytes
            for model in models
            for n_bytes in _flat(
                cache_bytes(
                    model, context_tokens=at_contexts, batch_size=at_batches, **place
                ).total,
                contexts, batches,
            )
        )
    )  # fmt: skip


def explored_capacities(
    models: Sequence[ModelSpec], contexts: Sequence[int], deployment: Deployment
) -> Explored:
    """``CapacityRow`` per design and context."""
    at = [
        replace(deployment, settings=replace(deployment.settings, context_tokens=context))
        for context in contexts
    ]

    def rows() -> Iterable[CapacityRow]:
        return (capacity_row(model, one) for model in models for one in at)

    return _explored(rows)


def explored_steps(
    models: Sequence[ModelSpec],
    contexts: Sequence[int],
    batches: Sequence[int],
    deployment: Deployment,
    target: LatencyTarget,
) -> Explored:
    """``ExploredStep`` per design, context and batch."""
    n_query = target.speculation.query_tokens
    at_contexts, at_batches = _grid(contexts, batches)

    def steps() -> Iterable[ExploredStep]:
        for model in models:
            step = timed_step(model, deployment, target)
            found = step_time(step, at_contexts, at_batches, n_query)
            told = (found.step_s, found.low_s, found.high_s, deciding_terms(step, found))
            for s, low, high, term in zip(
                *(_flat(one, contexts, batches) for one in told), strict=True
            ):
                yield ExploredStep(step_s=s, low_s=low, high_s=high, rests_on=term)

    return _explored(steps)


def explored_step_models(
    models: Sequence[ModelSpec], deployment: Deployment, target: LatencyTarget
) -> Explored:
    """``StepModel`` per design: the constants that its times take, and what they rest on."""
    return _explored(lambda: (timed_step(model, deployment, target) for model in models))


def explored_weights(models: Sequence[ModelSpec]) -> Explored:
    """Key and value weights over those of MHA, per design; None where nothing is projected."""
    return _explored(lambda: (kv_params_ratio_to_mha(model) for model in models))


def explored_work(models: Sequence[ModelSpec], contexts: Sequence[int]) -> Explored:
    """Multiply-adds of decoding over those of MHA, per design and context."""
    return _explored(
        lambda: (
            arithmetic_ratio_to_mha(model, context) for model in models for context in contexts
        )
    )


def designs_at_own_cache(model: ModelSpec, deployment: Deployment) -> list[ComparedDesign]:
    """What each family keeps in the bytes of the model's own cache.

    The largest size of each design that a plan sizes in a budget, unaligned: what ``rank`` gives
    for a budget of 100 % of own. Designs of one size are not here, nor is the model's own.
    """
    backbone, own = first_backbone(model), design_label(model)
    place: dict[str, Any] = {
        "tp_size": deployment.parallel.tp_size, "kv_dtype": deployment.settings.kv_dtype,
    }  # fmt: skip
    found: list[ComparedDesign] = []
    for planned in (one for family in all_families() for one in family.planned if one.in_budget):
        try:
            design = swap_attention(model, planned.on(backbone))
            ceiling = rank_ceiling(
                model, budget="100% of own", design=layers_of(design)[0], **place
            )
        except PlanError:
            continue  # not on this backbone or these GPUs, or none so small
        sized = with_size(design, ceiling.largest.value)
        text = design_text(sized)
        if text != own and text not in [one.text for one in found]:
            found.append(ComparedDesign(role=planned.role, model=sized, text=text))
    return found


def _grid(contexts: Sequence[int], batches: Sequence[int]) -> tuple[Any, Any]:
    """Contexts down, batches across."""
    import numpy as np

    return np.asarray(contexts)[:, None], np.asarray(batches)[None, :]


def _flat(values: Any, contexts: Sequence[int], batches: Sequence[int]) -> list[Any]:
    """Values on the grid as plain numbers, batch by batch of each context."""
    import numpy as np

    flat: list[Any] = np.broadcast_to(values, (len(contexts), len(batches))).ravel().tolist()
    return flat


def _explored(values: Callable[[], Iterable[Any]]) -> Explored:
    try:
        return Explored(values=tuple(values()))
    except PlanError as error:
        return Explored(refused=one_line(str(error)))
