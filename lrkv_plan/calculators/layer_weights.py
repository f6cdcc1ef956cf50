"""Weight bits of one layer on one GPU, by part: mixers, feed-forward or experts, and norms."""

from __future__ import annotations

import math
from collections import defaultdict
from fractions import Fraction

from lrkv_plan.attention.families import layout_of
from lrkv_plan.errors import PlacementError
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LayerGroup,
    ModelSpec,
    NoFeedForward,
)
from lrkv_plan.specs.serving import Parallelism
from lrkv_plan.specs.weight_formats import WeightFormat

Bits = dict[str, Fraction]


def layer_bits(
    model: ModelSpec, groups: list[LayerGroup], storage: WeightFormat, parallel: Parallelism
) -> Bits:
    """Bits by part of one layer, which may be several groups: its own and cross-attention. [bits]

    Raises
    ------
    PlacementError
        If heads or the feed-forward width cannot be dealt out.
    """
    bits: Bits = defaultdict(Fraction)
    for group in groups:
        if group.attention is not None:
            layout = layout_of(group.attention, model.model_dim)
            layout.check_tp_size(parallel.tp_size)
            bits["attention"] += sum(
                w.copies
                * storage.matrix_bits("attention", w.rows, w.cols)
                * w.share_per_gpu(parallel.tp_size)
                for w in layout.weights_held(reuses_cache=group.reuses_cache)
            )
    own = groups[0]
    if own.feed_forward is not None:
        _add_feed_forward(bits, own.feed_forward, model.model_dim, storage, parallel)
    if model.norms is not None:
        n_mixers = sum(group.attention is not None or bool(group.state) for group in groups)
        has_block = own.feed_forward is not None and own.feed_forward.kind != "none"
        n_norms = model.norms.per_mixer * n_mixers + model.norms.per_feed_forward * has_block
        bits["norms"] += n_norms * norm_bits(model, storage)
    return bits


def norm_bits(model: ModelSpec, storage: WeightFormat) -> int:
    """Bits of one norm, whole on every GPU. [bits]"""
    has_bias = model.norms is not None and model.norms.bias
    return model.model_dim * (2 if has_bias else 1) * storage.plain_bits


def _add_feed_forward(
    bits: Bits, block: FeedForward, model_dim: int, storage: WeightFormat, parallel: Parallelism
) -> None:
    if isinstance(block, NoFeedForward):
        return

    def add(part: str, width: int, slices: int, copies: int = 1) -> None:
        bits[part] += copies * _mlp_bits(part, width, slices, block, model_dim, storage)

    tp_size = parallel.tp_size
    if isinstance(block, DenseFeedForward):
        add("feed_forward", block.hidden_dim, tp_size)
        return
    local_experts = math.ceil(block.n_experts / parallel.ep_size)
    add("experts", block.hidden_dim, parallel.expert_slices, local_experts)
    if block.shared_hidden_dim:
        add("shared_experts", block.shared_hidden_dim, tp_size)
    if block.dense_hidden_dim:
        add("feed_forward", block.dense_hidden_dim, tp_size)
    router = block.n_experts * (model_dim + block.router_bias) + model_dim * block.shared_gate
    bits["router"] += router * storage.plain_bits


def _mlp_bits(
    part: str,
    width: int,
    slices: int,
    block: DenseFeedForward | ExpertFeedForward,
    model_dim: int,
    storage: WeightFormat,
) -> Fraction:
    """One block on one GPU: inputs d x w and output w x d sliced along w, its output bias whole."""
    if width % slices:
        raise PlacementError(
            f"a {part.replace('_', ' ')} width of {width} cannot be sliced over {slices} GPUs; "
            "allowed: its divisors"
        )
    n_inputs = 2 if block.gated else 1
    sliced = n_inputs * storage.matrix_bits(part, model_dim, width)
    sliced += storage.matrix_bits(part, width, model_dim)
    whole = 0
    if block.bias:
        sliced += n_inputs * width * storage.plain_bits
        whole = model_dim * storage.plain_bits
    return Fraction(sliced, slices) + whole
