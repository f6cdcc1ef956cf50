"""Which designs stand side by side on one deployment, and how many sequences of each it holds?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.attention.layout import CachedTensor
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, PlanError
from lrkv_plan.memory.largest import RankCeiling, rank_ceiling
from lrkv_plan.memory.placement import try_placements
from lrkv_plan.serving.capacity import capacity_row
from lrkv_plan.serving.plan import compared_designs, own_budget
from lrkv_plan.specs.design import design_label, layers_of, swap_attention

if TYPE_CHECKING:
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec

MOST_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class ShownDesign:
    """A compared design that can run, and the sequences of it that one replica holds.

    ``text`` is what a command line takes, None where no text gives the model's own; ``room`` is
    None where it is not known. Designs of equal ``rows`` cache the same and decode otherwise.
    """

    role: str
    model: ModelSpec
    text: str | None
    room: int | None
    rows: tuple[tuple[CachedTensor, ...], ...]

    @property
    def label(self) -> str:
        """What tables and pictures call it."""
        return design_label(self.model)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Designs that can run, why others cannot, and the budget that sized them.

    ``ceiling`` is None where no rank fits the budget. ``low_rank`` is its aligned rank, and
    ``rotated`` the same cache with keys rotated as they are rebuilt where that runs, else the same
    design; None where neither stands here.
    """

    designs: tuple[ShownDesign, ...]
    refused: tuple[str, ...]
    budget: str
    ceiling: RankCeiling | None
    low_rank: ShownDesign | None
    rotated: ShownDesign | None

    @property
    def batch_size(self) -> int:
        """What every design holds that holds anything, at most 32; 1 where that is unknown."""
        return _common_batch(one.room for one in self.designs)


def side_by_side(
    model: ModelSpec,
    deployment: Deployment,
    *,
    budget: str | None = None,
    extra: Sequence[NamedDesign] = (),
) -> SideBySide:
    """What a plan compares, on a settled layout.

    Parameters
    ----------
    budget : cache budget in which families size their designs; the plan's own when None.
    extra : more designs to compare.

    Raises
    ------
    PlacementError
        If no design can run on the tensor-parallel size.
    """
    share = own_budget(model) if budget is None else budget
    ceiling = _ceiling(model, deployment, share)
    designs, refused = _designs(model, deployment, ceiling, extra)
    if not designs:
        raise PlacementError(f"{model.name}: no design can run: {refused[0]}")
    aligned = None if ceiling is None else ceiling.aligned.model
    same = [
        one for one in designs
        if aligned is not None and one.text is not None and one.rows == _cached_rows(aligned)
    ]  # fmt: skip
    return SideBySide(
        designs=designs,
        refused=refused,
        budget=share,
        ceiling=ceiling,
        low_rank=next((one for one in same if one.model == aligned), None),
        rotated=same[-1] if same else None,
    )


def _ceiling(model: ModelSpec, deployment: Deployment, budget: str) -> RankCeiling | None:
    try:
        return rank_ceiling(
            model, budget=budget, alignment=deployment.rank_alignment,
            tp_size=deployment.parallel.tp_size, kv_dtype=deployment.settings.kv_dtype,
        )  # fmt: skip
    except PlanError:
        return None  # the question about ranks says why


def _designs(
    model: ModelSpec,
    deployment: Deployment,
    ceiling: RankCeiling | None,
    extra: Sequence[NamedDesign],
) -> tuple[tuple[ShownDesign, ...], tuple[str, ...]]:
    """Designs that can run, and the others with their reasons."""
    limit = None if ceiling is None else ceiling.budget_bytes_per_token_per_gpu
    tp_size, kv_dtype = deployment.parallel.tp_size, deployment.settings.kv_dtype
    shown, refused = [], []
    for one in compared_designs(model, deployment, limit, extra):
        reason = one.refused
        try:
            if reason is None:
                _, reason = try_placements(one.model, tp_size=tp_size, kv_dtype=kv_dtype)
        except PlanError as error:
            reason = str(error)
        if reason is not None:
            refused.append(f"{one.text or design_label(model)}: {reason}")
            continue
        shown.append(
            ShownDesign(
                role=one.role,
                model=one.model,
                text=own_as_text(model) if one.text is None else one.text,
                room=_room(one.model, deployment),
                rows=_cached_rows(one.model),
            )
        )
    return tuple(shown), tuple(refused)


def _room(design: ModelSpec, deployment: Deployment) -> int | None:
    """Sequences of full length that one replica holds; None where that is not known."""
    try:
        return capacity_row(design, deployment).max_sequences
    except PlanError:
        return None


def _common_batch(rooms: Iterable[int | None]) -> int:
    held = [room for room in rooms if room]
    return min(MOST_BATCH, *held) if held else 1


def _cached_rows(model: ModelSpec) -> tuple[tuple[CachedTensor, ...], ...]:
    """What each layer caches: designs that differ in how they decode store the same."""
    return tuple(tuple(layout_of(layer, model.model_dim).cached) for layer in layers_of(model))


def own_as_text(model: ModelSpec) -> str | None:
    """The model's own design as text; None where no text gives the same model back."""
    label = design_label(model)
    try:
        return label if swap_attention(model, label) == model else None
    except PlanError:
        return None
