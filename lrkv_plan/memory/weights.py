"""Weights: parameters by part, and the bytes that each GPU of a layout holds.

Counts what the spec states. What it does not state is named in ``missing`` and makes the total
unknown; parts that nobody knows how to count are the spec's ``uncounted_parts``.
Leaves out what engines add (rotary tables, repacked weights, absorbed copies of MLA matrices).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction

from lrkv_plan.attention.layout import WeightMatrix, WeightRole
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, RequirementError, SpecError
from lrkv_plan.formats import WeightFormat
from lrkv_plan.memory.cache import reference_mha
from lrkv_plan.memory.exact import check_is, check_model
from lrkv_plan.specs.deployment import Parallelism, pipeline_stages
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    FeedForward,
    HeldWeight,
    LayerGroup,
    ModelSpec,
    NoFeedForward,
    Norms,
)

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
                for w in attention_weights(group, model.model_dim)
            )
        add_held(bits, group.weights, storage, parallel.tp_size)
    own = groups[0]
    if own.feed_forward is not None:
        _add_feed_forward(bits, own.feed_forward, model.model_dim, storage, parallel)
    if model.norms is not None:
        n_mixers = sum(group.attention is not None or bool(group.state) for group in groups)
        has_block = own.feed_forward is not None and own.feed_forward.kind != "none"
        n_norms = model.norms.per_mixer * n_mixers + model.norms.per_feed_forward * has_block
        bits["norms"] += n_norms * norm_bits(model, storage)
    return bits


# Where a stage's figures count each part of the weights that a layer or the model holds besides.
_STAGE_PART = {
    "mixer": "recurrent", "attention": "attention", "index": "attention", "router": "router",
    "norms": "norms", "embeddings": "embeddings",
}  # fmt: skip


def held_bits(weight: HeldWeight, storage: WeightFormat) -> int | Fraction:
    """Bits of all copies: indices are stored as attention matrices are. [bits]"""
    return weight.copies * storage.matrix_bits(stored_as(weight), weight.rows, weight.cols)


def stored_as(weight: HeldWeight) -> str:
    """The part of a weight format under which the weight is stored; none where it is plain."""
    if weight.plain:
        return ""
    return "mixers" if weight.part == "mixer" else "attention"


def add_held(
    bits: Bits, weights: Iterable[HeldWeight], storage: WeightFormat, tp_size: int
) -> None:
    """Add what one GPU holds of those weights to the parts that they are counted with."""
    for one in weights:
        bits[_STAGE_PART[one.part]] += held_bits(one, storage) * one.share_per_gpu(tp_size)


def norm_bits(model: ModelSpec, storage: WeightFormat) -> int:
    """Bits of one norm, whole on every GPU. [bits]"""
    has_bias = model.norms is not None and model.norms.bias
    return model.model_dim * (2 if has_bias else 1) * storage.plain_bits


def _add_feed_forward(
    bits: Bits, block: FeedForward, model_dim: int, storage: WeightFormat, parallel: Parallelism
) -> None:
    if isinstance(block, NoFeedForward):
        return

    def add(part: str, width: int, slices: int, copies: int = 1, dim: int = model_dim) -> None:
        bits[part] += copies * _mlp_bits(part, width, slices, block, dim, storage)

    tp_size = parallel.tp_size
    if isinstance(block, DenseFeedForward):
        add("feed_forward", block.hidden_dim, tp_size)
        return
    local_experts = math.ceil(block.n_experts / parallel.ep_size)
    routed = block.expert_dim(model_dim)
    add("experts", block.hidden_dim, parallel.expert_slices, local_experts, routed)
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


@dataclass(frozen=True, kw_only=True)
class ParameterCount:
    """Weights by part. A part that the spec does not state is None and named in ``missing``.

    ``encoder_params`` are encoders, projectors and other parts outside the layers. ``mtp_params``
    is the built-in draft module as its checkpoint stores it: 0 where there is none, None where the
    spec states draft layers without their weights. ``idle_params`` are the routed experts that one
    token does not use.
    """

    kv_params: int
    attention_params: int
    recurrent_params: int
    feed_forward_params: int | None
    embedding_params: int | None
    norm_params: int | None
    encoder_params: int
    mtp_params: int | None
    idle_params: int | None
    missing: tuple[str, ...]

    @property
    def language_params(self) -> int | None:
        """The language model alone, or None if a part is missing."""
        parts = (self.feed_forward_params, self.embedding_params, self.norm_params)
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return self.attention_params + self.recurrent_params + sum(known)

    @property
    def model_params(self) -> int | None:
        """All that an engine loads, encoders included and ``mtp_params`` not."""
        language = self.language_params
        return None if language is None else language + self.encoder_params

    @property
    def active_params(self) -> int | None:
        """The language model without the experts that a token passes by."""
        if self.language_params is None or self.idle_params is None:
            return None
        return self.language_params - self.idle_params


def parameter_count(model: ModelSpec) -> ParameterCount:
    """Weights of the model by part.

    Notes
    -----
    Keys and values per layer, as each family's builder states them: MHA 2 d H d_h; GQA
    2 d G d_h; LRKV 2 g d d_h + 2 H r (d + d_h); MLA d (d_c + d_R) + d_c H (d_nope + d_v) + d_c.
    Attention adds query, output, their biases and query/key norms. A layer that reuses another
    layer's cache has no weights that make rows: no key, value or down projection, no key norm; it
    keeps what reads rows (LRKV's bases, MLA's up projection). Embeddings: vocabulary x d,
    twice when untied. Feed-forward: three matrices d x width when gated, else two. Recurrent
    mixers, sparse indices and other weights of the spec: copies x rows x columns.

    Examples
    --------
    >>> from lrkv_plan import load_model, swap_attention
    >>> paper = load_model("lrkv-paper-2.5b")
    >>> parameter_count(paper).kv_params  # 18 * 2 * 2304 * 18 * 128
    191102976
    >>> parameter_count(swap_attention(paper, "lrkv:55")).kv_params  # 18*2*(2304*128 + 18*55*2432)
    97293312
    """
    check_model("model", model)
    missing: list[str] = []
    return ParameterCount(
        kv_params=kv_params(model),
        attention_params=sum(_attention_params(model, group) for group in model.layers)
        + _held(model, "attention", "index"),
        recurrent_params=_held(model, "mixer"),
        feed_forward_params=_feed_forward_params(model, missing),
        embedding_params=_embedding_params(model, missing),
        norm_params=_norm_params(model, missing),
        encoder_params=encoder_params(model),
        mtp_params=mtp_params(model),
        idle_params=_idle_params(model),
        missing=tuple(missing),
    )


def _held(model: ModelSpec, *parts: str) -> int:
    """Parameters of those parts among what the layers and the model hold besides."""
    of_layers = sum(
        group.count * one.n_params
        for group in model.layers for one in group.weights if one.part in parts
    )  # fmt: skip
    return of_layers + sum(one.n_params for one in model.weights if one.part in parts)


def encoder_params(model: ModelSpec) -> int:
    """Parameters of encoders and other parts beside the language model."""
    return sum(one.n_params for one in model.encoders) + (model.extra_params or 0)


def mtp_params(model: ModelSpec) -> int | None:
    """Parameters of the built-in draft module; None where its layers are not described."""
    module = model.mtp
    if module is None:
        return None if model.draft_layers else 0
    blocks = [group.feed_forward for group in module.layers]
    if model.norms is None or any(block is None for block in blocks):
        return None
    layers = sum(
        _attention_params(model, group)
        + group.count * sum(one.n_params for one in group.weights)
        + group.count * feed_forward_params(block, model.model_dim)
        for group, block in zip(module.layers, blocks, strict=True) if block is not None
    )  # fmt: skip
    norms = sum(group.count * _norms_of(model.norms, group) for group in module.layers)
    vector = model.model_dim * (2 if model.norms.bias else 1)
    return layers + norms * vector + sum(one.n_params for one in module.weights)


def _idle_params(model: ModelSpec) -> int | None:
    """Routed experts that one token does not use."""
    blocks = [(group.count, group.feed_forward) for group in model.layers if not group.shares_layer]
    if any(block is None for _, block in blocks):
        return None
    return sum(
        count * (block.n_experts - block.experts_per_token)
        * _dense_params(block.expert_dim(model.model_dim), block.hidden_dim, block)
        for count, block in blocks if isinstance(block, ExpertFeedForward)
    )  # fmt: skip


def attention_weights(group: LayerGroup, model_dim: int) -> tuple[WeightMatrix, ...]:
    """The attention weights of one layer of the group; none without attention."""
    if group.attention is None or group.shares_weights:
        return ()
    layout = layout_of(group.attention, model_dim)
    return layout.weights_held(reuses_cache=group.reuses_cache)


def kv_params(model: ModelSpec) -> int:
    """Weights of the key and value projections over all layers; biases are not counted here."""
    check_model("model", model)
    return sum(
        group.count * weight.n_params
        for group in model.layers
        for weight in attention_weights(group, model.model_dim)
        if weight.role is WeightRole.KEY_VALUE
    )


def kv_params_ratio_to_mha(model: ModelSpec) -> Fraction | None:
    """Key/value weights over MHA's on the same backbone: g/H + (r/d_h)(1 + d_h/d) for LRKV."""
    reference = kv_params(reference_mha(model))
    return Fraction(kv_params(model), reference) if reference else None


def _attention_params(model: ModelSpec, group: LayerGroup) -> int:
    weights = attention_weights(group, model.model_dim)
    return group.count * sum(weight.n_params for weight in weights)


def feed_forward_params(block: FeedForward, model_dim: int) -> int:
    """Weights of one feed-forward block.

    Dense: m d w, m = 3 if gated else 2, plus (m - 1) w + d biases. Experts: E routed blocks, the
    shared block, the dense block beside them, and a router d E with its optional bias and gate.
    """
    if isinstance(block, NoFeedForward):
        return 0
    if isinstance(block, DenseFeedForward):
        return _dense_params(model_dim, block.hidden_dim, block)
    routed = block.n_experts * _dense_params(block.expert_dim(model_dim), block.hidden_dim, block)
    others = sum(
        _dense_params(model_dim, width, block)
        for width in (block.shared_hidden_dim, block.dense_hidden_dim)
        if width
    )
    router = model_dim * block.n_experts + block.n_experts * block.router_bias
    return routed + others + router + model_dim * block.shared_gate


def _dense_params(model_dim: int, width: int, block: DenseFeedForward | ExpertFeedForward) -> int:
    n_inputs = 2 if block.gated else 1
    biases = n_inputs * width + model_dim if block.bias else 0
    return (n_inputs + 1) * model_dim * width + biases


def _feed_forward_params(model: ModelSpec, missing: list[str]) -> int | None:
    blocks = [(group.count, group.feed_forward) for group in model.layers if not group.shares_layer]
    if any(block is None for _, block in blocks):
        missing.append("feed_forward")
        return None
    counted = sum(
        count * feed_forward_params(block, model.model_dim)
        for count, block in blocks
        if block is not None
    )
    return counted + _held(model, "router")


def _embedding_params(model: ModelSpec, missing: list[str]) -> int | None:
    unknown = [key for key in ("vocab_size", "tied_embeddings") if getattr(model, key) is None]
    missing += unknown
    if model.vocab_size is None or unknown:
        return None
    tables = 1 if model.tied_embeddings else 2
    head_bias = model.vocab_size * model.head_bias
    positions = (model.position_embeddings or 0) * model.model_dim
    table = tables * model.vocab_size * model.model_dim
    return table + head_bias + positions + _held(model, "embeddings")


def _norm_params(model: ModelSpec, missing: list[str]) -> int | None:
    norms = model.norms
    if norms is None:
        missing.append("norms")
        return None
    n_norms = norms.final + norms.embedding
    n_norms += sum(group.count * _norms_of(norms, group) for group in model.layers)
    return n_norms * model.model_dim * (2 if norms.bias else 1) + _held(model, "norms")


def _norms_of(norms: Norms, group: LayerGroup) -> int:
    """Norms of one layer of the group."""
    has_mixer = group.attention is not None or bool(group.state)
    has_block = group.feed_forward is not None and group.feed_forward.kind != "none"
    return norms.per_mixer * has_mixer + norms.per_feed_forward * has_block


@dataclass(frozen=True, kw_only=True)
class MatchedWidth:
    """Feed-forward widths that bring a swapped model nearest to the original's total."""

    width_change: int
    hidden_dims: tuple[int, ...]  # new widths, one per distinct old width
    attention_change: int  # parameters that the swap added (negative: saved)
    remaining_difference: int  # parameters above (+) or below (-) the original after rounding


def matched_feed_forward(original: ModelSpec, swapped: ModelSpec) -> MatchedWidth:
    """The feed-forward width that restores the original's parameter count after a swap.

    Notes
    -----
    One unit of width costs s = sum over layers of m d (per dense block or routed expert, m = 3 if
    gated else 2, plus biases). The change is round(-(P_swapped - P_original) / s), applied to
    every feed-forward width alike; |remaining| <= s / 2.

    Raises
    ------
    SpecError
        If the spec states no feed-forward.
    RequirementError
        If the swap adds more than the feed-forward blocks hold.
    """
    check_model("original", original)
    check_model("swapped", swapped)
    change = sum(_attention_params(swapped, g) for g in swapped.layers) - sum(
        _attention_params(original, g) for g in original.layers
    )
    blocks = [(g.count, g.feed_forward) for g in original.layers if not g.shares_layer]
    if any(block is None for _, block in blocks):
        raise SpecError(
            f"{original.name}: feed_forward is not stated, so no width can restore the parameter "
            "count; add it to the model file"
        )
    slope = sum(count * _params_per_width(block, original.model_dim) for count, block in blocks)
    if slope == 0:
        raise SpecError(f"{original.name}: has no feed-forward block to widen")
    width_change = round(Fraction(-change, slope))
    widths = sorted({b.hidden_dim for _, b in blocks if b is not None and b.kind != "none"})
    if widths[0] + width_change < 1:
        raise RequirementError(
            f"{original.name}: the swap adds {change:,} parameters, more than a feed-forward width "
            f"of {widths[0]} can give back"
        )
    return MatchedWidth(
        width_change=width_change,
        hidden_dims=tuple(width + width_change for width in widths),
        attention_change=change,
        remaining_difference=change + width_change * slope,
    )


def _params_per_width(block: FeedForward | None, model_dim: int) -> int:
    if block is None or isinstance(block, NoFeedForward):
        return 0
    wider = block.model_copy(update={"hidden_dim": block.hidden_dim + 1})
    return feed_forward_params(wider, model_dim) - feed_forward_params(block, model_dim)


@dataclass(frozen=True, kw_only=True)
class StageWeights:
    """What one GPU of a pipeline stage holds; each part is rounded up to whole bytes. [bytes]"""

    attention: int = 0
    recurrent: int = 0
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
    model: ModelSpec, *, parallel: Parallelism, weight_dtype: str, with_drafts: bool = False
) -> WeightBytes:
    """Weight bytes on one GPU of each pipeline stage.

    Parameters
    ----------
    model : must state feed-forward, vocabulary, tied embeddings and norms.
    parallel : GPUs by kind of parallelism. Data parallelism repeats everything but experts that
        ``ep_size`` deals out.
    weight_dtype : name of a weight format.
    with_drafts : whether the built-in draft module is loaded too.

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
    final norm; tied embeddings are stored once on one stage, twice on more. Encoders and
    ``extra_params`` are taken to be on the first stage and divided by P (vLLM slices vision towers
    by default), at 16 bit in quantised formats. A draft module is on the last stage and shares the
    model's embedding and head, even where its checkpoint stores them again.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> llama = load_model("llama-3.1-8b")
    >>> one = weight_bytes_per_gpu(llama, parallel=Parallelism(), weight_dtype="bf16")
    >>> one.fullest.total  # 8,030,261,248 parameters of 2 bytes
    16060522496
    """
    check_model("model", model)
    check_is("parallel", parallel, Parallelism)
    _check_stated(model)
    model.weights_in(weight_dtype)  # refuses what is no format
    key = (id(model), parallel, weight_dtype, with_drafts)
    found = _counted.get(key)
    if found is None or found[0] is not model:
        found = model, _weight_bytes(model, parallel, weight_dtype, with_drafts)
        if len(_counted) >= _MOST_COUNTED:
            _counted.pop(next(iter(_counted)))
        _counted[key] = found
    return found[1]


# A search over GPUs asks for the same weights again and again; the model is kept so that its id
# stays its own.
_counted: dict[tuple[int, Parallelism, str, bool], tuple[ModelSpec, WeightBytes]] = {}
_MOST_COUNTED = 1_024


def _weight_bytes(
    model: ModelSpec, parallel: Parallelism, weight_dtype: str, with_drafts: bool
) -> WeightBytes:
    storage = model.weights_in(weight_dtype)
    layers = layers_in_order(model)
    known: dict[tuple[int, ...], Bits] = {}  # most layers are alike
    for groups in layers:
        key = tuple(map(id, groups))
        if key not in known:
            known[key] = layer_bits(model, groups, storage, parallel)
    per_layer = [known[tuple(map(id, groups))] for groups in layers]
    stages = pipeline_stages(len(layers), parallel.pp_size, parallel.pp_layers)
    drafts = _draft_bits(model, storage, parallel) if with_drafts else []
    last = len(stages) - 1
    return WeightBytes(
        stages=tuple(
            _rounded(
                [per_layer[i] for i in stage]
                + [_ends_bits(model, storage, parallel, index == 0, index == last)]
                + (drafts if index == last else [])
            )
            for index, stage in enumerate(stages)
        ),
        remarks=_remarks(model, storage),
    )


def _draft_bits(model: ModelSpec, storage: WeightFormat, parallel: Parallelism) -> list[Bits]:
    """The draft module's layers and what joins them, by part; nothing where there is none."""
    if model.mtp is None:
        return []
    joined: Bits = defaultdict(Fraction)
    own = [one for one in model.mtp.weights if one.part != "embeddings"]
    add_held(joined, own, storage, parallel.tp_size)
    layers = [
        layer_bits(model, [group], storage, parallel)
        for group in model.mtp.layers for _ in range(group.count)
    ]  # fmt: skip
    return [*layers, joined]


def uncounted_weights(model: ModelSpec) -> tuple[str, ...]:
    """Parts whose weights the spec names and nothing counts; empty where a total covers them.

    What is computed from the counted weights is then a bound: at least so many bytes of weights,
    at most so many sequences.
    """
    return () if model.extra_params else model.uncounted_parts


def refuse_unbounded_weights(model: ModelSpec) -> None:
    """Refuse a model whose counted weights may be a small part of all.

    Raises
    ------
    SpecError
        If it has recurrent layers whose weights it does not state: they are as large as those of
        attention layers, and no bound on them is known.
    """
    n_recurrent = sum(
        group.count for group in model.layers
        if group.state and group.attention is None
        and not any(one.part == "mixer" for one in group.weights)
    )  # fmt: skip
    if n_recurrent:
        raise SpecError(
            f"{model.name}: the weights of {n_recurrent} recurrent layers are not counted, so "
            "memory and times cannot be; give the weights of one GPU (--weights '50 GiB'), or the "
            "pool (--kv-memory)"
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
    beside = encoder_params(model)
    if beside:
        remarks.append(f"weights: {beside:,} parameters outside the layers, divided")
    left_out = uncounted_weights(model)
    if left_out:
        remarks.append(f"weights leave out: {'; '.join(left_out)}")
    if storage.quantised_parts:
        parts = ", ".join(sorted(storage.quantised_parts)).replace("_", " ")
        remarks.append(
            f"weights in {storage.name}: the usual mixture of block types; --weights takes the "
            "file's size"
            if storage.mixture
            else f"weights in {storage.name}: {parts}; the rest in 16 bit"
        )
    return tuple(remarks)


def layers_in_order(model: ModelSpec) -> list[list[LayerGroup]]:
    """Per layer its group; cross-attention groups are spread evenly over the layers they share."""
    order = model.layer_order
    if order is None:
        order = tuple(i for i, group in enumerate(model.layers) for _ in range(group.count))
    layers = [[model.layers[i]] for i in order if not model.layers[i].shares_layer]
    for group in model.layers:
        if group.shares_layer:
            for k in range(group.count):
                layers[min(k * len(layers) // group.count, len(layers) - 1)].append(group)
    return layers


def _ends_bits(
    model: ModelSpec, storage: WeightFormat, parallel: Parallelism, is_first: bool, is_last: bool
) -> Bits:
    """Embeddings and extra parts on the first stage; head and final norm on the last."""
    bits: Bits = defaultdict(Fraction)
    plain, norm = storage.plain_bits, norm_bits(model, storage)
    rows = math.ceil((model.vocab_size or 0) / parallel.tp_size)
    head = rows * model.model_dim * storage.table_bits("head", model.model_dim)
    norms = model.norms
    if is_first:
        # A table that serves as head too is stored as the head.
        part = "head" if model.tied_embeddings else "embedding"
        table = rows * model.model_dim * storage.table_bits(part, model.model_dim)
        positions = (model.position_embeddings or 0) * model.model_dim * plain
        bits["embeddings"] += table + positions
        bits["norms"] += norm * (norms is not None and norms.embedding)
        bits["extra"] += Fraction(encoder_params(model) * plain, parallel.tp_size)
        add_held(bits, model.weights, storage, parallel.tp_size)
    if is_last:
        is_shared = model.tied_embeddings and is_first
        bits["head"] += head * (not is_shared) + rows * plain * model.head_bias
        bits["norms"] += norm * (norms is not None and norms.final)
    return bits


def _rounded(parts: list[Bits]) -> StageWeights:
    bits: Bits = defaultdict(Fraction)
    for part in parts:
        for name, amount in part.items():
            bits[name] += amount
    return StageWeights(**{name: math.ceil(amount / 8) for name, amount in bits.items()})
