"""Time of a whole decode step: attention, the weights' pass, all-reduce and fixed overhead.

Two bounds are given: everything overlapped (the slowest resource) and nothing overlapped (the sum,
which is what engines that run kernels one after the other come near to, and what is predicted).
Leaves out prefill, scheduling on the host, sampling beyond a constant, and network between nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import SpecError
from lrkv_plan.formats import storage_format
from lrkv_plan.latency.all_reduce import allreduce_model, allreduce_time
from lrkv_plan.latency.kernel import KernelModel, kernel_model, kernel_time
from lrkv_plan.latency.roofline import peak_of
from lrkv_plan.latency.work import AttentionWork, StepWork, step_work
from lrkv_plan.memory.exact import as_amounts, check_is, check_model, larger, one_count
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray, Number


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
    of one all-reduce of a message, ``all_reduce_basis`` what it rests on. [s]
    """

    work: StepWork
    kernels: tuple[KernelModel, ...]
    mem_bandwidth_bytes_per_s: float
    peak_flops_per_s: float
    all_reduce: Callable[[Any], tuple[Any, Any, Any]] | None = None
    all_reduce_basis: str | None = None
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
    >>> from lrkv_plan.latency.work import LinearWork
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
    linear = larger(linear_memory, linear_compute)
    reduced, reduced_low, reduced_high = _all_reduces(model, tokens)
    overhead = work.n_layers * LAYER_OVERHEAD_S.value + STEP_OVERHEAD_S.value
    return StepTime(
        attention_s=attention,
        linear_s=linear,
        all_reduce_s=reduced,
        overhead_s=overhead,
        step_s=attention + linear + reduced + overhead,
        overlap_s=larger(
            larger(memory + linear_memory, compute + linear_compute), reduced + 0.0 * memory
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
    return larger(
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


CHUNK_POINTS = 65_536  # a chunk's arrays stay in a core's cache


def step_model(
    model: ModelSpec,
    hardware: HardwareProfile,
    *,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    tp_size: int = 1,
    heads_per_tile: int | None = None,
    path: str | None = None,
    weight_bytes: int | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> StepModel:
    """The step of a design on one GPU of a tensor-parallel group.

    Parameters
    ----------
    weight_dtype : weight format; the model's own when None.
    weight_bytes : weights of one GPU as known, instead of counting them. [bytes]
    relatives : profiles that may lend constants where this GPU was not measured.

    Raises
    ------
    SpecError
        If the weights' format or a part of the weights is not stated, or the profile lacks a peak
        or, for tp_size above 1, a link.
    PlacementError
        If heads or weights cannot be dealt out.
    UsageError
        If a layer has no such decode path.

    Examples
    --------
    >>> from lrkv_plan import load_hardware, load_model
    >>> step = step_model(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
    >>> 5e-3 < step_time(step, context_tokens=8192, batch_size=1).step_s < 10e-3
    True
    """
    check_model("model", model)
    check_is("hardware", hardware, HardwareProfile, "load_hardware")
    tp_size = one_count("tp_size", tp_size)
    if weight_bytes is not None:
        weight_bytes = one_count("weight_bytes", weight_bytes)
    dtype = model.weight_dtype if weight_dtype is None else weight_dtype
    if dtype is None and weight_bytes is not None:
        dtype = "bf16"
    if dtype is None:
        raise SpecError(
            f"{model.name}: weight_dtype is not stated; give --weight-dtype, or --weights"
        )
    work = step_work(
        model, kv_dtype=kv_dtype, weight_dtype=dtype, tp_size=tp_size,
        heads_per_tile=heads_per_tile, path=path, weight_bytes=weight_bytes,
    )  # fmt: skip
    storage = storage_format(kv_dtype).name
    kernels = tuple(_kernel(hardware, layer, storage, relatives) for layer in work.attention)
    reducing = allreduce_model(hardware, tp_size, relatives=relatives)

    def all_reduce(message_bytes: Any) -> tuple[Any, Any, Any]:
        call = allreduce_time(reducing, message_bytes)
        return call.time_s, call.low_s, call.high_s

    notes = [note for kernel in kernels for note in (_rests_on(kernel), *kernel.notes)]
    if tp_size > 1:
        notes += [f"all-reduce: {reducing.basis} {reducing.backend}".rstrip(), *reducing.notes]
    notes.append(
        "assumed: weights' pass at 85 % of bandwidth (70 to 95), 70 % of peak (50 to 85); 20 us a "
        "layer (8 to 35) and 0.2 ms a step (0.05 to 1) for everything else"
    )
    return StepModel(
        work=work,
        kernels=kernels,
        mem_bandwidth_bytes_per_s=hardware.mem_bandwidth_bytes_per_s,
        peak_flops_per_s=peak_of(hardware, hardware.matmul_peak),
        all_reduce=all_reduce if tp_size > 1 else None,
        all_reduce_basis=reducing.basis if tp_size > 1 else None,
        remarks=tuple(dict.fromkeys((*notes, *work.remarks))),
    )


def _kernel(
    hardware: HardwareProfile,
    layer: AttentionWork,
    kv_dtype: str,
    relatives: Sequence[HardwareProfile],
) -> KernelModel:
    return kernel_model(
        hardware,
        layer.kernel,
        kv_dtype,
        query_heads_per_kv_head=max(1, layer.n_heads // layer.n_copies),
        head_dim=layer.head_dim or None,
        relatives=relatives,
    )


def _rests_on(kernel: KernelModel) -> str:
    error = kernel.held_out_median_error
    measured = "" if error is None else f", held-out median error {error:.1%}"
    backend = f" ({kernel.backend})" if kernel.backend else ""
    return f"attention kernel {kernel.kernel}, {kernel.kv_dtype}: {kernel.basis}{backend}{measured}"


def step_grid(
    model: StepModel, contexts: IntArray, batch_sizes: IntArray, query_tokens: int = 1
) -> Iterator[tuple[slice, StepTime]]:
    """Step times of every (batch, context) pair, chunk by chunk.

    Yields
    ------
    A slice of the flattened grid (batch major) and the ``StepTime`` of its points, so that memory
    stays bounded whatever the grid's size.
    """
    import numpy as np

    n_contexts = contexts.size
    total = n_contexts * batch_sizes.size
    context_values, batch_values = contexts.astype(np.float64), batch_sizes.astype(np.float64)
    for start in range(0, total, CHUNK_POINTS):
        points = np.arange(start, min(start + CHUNK_POINTS, total))
        batch_index, context_index = np.divmod(points, n_contexts)
        yield (
            slice(start, start + points.size),
            step_time(
                model, context_values[context_index], batch_values[batch_index], query_tokens
            ),
        )
