"""Where a design's attention stands on a GPU's datasheet roofline.

The datasheet bound only: no efficiencies, no fixed times. Those are ``kernel_time``'s.
"""

from __future__ import annotations

from dataclasses import dataclass

from lrkv_plan.errors import SpecError, UsageError, did_you_mean
from lrkv_plan.latency.work import attention_work, recurrent_work
from lrkv_plan.memory.exact import check_is, one_count
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class RooflinePoint:
    """Attention of all layers in one decode step on one GPU, against its limits.

    ``limit_share`` is the share of peak arithmetic that memory lets this intensity reach, at
    most 1.
    """

    path: str
    units: str
    n_bytes: float
    n_flops: float
    intensity_flops_per_byte: float
    ridge_flops_per_byte: float
    memory_s: float
    compute_s: float
    bound: str
    limit_share: float


def peak_of(hardware: HardwareProfile, units: str) -> float:
    """Dense peak of the named units: a format of tensor cores, or fp32 for ordinary ones.

    Raises
    ------
    SpecError
        If the profile states no such peak.
    """
    peak = hardware.peak_flops_per_s.get(check_is("units", units, str))
    if peak is None:
        known = ", ".join(hardware.peak_flops_per_s)
        hint = did_you_mean(units, hardware.peak_flops_per_s)
        raise SpecError(
            f"{hardware.name}: peak_flops_per_s: {units!r} is not stated{hint}: {known}"
        )
    return peak


def roofline_point(
    model: ModelSpec,
    hardware: HardwareProfile,
    *,
    context_tokens: int,
    batch_size: int = 1,
    query_tokens: int = 1,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    heads_per_tile: int | None = None,
    path: str | None = None,
    units: str = "bf16",
) -> RooflinePoint:
    """Intensity, ridge and bound of a design's attention on one GPU.

    Parameters
    ----------
    units : which peak its arithmetic runs at; "bf16" are tensor cores, "fp32" ordinary units.
    path : decode path; the layout's first when None.
    heads_per_tile : heads served by one read of a shared row; all when None.

    Raises
    ------
    UsageError
        If a count is below 1, a layer has no such path, or the model attends to nothing.
    SpecError
        If the profile states no such peak.
    PlacementError
        If the heads cannot be dealt out.

    Notes
    -----
    intensity = FLOPs / bytes; ridge = peak / bandwidth; memory-bound below the ridge. In bf16 MHA
    decode has 2 / b = 1 FLOP per byte, LRKV (r 55, H 18) 2.95, absorbed MLA (H 128) about 242.

    Examples
    --------
    >>> from lrkv_plan import load_hardware, load_model
    >>> deepseek, h200 = load_model("deepseek-v3"), load_hardware("h200")
    >>> point = roofline_point(deepseek, h200, context_tokens=8192)
    >>> round(point.intensity_flops_per_byte), round(point.ridge_flops_per_byte), point.bound
    (242, 206, 'compute')
    """
    check_is("hardware", hardware, HardwareProfile, "load_hardware")
    context_tokens = one_count("context_tokens", context_tokens)
    batch_size = one_count("batch_size", batch_size)
    query_tokens = one_count("query_tokens", query_tokens)
    layers = attention_work(
        model, kv_dtype=kv_dtype, tp_size=tp_size, heads_per_tile=heads_per_tile, path=path
    )
    n_bytes = sum(w.layers * w.n_bytes(context_tokens, batch_size, query_tokens) for w in layers)
    n_flops = sum(w.layers * w.n_flops(context_tokens, batch_size, query_tokens) for w in layers)
    recurrent = recurrent_work(model, tp_size=tp_size)
    n_bytes += sum(w.layers * w.n_bytes(batch_size, query_tokens) for w in recurrent)
    used = dict.fromkeys(work.path for work in layers)
    if not used:
        raise UsageError(f"{model.name}: no layer attends, so there is no roofline")
    peak, bandwidth = peak_of(hardware, units), hardware.mem_bandwidth_bytes_per_s
    memory_s, compute_s = n_bytes / bandwidth, n_flops / peak
    intensity, ridge = n_flops / n_bytes, peak / bandwidth
    return RooflinePoint(
        path=" + ".join(used),
        units=units,
        n_bytes=float(n_bytes),
        n_flops=float(n_flops),
        intensity_flops_per_byte=intensity,
        ridge_flops_per_byte=ridge,
        memory_s=memory_s,
        compute_s=compute_s,
        bound="memory" if memory_s >= compute_s else "compute",
        limit_share=min(1.0, intensity / ridge),
    )
