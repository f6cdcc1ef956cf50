"""What one GPU reads, writes and computes in a decode step, as coefficients.

Every quantity is linear in sequences B, cached tokens T (up to a window) and query tokens q, so a
design is a handful of numbers that any array of B, T and q is multiplied with. Leaves out
softmax, rotations, norms and sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lrkv_plan.calculators.arguments import check_model, one_count
from lrkv_plan.calculators.attention_work import AttentionWork, attention_work
from lrkv_plan.calculators.weights import weight_bytes_per_gpu
from lrkv_plan.specs.model import ExpertFeedForward, LayerGroup, ModelSpec
from lrkv_plan.specs.serving import Parallelism
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD

ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class LinearWork:
    """The weights' pass of one GPU: every weight is read once per step.

    Routed experts are read as far as a step of n = B q tokens touches them, in expectation
    1 - (1 - k/E)^n of them. FLOPs are 2 per weight and token; MLA's and LRKV's per-step maps are
    among them, for they are layer weights.
    """

    dense_bytes: float
    expert_bytes: float
    expert_share: float  # k/E: experts per token over experts
    token_flops: float
    embedding_row_bytes: float

    def n_bytes(self, tokens: Any) -> Any:
        """Bytes of weights read in a step of that many tokens. [bytes]"""
        touched = 1 - (1 - self.expert_share) ** tokens if self.expert_bytes else 0.0
        return self.dense_bytes + self.expert_bytes * touched + tokens * self.embedding_row_bytes

    def n_flops(self, tokens: Any) -> Any:
        """FLOPs of projections, feed-forward and head. [FLOPs]"""
        return tokens * self.token_flops


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """One decode step of one GPU."""

    attention: tuple[AttentionWork, ...]
    linear: LinearWork
    n_all_reduces: int
    all_reduce_token_bytes: float  # message bytes per token of the step
    n_layers: int
    tp_size: int
    remarks: tuple[str, ...]


def linear_work(model: ModelSpec, *, weight_dtype: str, tp_size: int = 1) -> LinearWork:
    """The weights' pass of one GPU.

    Raises
    ------
    SpecError
        If the spec does not state a part of the weights.
    PlacementError
        If weights cannot be dealt out.
    """
    parallel = Parallelism(tp_size=one_count("tp_size", tp_size))
    held = weight_bytes_per_gpu(model, parallel=parallel, weight_dtype=weight_dtype).fullest
    plain = weight_bytes_per_gpu(model, parallel=parallel, weight_dtype="bf16").fullest
    share = _expert_share(model)
    # Embedding rows are looked up, not read whole; a tied head is read whole as the head.
    head = held.head or held.embeddings
    dense = held.total - held.experts - held.embeddings - held.head - held.extra + head
    params = (plain.total - plain.experts - plain.embeddings - plain.head - plain.extra) / 2
    params += (plain.head or plain.embeddings) / 2 + share * plain.experts / 2
    return LinearWork(
        dense_bytes=float(dense),
        expert_bytes=float(held.experts),
        expert_share=share,
        token_flops=FLOPS_PER_MULTIPLY_ADD * params,
        embedding_row_bytes=float(model.model_dim * ACTIVATION_BYTES),
    )


def _expert_share(model: ModelSpec) -> float:
    """k/E, averaged over the layers with experts by their weights."""
    blocks = [
        (g.count * g.feed_forward.n_experts * g.feed_forward.hidden_dim, g.feed_forward)
        for g in model.layers
        if isinstance(g.feed_forward, ExpertFeedForward)
    ]
    total = sum(weight for weight, _ in blocks)
    if not total:
        return 0.0
    return sum(w * b.experts_per_token / b.n_experts for w, b in blocks) / total


def step_work(
    model: ModelSpec,
    *,
    kv_dtype: str = "bf16",
    weight_dtype: str = "bf16",
    tp_size: int = 1,
    heads_per_tile: int | None = None,
    path: str | None = None,
) -> StepWork:
    """Everything that one GPU does in a decode step.

    Under tensor parallelism each mixer and each feed-forward ends in an all-reduce of the step's
    hidden states, in 2-byte scalars.

    Raises
    ------
    SpecError, PlacementError, UsageError
        As ``attention_work`` and ``linear_work``.
    """
    check_model("model", model)
    tp_size = one_count("tp_size", tp_size)
    blocks = sum(group.count * _n_blocks(group) for group in model.layers)
    return StepWork(
        attention=attention_work(
            model, kv_dtype=kv_dtype, tp_size=tp_size, heads_per_tile=heads_per_tile, path=path
        ),
        linear=linear_work(model, weight_dtype=weight_dtype, tp_size=tp_size),
        n_all_reduces=blocks if tp_size > 1 else 0,
        all_reduce_token_bytes=float(model.model_dim * ACTIVATION_BYTES),
        n_layers=model.n_layers,
        tp_size=tp_size,
        remarks=tuple(_remarks(model)),
    )


def _n_blocks(group: LayerGroup) -> int:
    """Parts of a layer that end in an all-reduce: its mixer and its feed-forward."""
    has_mixer = group.attention is not None or bool(group.state)
    block = group.feed_forward
    return has_mixer + (block is not None and block.kind != "none")


def _remarks(model: ModelSpec) -> Iterator[str]:
    if any(group.index for group in model.layers):
        yield "sparse attention is timed as if it read every cached row: an upper bound"
    if any(group.state for group in model.layers):
        yield "recurrent layers: their state is read and written; their own weights are not stated"
