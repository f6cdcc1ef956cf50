"""A memory budget that a server's own log measured: the file of ``--budget-file``."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated

from pydantic import Field, model_validator

from lrkv_plan.schema import ByteCount, Frozen, Name, Source, TokenCount

Size = Annotated[int, Field(strict=True, ge=1, le=65_536)]


class MeasuredBudget(Frozen):
    """What one GPU had for weights, cache and everything else, and what it was measured with.

    Everything else, ``runtime_bytes``, is memory x utilisation - weights - cache.
    """

    engine: Name
    model: Name
    gpu: Name
    tp_size: Size = 1
    dp_size: Size = 1
    ep_size: Size = 1
    dcp_size: Size = 1
    context_tokens: TokenCount
    max_batched_tokens: TokenCount
    utilisation: Annotated[float, Field(gt=0, le=1)]
    memory_bytes: ByteCount
    weights_bytes: ByteCount
    cache_bytes: ByteCount
    source: Source

    @model_validator(mode="after")
    def _adds_up(self) -> MeasuredBudget:
        if self.runtime_bytes < 0:
            raise ValueError(
                "weights_bytes and cache_bytes take more than memory_bytes x utilisation"
            )
        return self

    @property
    def share(self) -> Fraction:
        """The utilisation as it was written."""
        return Fraction(str(self.utilisation))

    @property
    def runtime_bytes(self) -> int:
        """Activations, driver, libraries, graphs: what is neither weights nor cache. [bytes]"""
        within = int(self.memory_bytes * self.share)
        return within - self.weights_bytes - self.cache_bytes
