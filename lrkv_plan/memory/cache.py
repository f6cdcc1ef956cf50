"""Cache bytes per token, sequence, batch and GPU, from what each layer keeps.

Counts payload and format scales. Leaves out pages, allocator slack and padding between tensors;
those belong to an engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, overload

from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.formats import StorageFormat, storage_format
from lrkv_plan.memory.exact import (
    as_count,
    check_model,
    exact_product,
    exact_sum,
    largest,
    minimum,
    one_count,
    over_each,
    simplest,
)
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import FixedTensor, LayerGroup, ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Count, Exact, IntArray


def row_bytes_per_layer(
    layout: AttentionLayout, storage: StorageFormat, tp_size: int = 1
) -> Fraction:
    """Bytes that one layer keeps per token on one GPU: sum_i c_i(P) row_bytes(w_i). [bytes]

    c_i(P) is c_i for a replicated tensor and max(1, c_i / P) for one dealt out by copy.
    """
    return Fraction(_row_bits_per_layer(layout, storage, tp_size), 8)


def _row_bits_per_layer(layout: AttentionLayout, storage: StorageFormat, tp_size: int) -> int:
    layout.check_tp_size(tp_size)
    return sum(
        t.copies_per_gpu(tp_size) * t.format_in(storage).row_bits(t.width) for t in layout.cached
    )


def fixed_bytes_per_gpu(tensor: FixedTensor, tp_size: int) -> int:
    """Bytes of a fixed tensor on one GPU of ``tp_size``. [bytes]

    Raises
    ------
    PlacementError
        If its copies can neither be dealt out nor repeated evenly.
    """
    if tensor.sharding == "replicated":
        return tensor.copies * tensor.bytes_per_copy
    if tensor.copies % tp_size and tp_size % tensor.copies:
        raise PlacementError(
            f"tp_size {tp_size}: {tensor.copies} copies of {tensor.name} can neither be dealt out "
            "nor repeated evenly"
        )
    return max(1, tensor.copies // tp_size) * tensor.bytes_per_copy


def group_row_bytes(
    model: ModelSpec, group: LayerGroup, storage: StorageFormat, tp_size: int
) -> Fraction:
    """Bytes that one layer of the group keeps per token on one GPU; 0 without attention. [bytes]"""
    return Fraction(_group_row_bits(model, group, storage, tp_size), 8)


def _group_row_bits(
    model: ModelSpec, group: LayerGroup, storage: StorageFormat, tp_size: int
) -> int:
    if group.attention is None:
        return 0
    layout = layout_of(group.attention, model.model_dim)
    return _row_bits_per_layer(layout, group.keeps_in(storage), tp_size)


def keeps_context_rows(group: LayerGroup) -> bool:
    """Whether the group's layers keep rows of their own for tokens of the context."""
    return group.attention is not None and not group.reuses_cache and group.cached_over == "context"


def rows_per_token(group: LayerGroup) -> Fraction:
    """Rows that one more token adds in a layer while no window is full."""
    return 1 + (Fraction(1, group.tokens_per_row) if group.tokens_per_row else Fraction(0))


def rows_kept(group: LayerGroup, context: Count, encoder: Count) -> Count | None:
    """Rows that one sequence keeps in each layer of the group; None where it keeps none."""
    if keeps_context_rows(group):
        rows = minimum(context, group.window_tokens)
        return rows if group.tokens_per_row is None else rows + context // group.tokens_per_row
    return encoder if group.cached_over == "encoder" else None


def refuse_compressed_rows(model: ModelSpec) -> None:
    """Refuse a model whose rows stand for several tokens: engines' pools and times of it.

    Raises
    ------
    SpecError
        If some layer has such rows, or such index keys.
    """
    for group in model.layers:
        tokens = max([group.tokens_per_row or 1, *(one.tokens_per_row for one in group.index)])
        if tokens > 1:
            raise SpecError(
                f"{model.name}: a row of {group.count} of its layers stands for {tokens} tokens; "
                "`lrkv-plan cache` counts them, but an engine's pool of them and the time to read "
                "them are not modelled"
            )


@dataclass(frozen=True, kw_only=True)
class CacheBytes:
    """What a batch holds on one GPU, or in all when ``tp_size`` was 1. [bytes]"""

    kv_bytes: Exact
    index_bytes: Exact
    state_bytes: Exact

    @property
    def total(self) -> Exact:
        """Keys and values, sparse-index keys and recurrent state together. [bytes]"""
        return exact_sum(self.kv_bytes, self.index_bytes, self.state_bytes)


@overload
def bytes_per_token(
    model: ModelSpec, *, kv_dtype: str = ..., tp_size: int = ...
) -> int | Fraction: ...
@overload
def bytes_per_token(model: ModelSpec, *, kv_dtype: str = ..., tp_size: IntArray) -> IntArray: ...
def bytes_per_token(model: ModelSpec, *, kv_dtype: str = "bf16", tp_size: Any = 1) -> Any:
    """Key/value bytes that one more token adds, over all layers, on one GPU.

    Parameters
    ----------
    model : layers that attend to the context and keep their own rows count; layers that reuse
        another's cache, cross-attention, recurrent state and sparse-index keys do not.
    kv_dtype : name of a storage format.
    tp_size : GPUs sharing the model, a number or an integer array; 1 gives the whole model's
        bytes. [GPUs]

    Returns
    -------
    Bytes per token, exact: an int, a Fraction if not whole, or an int64 array. [bytes/token]

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over ``tp_size`` GPUs.
    SpecError
        If the storage format is unknown.

    Notes
    -----
    M / T = sum over layers of b * sum_i w_i c_i(P). For LRKV in N layers at P = 1 that is
    2 b N (d_h + H r) (arXiv:2601.11471v3, eq. 9 per token).

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> bytes_per_token(load_model("lrkv-paper-2.5b"))  # 2 * 2 * 18 * 18 * 128
    165888
    """
    check_model("model", model)
    storage = storage_format(kv_dtype)
    model = model.cached_in(storage)

    def at(size: int) -> int | Fraction:
        kept = (
            group.count * _group_row_bits(model, group, storage, size) * rows_per_token(group)
            for group in model.layers
            if keeps_context_rows(group)
        )
        return simplest(Fraction(sum(kept), 8))

    return over_each("tp_size", tp_size, at)


def index_bytes_per_token(model: ModelSpec, *, tp_size: int = 1) -> int | Fraction:
    """Bytes of sparse-attention index keys that one more token adds on one GPU. [bytes/token]"""
    check_model("model", model)
    tp_size = one_count("tp_size", tp_size)
    total = sum(
        (Fraction(group.count * fixed_bytes_per_gpu(tensor, tp_size), tensor.tokens_per_row)
         for group in model.layers for tensor in group.index),
        start=Fraction(0),
    )  # fmt: skip
    return simplest(total)


def state_bytes_per_sequence(model: ModelSpec, *, tp_size: int = 1) -> int:
    """Recurrent and convolution state of one sequence on one GPU. [bytes]"""
    check_model("model", model)
    tp_size = one_count("tp_size", tp_size)
    return sum(
        group.count * fixed_bytes_per_gpu(tensor, tp_size)
        for group in model.layers
        for tensor in group.state
    )


def encoder_bytes_per_token(
    model: ModelSpec, *, kv_dtype: str = "bf16", tp_size: int = 1
) -> int | Fraction:
    """Cross-attention bytes per encoder token on one GPU. [bytes/encoder token]"""
    check_model("model", model)
    tp_size = one_count("tp_size", tp_size)
    storage = storage_format(kv_dtype)
    model = model.cached_in(storage)
    total = sum(
        (group.count * group_row_bytes(model, group, storage, tp_size)
         for group in model.layers if group.cached_over == "encoder"),
        start=Fraction(0),
    )  # fmt: skip
    return simplest(total)


def cache_bytes(
    model: ModelSpec,
    *,
    context_tokens: Any,
    batch_size: Any = 1,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    encoder_tokens: int | None = None,
) -> CacheBytes:
    """Bytes that a batch of equal sequences holds on one GPU.

    Parameters
    ----------
    model : its layers decide what is kept; a windowed layer keeps min(T, window) rows.
    context_tokens : tokens cached per sequence; a number or an integer array. [tokens]
    batch_size : sequences resident together; a number or an integer array. [sequences]
    kv_dtype : storage format of keys and values.
    tp_size : GPUs sharing the model; 1 gives the whole model's bytes. [GPUs]
    encoder_tokens : rows of cross-attention layers; the spec's own number when None. Unknown
        rows are left out. [tokens]

    Returns
    -------
    Exact bytes by kind; int64 arrays when a count is an array. For uneven lengths pass their
    array and sum the result.

    Raises
    ------
    UsageError
        If a count is not a positive whole number, or the bytes would overflow int64.
    PlacementError, SpecError
        As ``bytes_per_token``.

    Notes
    -----
    M = B sum over layers of min(T, window) b sum_i w_i c_i(P). Not modelled: pages, allocator.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> cache_bytes(load_model("lrkv-paper-2.5b"), context_tokens=2048).total
    339738624
    """
    check_model("model", model)
    storage, tp_size = storage_format(kv_dtype), one_count("tp_size", tp_size)
    model = model.cached_in(storage)
    context = as_count("context_tokens", context_tokens)
    batch = as_count("batch_size", batch_size)
    own = model.encoder_tokens or 0
    encoder = own if encoder_tokens is None else one_count("encoder_tokens", encoder_tokens, 0)
    nothing = exact_product(0, context, batch)
    kv_parts, index_parts = [nothing], [nothing]
    for group in model.layers:
        rows = rows_kept(group, context, encoder)
        if rows is not None:
            scale = group.count * group_row_bytes(model, group, storage, tp_size)
            kv_parts.append(exact_product(scale, rows, batch))
        for tensor in group.index:
            index_scale = group.count * fixed_bytes_per_gpu(tensor, tp_size)
            keys = context // tensor.tokens_per_row
            index_parts.append(exact_product(index_scale, keys, batch))
    held = CacheBytes(
        kv_bytes=exact_sum(*kv_parts),
        index_bytes=exact_sum(*index_parts),
        state_bytes=exact_product(state_bytes_per_sequence(model, tp_size=tp_size), batch),
    )
    exact_product(largest(held.total))
    return held


def reference_mha(model: ModelSpec) -> ModelSpec:
    """The same backbone with full multi-head attention: the denominator of every ratio."""
    check_model("model", model)
    return swap_attention(model, "mha") if model.attention_groups else model


def ratio_to_mha(model: ModelSpec, *, kv_dtype: str = "bf16", tp_size: int = 1) -> Fraction | None:
    """Bytes per token over those of MHA on the same backbone, format and GPUs; exact.

    For one design in all layers at P = 1 this is g/H + r/d_h for LRKV, G/H for GQA. Under tensor
    parallelism it equals the aggregate ratio, for MHA replicates nothing: P g'/H + r/d_h.
    None where no layer keeps rows.
    """
    tp_size = one_count("tp_size", tp_size)
    reference = bytes_per_token(reference_mha(model), kv_dtype=kv_dtype, tp_size=tp_size)
    if not reference:
        return None
    return Fraction(bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size)) / reference
