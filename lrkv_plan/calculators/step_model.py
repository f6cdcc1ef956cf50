"""A design on a GPU as a ``StepModel``: its work, and the constants that its kernels take.

Also evaluates whole grids of context and batch in chunks, with what fits beside what is fast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.calculators.allreduce_time import allreduce_model, allreduce_time
from lrkv_plan.calculators.arguments import check_is, check_model, one_count
from lrkv_plan.calculators.attention_work import AttentionWork
from lrkv_plan.calculators.kernel_lookup import kernel_model
from lrkv_plan.calculators.kernel_time import KernelModel
from lrkv_plan.calculators.roofline import peak_of
from lrkv_plan.calculators.step_time import StepModel, StepTime, step_time
from lrkv_plan.calculators.step_work import step_work
from lrkv_plan.dtypes import storage_format
from lrkv_plan.errors import SpecError
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.calculators.exact import IntArray

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
