"""Weight bytes that each GPU holds, by part and pipeline stage, before any engine's own copies.

Leaves out what engines add (rotary tables, repacked or padded kernels' weights, absorbed copies of
MLA matrices) and what the spec names as uncounted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields
from fractions import Fraction

from lrkv_plan.attention.families import layout_of
from lrkv_plan.calculators.parameters import parameter_count
from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    LayerGroup,
    ModelSpec,
    NoFeedForward,
)
from lrkv_plan.specs.serving import Parallelism, pipeline_stages
from lrkv_plan.specs.weight_formats import WeightFormat, weight_format

Bits = dict[str, Fraction]


@dataclass(frozen=True, kw_only=True)
class StageWeights:
    """What one GPU of a pipeline stage holds; each part is rounded up to whole bytes. [bytes]"""

    attention: int = 0
    feed_forward: int = 0
    experts: int = 0
    shared_experts: int = 0
    router: int = 0
    norms: int = 0
    embeddings: int = 0
    head: int = 0
    extra: int = 0

    @property
    def total(self) -> int:
        """All parts together. [bytes]"""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class WeightBytes:
    """Weights per GPU for each pipeline stage, and what the figures leave out or assume."""

    stages: tuple[StageWeights, ...]
    remarks: tuple[str, ...]

    @property
    def fullest(self) -> StageWeights:
        """The stage that holds most."""
        return max(self.stages, key=lambda stage: stage.total)


def weight_bytes_per_gpu(
    model: ModelSpec, *, parallel: Parallelism, weight_dtype: str
) -> WeightBytes:
    """Weight bytes on one GPU of each pipeline stage.

    Parameters
    ----------
    model : must state feed-forward, vocabulary, tied embeddings and norms.
    parallel : GPUs by kind of parallelism. Data parallelism repeats everything but experts that
        ``ep_size`` deals out.
    weight_dtype : name of a weight format.

    Returns
    -------
    Bytes by part; a GPU with more experts or more vocabulary rows than others is the one shown.

    Raises
    ------
    SpecError
        If the spec does not state a part, or the format is unknown.
    PlacementError
        If heads, feed-forward width or layers cannot be dealt out.

    Notes
    -----
    Attention weights are dealt out by head and repeated when there are fewer key/value heads than
    GPUs; MLA's down projections, norms, biases of outputs and the router are whole on every GPU.
    Vocabulary: ceil(V / P) rows. The first stage has the embedding, the last one the head and the
    final norm; tied embeddings are stored once on one stage, twice on more. ``extra_params`` are
    taken to be on the first stage and divided by P (vLLM slices vision towers by default), at 16
    bit in quantised formats.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> one = weight_bytes_per_gpu(llama, parallel=Parallelism(), weight_dtype="bf16")
    >>> one.fullest.total  # 8,030,261,248 parameters of 2 bytes
    16060522496
    """
    _check_stated(model)
    storage = weight_format(weight_dtype)
    layers = _layers_in_order(model)
    per_layer = [_layer_bits(model, groups, storage, parallel) for groups in layers]
    stages = pipeline_stages(len(layers), parallel.pp_size)
    return WeightBytes(
        stages=tuple(
            _rounded(
                [per_layer[i] for i in stage]
                + [_ends_bits(model, storage, parallel, index == 0, index == len(stages) - 1)]
            )
            for index, stage in enumerate(stages)
        ),
        remarks=_remarks(model, storage),
    )


def _check_stated(model: ModelSpec) -> None:
    missing = parameter_count(model).missing
    if missing:
        raise SpecError(
            f"{model.name}: {', '.join(missing)} not stated, so weights cannot be counted; add it "
            "to the model file, give --weights, or name a folder that holds the safetensors"
        )


def _remarks(model: ModelSpec, storage: WeightFormat) -> tuple[str, ...]:
    remarks = []
    if model.extra_params:
        remarks.append(f"weights: {model.extra_params:,} parameters outside the layers, divided")
    elif model.uncounted_parts:
        remarks.append(f"weights leave out: {'; '.join(model.uncounted_parts)}")
    if storage.quantised_parts:
        parts = ", ".join(sorted(storage.quantised_parts)).replace("_", " ")
        remarks.append(f"weights in {storage.name}: {parts}; the rest in 16 bit")
    return tuple(remarks)


def _layers_in_order(model: ModelSpec) -> list[list[LayerGroup]]:
    """Per layer its group; cross-attention groups are spread evenly over the layers they share."""
    order = model.layer_order
    if order is None:
        order = tuple(i for i, group in enumerate(model.layers) for _ in range(group.count))
    layers = [[model.layers[i]] for i in order if model.layers[i].cached_over == "context"]
    for group in model.layers:
        if group.cached_over == "encoder":
            for k in range(group.count):
                layers[min(k * len(layers) // group.count, len(layers) - 1)].append(group)
    return layers


def _layer_bits(
    model: ModelSpec, groups: list[LayerGroup], storage: WeightFormat, parallel: Parallelism
) -> Bits:
    bits: Bits = defaultdict(Fraction)
    for group in groups:
        if group.attention is not None:
            layout = layout_of(group.attention, model.model_dim)
            layout.check_tp_size(parallel.tp_size)
            bits["attention"] += sum(
                w.copies
                * storage.matrix_bits("attention", w.rows, w.cols)
                * w.share_per_gpu(parallel.tp_size)
                for w in layout.weights
            )
    own = groups[0]
    if own.feed_forward is not None:
        _add_feed_forward(bits, own.feed_forward, model.model_dim, storage, parallel)
    if model.norms is not None:
        n_mixers = sum(group.attention is not None or bool(group.state) for group in groups)
        has_block = own.feed_forward is not None and own.feed_forward.kind != "none"
        n_norms = model.norms.per_mixer * n_mixers + model.norms.per_feed_forward * has_block
        bits["norms"] += n_norms * _norm_bits(model, storage)
    return bits


def _norm_bits(model: ModelSpec, storage: WeightFormat) -> int:
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


def _ends_bits(
    model: ModelSpec, storage: WeightFormat, parallel: Parallelism, is_first: bool, is_last: bool
) -> Bits:
    """Embeddings and extra parts on the first stage; head and final norm on the last."""
    bits: Bits = defaultdict(Fraction)
    plain, norm = storage.plain_bits, _norm_bits(model, storage)
    rows = math.ceil((model.vocab_size or 0) / parallel.tp_size)
    table = rows * model.model_dim * plain
    norms = model.norms
    if is_first:
        positions = (model.position_embeddings or 0) * model.model_dim * plain
        bits["embeddings"] += table + positions
        bits["norms"] += norm * (norms is not None and norms.embedding)
        bits["extra"] += Fraction((model.extra_params or 0) * plain, parallel.tp_size)
    if is_last:
        is_shared = model.tied_embeddings and is_first
        bits["head"] += table * (not is_shared) + rows * plain * model.head_bias
        bits["norms"] += norm * (norms is not None and norms.final)
    return bits


def _rounded(parts: list[Bits]) -> StageWeights:
    bits: Bits = defaultdict(Fraction)
    for part in parts:
        for name, amount in part.items():
            bits[name] += amount
    return StageWeights(**{name: math.ceil(amount / 8) for name, amount in bits.items()})
