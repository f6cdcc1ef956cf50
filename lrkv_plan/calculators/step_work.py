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
from lrkv_plan.calculators.parameters import parameter_count
from lrkv_plan.calculators.weights import refuse_unbounded_weights, weight_bytes_per_gpu
from lrkv_plan.errors import SpecError
from lrkv_plan.specs.model import ExpertFeedForward, LayerGroup, ModelSpec
from lrkv_plan.specs.serving import Parallelism
from lrkv_plan.specs.weight_formats import weight_format
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


def linear_work(
    model: ModelSpec, *, weight_dtype: str, tp_size: int = 1, weight_bytes: int | None = None
) -> LinearWork:
    """The weights' pass of one GPU.

    Parameters
    ----------
    weight_bytes : weights of one GPU as known, spread over the parts as the spec counts them; None
        counts them. [bytes]

    Raises
    ------
    SpecError
        If the spec does not state a part of the weights; without ``weight_bytes`` also if it has
        recurrent layers, whose weights it does not hold.
    PlacementError
        If weights cannot be dealt out.
    """
    check_model("model", model)
    parallel = Parallelism(tp_size=one_count("tp_size", tp_size))
    if weight_bytes is None:
        refuse_unbounded_weights(model)
    elif parameter_count(model).missing:
        return _whole_pass(model, weight_bytes, weight_dtype)
    held = weight_bytes_per_gpu(model, parallel=parallel, weight_dtype=weight_dtype).fullest
    plain = weight_bytes_per_gpu(model, parallel=parallel, weight_dtype="bf16").fullest
    share = _expert_share(model)
    scale = 1.0 if weight_bytes is None else weight_bytes / held.total
    # Embedding rows are looked up, not read whole; a tied head is read whole as the head.
    head = held.head or held.embeddings
    dense = held.total - held.experts - held.embeddings - held.head - held.extra + head
    params = (plain.total - plain.experts - plain.embeddings - plain.head - plain.extra) / 2
    params += (plain.head or plain.embeddings) / 2 + share * plain.experts / 2
    return LinearWork(
        dense_bytes=scale * dense,
        expert_bytes=scale * held.experts,
        expert_share=share,
        token_flops=FLOPS_PER_MULTIPLY_ADD * params,
        embedding_row_bytes=float(model.model_dim * ACTIVATION_BYTES),
    )


def _whole_pass(model: ModelSpec, weight_bytes: int, weight_dtype: str) -> LinearWork:
    """Known weights of a spec that does not state its parts: all are read, and multiplied, a step.

    Raises
    ------
    SpecError
        If the model has experts, of which a step reads an unknown part.
    """
    if any(isinstance(group.feed_forward, ExpertFeedForward) for group in model.layers):
        missing = ", ".join(parameter_count(model).missing)
        raise SpecError(
            f"{model.name}: {missing} not stated, so how much of the weights a step reads is "
            "unknown; add it to the model file"
        )
    bits = weight_format(weight_dtype).bits_per_scalar
    return LinearWork(
        dense_bytes=float(weight_bytes),
        expert_bytes=0.0,
        expert_share=0.0,
        token_flops=FLOPS_PER_MULTIPLY_ADD * weight_bytes * 8 / bits,
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
    weight_bytes: int | None = None,
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
        linear=linear_work(
            model, weight_dtype=weight_dtype, tp_size=tp_size, weight_bytes=weight_bytes
        ),
        n_all_reduces=blocks if tp_size > 1 else 0,
        all_reduce_token_bytes=float(model.model_dim * ACTIVATION_BYTES),
        n_layers=model.n_layers,
        tp_size=tp_size,
        remarks=tuple(_remarks(model, weight_bytes)),
    )


def _n_blocks(group: LayerGroup) -> int:
    """Parts of a layer that end in an all-reduce: its mixer and its feed-forward."""
    has_mixer = group.attention is not None or bool(group.state)
    block = group.feed_forward
    return has_mixer + (block is not None and block.kind != "none")


def _remarks(model: ModelSpec, weight_bytes: int | None) -> Iterator[str]:
    if weight_bytes is not None:
        yield (
            f"weights: {weight_bytes:,} B a GPU as given, spread over the parts as the spec counts "
            "them; all but embeddings and idle experts are read every step"
        )
    if any(group.index for group in model.layers):
        yield "sparse attention is timed as if it read every cached row: an upper bound"
    if any(group.state for group in model.layers):
        yield "recurrent layers: their state is read and written; their arithmetic is left out"
