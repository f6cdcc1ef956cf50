"""LRKV over shared rows and private latents, factored (arXiv:2601.11471v3, eq. 6-7).

Scores are scaled by 1/sqrt(head_dim): the sum of both branches is the full-width product, whatever
the rank (review of that paper, section 3). With ``rope_decoupled`` by
1/sqrt(head_dim + rope_dim), as MLA does for its decoupled key; the paper has no such variant.
"""

from __future__ import annotations

import torch
from typing_extensions import override

from lrkv_plan.calibration.decode.attend import (
    ScoredAttention,
    StepInputs,
    add_mix,
    add_scores,
    per_head,
)


class FactoredLowRank(ScoredAttention):
    """Shared and private scores are added before one softmax, whose weights drive both values.

    The heads of a group scan the shared rows as one matrix; private latents are a batch over
    heads. ``key_basis`` is (H, d_h, stored rank), ``value_basis`` (H, stored rank, d_v), zero
    beyond the rank; both are absent at rank 0. Positions in rank space or in a decoupled key, and
    none at all, differ only in what was cached. A cached scale per head and token multiplies the
    summed content score; a rotary key is outside that norm.
    """

    def __init__(self, inputs: StepInputs) -> None:
        super().__init__(inputs, scale=inputs.query.shape[-1] ** -0.5)
        cache = inputs.cache
        self.groups = cache.copies("shared_key")
        self.head_dim = cache.cached["shared_key"].width
        self.content_query = self.query[..., : self.head_dim].contiguous()
        self.rope_query = self.by_copy(self.query[..., self.head_dim :], 1)
        self.per_group = self.by_copy(self.scores, self.groups)
        self.per_private = self.by_copy(self.scores, self.heads)

    @override
    def score(self) -> None:
        shared = self.cache.flat_rows("shared_key")
        add_scores(self.by_copy(self.content_query, self.groups), shared, self.per_group, beta=0)
        if "private_key" in self.cache.cached:
            query = per_head(self.content_query, self.weights["key_basis"])
            latents = self.cache.flat_rows("private_key")
            add_scores(self.by_copy(query, self.heads), latents, self.per_private, beta=1)
        self.scale_and_add_rope()

    def scale_and_add_rope(self) -> None:
        """Multiply content scores by the cached key scale; add the decoupled rotary score."""
        if "key_scale" in self.cache.cached:
            self.scores.mul_(self.cache.rows("key_scale").transpose(2, 3))
        if "rope_key" in self.cache.cached:
            rope_keys = self.cache.flat_rows("rope_key")
            add_scores(self.rope_query, rope_keys, self.by_copy(self.scores, 1), beta=1)

    @override
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        shared = self.cache.flat_rows("shared_value")
        outputs = self.new_outputs(shared.shape[-1])
        by_group = self.by_copy(shares, self.groups)
        add_mix(by_group, shared, self.by_copy(outputs, self.groups), beta=0)
        if "private_value" in self.cache.cached:
            latents = self.cache.flat_rows("private_value")
            mixed = self.new_outputs(latents.shape[-1])
            by_head = self.by_copy(shares, self.heads)
            add_mix(by_head, latents, self.by_copy(mixed, self.heads), beta=0)
            outputs += per_head(mixed, self.weights["value_basis"])
        return outputs
