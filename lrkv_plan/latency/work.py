"""What one GPU reads, writes and computes in a decode step, as coefficients.

Every quantity is linear in sequences B, cached tokens T (up to a window) and query tokens q, so a
design is a handful of numbers that any array of B, T and q is multiplied with. Leaves out softmax,
rotations, norms and sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from lrkv_plan.attention.layout import AttentionLayout, DecodeWork
from lrkv_plan.attention.registry import kernel_of, layout_of
from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.formats import StorageFormat, storage_format, weight_format
from lrkv_plan.memory.cache import fixed_bytes_per_gpu
from lrkv_plan.memory.exact import check_is, check_model, is_array, one_count
from lrkv_plan.memory.weights import parameter_count, refuse_unbounded_weights, weight_bytes_per_gpu
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import ExpertFeedForward, LayerGroup, ModelSpec
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD


@dataclass(frozen=True, kw_only=True)
class AttentionWork:
    """``layers`` equal layers on one GPU; all figures are of one layer.

    With R = min(T, window) rows: reads B (R row_read_bytes + fixed_bytes), writes
    B q token_write_bytes, computes B R (q row_flops + expand_row_flops). ``fixed_rows`` replaces R
    for cross-attention.
    """

    path: str
    kernel: str
    layers: int
    n_heads: int  # query heads on this GPU
    n_copies: int = 1  # cached heads on this GPU: work units per sequence
    head_dim: int = 0  # width of a cached row
    row_read_bytes: float = 0.0
    token_write_bytes: float = 0.0
    fixed_bytes: float = 0.0
    row_flops: float = 0.0
    expand_row_flops: float = 0.0
    rebuilt_row_scalars: float = 0.0
    window_tokens: int | None = None
    fixed_rows: int | None = None

    def rows(self, context_tokens: Any) -> Any:
        """Rows that each sequence scans; a number or an array as the context is."""
        if self.fixed_rows is not None:
            return self.fixed_rows + 0 * context_tokens  # an array where the contexts are one
        if self.window_tokens is None:
            return context_tokens
        if is_array(context_tokens):
            return context_tokens.clip(max=self.window_tokens)
        return min(context_tokens, self.window_tokens)

    def n_bytes(self, context_tokens: Any, batch_size: Any, query_tokens: Any = 1) -> Any:
        """Bytes read and written by one layer. [bytes]"""
        read = self.rows(context_tokens) * self.row_read_bytes + self.fixed_bytes
        return batch_size * (read + query_tokens * self.token_write_bytes)

    def n_flops(self, context_tokens: Any, batch_size: Any, query_tokens: Any = 1) -> Any:
        """FLOPs of one layer's scan. [FLOPs]"""
        per_row = query_tokens * self.row_flops + self.expand_row_flops
        return batch_size * self.rows(context_tokens) * per_row

    def n_units(self, context_tokens: Any, batch_size: Any, constants_of: str | None = None) -> Any:
        """Work units of one layer: what a kernel deals out, or rebuilds, one by one.

        Cached heads times sequences; for paths that write keys and values out, the scalars written,
        because those cost a time each beside the arithmetic. ``constants_of``, the kernel whose
        constants are used, says how it counts; None is the layer's own.
        """
        own = constants_of or self.kernel
        if self.rebuilt_row_scalars and kernel_of(own).rebuilds:
            return batch_size * self.rows(context_tokens) * self.rebuilt_row_scalars
        return batch_size * self.n_copies


def attention_work(
    model: ModelSpec,
    *,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    heads_per_tile: int | None = None,
    path: str | None = None,
) -> tuple[AttentionWork, ...]:
    """Attention of all layers on one GPU of ``tp_size``.

    Parameters
    ----------
    heads_per_tile : query heads that a kernel serves from one read of a cached row; all that share
        the row when None. [heads]
    path : decode path by name; each layout's first when None.

    Raises
    ------
    UsageError
        If a layout has no path of that name.
    PlacementError
        If the heads cannot be dealt out.

    Notes
    -----
    Bytes per row: sum over cached tensors of copies(P) row_bytes ceil(h / heads_per_tile), where
    h = (H / P) / copies(P) heads read each copy (review of arXiv:2601.11471v3, section 4: fetched
    afresh for every head, the shared block alone costs as many reads as MHA).
    FLOPs per row: 2 per multiply-add of the path, divided by P.

    Examples
    --------
    >>> from lrkv_plan import load_model, swap_attention
    >>> work = attention_work(swap_attention(load_model("lrkv-paper-2.5b"), "lrkv:55"))[0]
    >>> work.row_read_bytes, work.row_flops  # 2*2*(128 + 18*55); 2*18*2*(128 + 55)
    (4472.0, 13176.0)
    """
    check_model("model", model)
    storage, tp_size = storage_format(kv_dtype), one_count("tp_size", tp_size)
    if heads_per_tile is not None:
        heads_per_tile = one_count("heads_per_tile", heads_per_tile)
    if path is not None:
        check_is("path", path, str)
    found = []
    for group in model.layers:
        if group.state:
            held = sum(fixed_bytes_per_gpu(tensor, tp_size) for tensor in group.state)
            found.append(
                AttentionWork(
                    path="recurrent", kernel="grouped", layers=group.count, n_heads=1,
                    fixed_bytes=2.0 * held,
                )
            )  # fmt: skip
        if group.attention is not None:
            layout = layout_of(group.attention, model.model_dim)
            found.append(_layer_work(model, group, layout, storage, tp_size, heads_per_tile, path))
    return tuple(found)


def _layer_work(
    model: ModelSpec,
    group: LayerGroup,
    layout: AttentionLayout,
    storage: StorageFormat,
    tp_size: int,
    heads_per_tile: int | None,
    path: str | None,
) -> AttentionWork:
    layout.check_tp_size(tp_size)
    work = _path(layout, path)
    heads = layout.n_heads // tp_size
    cached = [(t, t.copies_per_gpu(tp_size)) for t in layout.cached]
    index = sum(fixed_bytes_per_gpu(tensor, tp_size) for tensor in group.index)
    written = sum(float(n * storage.of_tensor(t.stored_as).row_bytes(t.width)) for t, n in cached)
    flops = FLOPS_PER_MULTIPLY_ADD / tp_size
    read = sum(
        _reads(heads, n, heads_per_tile)
        * n
        * float(storage.of_tensor(t.stored_as).row_bytes(t.width))
        for t, n in cached
    )
    return AttentionWork(
        path=work.path,
        kernel=work.kernel,
        layers=group.count,
        n_heads=heads,
        n_copies=max(copies for _, copies in cached),
        head_dim=cached[0][0].width,
        row_read_bytes=index + read,
        token_write_bytes=0.0 if group.reuses_cache else written + index,
        row_flops=flops * work.per_token,
        expand_row_flops=flops * work.expand_per_token,
        rebuilt_row_scalars=work.rebuilt_per_token / tp_size,
        window_tokens=group.window_tokens,
        fixed_rows=(model.encoder_tokens or 0) if group.cached_over == "encoder" else None,
    )


def _path(layout: AttentionLayout, name: str | None) -> DecodeWork:
    if name is None:
        return layout.work[0]
    for work in layout.work:
        if work.path == name:
            return work
    known = [work.path for work in layout.work]
    raise UsageError(
        f"{layout.label} has no decode path {shown(name)}{did_you_mean(name, known)}; "
        f"known: {', '.join(known)}"
    )


def _reads(heads: int, copies: int, heads_per_tile: int | None) -> int:
    """How often a row is fetched: once per tile of the heads that share it."""
    sharing = -(-heads // copies)
    return 1 if heads_per_tile is None else -(-sharing // heads_per_tile)


def paths_of(model: ModelSpec) -> tuple[str, ...]:
    """Decode paths that every attention layer of the model has."""
    layouts = [layout_of(g.attention, model.model_dim) for g in model.layers if g.attention]
    first = [work.path for work in layouts[0].work] if layouts else []
    return tuple(p for p in first if all(p in [w.path for w in one.work] for one in layouts))


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
