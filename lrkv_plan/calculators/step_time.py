"""Time of a whole decode step: attention, the weights' pass, all-reduce and fixed overhead.

Two bounds are given: everything overlapped (the slowest resource) and nothing overlapped (the sum,
which is what engines that run kernels one after the other come near to, and what is predicted).
Leaves out prefill, scheduling on the host, sampling beyond a constant, and network between nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.arguments import as_amounts, check_is
from lrkv_plan.calculators.attention_work import AttentionWork
from lrkv_plan.calculators.exact import is_array
from lrkv_plan.calculators.kernel_time import KernelModel, kernel_time
from lrkv_plan.calculators.step_work import StepWork

if TYPE_CHECKING:
    from lrkv_plan.calculators.kernel_time import Number


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """A constant that no public data here identifies, with the range it is believed to be in."""

    value: float
    low: float
    high: float


# Streaming a matrix at small batch reaches most of the bandwidth; large-batch GEMMs most of the
# peak. Small kernels (norms, rotation, activation, append) and GEMM launches inside a CUDA graph
# take a few microseconds each. None of these is measured here: they are priors with ranges.
LINEAR_BETA = Assumed(value=0.85, low=0.70, high=0.95)
LINEAR_PHI = Assumed(value=0.70, low=0.50, high=0.85)
LAYER_OVERHEAD_S = Assumed(value=20e-6, low=8e-6, high=35e-6)
STEP_OVERHEAD_S = Assumed(value=200e-6, low=50e-6, high=1e-3)


@dataclass(frozen=True, kw_only=True)
class StepModel:
    """One design on one GPU of a tensor-parallel group, ready for arrays of T, B and q.

    ``kernels`` has a model per entry of ``work.attention``; ``all_reduce`` gives (time, low, high)
    of one all-reduce of a message. [s]
    """

    work: StepWork
    kernels: tuple[KernelModel, ...]
    mem_bandwidth_bytes_per_s: float
    peak_flops_per_s: float
    all_reduce: Callable[[Any], tuple[Any, Any, Any]] | None = None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """A step's parts and bounds; arrays where the inputs were arrays. [s]

    ``step_s`` is the sum of the parts (no overlap) and the prediction; ``overlap_s`` the slowest
    resource (full overlap). ``low_s`` and ``high_s`` bound ``step_s`` by the parts' bands taken
    together, which is wider than 90 %.
    """

    attention_s: Number
    linear_s: Number
    all_reduce_s: Number
    overhead_s: float
    step_s: Number
    overlap_s: Number
    low_s: Number
    high_s: Number
    attention_low_s: Number
    attention_high_s: Number
    attention_memory_s: Number
    attention_compute_s: Number
    linear_memory_s: Number
    linear_compute_s: Number

    @property
    def is_attention_memory_bound(self) -> Any:
        """Whether the cache's traffic takes at least as long as its arithmetic."""
        return self.attention_memory_s >= self.attention_compute_s


def step_time(
    model: StepModel, context_tokens: Any, batch_size: Any, query_tokens: Any = 1
) -> StepTime:
    """The time of one decode step of ``batch_size`` sequences.

    Parameters
    ----------
    model : a design on a GPU.
    context_tokens : tokens cached per sequence; a number or an array. [tokens]
    batch_size : sequences decoded together on these GPUs; a number or an array. [sequences]
    query_tokens : tokens decoded per sequence in one step (speculation); a number or an array.

    Raises
    ------
    UsageError
        If a count is not a whole number from 0 to 2**63 - 1 (whole floats count).

    Notes
    -----
    attention = sum over layers of t0 + max(bytes / (beta BW), flops / (phi peak));
    linear = max(weight bytes / (beta_w BW), flops / (phi_w peak));
    all-reduce = 2 per layer of B q d scalars; overhead = layers x c + c0.
    sum = all of them; overlap = max(memory times, compute times, all-reduce).
    Lower and upper bound side by side: jax-ml/scaling-book, roofline chapter.

    Examples
    --------
    >>> from lrkv_plan.calculators.step_work import LinearWork
    >>> kernel = KernelModel(t0_s=0.0, bytes_per_s=1e12, flops_per_s=1e14, band90=(1, 1),
    ...                      basis="datasheet", kernel="grouped", kv_dtype="bf16")
    >>> layer = AttentionWork(path="grouped", kernel="grouped", layers=10, n_heads=8,
    ...                       row_read_bytes=1000.0, row_flops=2000.0)
    >>> linear = LinearWork(dense_bytes=8.5e9, expert_bytes=0.0, expert_share=0.0,
    ...                     token_flops=1e9, embedding_row_bytes=0.0)
    >>> work = StepWork(attention=(layer,), linear=linear, n_all_reduces=0, n_layers=10,
    ...                 all_reduce_token_bytes=0.0, tp_size=1, remarks=())
    >>> step = step_time(StepModel(work=work, kernels=(kernel,), mem_bandwidth_bytes_per_s=1e12,
    ...                            peak_flops_per_s=1e14), context_tokens=1000, batch_size=100)
    >>> round(1e3 * step.attention_s, 6), round(1e3 * step.linear_s, 6)  # 10 * 1e8 B; 8.5e9 B / .85
    (1.0, 10.0)
    """
    work = check_is("model", model, StepModel, "step_model").work
    context_tokens = as_amounts("context_tokens", context_tokens)
    batch_size = as_amounts("batch_size", batch_size)
    query_tokens = as_amounts("query_tokens", query_tokens)
    tokens = batch_size * query_tokens
    parts = [
        _attention(layer, kernel, context_tokens, batch_size, query_tokens)
        for layer, kernel in zip(work.attention, model.kernels, strict=True)
    ]
    nothing = 0.0 * context_tokens * tokens
    attention, low, high, memory, compute = _summed(parts, nothing)
    n_bytes, flops = work.linear.n_bytes(tokens), work.linear.n_flops(tokens)
    linear_memory = n_bytes / (LINEAR_BETA.value * model.mem_bandwidth_bytes_per_s)
    linear_compute = flops / (LINEAR_PHI.value * model.peak_flops_per_s)
    linear = _larger(linear_memory, linear_compute)
    reduced, reduced_low, reduced_high = _all_reduces(model, tokens)
    overhead = work.n_layers * LAYER_OVERHEAD_S.value + STEP_OVERHEAD_S.value
    return StepTime(
        attention_s=attention,
        linear_s=linear,
        all_reduce_s=reduced,
        overhead_s=overhead,
        step_s=attention + linear + reduced + overhead,
        overlap_s=_larger(
            _larger(memory + linear_memory, compute + linear_compute), reduced + 0.0 * memory
        ),
        low_s=low + _linear_at(model, n_bytes, flops, best=True) + reduced_low + _overhead(work, 0),
        high_s=(
            high + _linear_at(model, n_bytes, flops, best=False) + reduced_high + _overhead(work, 1)
        ),
        attention_low_s=low,
        attention_high_s=high,
        attention_memory_s=memory,
        attention_compute_s=compute,
        linear_memory_s=linear_memory,
        linear_compute_s=linear_compute,
    )


def _attention(
    layer: AttentionWork, kernel: KernelModel, context: Any, batch: Any, query: Any
) -> tuple[Any, Any, Any, Any, Any]:
    call = kernel_time(
        kernel,
        layer.n_bytes(context, batch, query),
        layer.n_flops(context, batch, query),
        layer.n_units(context, batch, kernel.constants_of or kernel.kernel),
    )
    times = (call.time_s, call.low_s, call.high_s, call.memory_s, call.compute_s)
    n = layer.layers
    return (n * times[0], n * times[1], n * times[2], n * times[3], n * times[4])


def _summed(
    parts: list[tuple[Any, Any, Any, Any, Any]], nothing: Any
) -> tuple[Any, Any, Any, Any, Any]:
    if not parts:
        return (nothing, nothing, nothing, nothing, nothing)
    total = list(parts[0])
    for part in parts[1:]:
        total = [one + other for one, other in zip(total, part, strict=True)]
    return (total[0], total[1], total[2], total[3], total[4])


def _linear_at(model: StepModel, n_bytes: Any, flops: Any, *, best: bool) -> Any:
    beta = LINEAR_BETA.high if best else LINEAR_BETA.low
    phi = LINEAR_PHI.high if best else LINEAR_PHI.low
    return _larger(
        n_bytes / (beta * model.mem_bandwidth_bytes_per_s), flops / (phi * model.peak_flops_per_s)
    )


def _all_reduces(model: StepModel, tokens: Any) -> tuple[Any, Any, Any]:
    n = model.work.n_all_reduces
    if not n or model.all_reduce is None:
        return (0.0, 0.0, 0.0)
    once, low, high = model.all_reduce(tokens * model.work.all_reduce_token_bytes)
    return (n * once, n * low, n * high)


def _overhead(work: StepWork, bound: int) -> float:
    layer = (LAYER_OVERHEAD_S.low, LAYER_OVERHEAD_S.high)[bound]
    step = (STEP_OVERHEAD_S.low, STEP_OVERHEAD_S.high)[bound]
    return work.n_layers * layer + step


def _larger(one: Any, other: Any) -> Any:
    if is_array(one) or is_array(other):
        import numpy as np

        return np.maximum(one, other)
    return max(one, other)
