"""Published training results as data: one loss per run, with the design that was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from lrkv_plan.specs.base import Frozen, HeadCount, Name, TokenCount, Width
from lrkv_plan.specs.loader import validate
from lrkv_plan.specs.model import Sources
from lrkv_plan.specs.strict_files import read_yaml


class Run(Frozen):
    """One run. ``sweep`` names the runs that differ in one setting only, to be joined.

    ``attention`` is the design as ``--attention`` text; ``printed_ratio`` the source's own cache
    ratio to MHA where the design's width is not known.
    """

    design: Name
    family: Name
    cross_entropy: Annotated[float, Field(gt=0, le=100)]
    table: Name
    attention: Name | None = None
    printed_ratio: Annotated[float, Field(gt=0, le=10)] | None = None
    sweep: Name | None = None


class Scale(Frozen):
    """Runs of one size on one backbone; heads are None where not stated."""

    name: Name
    runs: Annotated[tuple[Run, ...], Field(min_length=1)]
    training_tokens: TokenCount | None = None
    n_heads: HeadCount | None = None
    head_dim: Width | None = None


class PublishedLoss(Frozen):
    """All scales of one publication."""

    source: Sources
    scales: Annotated[tuple[Scale, ...], Field(min_length=1)]


def read_published_loss(path: Path) -> PublishedLoss:
    """The facts in a file. Raises ``SpecError`` naming file, key and what is allowed."""
    return validate(PublishedLoss, read_yaml(path), path)
