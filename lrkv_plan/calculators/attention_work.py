"""What attention reads, writes and computes on one GPU in a decode step, layer by layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lrkv_plan.attention.families import layout_of
from lrkv_plan.attention.layout import AttentionLayout, DecodeWork
from lrkv_plan.calculators.arguments import check_is, check_model, one_count
from lrkv_plan.calculators.exact import is_array
from lrkv_plan.calculators.layer_cache import fixed_bytes_per_gpu
from lrkv_plan.dtypes import StorageFormat, storage_format
from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.specs.kernels import REBUILDING
from lrkv_plan.specs.model import LayerGroup, ModelSpec
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
        if self.rebuilt_row_scalars and own in REBUILDING:
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
