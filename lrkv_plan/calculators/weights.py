"""Weight bytes that each GPU holds, by part and pipeline stage, before any engine's own copies.

Leaves out what engines add (rotary tables, repacked or padded kernels' weights, absorbed copies of
MLA matrices) and what the spec names as uncounted.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields
from fractions import Fraction

from lrkv_plan.calculators.arguments import check_is, check_model
from lrkv_plan.calculators.layer_weights import Bits, layer_bits, norm_bits
from lrkv_plan.calculators.parameters import parameter_count
from lrkv_plan.errors import SpecError
from lrkv_plan.specs.model import LayerGroup, ModelSpec
from lrkv_plan.specs.serving import Parallelism, pipeline_stages
from lrkv_plan.specs.weight_formats import WeightFormat, weight_format


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
    check_model("model", model)
    check_is("parallel", parallel, Parallelism)
    _check_stated(model)
    storage = weight_format(weight_dtype)
    layers = _layers_in_order(model)
    known: dict[tuple[int, ...], Bits] = {}  # most layers are alike
    for groups in layers:
        key = tuple(map(id, groups))
        if key not in known:
            known[key] = layer_bits(model, groups, storage, parallel)
    per_layer = [known[tuple(map(id, groups))] for groups in layers]
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
        If it has recurrent layers: their weights are as large as those of attention layers, and no
        bound on them is known.
    """
    n_recurrent = sum(group.count for group in model.layers if group.state)
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


def _ends_bits(
    model: ModelSpec, storage: WeightFormat, parallel: Parallelism, is_first: bool, is_last: bool
) -> Bits:
    """Embeddings and extra parts on the first stage; head and final norm on the last."""
    bits: Bits = defaultdict(Fraction)
    plain, norm = storage.plain_bits, norm_bits(model, storage)
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
