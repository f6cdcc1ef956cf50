"""MLA over cached latents (DeepSeek-V2, arXiv:2405.04434).

The query is (d_nope + d_R) wide, rotary part last; scores are scaled by 1/sqrt(d_nope + d_R)
(section 2.1.3 there, the sum of both parts' widths).
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


class AbsorbedLatent(ScoredAttention):
    """Queries are mapped into the latent space and outputs back: q W_uk^T c^T and (a c) W_uv.

    All heads scan the one latent, as rows of one matrix. ``key_up`` is (H, d_nope, d_c),
    ``value_up`` (H, d_c, d_v).
    """

    def __init__(self, inputs: StepInputs) -> None:
        super().__init__(inputs, scale=inputs.query.shape[-1] ** -0.5)
        nope = inputs.weights["key_up"].shape[1]
        self.content_query = self.query[..., :nope]
        self.rope_query = self.by_copy(self.query[..., nope:], 1)
        self.score_block = self.by_copy(self.scores, 1)

    @override
    def score(self) -> None:
        query = per_head(self.content_query, self.weights["key_up"])
        latents = self.cache.flat_rows("latent")
        add_scores(self.by_copy(query, 1), latents, self.score_block, beta=0)
        self.score_rope()

    def score_rope(self) -> None:
        """Add what the shared rotary key contributes."""
        if self.rope_query.shape[-1]:
            add_scores(self.rope_query, self.cache.flat_rows("rope_key"), self.score_block, beta=1)

    @override
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        latents = self.cache.flat_rows("latent")
        mixed = self.new_outputs(latents.shape[-1])
        add_mix(self.by_copy(shares, 1), latents, self.by_copy(mixed, 1), beta=0)
        return per_head(mixed, self.weights["value_up"]).float()
