"""One decode step of one layer, built to be timed: tensors, the run, and what it should cost."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode.attend import Attention, ScanMask, StepInputs, compute_dtype
from lrkv_plan.calibration.decode.cache import build_cache
from lrkv_plan.calibration.decode.paths import DecodePath, path_named
from lrkv_plan.calibration.decode.reference import reference_attention
from lrkv_plan.calibration.decode.weights import drawing
from lrkv_plan.calibration.torch_gate import resolve_device, torch_dtype
from lrkv_plan.errors import UsageError
from lrkv_plan.latency.work import AttentionWork, attention_work
from lrkv_plan.memory.cache import cache_bytes
from lrkv_plan.schema import Source
from lrkv_plan.specs.model import LayerGroup, ModelSpec
from lrkv_plan.units import FLOPS_PER_MULTIPLY_ADD


@dataclass(frozen=True, kw_only=True)
class DecodeStep:
    """From projected queries to per-head outputs, before the output projection.

    Predicted figures are of one GPU and of what is executed: with uneven lengths the rows of the
    longest sequence are scanned for all, masked ones too.
    """

    path: DecodePath
    inputs: StepInputs
    attention: Attention = field(repr=False)
    work: AttentionWork
    predicted_bytes: int  # of the allocated cache, exact
    read_bytes: int  # cached rows, each read once
    weight_bytes: int  # layer weights that the step maps queries and outputs through
    flops: float  # 2 per multiply-add, per-step maps included
    work_units: int  # AttentionWork.n_units

    def run(self) -> torch.Tensor:
        """(B, H/P, q, v_head_dim) in the cache's dtype. This is what is timed."""
        return self.attention.run()

    def partial(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs in fp32 and log-sum-exps (B, H/P, q), for ``merge_partial``."""
        return self.attention.partial()

    def reference(self) -> torch.Tensor:
        """The same step in float64 with every key and value written out; slow."""
        return reference_attention(self.inputs, self.path.family.head_rows)

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors that hold the cache. [bytes]"""
        return self.inputs.cache.allocated_bytes


def build_step(
    path: str,
    spec: AttentionSpec,
    *,
    model_dim: int,
    batch_size: int,
    context_tokens: int | Sequence[int],
    query_tokens: int = 1,
    dtype: str = "fp32",
    device: str = "cpu",
    page_tokens: int | None = None,
    tp_size: int = 1,
    seed: int = 0,
    positions: torch.Tensor | None = None,
    tile_tokens: int | None = None,
    spare_tokens: int = 0,
) -> DecodeStep:
    """A decode step on random rows, queries and weights.

    Parameters
    ----------
    path : a name in ``decode.paths.PATHS``.
    context_tokens : cached rows per sequence, the query tokens' own included; one number or one
        per sequence. [tokens]
    page_tokens : tokens per page; a contiguous cache when None. [tokens]
    positions : positions of the cached rows, (T,) or (B, T); 0 to T - 1 when None.
    tile_tokens : tile of paths that rebuild keys; chosen by the path when None. [tokens]
    spare_tokens : room beyond the longest context (each sequence's own, in pages). [tokens]

    Raises
    ------
    UsageError
        If the path does not run that design, or a count is out of range.
    PlacementError
        If the heads cannot be dealt out over ``tp_size`` GPUs.
    CalibrationError
        If torch sees no such device.

    Examples
    --------
    >>> from lrkv_plan.attention.families.low_rank import LowRankSpec
    >>> spec = LowRankSpec(n_heads=6, head_dim=16, rank=5)
    >>> step = build_step(
    ...     "lrkv/factored", spec, model_dim=96, batch_size=2, context_tokens=100)
    >>> tuple(step.run().shape), step.allocated_bytes  # 2*100 * 2 * (16 + 6*5) * 4 bytes
    ((2, 6, 1, 16), 73600)
    >>> step.predicted_bytes == step.allocated_bytes
    True
    """
    chosen, layout = path_named(path, spec), layout_of(spec, model_dim)
    lengths = _lengths(batch_size, context_tokens, query_tokens, page_tokens)
    place, storage = resolve_device(device), torch_dtype(dtype)
    capacities = [length + spare_tokens for length in lengths]
    cache = build_cache(
        layout, capacity_tokens=capacities, page_tokens=page_tokens, tp_size=tp_size,
        dtype=storage, device=place, seed=seed,
    )  # fmt: skip
    cache.fill_random(lengths, seed)
    heads, longest = layout.n_heads // tp_size, max(lengths)
    draw = drawing(seed)
    query = draw(batch_size, heads, query_tokens, chosen.family.query_width(spec))
    weights = chosen.family.draw_weights(spec, layout, heads, draw)
    to_compute = compute_dtype(storage, place)
    inputs = StepInputs(
        spec=spec,
        cache=cache,
        query=query.to(storage).to(place, to_compute),
        weights={name: _placed(w, place, storage, to_compute) for name, w in weights.items()},
        mask=ScanMask(lengths, query_tokens, place),
        positions=(torch.arange(longest) if positions is None else positions).view(-1, longest),
        tile_tokens=tile_tokens,
    )
    model = _one_layer(spec, model_dim)
    work = attention_work(model, kv_dtype=dtype, tp_size=tp_size, path=chosen.work_path)[0]
    steps = query_tokens * chosen.work(layout).per_step * FLOPS_PER_MULTIPLY_ADD / tp_size
    return DecodeStep(
        path=chosen,
        inputs=inputs,
        attention=chosen.build(inputs),
        work=work,
        predicted_bytes=_predicted_bytes(model, capacities, page_tokens, dtype, tp_size),
        read_bytes=round(batch_size * longest * work.row_read_bytes),
        weight_bytes=sum(w.numel() for w in weights.values()) * storage.itemsize,
        flops=work.n_flops(longest, batch_size, query_tokens) + batch_size * steps,
        work_units=round(work.n_units(longest, batch_size)),
    )


def _lengths(
    batch_size: int, context_tokens: int | Sequence[int], query_tokens: int, page: int | None
) -> list[int]:
    if isinstance(context_tokens, int):
        lengths = [context_tokens] * max(batch_size, 1)
    else:
        lengths = list(context_tokens)
    counts = (batch_size, query_tokens, 1 if page is None else page, *lengths)
    if min(counts) < 1 or len(lengths) != batch_size:
        raise UsageError(
            f"batch_size {batch_size}, query_tokens {query_tokens}, page_tokens {page}, "
            f"{len(lengths)} contexts: all from 1 on, and one context per sequence"
        )
    return lengths


def _placed(
    weight: torch.Tensor, device: torch.device, storage: torch.dtype, compute: torch.dtype
) -> torch.Tensor:
    """A weight as the step uses it: rounded to the storage format, held in the compute dtype."""
    if not weight.dtype.is_floating_point:
        return weight
    if weight.dim() == 1:  # sinks are logits, kept in fp32
        return weight.to(device)
    return weight.to(storage).to(device, compute)


def _one_layer(spec: AttentionSpec, model_dim: int) -> ModelSpec:
    source = Source(citation="one layer under test", read_on=datetime.date(2026, 11, 30))
    layers = (LayerGroup(count=1, attention=spec),)
    return ModelSpec(name="one layer", source=(source,), model_dim=model_dim, layers=layers)


def _predicted_bytes(
    model: ModelSpec, capacities: Sequence[int], page: int | None, dtype: str, tp_size: int
) -> int:
    """Bytes of the cache by the calculators, sequences rounded up to whole pages."""

    def held(tokens: int, sequences: int) -> Any:
        return cache_bytes(
            model, context_tokens=tokens, batch_size=sequences, kv_dtype=dtype, tp_size=tp_size
        ).total

    if page is None:
        return int(held(max(capacities), len(capacities)))
    return sum(int(held(-(-tokens // page) * page, 1)) for tokens in capacities)
