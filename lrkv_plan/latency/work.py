"""What one GPU reads, writes and computes in a decode step, as coefficients.

Every quantity is linear in sequences B, cached tokens T (up to a window) and query tokens q, so a
design is a handful of numbers that any array of B, T and q is multiplied with. Leaves out softmax,
rotations, norms and sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from lrkv_plan.attention.layout import AttentionLayout, DecodeWork
from lrkv_plan.attention.registry import kernel_of, layout_of
from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.formats import StorageFormat, storage_format
from lrkv_plan.latency.weights_pass import WeightsPass, weights_pass
from lrkv_plan.memory.cache import (
    fixed_bytes_per_gpu,
    keeps_context_rows,
    refuse_compressed_rows,
)
from lrkv_plan.memory.exact import check_is, check_model, is_array, one_count
from lrkv_plan.specs.deployment import Parallelism, pipeline_stages
from lrkv_plan.specs.model import ExpertFeedForward, LayerGroup, ModelSpec
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD

ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class AttentionWork:
    """``layers`` equal layers on one GPU; all figures are of one layer.

    With R = min(T, window_tokens) rows: reads B (R row_read_bytes + T index_row_bytes +
    fixed_bytes) + call_bytes, writes B q token_write_bytes, computes
    B R (q row_flops + expand_row_flops) + B q token_flops. ``window_tokens`` are the rows of a
    window or those that a sparse layer selects by its index; ``fixed_rows`` replaces R for
    cross-attention, which writes none. ``call_bytes`` and ``token_flops`` are of maps that the
    kernel does itself.
    """

    path: str
    kernel: str
    layers: int
    n_heads: int  # query heads on this GPU
    n_copies: int = 1  # heads that the kernel deals out on this GPU: work units per sequence
    head_dim: int = 0  # width of a cached row
    row_read_bytes: float = 0.0
    index_row_bytes: float = 0.0
    token_write_bytes: float = 0.0
    fixed_bytes: float = 0.0
    call_bytes: float = 0.0
    token_flops: float = 0.0
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
        read = read + self.index_row_bytes * context_tokens
        return batch_size * (read + query_tokens * self.token_write_bytes) + self.call_bytes

    def n_flops(self, context_tokens: Any, batch_size: Any, query_tokens: Any = 1) -> Any:
        """FLOPs of one layer's kernel. [FLOPs]"""
        per_row = query_tokens * self.row_flops + self.expand_row_flops
        scanned = self.rows(context_tokens) * per_row
        return batch_size * (scanned + query_tokens * self.token_flops)

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
    dcp_size: int = 1,
    heads_per_tile: int | None = None,
    path: str | None = None,
    map_bytes: float = ACTIVATION_BYTES,
) -> tuple[AttentionWork, ...]:
    """Attention of all layers on one GPU of ``tp_size``.

    Parameters
    ----------
    heads_per_tile : query heads that a kernel serves from one read of a cached row; all that share
        the row when None. [heads]
    path : decode path by name; each layout's first when None.
    dcp_size : GPUs among which the rows of a sequence are dealt out. [GPUs]
    map_bytes : size of a scalar of the maps that a kernel does itself. [bytes]

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
    refuse_compressed_rows(model)
    storage, tp_size = storage_format(kv_dtype), one_count("tp_size", tp_size)
    model = model.cached_in(storage)
    if heads_per_tile is not None:
        heads_per_tile = one_count("heads_per_tile", heads_per_tile)
    if path is not None:
        check_is("path", path, str)
    found = []
    for group in model.layers:
        if group.attention is not None:
            layout = layout_of(group.attention, model.model_dim)
            work = _layer_work(
                model, group, layout, storage, tp_size, heads_per_tile, path, map_bytes
            )
            found.append(_dealt_out(work, dcp_size))
    return tuple(found)


@dataclass(frozen=True, kw_only=True)
class RecurrentWork:
    """``layers`` equal recurrent updates on one GPU; bytes are of one layer and sequence.

    ``state_bytes`` are read and written, ``conv_bytes`` too, with the row that goes in and out for
    each query token.
    """

    kind: str
    layers: int
    state_bytes: float
    conv_bytes: float
    conv_row_bytes: float

    def n_bytes(self, batch_size: Any, query_tokens: Any = 1) -> Any:
        """Bytes that one layer moves. [bytes]"""
        conv = self.conv_bytes + query_tokens * self.conv_row_bytes
        return batch_size * (self.state_bytes + conv)


def recurrent_work(model: ModelSpec, *, tp_size: int = 1) -> tuple[RecurrentWork, ...]:
    """The recurrent updates of all layers on one GPU of ``tp_size``.

    A state tensor to which a draft token adds a column is the window of a convolution.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> work = recurrent_work(load_model("qwen3-next-80b-a3b"))[0]
    >>> work.kind, work.state_bytes, work.conv_bytes  # 2 * 32 * 128 * 128 * 2; 2 * 3 * 8192 * 2
    ('gated_delta', 2097152.0, 98304.0)
    """
    found = []
    for group in model.layers:
        if not group.state:
            continue
        columns = [tensor for tensor in group.state if tensor.bytes_per_draft_token]
        others = [tensor for tensor in group.state if not tensor.bytes_per_draft_token]
        held = [sum(fixed_bytes_per_gpu(t, tp_size) for t in some) for some in (others, columns)]
        row = sum(
            fixed_bytes_per_gpu(t, tp_size) // t.bytes_per_copy * t.bytes_per_draft_token
            for t in columns
        )
        found.append(
            RecurrentWork(
                kind=group.update or "unnamed", layers=group.count, state_bytes=2.0 * held[0],
                conv_bytes=2.0 * held[1], conv_row_bytes=2.0 * row,
            )
        )  # fmt: skip
    return tuple(found)


def _dealt_out(work: AttentionWork, dcp_size: int) -> AttentionWork:
    """A layer whose rows are dealt out: each GPU reads a share and scans it for all their heads."""
    return replace(
        work,
        row_read_bytes=work.row_read_bytes / dcp_size,
        index_row_bytes=work.index_row_bytes / dcp_size,
        token_write_bytes=work.token_write_bytes / dcp_size,
    )


def _layer_work(
    model: ModelSpec,
    group: LayerGroup,
    layout: AttentionLayout,
    storage: StorageFormat,
    tp_size: int,
    heads_per_tile: int | None,
    path: str | None,
    map_bytes: float,
) -> AttentionWork:
    layout.check_tp_size(tp_size)
    storage = group.keeps_in(storage)
    work = path_of(layout, path)
    heads = layout.n_heads // tp_size
    cached = [(t, t.copies_per_gpu(tp_size)) for t in layout.cached]
    index = sum(fixed_bytes_per_gpu(tensor, tp_size) for tensor in group.index)
    written = sum(float(n * t.format_in(storage).row_bytes(t.width)) for t, n in cached)
    flops = FLOPS_PER_MULTIPLY_ADD / tp_size
    together = kernel_of(work.kernel).query_heads_per_kv_head
    inside = sum(product.rows * product.cols for product in work.in_kernel)  # of one head
    read = sum(
        _reads(heads, n, heads_per_tile) * n * float(t.format_in(storage).row_bytes(t.width))
        for t, n in cached
    )
    return AttentionWork(
        path=work.path,
        kernel=work.kernel,
        layers=group.count,
        n_heads=heads,
        n_copies=heads // together if together else max(copies for _, copies in cached),
        head_dim=cached[0][0].width,
        row_read_bytes=read,
        index_row_bytes=index,
        token_write_bytes=index + (written if keeps_context_rows(group) else 0.0),
        row_flops=flops * work.per_token,
        expand_row_flops=flops * work.expand_per_token,
        call_bytes=float(map_bytes * heads * inside),
        token_flops=float(FLOPS_PER_MULTIPLY_ADD * heads * inside),
        rebuilt_row_scalars=work.rebuilt_per_token / tp_size,
        window_tokens=group.most_rows,
        fixed_rows=(model.encoder_tokens or 0) if group.cached_over == "encoder" else None,
    )


def path_of(layout: AttentionLayout, name: str | None) -> DecodeWork:
    """The path of that name, the layout's first for None.

    Raises
    ------
    UsageError
        If the layout has no path of that name.
    """
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


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """One decode step of one GPU.

    Each mixer and each feed-forward of tensor-parallel GPUs ends in an all-reduce; where attention
    ranks share experts, each layer of them exchanges tokens instead. GPUs that deal out a
    sequence's rows join their partial outputs in one more a layer. ``assumptions`` are those of the
    decode paths, ``in_kernel_option`` the option of a design whose products they are about.
    """

    attention: tuple[AttentionWork, ...]
    linear: WeightsPass
    n_all_reduces: int
    all_reduce_token_bytes: float  # message bytes per token of the rank
    n_exchanges: int
    n_layers: int
    model_dim: int
    parallel: Parallelism
    remarks: tuple[str, ...]
    recurrent: tuple[RecurrentWork, ...] = ()
    assumptions: tuple[str, ...] = ()
    in_kernel_option: str | None = None

    @property
    def tp_size(self) -> int:
        """GPUs that share each layer."""
        return self.parallel.tp_size


def step_work(
    model: ModelSpec,
    *,
    kv_dtype: str = "bf16",
    weight_dtype: str = "bf16",
    tp_size: int = 1,
    parallel: Parallelism | None = None,
    heads_per_tile: int | None = None,
    path: str | None = None,
    weight_bytes: int | None = None,
) -> StepWork:
    """Everything that one GPU does in a decode step.

    Raises
    ------
    SpecError, PlacementError, UsageError
        As ``attention_work`` and ``weights_pass``.
    """
    check_model("model", model)
    layout = checked_layout(parallel, tp_size)
    blocks = sum(group.count * _n_blocks(group) for group in model.layers)
    pipeline_stages(
        model.n_layers, layout.pp_size, layout.pp_layers
    )  # refuses stages without a layer
    n_exchanges = 0
    if layout.ranks_per_expert_set > 1:
        n_exchanges = sum(
            group.count for group in model.layers
            if isinstance(group.feed_forward, ExpertFeedForward)
        )  # fmt: skip
    attending = [group for group in model.layers if group.attention is not None]
    n_joins = sum(group.count for group in attending) if layout.dcp_size > 1 else 0
    layouts = [layout_of(g.attention, model.model_dim) for g in attending if g.attention]
    paths = [path_of(one, path) for one in layouts]
    return StepWork(
        attention=attention_work(
            model, kv_dtype=kv_dtype, tp_size=layout.tp_size, dcp_size=layout.dcp_size,
            heads_per_tile=heads_per_tile, path=path,
            map_bytes=model.weights_in(weight_dtype).plain_bits / 8,
        ),
        recurrent=recurrent_work(model, tp_size=layout.tp_size),
        linear=weights_pass(
            model, weight_dtype=weight_dtype, parallel=layout, weight_bytes=weight_bytes, path=path
        ),
        n_all_reduces=blocks - n_exchanges + n_joins if layout.tp_size > 1 else 0,
        all_reduce_token_bytes=float(model.model_dim * ACTIVATION_BYTES),
        n_exchanges=n_exchanges,
        n_layers=model.n_layers,
        model_dim=model.model_dim,
        parallel=layout,
        remarks=tuple(_remarks(model, weight_bytes)),
        assumptions=tuple(dict.fromkeys(text for one in paths for text in one.assumptions)),
        in_kernel_option=next(filter(None, (one.in_kernel_option for one in layouts)), None),
    )  # fmt: skip


def checked_layout(parallel: object, tp_size: object) -> Parallelism:
    """The layout as given, or tensor parallelism alone where none is (``UsageError``)."""
    if parallel is None:
        return Parallelism(tp_size=one_count("tp_size", tp_size))
    return check_is("parallel", parallel, Parallelism)


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
    indexed = [group for group in model.layers if group.index]
    if any(group.selected_tokens is None for group in indexed):
        yield (
            "sparse attention is timed as if it read every cached row, for the file does not say "
            "how many it selects (selected_tokens): an upper bound"
        )
    elif indexed:
        yield (
            "sparse attention reads the index keys of all tokens and the rows that it selects; "
            "scoring and choosing them is a fitted time a layer"
        )
