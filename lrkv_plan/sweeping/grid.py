"""Which points a sweep has, in which order, and how they are cut into chunks.

A point is a configuration (design, GPU, layout, formats) at a context and a batch. Points are
numbered: configurations in the order of the axes, then contexts, then batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.errors import PlanError
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.load import LatencyTarget
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.design import layers_of, swap_attention
from lrkv_plan.specs.model import ModelSpec

CHUNK_POINTS = 2**20


@dataclass(frozen=True, kw_only=True)
class Design:
    """A design by the text that names it; no ``spec`` is the model's own.

    ``refused`` says why a backbone cannot have it.
    """

    text: str
    spec: str | AttentionSpec | None = None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model with one design, or with its own where that design is refused."""

    text: str
    model: ModelSpec

    @property
    def size(self) -> int | None:
        """The size that varies: rank, KV heads or latent width; None where layers differ."""
        layers = layers_of(self.model)
        name = layers[0].size_fields if layers and len(set(map(type, layers))) == 1 else ()
        sizes = {getattr(layer, name[0]) for layer in layers} if name else set()
        return int(next(iter(sizes))) if len(sizes) == 1 else None

    @property
    def family(self) -> str:
        """The family of all its layers, or ``mixed``; ``none`` where no layer attends."""
        families = {str(layer.family) for layer in layers_of(self.model)}
        return next(iter(families), "none") if len(families) < 2 else "mixed"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """All of a point but its context and batch; ``refused`` says why there is no deployment.

    ``sizes`` are those of each kind of parallelism, also where they do not go together.
    """

    variant: Variant
    deployment: Deployment
    sizes: Mapping[str, int]
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The axes of a sweep.

    Parameters
    ----------
    models, designs : models, and for each its designs.
    bases : per model, one deployment for each GPU: all that the axes leave alone.
    layouts : sizes of each kind of parallelism, by name.
    kv_dtypes, weight_dtypes : formats; None is the model's own weights.
    contexts : tokens cached per sequence. [tokens]
    batches : sequences of one replica; None is the most that fit, and meet the target.
    target : the most that a token may take, how tokens are drafted, lending profiles.
    """

    models: tuple[ModelSpec, ...]
    designs: tuple[tuple[Design, ...], ...]
    bases: tuple[tuple[Deployment, ...], ...]
    layouts: tuple[Mapping[str, int], ...]
    kv_dtypes: tuple[str, ...]
    weight_dtypes: tuple[str | None, ...]
    contexts: tuple[int, ...]
    batches: tuple[int | None, ...]
    target: LatencyTarget

    @property
    def _beside(self) -> tuple[int, int, int, int]:
        sizes = (self.layouts, self.kv_dtypes, self.weight_dtypes)
        return (len(self.bases[0]), len(sizes[0]), len(sizes[1]), len(sizes[2]))

    @property
    def n_configurations(self) -> int:
        """Designs of all models times GPUs, layouts and formats."""
        return sum(map(len, self.designs)) * math.prod(self._beside)

    @property
    def points_each(self) -> int:
        """Points of one configuration."""
        return len(self.contexts) * len(self.batches)

    @property
    def n_points(self) -> int:
        """All points."""
        return self.n_configurations * self.points_each

    def configuration(self, number: int) -> Configuration:
        """The configuration of that number."""
        rest, gpu, layout, kv_dtype, weight_dtype = _digits(number, self._beside)
        of_model = 0
        while rest >= len(self.designs[of_model]):
            rest -= len(self.designs[of_model])
            of_model += 1
        design, base = self.designs[of_model][rest], self.bases[of_model][gpu]
        weights = self.weight_dtypes[weight_dtype]
        settings = replace(base.settings, kv_dtype=self.kv_dtypes[kv_dtype])
        deployment = replace(base, settings=settings)
        if weights is not None:
            deployment = replace(deployment, weight_dtype=weights)
        sizes, refused = self.layouts[layout], design.refused
        try:
            deployment = replace(deployment, parallel=Parallelism(**dict(sizes)))  # type: ignore[arg-type]
            _ = deployment.n_replicas
        except PlanError as error:
            refused = refused or str(error)
        model = self.models[of_model]
        if design.spec is not None and design.refused is None:
            model = swap_attention(model, design.spec)
        return Configuration(
            variant=Variant(text=design.text, model=model),
            deployment=deployment,
            sizes=sizes,
            refused=refused,
        )


def _digits(number: int, sizes: Sequence[int]) -> tuple[int, ...]:
    """A number as digits, the last of which turns fastest; what is left stands in front.

    Examples
    --------
    >>> _digits(7, (2, 3))
    (1, 0, 1)
    """
    digits: list[int] = []
    for size in reversed(sizes):
        number, digit = divmod(number, size)
        digits.insert(0, digit)
    return (number, *digits)


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Configurations from ``first`` to before ``end``, at the contexts of ``contexts``."""

    number: int
    first: int
    end: int
    contexts: slice

    def n_points(self, grid: Grid) -> int:
        """Its points."""
        n_contexts = len(grid.contexts[self.contexts])
        return (self.end - self.first) * n_contexts * len(grid.batches)


def chunks(grid: Grid, most_points: int = CHUNK_POINTS) -> Iterator[Chunk]:
    """The grid in chunks of at most so many points, as far as a row of batches can be cut.

    Examples
    --------
    A configuration that is larger than a chunk is cut along its contexts.
    """
    each, whole = grid.points_each, slice(0, len(grid.contexts))
    if each <= most_points:
        together = most_points // each
        for number, first in enumerate(range(0, grid.n_configurations, together)):
            end = min(first + together, grid.n_configurations)
            yield Chunk(number=number, first=first, end=end, contexts=whole)
        return
    at_once = max(1, most_points // len(grid.batches))
    parts = [slice(at, at + at_once) for at in range(0, len(grid.contexts), at_once)]
    for first in range(grid.n_configurations):
        for index, part in enumerate(parts):
            number = first * len(parts) + index
            yield Chunk(number=number, first=first, end=first + 1, contexts=part)
