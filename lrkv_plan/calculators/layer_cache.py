"""What each layer of a group keeps: bytes per row and per fixed tensor on one GPU, and rows."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from lrkv_plan.attention.families import layout_of
from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.calculators.exact import minimum
from lrkv_plan.dtypes import StorageFormat
from lrkv_plan.errors import PlacementError
from lrkv_plan.specs.model import FixedTensor, LayerGroup, ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.calculators.exact import Count


def row_bytes_per_layer(
    layout: AttentionLayout, storage: StorageFormat, tp_size: int = 1
) -> Fraction:
    """Bytes that one layer keeps per token on one GPU: sum_i c_i(P) row_bytes(w_i). [bytes]

    c_i(P) is c_i for a replicated tensor and max(1, c_i / P) for one dealt out by copy.
    """
    layout.check_tp_size(tp_size)
    return sum(
        (
            t.copies_per_gpu(tp_size) * storage.of_tensor(t.stored_as).row_bytes(t.width)
            for t in layout.cached
        ),
        start=Fraction(0),
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
    if group.attention is None:
        return Fraction(0)
    return row_bytes_per_layer(layout_of(group.attention, model.model_dim), storage, tp_size)


def keeps_context_rows(group: LayerGroup) -> bool:
    """Whether the group's layers keep rows of their own for tokens of the context."""
    return group.attention is not None and not group.reuses_cache and group.cached_over == "context"


def rows_kept(group: LayerGroup, context: Count, encoder: Count) -> Count | None:
    """Rows that one sequence keeps in each layer of the group; None where it keeps none."""
    if keeps_context_rows(group):
        return minimum(context, group.window_tokens)
    return encoder if group.cached_over == "encoder" else None
