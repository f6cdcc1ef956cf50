"""The weights' pass of one GPU in a decode step: the operations between its attention kernels.

Matrices as engines fuse them (all that read the hidden state are one, gate and up are one),
products over heads, experts, and small kernels, each with the design's own shapes under its layout.
A matrix is named by what it reads. Leaves out sampling and what the engine does between steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lrkv_plan.attention.layout import WeightMatrix
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.formats import WeightFormat
from lrkv_plan.latency.experts import MATRICES
from lrkv_plan.memory.cache import keeps_context_rows
from lrkv_plan.memory.exact import check_is, check_model
from lrkv_plan.memory.weights import (
    held_bits,
    parameter_count,
    refuse_unbounded_weights,
    stored_as,
)
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import (
    DenseFeedForward,
    ExpertFeedForward,
    LayerGroup,
    ModelSpec,
    NoFeedForward,
)
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD

ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class MatrixWork:
    """``layers`` equal matrices of ``inputs`` x ``outputs`` on this GPU, read once a step each.

    ``n_bytes`` is the stored size of one, ``format_name`` how it is multiplied.
    """

    name: str
    inputs: float
    outputs: float
    n_bytes: float
    format_name: str
    layers: int


@dataclass(frozen=True, kw_only=True)
class ProductWork:
    """``layers`` equal products batched over ``heads``, a matrix of rows x cols in each.

    ``in_kernel`` means that the attention kernel does it, so that none is launched.
    """

    name: str
    heads: int
    rows: int
    cols: int
    n_bytes: float
    format_name: str
    layers: int
    in_kernel: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertWork:
    """``layers`` equal layers of experts.

    ``width`` is that between an expert's matrices on this GPU, ``bytes_per_expert`` what is stored
    here of one, ``ep_size`` the GPUs over which whole experts are dealt out.
    """

    n_experts: int
    experts_per_token: int
    model_dim: int
    width: float
    bytes_per_expert: float
    ep_size: int
    format_name: str
    layers: int

    @property
    def experts_here(self) -> int:
        """Experts that this GPU holds, wholly or in slices."""
        return -(-self.n_experts // self.ep_size)


@dataclass(frozen=True, kw_only=True)
class SmallWork:
    """``calls`` small kernels of one kind over ``width`` scalars of each token."""

    kind: str
    width: float
    calls: int


@dataclass(frozen=True, kw_only=True)
class WeightsPass:
    """The weights' pass of one GPU."""

    matrices: tuple[MatrixWork, ...]
    products: tuple[ProductWork, ...]
    experts: tuple[ExpertWork, ...]
    small: tuple[SmallWork, ...]
    kernel_bytes: float = 0.0  # matrices that attention kernels read themselves

    @property
    def dense_bytes(self) -> float:
        """Weights that every step reads. [bytes]"""
        matrices = sum(one.layers * one.n_bytes for one in self.matrices)
        products = sum(one.layers * one.n_bytes for one in self.products)
        return float(matrices + products + self.kernel_bytes)

    @property
    def expert_bytes(self) -> float:
        """Experts that this GPU holds. [bytes]"""
        return float(sum(e.layers * e.experts_here * e.bytes_per_expert for e in self.experts))

    @property
    def dense_flops_per_token(self) -> float:
        """Arithmetic of matrices and products for one token. [FLOPs]"""
        matrices = sum(one.layers * one.inputs * one.outputs for one in self.matrices)
        products = sum(one.layers * one.heads * one.rows * one.cols for one in self.products)
        return float(FLOPS_PER_MULTIPLY_ADD * (matrices + products))

    @property
    def expert_flops_per_token(self) -> float:
        """Arithmetic of experts for one token of the replica, an average GPU's. [FLOPs]"""
        return float(
            sum(
                FLOPS_PER_MULTIPLY_ADD * e.layers * MATRICES * e.model_dim * e.width
                * e.experts_per_token / e.ep_size
                for e in self.experts
            )
        )  # fmt: skip

    def scaled(self, factor: float) -> WeightsPass:
        """The same with every stored size times ``factor``: known weights instead of counted."""
        return WeightsPass(
            matrices=tuple(replace(m, n_bytes=m.n_bytes * factor) for m in self.matrices),
            products=tuple(replace(p, n_bytes=p.n_bytes * factor) for p in self.products),
            experts=tuple(
                replace(e, bytes_per_expert=e.bytes_per_expert * factor) for e in self.experts
            ),
            small=self.small,
            kernel_bytes=self.kernel_bytes * factor,
        )


def weights_pass(
    model: ModelSpec,
    *,
    weight_dtype: str,
    parallel: Parallelism | None = None,
    weight_bytes: int | None = None,
    path: str | None = None,
) -> WeightsPass:
    """Every operation of one GPU between its attention kernels.

    Parameters
    ----------
    weight_dtype : format of the weights; parts that it leaves alone are 16-bit.
    weight_bytes : weights of one GPU as known, spread over the parts as the spec counts them; None
        counts them. [bytes]
    path : decode path by name; each layout's first when None.

    Raises
    ------
    SpecError
        If the spec does not state a part of the weights; without ``weight_bytes`` also if it has
        recurrent layers whose weights it does not state.
    PlacementError
        If weights cannot be dealt out.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> found = weights_pass(load_model("llama-3.1-8b"), weight_dtype="bf16")
    >>> [(m.name, m.inputs, m.outputs, m.layers) for m in found.matrices][:2]
    [('hidden', 4096, 6144.0, 32), ('heads', 4096.0, 4096.0, 32)]
    """
    check_model("model", model)
    parallel = Parallelism() if parallel is None else check_is("parallel", parallel, Parallelism)
    storage = model.weights_in(weight_dtype)
    if weight_bytes is None:
        refuse_unbounded_weights(model)
    elif parameter_count(model).missing:
        return _unstated_pass(model, weight_bytes, storage, parallel, path)
    counted = _pass(model, storage, parallel, path)
    if weight_bytes is None:
        return counted
    # Embedding rows are looked up, not read whole, unless the head reads the same table.
    looked_up = 0.0 if model.tied_embeddings else _head_bytes(model, storage, parallel)
    held = counted.dense_bytes + counted.expert_bytes + looked_up
    held += _encoder_row_bytes(model, storage, parallel)
    return counted.scaled(weight_bytes / held)


def _head_bytes(model: ModelSpec, storage: WeightFormat, parallel: Parallelism) -> float:
    scalars = (model.vocab_size or 0) * model.model_dim
    bits = storage.table_bits("head", model.model_dim)
    return float(scalars * bits / 8 / parallel.tp_size)


def _encoder_row_bytes(model: ModelSpec, storage: WeightFormat, parallel: Parallelism) -> float:
    """Weights that make the rows of cross-attention, once a request and in no step. [bytes]"""
    total = 0.0
    for group in model.layers:
        if group.attention is not None and group.cached_over == "encoder":
            weights = layout_of(group.attention, model.model_dim).weights
            idle = [w for w in weights if w.makes_rows and _is_matrix(w)]
            total += group.count * sum(_stored(w, storage, parallel.tp_size) for w in idle)
    return total


def _pass(
    model: ModelSpec, storage: WeightFormat, parallel: Parallelism, path: str | None
) -> WeightsPass:
    matrices: list[MatrixWork] = []
    products: list[ProductWork] = []
    kernel_bytes = 0.0
    experts: list[ExpertWork] = []
    small: list[SmallWork] = []
    for group in model.layers:
        matrices += _attention_matrices(model, group, storage, parallel)
        matrices += _held_matrices(group, storage, parallel.tp_size)
        here = tuple(_products(model, group, storage, parallel, path))
        products += (one for one in here if not one.in_kernel)
        kernel_bytes += sum(one.layers * one.n_bytes for one in here if one.in_kernel)
        matrices += _feed_forward_matrices(model, group, storage, parallel)
        experts += _experts(model, group, storage, parallel)
        small += _small(model, group, parallel)
    matrices += _head(model, storage, parallel)
    return WeightsPass(
        matrices=_merged(matrices), products=tuple(products), experts=tuple(experts),
        small=_gathered(small), kernel_bytes=kernel_bytes,
    )  # fmt: skip


def _unstated_pass(
    model: ModelSpec,
    weight_bytes: int,
    storage: WeightFormat,
    parallel: Parallelism,
    path: str | None,
) -> WeightsPass:
    """Known weights of a spec that leaves parts open: attention as stated, the rest in two matrices
    a layer that are as wide as the rest makes them.

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
    matrices: list[MatrixWork] = []
    products: list[ProductWork] = []
    kernel_bytes = 0.0
    small: list[SmallWork] = []
    for group in model.layers:
        matrices += _attention_matrices(model, group, storage, parallel)
        matrices += _held_matrices(group, storage, parallel.tp_size)
        here = tuple(_products(model, group, storage, parallel, path))
        products += (one for one in here if not one.in_kernel)
        kernel_bytes += sum(one.layers * one.n_bytes for one in here if one.in_kernel)
        small += _small(model, group, parallel)
    stated = WeightsPass(
        matrices=_merged(matrices), products=tuple(products), experts=(), small=_gathered(small),
        kernel_bytes=kernel_bytes,
    )  # fmt: skip
    rest = weight_bytes - stated.dense_bytes
    if rest <= 0:
        return stated.scaled(weight_bytes / stated.dense_bytes)
    layers, bits = 2 * model.n_layers, storage.bits_per_scalar
    each = rest / layers
    one = MatrixWork(
        name="not stated", inputs=model.model_dim, outputs=8 * each / bits / model.model_dim,
        n_bytes=each, format_name=storage.operand, layers=layers,
    )  # fmt: skip
    return replace(stated, matrices=(*stated.matrices, one))


def _merged(matrices: list[MatrixWork]) -> tuple[MatrixWork, ...]:
    """Equal matrices once, with their layers together."""
    found: dict[MatrixWork, int] = {}
    for one in matrices:
        key = replace(one, layers=0)
        found[key] = found.get(key, 0) + one.layers
    return tuple(replace(one, layers=layers) for one, layers in found.items())


def _gathered(small: list[SmallWork]) -> tuple[SmallWork, ...]:
    found: dict[tuple[str, float], int] = {}
    for one in small:
        found[one.kind, one.width] = found.get((one.kind, one.width), 0) + one.calls
    return tuple(SmallWork(kind=k, width=w, calls=n) for (k, w), n in found.items())


def _attention_matrices(
    model: ModelSpec, group: LayerGroup, storage: WeightFormat, parallel: Parallelism
) -> Iterator[MatrixWork]:
    """One matrix per thing that is read: hidden state, query latent, heads."""
    if group.attention is None:
        return
    if group.shares_weights:
        raise SpecError(
            f"{model.name}: several of its layers multiply the same attention matrices; "
            "`lrkv-plan cache` and `params` count them, their time is not modelled"
        )
    layout = layout_of(group.attention, model.model_dim)
    layout.check_tp_size(parallel.tp_size)
    makes_rows = keeps_context_rows(group)
    run = [w for w in layout.weights_held(reuses_cache=not makes_rows) if _is_matrix(w)]
    for read in dict.fromkeys(w.reads for w in run if w.reads is not None):
        same = [w for w in run if w.reads == read]
        yield _joined(same, group, read, storage, parallel.tp_size)


def _is_matrix(weight: WeightMatrix) -> bool:
    """Copies of one column side by side, as low-rank maps of rank 1 are, make a matrix."""
    return weight.cols * weight.copies > 1


def _stored(weight: WeightMatrix, storage: WeightFormat, tp_size: int) -> float:
    """Bytes of an attention weight on one GPU. [bytes]"""
    bits = storage.matrix_bits("attention", weight.rows, weight.cols)
    return float(weight.share_per_gpu(tp_size)) * weight.copies * float(bits) / 8


def _joined(
    weights: Sequence[WeightMatrix], group: LayerGroup, read: str, storage: WeightFormat,
    tp_size: int,
) -> MatrixWork:  # fmt: skip
    """Matrices that read the same as one: side by side, or sliced along what they read."""
    inputs: float = weights[0].rows
    outputs: float = sum(float(w.share_per_gpu(tp_size)) * w.cols * w.copies for w in weights)
    if read == "heads":  # every GPU has some heads' outputs: their rows of the matrix, all columns
        share = float(weights[0].share_per_gpu(tp_size))
        inputs, outputs = inputs * share, outputs / share
    return MatrixWork(
        name=read, inputs=inputs, outputs=outputs,
        n_bytes=sum(_stored(w, storage, tp_size) for w in weights),
        format_name=storage.operand_of("attention"), layers=group.count,
    )  # fmt: skip


# What each GPU has a share of: a matrix that multiplies it is sliced along its rows.
_SHARED_READS = ("heads", "channels")


def _held_matrices(group: LayerGroup, storage: WeightFormat, tp_size: int) -> Iterator[MatrixWork]:
    """Matrices that the layer holds beside its attention: one per thing read and way of storing."""
    held = [one for one in group.weights if one.reads is not None and one.cols * one.copies > 1]
    for read, part in dict.fromkeys((one.reads, stored_as(one)) for one in held):
        alike = [one for one in held if (one.reads, stored_as(one)) == (read, part)]
        shares = [float(one.share_per_gpu(tp_size)) for one in alike]
        inputs: float = alike[0].rows
        outputs = sum(s * one.cols * one.copies for s, one in zip(shares, alike, strict=True))
        if read in _SHARED_READS:
            inputs, outputs = inputs * shares[0], outputs / shares[0]
        yield MatrixWork(
            name=str(read), inputs=inputs, outputs=outputs,
            n_bytes=sum(
                s * float(held_bits(one, storage)) / 8 for s, one in zip(shares, alike, strict=True)
            ),
            format_name=storage.operand_of(part),
            layers=group.count,
        )  # fmt: skip


def _products(
    model: ModelSpec,
    group: LayerGroup,
    storage: WeightFormat,
    parallel: Parallelism,
    path: str | None,
) -> Iterator[ProductWork]:
    if group.attention is None:
        return
    layout = layout_of(group.attention, model.model_dim)
    heads = layout.n_heads // parallel.tp_size
    work = next((one for one in layout.work if one.path == path), layout.work[0])
    for product in (*work.products, *work.in_kernel):
        if product.rows and product.cols:
            yield ProductWork(
                name=product.name, heads=heads, rows=product.rows, cols=product.cols,
                n_bytes=heads * product.rows * product.cols * storage.plain_bits / 8,
                format_name=storage.plain_operand, layers=group.count,
                in_kernel=product in work.in_kernel,
            )  # fmt: skip


def _feed_forward_matrices(
    model: ModelSpec, group: LayerGroup, storage: WeightFormat, parallel: Parallelism
) -> Iterator[MatrixWork]:
    block = group.feed_forward
    if block is None or isinstance(block, NoFeedForward):
        return
    if isinstance(block, DenseFeedForward):
        yield from _mlp(model, group, block, "feed_forward", block.hidden_dim, storage, parallel)
        return
    yield MatrixWork(
        name="router", inputs=model.model_dim, outputs=block.n_experts,
        n_bytes=model.model_dim * block.n_experts * storage.plain_bits / 8,
        format_name=storage.plain_operand, layers=group.count,
    )  # fmt: skip
    for part, width in (
        ("shared_experts", block.shared_hidden_dim), ("feed_forward", block.dense_hidden_dim)
    ):  # fmt: skip
        if width:
            yield from _mlp(model, group, block, part, width, storage, parallel)


def _mlp(
    model: ModelSpec,
    group: LayerGroup,
    block: DenseFeedForward | ExpertFeedForward,
    part: str,
    width: int,
    storage: WeightFormat,
    parallel: Parallelism,
) -> Iterator[MatrixWork]:
    """Gate and up as one matrix, and down, sliced along the width."""
    if width % parallel.tp_size:
        raise PlacementError(
            f"a {part.replace('_', ' ')} width of {width} cannot be sliced over "
            f"{parallel.tp_size} GPUs; allowed: its divisors"
        )
    here, n_inputs = width // parallel.tp_size, 2 if block.gated else 1
    shared: dict[str, Any] = {"format_name": storage.operand_of(part), "layers": group.count}
    yield MatrixWork(
        name="gate_up" if block.gated else "up",
        inputs=model.model_dim,
        outputs=n_inputs * here,
        n_bytes=float(n_inputs * storage.matrix_bits(part, model.model_dim, here) / 8),
        **shared,
    )
    yield MatrixWork(
        name="down",
        inputs=here,
        outputs=model.model_dim,
        n_bytes=float(storage.matrix_bits(part, here, model.model_dim) / 8),
        **shared,
    )


def _experts(
    model: ModelSpec, group: LayerGroup, storage: WeightFormat, parallel: Parallelism
) -> Iterator[ExpertWork]:
    block = group.feed_forward
    if not isinstance(block, ExpertFeedForward):
        return
    ep_size, slices = expert_layout(parallel)
    if block.hidden_dim % slices:
        raise PlacementError(
            f"an experts width of {block.hidden_dim} cannot be sliced over {slices} GPUs; "
            "allowed: its divisors"
        )
    width, dim = block.hidden_dim // slices, block.expert_dim(model.model_dim)
    bits = (2 if block.gated else 1) * storage.matrix_bits("experts", dim, width)
    bits += storage.matrix_bits("experts", width, dim)
    yield ExpertWork(
        n_experts=block.n_experts,
        experts_per_token=block.experts_per_token,
        model_dim=dim,
        width=width,
        bytes_per_expert=float(bits / 8),
        ep_size=ep_size,
        format_name=storage.operand_of("experts"),
        layers=group.count,
    )


def expert_layout(parallel: Parallelism) -> tuple[int, int]:
    """(GPUs that share whole experts, GPUs that share one expert) of a replica.

    Data-parallel attention keeps one set of experts for all its GPUs.

    Examples
    --------
    >>> expert_layout(Parallelism(tp_size=8)), expert_layout(Parallelism(tp_size=8, ep_size=8))
    ((1, 8), (8, 1))
    >>> expert_layout(Parallelism(dp_size=8, ep_size=8))
    (8, 1)
    """
    return parallel.ep_size, parallel.expert_slices


def _small(model: ModelSpec, group: LayerGroup, parallel: Parallelism) -> Iterator[SmallWork]:
    norms = model.norms
    per_mixer = 1 if norms is None else norms.per_mixer
    per_block = 1 if norms is None else norms.per_feed_forward
    has_mixer = group.attention is not None or bool(group.state)
    block = group.feed_forward
    if n := per_mixer * has_mixer + per_block * (block is not None and block.kind != "none"):
        yield SmallWork(kind="norm", width=model.model_dim, calls=n * group.count)
    if group.attention is not None:
        layout = layout_of(group.attention, model.model_dim)
        for kind, width in layout.small_kernels.items():
            yield SmallWork(kind=kind, width=width / parallel.tp_size, calls=group.count)
    for one in group.weights:
        if one.reads == "heads":  # what a recurrent mixer makes is gated, and most often normed
            made = one.rows * float(one.share_per_gpu(parallel.tp_size))
            yield SmallWork(kind="norm", width=made, calls=group.count)
    if isinstance(block, DenseFeedForward):
        between = block.hidden_dim / parallel.tp_size
        yield SmallWork(kind="activation", width=between, calls=group.count)


def _head(model: ModelSpec, storage: WeightFormat, parallel: Parallelism) -> Iterator[MatrixWork]:
    if model.vocab_size is None:
        return
    yield MatrixWork(
        name="vocabulary", inputs=model.model_dim, outputs=model.vocab_size / parallel.tp_size,
        n_bytes=_head_bytes(model, storage, parallel),
        format_name=storage.operand_of("head"), layers=1,
    )  # fmt: skip
