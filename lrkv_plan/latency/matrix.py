"""How long one matrix of the weights' pass takes: ``y[m, n] = x[m, k] W[n, k]``.

The weights are read from memory once, whatever the number of tokens ``m``. Formats with fewer than
16 bits include what quantises ``x``. Left out: what follows in the same layer, and launch gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lrkv_plan.latency.operands import OperandFormat, operand_format
from lrkv_plan.latency.operation import (
    OperationModel,
    OperationTime,
    banded,
    check_numbers,
    find,
)
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Number

ACTIVATION_BYTES = 2


@dataclass(frozen=True, kw_only=True)
class MatrixModel(OperationModel):
    """Constants of a matrix in one weight format, in base units."""

    t0_s: float
    bytes_per_s: float
    flops_per_s: float
    tau_s_per_element: float
    bits_per_weight: float


@dataclass(frozen=True, kw_only=True)
class MatrixPrior:
    """Typical constants where no GPU of the kind was measured."""

    t0_s: float
    beta: float
    phi: float
    tau_s_per_element: float
    band90: tuple[float, float]


# Typical constants of the tables that ``scripts/fit_layers.py`` fits, with what they do there.
_WEIGHT_ONLY = MatrixPrior(
    t0_s=16e-6, beta=0.92, phi=0.75, tau_s_per_element=1.2e-9, band90=(0.65, 1.6)
)
_FP8 = MatrixPrior(t0_s=6e-6, beta=0.80, phi=0.63, tau_s_per_element=0.75e-9, band90=(0.75, 1.35))
_FP8_BLOCK = MatrixPrior(t0_s=7e-6, beta=0.87, phi=0.62, tau_s_per_element=1e-9, band90=(0.7, 1.45))
_FP4 = MatrixPrior(t0_s=5e-6, beta=0.77, phi=0.45, tau_s_per_element=0.7e-9, band90=(0.75, 1.35))
_BF16 = MatrixPrior(t0_s=4e-6, beta=0.83, phi=0.83, tau_s_per_element=0.15e-9, band90=(0.8, 1.25))
PRIORS = {
    "fp32": _BF16, "bf16": _BF16, "fp8": _FP8, "fp8_block": _FP8_BLOCK, "nvfp4": _FP4,
    "mxfp4": _FP4, "mxfp4_mxfp8": _FP4, "int8_wo": _WEIGHT_ONLY, "int4_wo": _WEIGHT_ONLY,
    "sq": _FP8,
}  # fmt: skip
OTHER_VENDOR_FACTOR = 1.25  # the priors are NVIDIA's


def matrix_model(
    hardware: HardwareProfile,
    engine: str,
    format_name: str,
    relatives: Sequence[HardwareProfile] = (),
    *,
    own_table: bool = False,
) -> MatrixModel:
    """The constants to use for the matrices of one engine in one weight format.

    Parameters
    ----------
    hardware
        The GPU.
    engine
        ``vllm``, ``sglang``, ``tensorrt_llm``; another takes the first of these that is measured.
    format_name
        One of ``operands.OPERAND_FORMATS``.
    relatives
        Other profiles, which may lend their constants; shares refer to this GPU's own figures.
    own_table
        Constants of the engine's own benchmark even where another's stand for what it runs.

    Raises
    ------
    UsageError
        If the format is unknown.
    SpecError
        If the GPU states no peak for the arithmetic.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> found = matrix_model(load_hardware("mi300x"), "vllm", "bf16")
    >>> found.basis, found.t0_s, found.bytes_per_s / 5.3e12
    ('datasheet', 4e-06, 0.83)
    """
    asked = operand_format(format_name)
    found = find(hardware, "matrices", engine, asked.name, relatives=relatives, own_table=own_table)
    if found is None:
        return _datasheet(hardware, engine, asked)
    entry = found.entry
    peaks = hardware.peak_flops_per_s
    peak = entry.peak if entry.peak in peaks else asked.peak_of(hardware)
    return MatrixModel(
        **found.shared(engine),
        t0_s=found.t0_s,
        bytes_per_s=entry.beta * hardware.mem_bandwidth_bytes_per_s,
        flops_per_s=entry.phi * peaks[peak],
        tau_s_per_element=entry.tau_s_per_element,
        bits_per_weight=asked.bits_per_weight,
    )


def _datasheet(hardware: HardwareProfile, engine: str, asked: OperandFormat) -> MatrixModel:
    prior, peak = PRIORS[asked.name], asked.peak_of(hardware)
    factor = 1.0 if hardware.vendor == "nvidia" else OTHER_VENDOR_FACTOR
    note = (
        f"datasheet: no matrix in {asked.name} was measured on {hardware.generation} GPUs; typical "
        f"t0 {prior.t0_s * 1e6:g} us, beta {prior.beta:g}, phi {prior.phi:g} of {peak}"
    )
    return MatrixModel(
        engine=engine, format=asked.name, basis="datasheet", notes=(note,),
        band90=(prior.band90[0] / factor, prior.band90[1] * factor),
        t0_s=prior.t0_s,
        bytes_per_s=prior.beta * hardware.mem_bandwidth_bytes_per_s,
        flops_per_s=prior.phi * hardware.peak_flops_per_s[peak],
        tau_s_per_element=prior.tau_s_per_element,
        bits_per_weight=asked.bits_per_weight,
    )  # fmt: skip


def matrix_time(
    model: MatrixModel, m: Number, n: Number, k: Number, *, weight_bytes: Number | None = None
) -> OperationTime:
    """The time of one product with a matrix of ``n`` outputs and ``k`` inputs.

    Parameters
    ----------
    m : tokens of the rank, one row each.
    n : outputs of the matrix on this GPU.
    k : inputs of the matrix on this GPU.
    weight_bytes : stored size of the matrix, where it is known better. [bytes]

    Raises
    ------
    UsageError
        If a value is negative or not a number.

    Notes
    -----
    t = t0 + sqrt((bytes / (beta BW))^2 + (flops / (phi peak))^2 + (tau k)^2), with
    bytes = n k b + 2 m (n + k), b with scales, and flops = 2 m n k. tau: a processor walks along k
    one step after another; with few output tiles nothing hides it.

    Examples
    --------
    >>> model = MatrixModel(engine="vllm", band90=(0.9, 1.1), basis="measured", t0_s=4e-6,
    ...     bytes_per_s=1e12, flops_per_s=1e15, tau_s_per_element=0.0, bits_per_weight=16)
    >>> call = matrix_time(model, 1, 4096, 4096)   # 4 us + 33_570_816 B / 1e12 B/s
    >>> f"{call.time_s * 1e6:.2f} us"
    '37.57 us'
    """
    check_numbers(m=m, n=n, k=k)
    if weight_bytes is None:
        weight_bytes = n * k * (model.bits_per_weight / 8)
    else:
        check_numbers(weight_bytes=weight_bytes)
    memory_s = (weight_bytes + ACTIVATION_BYTES * m * (n + k)) / model.bytes_per_s
    compute_s = 2 * m * n * k / model.flops_per_s
    walk_s = model.tau_s_per_element * k
    return banded(model, model.t0_s + (memory_s**2 + compute_s**2 + walk_s**2) ** 0.5)
