"""What slots for LoRA adapters take on a GPU: one pair of matrices per linear layer and slot.

An engine allots every slot at start, whatever adapters are loaded later: for each linear layer of
the language model a matrix A of rank x inputs and a matrix B of outputs x rank, at the largest rank
that it is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lrkv_plan.attention.layout import WeightMatrix
from lrkv_plan.memory.exact import ceil_div
from lrkv_plan.memory.weights import attention_weights
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    HeldWeight,
    LayerGroup,
    ModelSpec,
    NoFeedForward,
)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """``count`` equal linear layers on one GPU: A's width (inputs) and B's height (outputs).

    ``inputs_low`` and ``inputs_high`` bound the inputs where an engine may make one A for several
    outputs that are fused, or one for each.
    """

    count: int
    inputs: int
    outputs: int
    inputs_low: int | None = None
    inputs_high: int | None = None

    def scalars(self, end: str = "") -> int:
        """Scalars of one slot and rank: inputs + outputs; ``end`` is low or high."""
        inputs = getattr(self, f"inputs_{end}") if end else None
        return self.count * ((self.inputs if inputs is None else inputs) + self.outputs)


def linears(model: ModelSpec, parallel: Parallelism, *, with_experts: bool) -> Iterator[Linear]:
    """The linear layers of a stage as one GPU holds their adapters.

    Notes
    -----
    A layer whose outputs are dealt out over P GPUs has a whole A and B of outputs / P; one whose
    inputs are dealt out has A of inputs / P and a whole B; any other both whole
    (``BaseLinearLayerWithLoRA.create_lora_weights`` in vllm/lora/layers/base_linear.py). Query,
    key, value, gate and up have an A each (``n_slices``). Routed experts have a pair each
    (fused_moe.py there), with one A for gate and up where a checkpoint fuses them.
    """
    for group in model.layers:
        for weight in attention_weights(group, model.model_dim):
            if weight.cols > 1:
                yield _of_matrix(weight, group.count, parallel.tp_size)
        for held in group.weights:
            if held.cols > 1 and held.reads is not None:
                yield _of_held(held, group.count, parallel.tp_size)
        yield from _of_block(group, model.model_dim, parallel, with_experts=with_experts)


def _of_matrix(weight: WeightMatrix, count: int, tp_size: int) -> Linear:
    share = weight.share_per_gpu(tp_size)
    is_row_parallel = weight.reads == "heads"
    return Linear(
        count=count * weight.copies,
        inputs=int(weight.rows * share) if is_row_parallel else weight.rows,
        outputs=weight.cols if is_row_parallel else int(weight.cols * share),
    )


_MOST_FUSED = 4  # outputs of a recurrent layer's fused input matrix: query, key, value, gate


def _of_held(held: HeldWeight, count: int, tp_size: int) -> Linear:
    share = held.share_per_gpu(tp_size)
    is_row_parallel = held.reads == "heads"
    inputs = int(held.rows * share) if is_row_parallel else held.rows
    return Linear(
        count=count * held.copies,
        inputs=inputs,
        outputs=held.cols if is_row_parallel else int(held.cols * share),
        inputs_high=inputs if is_row_parallel else _MOST_FUSED * inputs,
    )


def _of_block(
    group: LayerGroup, dim: int, parallel: Parallelism, *, with_experts: bool
) -> Iterator[Linear]:
    block = group.feed_forward
    if block is None or isinstance(block, NoFeedForward):
        return
    if isinstance(block, DenseFeedForward):
        yield from _of_mlp(block, block.hidden_dim, group.count, dim, parallel.tp_size)
        return
    for width in (block.shared_hidden_dim, block.dense_hidden_dim):
        if width:
            yield from _of_mlp(block, width, group.count, dim, parallel.tp_size)
    if not with_experts:
        return
    local = ceil_div(block.n_experts, parallel.ep_size)
    yield from _of_mlp(
        block, block.hidden_dim, group.count * local, dim, parallel.expert_slices, is_fused=True
    )
    yield Linear(count=group.count, inputs=dim, outputs=block.n_experts)


def _of_mlp(
    block: FeedForward, width: int, count: int, dim: int, slices: int, *, is_fused: bool = False
) -> Iterator[Linear]:
    """Gate and up, with an A each, and down."""
    assert isinstance(block, DenseFeedForward | ExpertFeedForward), "the caller looked"
    n_inputs = 2 if block.gated else 1
    sliced = width // slices
    yield Linear(
        count=count, inputs=n_inputs * dim, outputs=n_inputs * sliced,
        inputs_low=dim if is_fused else None,
    )  # fmt: skip
    yield Linear(count=count, inputs=sliced, outputs=dim)


def slot_bytes(found: list[Linear], *, rank: int, scalar_bytes: int, end: str = "") -> int:
    """Bytes of one slot: rank x (inputs + outputs) of every linear layer. [bytes]

    Examples
    --------
    >>> query = Linear(count=32, inputs=4096, outputs=4096)
    >>> slot_bytes([query], rank=16, scalar_bytes=2)  # 32 x 16 x 8192 x 2
    8388608
    """
    return rank * scalar_bytes * sum(one.scalars(end) for one in found)
