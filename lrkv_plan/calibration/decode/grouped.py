"""MHA, GQA and MQA over cached keys and values, and any other cache of just these two.

Scores are scaled by 1/sqrt(key width) (Vaswani et al. 2017, arXiv:1706.03762): head_dim, or for
MLA kept as heads nope_dim + rope_dim (DeepSeek-V2, arXiv:2405.04434).
"""

from __future__ import annotations

import torch
from typing_extensions import override

from lrkv_plan.calibration.decode.attend import (
    Attention,
    ScoredAttention,
    StepInputs,
    add_mix,
    add_scores,
)


class GroupedAttention(ScoredAttention):
    """Two batched products; the heads that share a key are rows of one matrix, so it is read once.

    No key or value is repeated per head.
    """

    def __init__(self, inputs: StepInputs) -> None:
        super().__init__(inputs, scale=inputs.query.shape[-1] ** -0.5)
        self.copies = inputs.cache.copies("key")
        self.queries = self.by_copy(self.query, self.copies)
        self.score_blocks = self.by_copy(self.scores, self.copies)

    @override
    def score(self) -> None:
        add_scores(self.queries, self.cache.flat_rows("key"), self.score_blocks, beta=0)

    @override
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        rows = self.cache.flat_rows("value")
        outputs = self.new_outputs(rows.shape[-1])
        shares = self.by_copy(shares, self.copies)
        add_mix(shares, rows, self.by_copy(outputs, self.copies), beta=0)
        return outputs


class FusedAttention(Attention):
    """torch's scaled_dot_product_attention.

    The heads that share a key are folded into the query axis. On a CPU ``enable_gqa`` reads a key
    once per query head instead: 2.5 to 6 times slower for 4 and 8 heads per key (torch 2.13).
    """

    def __init__(self, inputs: StepInputs) -> None:
        self.inputs, self.cache = inputs, inputs.cache
        batch, heads, n_query, width = inputs.query.shape
        self.shape = (batch, heads, n_query)
        self.copies = inputs.cache.copies("key")
        sharing = heads // self.copies
        dtype = next(iter(inputs.cache.tensors.values())).dtype
        self.query = inputs.query.to(dtype).reshape(batch, self.copies, sharing * n_query, width)
        allowed = inputs.mask.allowed()
        self.allowed = allowed if allowed is None else allowed.repeat(1, 1, sharing, 1)

    @override
    def run(self) -> torch.Tensor:
        with torch.inference_mode():
            outputs = torch.nn.functional.scaled_dot_product_attention(
                self.query, self.cache.rows("key"), self.cache.rows("value"), self.allowed
            )
            return outputs.reshape(*self.shape, outputs.shape[-1])

    @override
    def partial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """By the plain path: the fused kernel keeps its log-sum-exp to itself."""
        return GroupedAttention(self.inputs).partial()
