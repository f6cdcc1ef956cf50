"""Equations with their numbers put in, as ``--explain`` prints them."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.formats import storage_format
from lrkv_plan.memory.cache import bytes_per_token, keeps_context_rows
from lrkv_plan.report.tables import count

if TYPE_CHECKING:
    from lrkv_plan.attention.layout import CachedTensor
    from lrkv_plan.formats import StorageFormat
    from lrkv_plan.serving.capacity import CapacityRow
    from lrkv_plan.specs.model import LayerGroup, ModelSpec


def cache_equation(model: ModelSpec, kv_dtype: str, tp_size: int = 1) -> str:
    """Bytes per token on one GPU, summed as ``bytes_per_token`` does.

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> cache_equation(load_model("llama-3.1-8b"), "bf16")
    '32 layers x (key 8 x 128 x 2 B + value 8 x 128 x 2 B) = 131,072 B/token'
    """
    storage = storage_format(kv_dtype)
    groups = [_group(model, group, storage, tp_size) for group in model.layers
              if keeps_context_rows(group)]  # fmt: skip
    total = bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size)
    where = "B/token" if tp_size == 1 else "B/token/GPU"
    return f"{' + '.join(groups) or '0'} = {count(total)} {where}"


def _group(model: ModelSpec, group: LayerGroup, storage: StorageFormat, tp_size: int) -> str:
    assert group.attention is not None, "the group keeps rows"
    layout = layout_of(group.attention, model.model_dim)
    layout.check_tp_size(tp_size)
    tensors = [_tensor(one, storage, tp_size) for one in layout.cached if one.width]
    return f"{count(group.count)} layers x ({' + '.join(tensors)})"


def _tensor(tensor: CachedTensor, storage: StorageFormat, tp_size: int) -> str:
    """``key 8 x 128 x 2 B``; a row with scales or blocks as its bytes."""
    copies, own = tensor.copies_per_gpu(tp_size), storage.of_tensor(tensor.stored_as)
    each = Fraction(own.bits_per_scalar, 8)
    row = own.row_bytes(tensor.width)
    plain = row == tensor.width * each and each.denominator == 1
    times = "" if copies == 1 else f"{count(copies)} x "
    told = (
        f"{count(tensor.width)} x {each} B"
        if plain
        else f"{count(row)} B ({count(tensor.width)} in {own.name})"
    )
    return f"{tensor.name} {times}{told}"


def sequences_equation(row: CapacityRow) -> str:
    """Whole sequences of one replica from its cache memory, in the blocks that the engine deals."""
    return (
        f"{count(row.kv_budget_bytes_per_gpu)} B of cache memory a GPU = {count(row.n_blocks)} "
        f"blocks of {count(row.block_tokens)} tokens ({count(row.block_bytes)} B) = "
        f"{count(row.kv_tokens)} tokens / {count(row.context_tokens)} = "
        f"{float(row.max_concurrency):,.2f}: {count(row.max_sequences)} whole sequences"
    )
