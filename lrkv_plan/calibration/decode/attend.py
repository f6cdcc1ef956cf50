"""What every path shares: scores, one mask, one softmax, values; and merging of partial results.

Scores and softmax are in fp32 whatever the cache is stored in: they are H q T scalars beside
T sum(w copies) cached ones, so this costs little, and it keeps rounding of large scores out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from lrkv_plan.calibration.decode.cache import Cache
from lrkv_plan.calibration.decode.masks import ScanMask
from lrkv_plan.specs.attention import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class StepInputs:
    """One decode step's tensors on one GPU.

    ``query`` is (B, H, q, key width), projected and rotated; ``weights`` are the layer weights that
    the step itself uses. ``positions`` are those of the cached rows, (B or 1, T). ``tile_tokens``
    bounds the tile of paths that rebuild keys; None lets the path choose.
    """

    spec: AttentionSpec
    cache: Cache
    query: torch.Tensor
    weights: Mapping[str, torch.Tensor]
    mask: ScanMask
    positions: torch.Tensor
    tile_tokens: int | None = None

    @property
    def n_heads(self) -> int:
        """Query heads on this GPU."""
        return self.query.shape[1]


class Attention(ABC):
    """A path bound to its tensors, ready to be run again and again."""

    @abstractmethod
    def run(self) -> torch.Tensor:
        """Per-head outputs (B, H, q, v_head_dim) in the cache's dtype."""

    @abstractmethod
    def partial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs in fp32 and the log-sum-exp of their scores (B, H, q), sinks left out.

        A sequence without visible rows gives zeros and minus infinity.
        """


class ScoredAttention(Attention):
    """Attention in two passes over the rows: all scores, then all values.

    ``scores`` is one fp32 buffer (B, H, q, T) that every run fills anew.
    """

    def __init__(self, inputs: StepInputs, scale: float) -> None:
        self.inputs, self.cache, self.weights = inputs, inputs.cache, inputs.weights
        self.batch, self.heads, self.n_query, _ = inputs.query.shape
        self.query = inputs.query * scale
        self.device = inputs.query.device
        self.dtype = next(iter(inputs.cache.tensors.values())).dtype
        self.sinks = inputs.weights.get("sinks")
        shape = (self.batch, self.heads, self.n_query, inputs.mask.longest)
        self.scores = torch.empty(shape, dtype=torch.float32, device=self.device)
        self.shares = torch.empty_like(self.scores)

    @abstractmethod
    def score(self) -> None:
        """Fill ``scores`` with scaled logits."""

    @abstractmethod
    def mix(self, shares: torch.Tensor) -> torch.Tensor:
        """Values weighted by (B, H, q, T): (B, H, q, v_head_dim), fp32."""

    def new_outputs(self, width: int) -> torch.Tensor:
        """An fp32 (B, H, q, width) to be filled."""
        shape = (self.batch, self.heads, self.n_query, width)
        return torch.empty(shape, dtype=torch.float32, device=self.device)

    def by_copy(self, tensor: torch.Tensor, copies: int) -> torch.Tensor:
        """(B, H, q, x) as (B copies, H/copies q, x): the heads that read a copy, as one block."""
        sharing = self.heads // copies
        return tensor.reshape(self.batch * copies, sharing * self.n_query, tensor.shape[-1])

    def run(self) -> torch.Tensor:
        """See ``Attention.run``."""
        with torch.inference_mode():
            self.score()
            self.inputs.mask.apply_(self.scores)
            shares = torch.softmax(self.scores, dim=-1, out=self.shares)
            outputs = self.mix(shares)
            if self.sinks is not None:
                log_sums = torch.logsumexp(self.scores, dim=-1)
                outputs = with_sinks(outputs, log_sums, self.sinks)
            return outputs.to(self.dtype)

    def partial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """See ``Attention.partial``."""
        with torch.inference_mode():
            self.score()
            self.inputs.mask.apply_(self.scores)
            log_sums = torch.logsumexp(self.scores, dim=-1)
            shares = (self.scores - log_sums[..., None]).exp().nan_to_num(nan=0.0)
            return self.mix(shares), log_sums


def with_sinks(outputs: torch.Tensor, log_sums: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Outputs after one more logit per head, (H,), that carries no value.

    exp(s) joins the denominator: o / (1 + exp(s - lse)).
    """
    return outputs * torch.sigmoid(log_sums - sinks[None, :, None])[..., None]


def merge_partial(
    outputs: Sequence[torch.Tensor],
    log_sums: Sequence[torch.Tensor],
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Attention over all rows from attention over disjoint parts of them.

    Parameters
    ----------
    outputs : per part (B, H, q, v_head_dim), each normalised within its part.
    log_sums : per part the log-sum-exp of its scores, (B, H, q).
    sinks : logits without a value, (H,), counted once.

    Notes
    -----
    With m = max lse_i the result is sum_i exp(lse_i - m) o_i / sum_i exp(lse_i - m): the online
    softmax over tiles (Milakov and Gimelshein 2018, arXiv:1805.02867). Adding or averaging the
    parts' outputs would be wrong, each has its own denominator.
    """
    sums = torch.stack(tuple(log_sums))
    total = torch.logsumexp(sums, dim=0)
    shares = (sums - total).exp()
    merged = (shares[..., None] * torch.stack(tuple(outputs))).sum(dim=0)
    return merged if sinks is None else with_sinks(merged, total, sinks)
