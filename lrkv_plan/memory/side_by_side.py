"""Designs side by side on one backbone: a frozen row each for cache, weights and placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.formats import storage_format
from lrkv_plan.memory.cache import (
    CacheBytes,
    bytes_per_token,
    cache_bytes,
    encoder_bytes_per_token,
    fixed_bytes_per_gpu,
    index_bytes_per_token,
    ratio_to_mha,
    rows_kept,
    rows_per_token,
    state_bytes_per_sequence,
)
from lrkv_plan.memory.exact import exact_product, simplest
from lrkv_plan.memory.placement import Placement, try_placements
from lrkv_plan.memory.weights import (
    MatchedWidth,
    kv_params_ratio_to_mha,
    matched_feed_forward,
    parameter_count,
)
from lrkv_plan.specs.deployment import Workload
from lrkv_plan.specs.design import NamedDesign
from lrkv_plan.specs.model import LayerGroup, ModelSpec


@dataclass(frozen=True, kw_only=True)
class ParamsRow:
    """Weights of one design; parts that the spec does not state are None."""

    model: str
    attention: str
    kv_params: int
    ratio_to_mha: Fraction | None
    attention_params: int
    recurrent_params: int
    feed_forward_params: int | None
    embedding_params: int | None
    norm_params: int | None
    encoder_params: int
    model_params: int | None
    active_params: int | None
    mtp_params: int | None
    idle_params: int | None
    missing: tuple[str, ...]
    matched: MatchedWidth | None = None


def params_rows(
    model: ModelSpec, designs: Sequence[NamedDesign], *, match_params: bool = False
) -> list[ParamsRow]:
    """One row per design; with ``match_params`` also the width that restores the model's total.

    Raises
    ------
    SpecError, RequirementError
        As ``matched_feed_forward``.
    """
    rows = []
    for label, design in designs:
        count = parameter_count(design)
        rows.append(
            ParamsRow(
                model=model.name,
                attention=label,
                kv_params=count.kv_params,
                ratio_to_mha=kv_params_ratio_to_mha(design),
                attention_params=count.attention_params,
                recurrent_params=count.recurrent_params,
                feed_forward_params=count.feed_forward_params,
                embedding_params=count.embedding_params,
                norm_params=count.norm_params,
                encoder_params=count.encoder_params,
                model_params=count.model_params,
                active_params=count.active_params,
                mtp_params=count.mtp_params,
                idle_params=count.idle_params,
                missing=count.missing,
                matched=matched_feed_forward(model, design) if match_params else None,
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class ShardRow:
    """One design, size and policy; ``placement`` is None where ``refused`` says why."""

    model: str
    attention: str
    tp_size: int
    kv_dtype: str
    placement: Placement | None
    refused: str | None


def shard_rows(
    designs: Sequence[NamedDesign], *, tp_sizes: Iterable[int], kv_dtype: str = "bf16"
) -> list[ShardRow]:
    """One row per design, size and policy that an engine can run, or one that says why not."""
    rows = []
    for label, design in designs:
        for tp_size in tp_sizes:
            found, refused = try_placements(design, tp_size=tp_size, kv_dtype=kv_dtype)
            rows += [
                ShardRow(
                    model=design.name, attention=label, tp_size=tp_size,
                    kv_dtype=storage_format(kv_dtype).name, placement=one, refused=refused,
                )
                for one in (found or (None,))
            ]  # fmt: skip
    return rows


Bytes = int | Fraction


_ONE_SEQUENCE = Workload()


@dataclass(frozen=True, kw_only=True)
class CacheRow:
    """Cache of one design at one context. Unscoped bytes are one copy of the whole model."""

    model: str
    attention: str
    context_tokens: int
    batch_size: int
    kv_dtype: str
    tp_size: int
    bytes_per_token: Bytes
    bytes_per_token_per_gpu: Bytes
    index_bytes_per_token: int | Fraction
    state_bytes_per_sequence: int
    encoder_bytes_per_token: Bytes
    kv_bytes: Bytes
    cache_bytes: Bytes  # keys and values, index keys and state of the batch
    cache_bytes_per_gpu: Bytes
    ratio_to_mha: Fraction | None
    ratio_to_own: Fraction | None  # bytes per token over those of the model's own design


def cache_rows(
    designs: Sequence[NamedDesign],
    *,
    own: ModelSpec,
    contexts: Iterable[int],
    workload: Workload = _ONE_SEQUENCE,
) -> list[CacheRow]:
    """One row per design and context, compared with the model's ``own``.

    Raises as ``cache_bytes``.
    """
    kv_dtype, tp_size = workload.kv_dtype, workload.tp_size
    whole_own = bytes_per_token(own, kv_dtype=kv_dtype)
    rows = []
    for label, design in designs:
        for context in contexts:
            whole = _held(design, context, workload, tp_size=1)
            each = bytes_per_token(design, kv_dtype=kv_dtype)
            rows.append(
                CacheRow(
                    model=design.name,
                    attention=label,
                    context_tokens=context,
                    batch_size=workload.batch_size,
                    kv_dtype=storage_format(kv_dtype).name,
                    tp_size=tp_size,
                    bytes_per_token=each,
                    bytes_per_token_per_gpu=bytes_per_token(
                        design, kv_dtype=kv_dtype, tp_size=tp_size
                    ),
                    index_bytes_per_token=index_bytes_per_token(design),
                    state_bytes_per_sequence=state_bytes_per_sequence(design),
                    encoder_bytes_per_token=encoder_bytes_per_token(design, kv_dtype=kv_dtype),
                    kv_bytes=_scalar(whole.kv_bytes),
                    cache_bytes=_scalar(whole.total),
                    cache_bytes_per_gpu=_scalar(_held(design, context, workload, tp_size).total),
                    ratio_to_mha=ratio_to_mha(design, kv_dtype=kv_dtype),
                    ratio_to_own=Fraction(each) / whole_own if whole_own else None,
                )
            )
    return rows


def _held(model: ModelSpec, context: int, workload: Workload, tp_size: int) -> CacheBytes:
    return cache_bytes(
        model,
        context_tokens=context,
        batch_size=workload.batch_size,
        kv_dtype=workload.kv_dtype,
        tp_size=tp_size,
        encoder_tokens=workload.encoder_tokens,
    )


def _scalar(value: object) -> Bytes:
    assert isinstance(value, int | Fraction), "scalar counts give a scalar"
    return value


@dataclass(frozen=True, kw_only=True)
class TensorRow:
    """One cached tensor of one layer group, over the group's layers. Bytes are of the batch."""

    model: str
    attention: str
    context_tokens: int
    batch_size: int
    kv_dtype: str
    tp_size: int
    layers: int
    tensor: str
    kept_per: str  # token, encoder token, or sequence
    width: int | None  # scalars per row; None for tensors given in bytes
    copies_per_layer: int
    copies_per_gpu: int
    sharding: str
    window_tokens: int | None
    bytes_per_token: Bytes
    cache_bytes: Bytes
    cache_bytes_per_gpu: Bytes


def tensor_rows(
    designs: Sequence[NamedDesign],
    *,
    contexts: Iterable[int],
    workload: Workload = _ONE_SEQUENCE,
) -> list[TensorRow]:
    """One row per design, context, layer group and tensor; their bytes add up to ``cache_rows``."""
    shared: dict[str, Any] = {
        "batch_size": workload.batch_size,
        "kv_dtype": storage_format(workload.kv_dtype).name,
        "tp_size": workload.tp_size,
    }
    return [
        TensorRow(model=design.name, attention=label, context_tokens=context, **shared, **tensor)
        for label, design in designs
        for context in contexts
        for group in design.cached_in(storage_format(workload.kv_dtype)).layers
        for tensor in (
            *_row_tensors(design, group, context, workload),
            *_fixed_tensors(group, context, workload),
        )
    ]


def _row_tensors(
    model: ModelSpec, group: LayerGroup, context: int, workload: Workload
) -> Iterable[dict[str, Any]]:
    stated = workload.encoder_tokens
    kept = rows_kept(group, context, (model.encoder_tokens or 0) if stated is None else stated)
    if group.attention is None or kept is None:
        return
    storage = group.keeps_in(storage_format(workload.kv_dtype))
    layout = layout_of(group.attention, model.model_dim)
    layout.check_tp_size(workload.tp_size)
    for tensor in layout.cached:
        row_bytes = group.count * tensor.format_in(storage).row_bytes(tensor.width)
        copies, per_gpu = tensor.copies_per_layer, tensor.copies_per_gpu(workload.tp_size)
        yield {
            "layers": group.count,
            "tensor": tensor.name,
            "kept_per": "token" if group.cached_over == "context" else "encoder token",
            "width": tensor.width,
            "copies_per_layer": copies,
            "copies_per_gpu": per_gpu,
            "sharding": tensor.sharding.value,
            "window_tokens": group.window_tokens,
            "bytes_per_token": simplest(row_bytes * copies * rows_per_token(group)),
            "cache_bytes": exact_product(row_bytes * copies, kept, workload.batch_size),
            "cache_bytes_per_gpu": exact_product(row_bytes * per_gpu, kept, workload.batch_size),
        }


def _fixed_tensors(group: LayerGroup, context: int, workload: Workload) -> Iterable[dict[str, Any]]:
    kinds = (("token", context, group.index), ("sequence", 1, group.state))
    for kept_per, units, tensors in kinds:
        for tensor in tensors:
            kept = units // tensor.tokens_per_row
            whole = group.count * tensor.copies * tensor.bytes_per_copy
            per_gpu = fixed_bytes_per_gpu(tensor, workload.tp_size)
            batch = workload.batch_size
            yield {
                "layers": group.count,
                "tensor": tensor.name,
                "kept_per": kept_per,
                "width": None,
                "copies_per_layer": tensor.copies,
                "copies_per_gpu": per_gpu // tensor.bytes_per_copy,
                "sharding": tensor.sharding,
                "window_tokens": None,
                "bytes_per_token": simplest(Fraction(whole, tensor.tokens_per_row))
                if kept_per == "token"
                else 0,
                "cache_bytes": exact_product(whole, kept, batch),
                "cache_bytes_per_gpu": exact_product(group.count * per_gpu, kept, batch),
            }
