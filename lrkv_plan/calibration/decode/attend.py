"""What every path shares: scores, one mask, one softmax, values; and merging of partial results.

Scores and softmax are in fp32 whatever the cache is stored in: they are H q T scalars beside
T sum(w copies) cached ones, so this costs little, and it keeps rounding of large scores out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode.cache import Cache
from lrkv_plan.errors import UsageError


class ScanMask:
    """Rows hidden from a query: those beyond the sequence's end, and newer query tokens' own.

    The last ``new_tokens`` cached rows of a sequence belong to the query tokens themselves, so that
    query i of q sees ``length - new_tokens + i + 1`` rows. With ``new_tokens`` 0 (a shard of older
    tokens) every query sees all rows. Only the tail that some query cannot see is ever touched.

    Raises
    ------
    UsageError
        If a sequence has fewer rows than new tokens.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        query_tokens: int,
        device: torch.device,
        new_tokens: int | None = None,
    ) -> None:
        new = query_tokens if new_tokens is None else new_tokens
        if min(lengths) < new:
            raise UsageError(
                f"context_tokens {min(lengths)}: the {new} query tokens have rows of their own "
                "in the cache, so it must be at least that many"
            )
        ages = torch.arange(query_tokens) - query_tokens + 1 if new else torch.zeros(query_tokens)
        self.visible = torch.tensor(lengths)[:, None] + ages.long()  # (B, q)
        self.longest = max(lengths)
        self.first_hidden = int(self.visible.min())
        tail = torch.arange(self.first_hidden, self.longest)
        self._hidden = (tail >= self.visible[:, None, :, None]).to(device)

    @property
    def hides_nothing(self) -> bool:
        """Whether every query sees every row."""
        return self.first_hidden >= self.longest

    def apply_(self, scores: torch.Tensor) -> None:
        """Set hidden entries of (B, H, q, T) to minus infinity, in place."""
        if not self.hides_nothing:
            scores[..., self.first_hidden :].masked_fill_(self._hidden, -torch.inf)

    def allowed(self) -> torch.Tensor | None:
        """(B, 1, q, T), true where visible; None where nothing is hidden."""
        if self.hides_nothing:
            return None
        rows = torch.arange(self.longest)
        return (rows < self.visible[:, None, :, None]).to(self._hidden.device)


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


# fp32 scalars of a converted chunk: 1 MiB. Smaller ones pay for their calls, larger ones leave L2.
CHUNK_SCALARS = 1 << 18


def on_cpu(device: torch.device) -> bool:
    """Whether half-precision rows are converted by chunks; elsewhere products take them as are."""
    return device.type == "cpu"


def compute_dtype(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of queries and layer weights: fp32 on a CPU, the rows' own on CUDA."""
    return torch.float32 if on_cpu(device) else dtype


def add_scores(query: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, *, beta: int) -> None:
    """``out = beta out + query rows^T`` for query (N, M, w), rows (N, T, w), out fp32 (N, M, T)."""
    if rows.dtype == torch.float32:
        torch.baddbmm(out, query, rows.transpose(1, 2), beta=beta, out=out)
    elif on_cpu(rows.device):
        for heads, tokens, chunk in _chunks(rows):
            part = out[heads, :, tokens]
            torch.baddbmm(part, query[heads], chunk.transpose(1, 2), beta=beta, out=part)
    else:
        _add_wide(query, rows.transpose(1, 2), out, beta)


def add_mix(weights: torch.Tensor, rows: torch.Tensor, out: torch.Tensor, *, beta: int) -> None:
    """``out = beta out + weights rows``: weights fp32 (N, M, T), rows (N, T, w), out (N, M, w)."""
    if rows.dtype == torch.float32:
        torch.baddbmm(out, weights, rows, beta=beta, out=out)
    elif on_cpu(rows.device):
        for heads, tokens, chunk in _chunks(rows):
            part = out[heads]
            kept = beta if tokens.start == 0 else 1
            torch.baddbmm(part, weights[heads, :, tokens], chunk, beta=kept, out=part)
    else:
        _add_wide(weights.to(rows.dtype), rows, out, beta)


def per_head(tensor: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    """(B, H, q, a) times one (a, c) map per head, (H, a, c), read once for the whole batch."""
    batch, heads, n_query, _ = tensor.shape
    stacked = tensor.to(maps.dtype).transpose(0, 1).reshape(heads, batch * n_query, -1)
    mapped = torch.bmm(stacked, maps).view(heads, batch, n_query, -1)
    return mapped.transpose(0, 1).contiguous()


def _add_wide(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, beta: int) -> None:
    """Half-precision product with an fp32 result, which torch offers on CUDA."""
    product = torch.bmm(left, right, out_dtype=torch.float32)
    out.copy_(product) if beta == 0 else out.add_(product)


def _chunks(rows: torch.Tensor) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Rows (N, T, w) by parts in fp32, in one buffer: whole heads while several fit."""
    n_heads, n_tokens, width = rows.shape
    heads_each = max(1, min(n_heads, CHUNK_SCALARS // max(1, n_tokens * width)))
    tokens_each = min(n_tokens, max(16, CHUNK_SCALARS // width))
    buffer = torch.empty(heads_each * tokens_each * width, dtype=torch.float32)
    for head in range(0, n_heads, heads_each):
        n = min(heads_each, n_heads - head)
        for token in range(0, n_tokens, tokens_each):
            t = min(tokens_each, n_tokens - token)
            heads, tokens = slice(head, head + n), slice(token, token + t)
            chunk = buffer[: n * t * width].view(n, t, width)
            yield heads, tokens, chunk.copy_(rows[heads, tokens])
