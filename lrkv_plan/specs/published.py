"""Published training results as data: losses of runs with the design that was trained, scores."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from lrkv_plan.documents import read_yaml
from lrkv_plan.schema import Flag, Frozen, HeadCount, Name, TokenCount, Width, validate
from lrkv_plan.specs.model import Sources

Share = Annotated[Decimal, Field(ge=0, le=1)]


class Run(Frozen):
    """One run. ``sweep`` names the runs that differ in one setting only, to be joined.

    ``attention`` is the design as ``--attention`` text; ``printed_ratio`` the source's own cache
    ratio to MHA where the design's width is not known. ``extra`` runs stand beside the comparison
    of one run per family; the others are compared with the ``reference`` run.
    """

    design: Name
    family: Name
    cross_entropy: Annotated[float, Field(gt=0, le=100)]
    table: Name
    attention: Name | None = None
    printed_ratio: Annotated[float, Field(gt=0, le=10)] | None = None
    sweep: Name | None = None
    extra: Flag = False
    reference: Flag = False


class Scale(Frozen):
    """Runs of one size on one backbone; heads are None where not stated.

    ``nominal_params`` is what the size is called, ``sequence_tokens`` the length trained on.
    """

    name: Name
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]
    nominal_params: Annotated[int, Field(strict=True, ge=1, le=10**15)]
    sequence_tokens: TokenCount
    training_tokens: TokenCount | None = None
    n_heads: HeadCount | None = None
    head_dim: Width | None = None

    @model_validator(mode="after")
    def _has_one_reference(self) -> Scale:
        found = [run for run in self.runs if run.reference]
        if len(found) != 1 or found[0].extra:
            named = ", ".join(run.design for run in found) or "none"
            raise ValueError(
                f"scale {self.name}: of the runs that are not extra exactly one must be the "
                f"reference, not {named}"
            )
        return self

    @property
    def compared(self) -> dict[str, Run]:
        """Family to its run in the comparison of families."""
        return {run.family: run for run in self.runs if not run.extra}

    @property
    def reference(self) -> Run:
        """The run that the others are compared with."""
        return next(run for run in self.runs if run.reference)

    @property
    def others(self) -> dict[str, Run]:
        """Family to its run in the comparison, without the reference."""
        return {family: run for family, run in self.compared.items() if not run.reference}


class PublishedLoss(Frozen):
    """All scales of one publication."""

    source: Sources
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]


class EffectiveRank(Frozen):
    """Effective rank of a design's head maps as a share of the heads."""

    design: Name
    centred: Share
    uncentred: Share | None = None


class TaskScore(Frozen):
    """One downstream score of MHA and LRKV."""

    task: Name
    mha: Share
    lrkv: Share


class PublishedScores(Frozen):
    """What was printed at one scale beside losses. ``n_tasks`` are behind ``mean_of_tasks``."""

    source: Sources
    scale: Name
    n_heads: HeadCount
    n_tasks: Annotated[int, Field(strict=True, ge=1, le=1_000)]
    effective_ranks: Annotated[tuple[EffectiveRank, ...], Field(min_length=1)]
    task_scores: Annotated[tuple[TaskScore, ...], Field(min_length=1)]
    mean_of_tasks: TaskScore


def read_published_loss(path: Path) -> PublishedLoss:
    """The facts in a file. Raises ``SpecError`` naming file, key and what is allowed."""
    return validate(PublishedLoss, read_yaml(path), path)


def read_published_scores(path: Path) -> PublishedScores:
    """As ``read_published_loss``."""
    return validate(PublishedScores, read_yaml(path), path)
