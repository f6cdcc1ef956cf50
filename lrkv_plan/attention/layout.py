"""What one attention layer keeps, weighs and computes, as data that calculators loop over.

A family's builder fills an ``AttentionLayout``; no calculator asks which family made it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

from lrkv_plan.errors import PlacementError
from lrkv_plan.formats import StorageFormat


class Sharding(enum.Enum):
    """Where the copies of a tensor live in a tensor-parallel group."""

    BY_COPY = "by_copy"  # dealt out; with fewer copies than GPUs, each is on several
    REPLICATED = "replicated"  # every GPU holds every copy


def check_dealing(count: int, what: str, tp_size: int) -> None:
    """Raise ``PlacementError`` unless ``count`` divides ``tp_size`` or is a multiple of it."""
    if count % tp_size and tp_size % count:
        allowed = [p for p in range(1, count + 1) if count % p == 0]
        raise PlacementError(
            f"tp_size {tp_size}: {count} {what} can neither be dealt out nor "
            f"repeated evenly; allowed: {', '.join(map(str, allowed))} or multiples of {count}"
        )


@dataclass(frozen=True, kw_only=True)
class CachedTensor:
    """Rows that one layer keeps per token: ``copies_per_layer`` rows of ``width`` scalars.

    ``payload_width`` is the part of ``width`` that carries values; the rest aligns the row.
    ``row_of`` names the row to a storage format that lays it out unlike others of its name.
    ``holds`` says whether the row is a ``key`` or a ``value``, which may have formats of their own.
    """

    name: str
    width: int
    copies_per_layer: int
    sharding: Sharding
    payload_width: int | None = None
    row_of: str | None = None
    holds: Literal["key", "value", "both"] = "both"

    def format_in(self, storage: StorageFormat) -> StorageFormat:
        """How that storage format keeps this row.

        Raises
        ------
        PlacementError
            If it keeps keys and values apart, and this row is both.
        """
        return storage.half(self.holds).of_tensor(self.row_of or self.name)

    def copies_per_gpu(self, tp_size: int) -> int:
        """Copies on one GPU of ``tp_size``: ceil(copies / P), or all when replicated.

        Raises
        ------
        PlacementError
            If the copies can neither be dealt out evenly nor repeated evenly.
        """
        copies = self.copies_per_layer
        if self.sharding is Sharding.REPLICATED:
            return copies
        check_dealing(copies, f"copies of {self.name}", tp_size)
        return max(1, copies // tp_size)


class WeightRole(enum.Enum):
    """What a weight is counted as when parameters are compared."""

    QUERY = "query"
    KEY_VALUE = "key_value"
    OUTPUT = "output"
    OTHER = "other"  # biases and norms inside attention


@dataclass(frozen=True, kw_only=True)
class WeightMatrix:
    """``copies`` matrices of ``rows`` x ``cols``; a vector has one column.

    ``units`` is how many equal shares (heads, groups of heads) tensor parallelism deals out; fewer
    shares than GPUs are repeated evenly. None means whole on every GPU. ``makes_rows`` means that
    it makes what the cache keeps, so that a layer which reads another layer's rows has none.
    ``reads`` names what a decode step multiplies it with: matrices that read the same are one
    product in an engine (query, key and value; every down-projection); None is a matrix that a
    step multiplies head by head, in ``DecodeWork.products``.
    """

    name: str
    rows: int
    cols: int
    role: WeightRole
    copies: int = 1
    units: int | None = None
    makes_rows: bool = False
    reads: str | None = "hidden"

    @property
    def n_params(self) -> int:
        """Parameters in all copies."""
        return self.rows * self.cols * self.copies

    def share_per_gpu(self, tp_size: int) -> Fraction:
        """The part of this weight that one GPU of ``tp_size`` holds: 1, 1/P or 1/units.

        Raises
        ------
        PlacementError
            If the units can neither be dealt out evenly nor repeated evenly.
        """
        if self.units is None:
            return Fraction(1)
        check_dealing(self.units, f"shares of weight {self.name}", tp_size)
        return Fraction(1, min(self.units, tp_size))


@dataclass(frozen=True, kw_only=True)
class HeadProduct:
    """One matrix of ``rows`` x ``cols`` per query head, multiplied with that head's vectors.

    A decode step runs it as one batched product over heads.
    """

    name: str
    rows: int
    cols: int


@dataclass(frozen=True, kw_only=True)
class DecodeWork:
    """Multiply-adds of one layer in one decode step, all heads of one sequence.

    With T cached tokens and q query tokens the step takes
    ``q (T per_token + per_step) + T expand_per_token`` multiply-adds. ``per_step`` maps queries and
    outputs through layer weights; the rest scans the cache. ``kernel`` names the measured kernel
    whose constants apply. ``rebuilt_per_token`` counts the key and value scalars that a path writes
    out anew for every cached token. ``products`` are the maps of ``per_step``, head by head;
    ``in_kernel`` those of them that the kernel does itself. ``assumptions`` are sentences about how
    an engine would run them that no measurement stands for, printed wherever a time stands.
    """

    path: str
    kernel: str
    per_token: int
    per_step: int
    expand_per_token: int = 0
    rebuilt_per_token: int = 0
    products: tuple[HeadProduct, ...] = ()
    in_kernel: tuple[HeadProduct, ...] = ()
    assumptions: tuple[str, ...] = ()

    def multiply_adds(self, context_tokens: int, query_tokens: int = 1) -> int:
        """Multiply-adds of one layer and step; one is 2 FLOPs."""
        scanned = context_tokens * self.per_token + self.per_step
        return query_tokens * scanned + context_tokens * self.expand_per_token


@dataclass(frozen=True, kw_only=True)
class AttentionLayout:
    """One layer's attention. ``work[0]`` is the path that a serving engine would take.

    ``has_latent_rows`` says that one cached row is key and value of all heads, which old engines
    could not keep; ``per_head_option`` is the design's option that caches every head instead,
    ``in_kernel_option`` the one under which its kernel does the products over heads itself.
    ``small_kernels`` are kind and width of what a step launches beside matrices and attention; a
    design whose measured layer leaves no time for them has none.
    """

    label: str
    n_heads: int
    cached: tuple[CachedTensor, ...]
    weights: tuple[WeightMatrix, ...]
    work: tuple[DecodeWork, ...]
    has_latent_rows: bool = False
    per_head_option: str | None = None
    in_kernel_option: str | None = None
    small_kernels: Mapping[str, int] = field(default_factory=dict)

    def weights_held(self, *, reuses_cache: bool) -> tuple[WeightMatrix, ...]:
        """The layer's weights: all, or those that do not make rows where it reuses a cache.

        Gemma 4's shared layers have no key and value projections and no key norm (transformers,
        modeling_gemma4.py). Gemma 3n's code still declares them there and never runs them: they are
        left out too.
        """
        return tuple(w for w in self.weights if not (reuses_cache and w.makes_rows))

    def check_tp_size(self, tp_size: int) -> None:
        """Raise ``PlacementError`` unless an engine can run this layer on ``tp_size`` GPUs.

        Query heads must be dealt out evenly, and so must every cached tensor or be repeated
        evenly (real engines: n_heads % P = 0, and n_kv_heads % P = 0 or P % n_kv_heads = 0).
        """
        if tp_size < 1:
            raise PlacementError(f"tp_size {tp_size}: must be at least 1")
        if self.n_heads % tp_size:
            allowed = [p for p in range(1, self.n_heads + 1) if self.n_heads % p == 0]
            raise PlacementError(
                f"tp_size {tp_size}: {self.n_heads} query heads cannot be dealt out evenly; "
                f"allowed: {', '.join(map(str, allowed))}"
            )
        for tensor in self.cached:
            tensor.copies_per_gpu(tp_size)

    def scalars_per_token(self) -> int:
        """Scalars that one layer keeps per token, one copy of everything."""
        return sum(t.width * t.copies_per_layer for t in self.cached)

    def arithmetic_ratio(self, reference: AttentionLayout, context_tokens: int) -> Fraction:
        """Multiply-adds of the first path over those of ``reference`` at that context."""
        mine = self.work[0].multiply_adds(context_tokens)
        return Fraction(mine, reference.work[0].multiply_adds(context_tokens))
