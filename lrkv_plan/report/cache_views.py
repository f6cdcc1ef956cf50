"""The cache as people read it: per design and context, and per cached tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.dtypes import storage_format
from lrkv_plan.report.spec_views import DESIGN, listed, model_inputs
from lrkv_plan.report.tables import Column, Table, as_row, count, percent
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.calculators.cache_comparison import CacheRow, TensorRow
    from lrkv_plan.specs.model import ModelSpec
    from lrkv_plan.specs.workload import Workload

_CONTEXT = Column(key="context_tokens", title="context", text=count)


def cache_table(model: ModelSpec, rows: Sequence[CacheRow], workload: Workload) -> Table:
    """Cache per design and context."""
    extra = []
    if any(row.index_bytes_per_token for row in rows):
        extra.append(Column(key="index_bytes_per_token", title="index B/token", text=count))
    if any(row.state_bytes_per_sequence for row in rows):
        extra.append(
            Column(key="state_bytes_per_sequence", title="state/sequence", text=format_bytes)
        )
    return Table(
        title=_cache_title("Cache", model, workload),
        inputs=_cache_inputs(model, workload, [row.context_tokens for row in rows]),
        rows=[as_row(row) for row in rows],
        columns=(
            DESIGN,
            _CONTEXT,
            Column(key="bytes_per_token", title="B/token", text=count),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            *extra,
            Column(key="cache_bytes", title="cache", text=format_bytes),
            Column(key="cache_bytes_per_gpu", title="cache/GPU", text=format_bytes),
            Column(key="ratio_to_mha", title="of MHA", text=percent),
        ),
        remarks=tuple(_cache_remarks(model, rows, workload)),
    )


def tensor_table(model: ModelSpec, rows: Sequence[TensorRow], workload: Workload) -> Table:
    """One row per cached tensor."""
    return Table(
        title=_cache_title("Cached tensors", model, workload),
        inputs=_cache_inputs(model, workload, [row.context_tokens for row in rows]),
        rows=[as_row(row) for row in rows],
        columns=(
            DESIGN,
            _CONTEXT,
            Column(key="layers", title="layers", text=count),
            Column(key="tensor", title="tensor", is_number=False),
            Column(key="width", title="width", text=count),
            Column(key="copies_per_layer", title="copies", text=count),
            Column(key="copies_per_gpu", title="on a GPU", text=count),
            Column(key="sharding", title="sharding", is_number=False),
            Column(key="window_tokens", title="window", text=count),
            Column(key="bytes_per_token", title="B/token", text=count),
            Column(key="cache_bytes", title="cache", text=format_bytes),
            Column(key="cache_bytes_per_gpu", title="cache/GPU", text=format_bytes),
        ),
        remarks=tuple(_cache_remarks(model, (), workload)),
    )


def _cache_title(what: str, model: ModelSpec, workload: Workload) -> str:
    sequences = "1 sequence" if workload.batch_size == 1 else f"{workload.batch_size:,} sequences"
    gpus = "1 GPU" if workload.tp_size == 1 else f"tensor parallel over {workload.tp_size} GPUs"
    return f"{what} of {model.name}: {workload.kv_dtype}, {sequences}, {gpus}"


def _cache_inputs(model: ModelSpec, workload: Workload, contexts: list[int]) -> dict[str, Any]:
    return {
        "model": model_inputs(model),
        "context_tokens": list(dict.fromkeys(contexts)),
        "batch_size": workload.batch_size,
        "kv_dtype": storage_format(workload.kv_dtype).name,
        "tp_size": workload.tp_size,
        "encoder_tokens": workload.encoder_tokens or model.encoder_tokens,
    }


def _cache_remarks(model: ModelSpec, rows: Sequence[CacheRow], workload: Workload) -> Iterator[str]:
    windows = sorted({g.window_tokens for g in model.layers if g.window_tokens is not None})
    if windows:
        yield (
            f"some layers keep at most {listed(windows)} tokens, so a cache is smaller than "
            "B/token times its context"
        )
    if any(row.index_bytes_per_token for row in rows):
        yield "cache includes sparse-index keys (index B/token), which B/token leaves out"
    if any(row.state_bytes_per_sequence for row in rows):
        yield "cache includes recurrent state, which does not grow with the context"
    if any(row.encoder_bytes_per_token for row in rows):
        tokens = workload.encoder_tokens or model.encoder_tokens
        yield (
            f"cache includes cross-attention over {tokens:,} encoder tokens"
            if tokens
            else "cross-attention is not in the cache: the number of encoder tokens is not "
            "stated (--encoder-tokens)"
        )
    longest = max((row.context_tokens for row in rows), default=0)
    if model.max_context_tokens and longest > model.max_context_tokens:
        yield f"the model's own maximum is {model.max_context_tokens:,} tokens"
    yield from model.remarks
