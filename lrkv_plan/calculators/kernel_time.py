"""How long one kernel call takes: a fixed time plus the slower of memory traffic and arithmetic.

``t = t0 + max(bytes / (beta BW), flops / (phi peak))``, and three named variants where
measurements demand them. Left out: what a kernel reads and computes (the caller counts it), which
constants apply (``kernel_lookup``), and launch gaps between kernels. Scalars and numpy arrays both
work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.calculators.exact import is_array
from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Number: TypeAlias = float | npt.NDArray[np.float64]

FORMS = ("base", "per_work_unit", "no_split", "sum", "sum_per_work_unit")
SUMS = ("sum", "sum_per_work_unit")
CHARGES_WORK_UNITS = ("per_work_unit", "sum_per_work_unit")
COUNTS_WORK_UNITS = (*CHARGES_WORK_UNITS, "no_split")


@dataclass(frozen=True, kw_only=True)
class KernelModel:
    """Constants of one kernel path on one GPU in base units, with what they rest on.

    ``band90`` are factors: 90 % of held-out measurements lie between ``time * band90[0]`` and
    ``time * band90[1]``. ``basis`` is measured, other_shape, generation, datasheet or assumed.
    The held-out errors are None where nothing was measured on this GPU. ``constants_of`` is the
    kernel that lent its constants (``kernel`` itself where empty); it says what a work unit is.
    """

    t0_s: float
    bytes_per_s: float
    flops_per_s: float
    form: str = "base"
    work_unit_s: float = 0.0
    full_work_units: float = 1.0
    band90: tuple[float, float]
    basis: str
    kernel: str
    kv_dtype: str
    backend: str = ""
    constants_of: str = ""
    regime: str = "cold"
    identified: tuple[str, ...] = ()
    held_out_median_error: float | None = None
    held_out_p90_error: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def ridge_flops_per_byte(self) -> float:
        """Intensity at which memory time equals compute time. [FLOP/B]"""
        return self.flops_per_s / self.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """A predicted time with its parts and its 90 % band; arrays where the inputs were arrays.

    ``memory_s`` and ``compute_s`` exclude the fixed time; both are raised by unused processors
    under ``no_split``.
    """

    time_s: Number
    low_s: Number
    high_s: Number
    memory_s: Number
    compute_s: Number
    model: KernelModel

    @property
    def is_memory_bound(self) -> Any:
        """Whether traffic takes at least as long as arithmetic (a bool, or an array of them)."""
        return self.memory_s >= self.compute_s


def kernel_time(
    model: KernelModel, n_bytes: Number, flops: Number, work_units: Number | None = None
) -> KernelTime:
    """The time of one call, its parts and its band.

    Parameters
    ----------
    model
        Constants, from ``kernel_lookup.kernel_model``.
    n_bytes : bytes that the call moves between memory and the GPU. [bytes]
    flops : floating-point operations; a multiply-add is 2. [FLOPs]
    work_units : pieces that the kernel can deal out without splitting a sequence: sequences times
        cached heads (``grouped``), sequences (``mla_absorbed``); scalars rebuilt where keys are
        written out. Needed by the forms in
        ``COUNTS_WORK_UNITS``.

    Returns
    -------
    KernelTime: seconds.

    Raises
    ------
    UsageError
        If an input is negative or not a number, or the form needs ``work_units``.

    Notes
    -----
    base           t = t0 + max(bytes / (beta BW), flops / (phi peak))
    per_work_unit  t = base + c u: each of u units costs a fixed time
    no_split       t = t0 + max(...) / min(1, u / u_full): fewer than u_full units leave
                   processors and bandwidth idle, because the kernel does not split a sequence
    sum            t = t0 + bytes / (beta BW) + flops / (phi peak): nothing overlaps, as where a
                   processor copies before it multiplies
    sum_per_work_unit  t = sum + c u

    ``scripts/fit_kernels.py`` chooses the form by held-out error.

    Examples
    --------
    >>> model = KernelModel(t0_s=1e-5, bytes_per_s=1e12, flops_per_s=1e14, band90=(0.9, 1.1),
    ...                     basis="measured", kernel="grouped", kv_dtype="bf16")
    >>> call = kernel_time(model, n_bytes=1e9, flops=2e9)
    >>> call.time_s, call.is_memory_bound      # 10 us + max(1 ms, 20 us)
    (0.00101, True)
    """
    _check("n_bytes", n_bytes)
    _check("flops", flops)
    occupancy: Number = 1.0
    if model.form in COUNTS_WORK_UNITS:
        if work_units is None:
            raise UsageError(f"work_units: form {model.form!r} of {model.kernel} needs them")
        _check("work_units", work_units)
        if model.form == "no_split":
            occupancy = _smaller(1.0, _larger(work_units, 1.0) / model.full_work_units)
    memory_s = n_bytes / (model.bytes_per_s * occupancy)
    compute_s = flops / (model.flops_per_s * occupancy)
    busy_s = memory_s + compute_s if model.form in SUMS else _larger(memory_s, compute_s)
    time_s: Number = model.t0_s + busy_s
    if model.form in CHARGES_WORK_UNITS:
        time_s = time_s + model.work_unit_s * work_units  # type: ignore[operator]
    return KernelTime(
        time_s=time_s, low_s=time_s * model.band90[0], high_s=time_s * model.band90[1],
        memory_s=memory_s, compute_s=compute_s, model=model,
    )  # fmt: skip


def grouped_work(
    batch_size: Any,
    context_tokens: Any,
    *,
    n_heads: Any,
    n_kv_heads: Any,
    head_dim: Any,
    bytes_per_scalar: float,
) -> tuple[Any, Any, Any]:
    """Bytes, FLOPs and work units of one grouped decode call, heads counted per GPU.

    Notes
    -----
    bytes = 2 B T G d_h b (a key and a value row per cached head and token);
    flops = 4 B T H d_h (two products, a multiply-add is 2); units = B G.
    The queries and the output, 2 B H d_h scalars, are left out: T is hundreds and more.

    Examples
    --------
    >>> grouped_work(1, 1000, n_heads=8, n_kv_heads=2, head_dim=128, bytes_per_scalar=2)
    (1024000.0, 4096000.0, 2)
    """
    tokens = 1.0 * batch_size * context_tokens  # floats: int64 arrays would wrap
    n_bytes = 2 * tokens * n_kv_heads * head_dim * bytes_per_scalar
    return n_bytes, 4 * tokens * n_heads * head_dim, batch_size * n_kv_heads


def mla_absorbed_work(
    batch_size: Any,
    context_tokens: Any,
    *,
    n_heads: Any,
    latent_dim: Any,
    rope_dim: Any,
    bytes_per_scalar: float,
) -> tuple[Any, Any, Any]:
    """Bytes, FLOPs and work units of one absorbed MLA decode call, heads counted per GPU.

    Notes
    -----
    bytes = B T (d_c + d_R) b (the latent is key and value); flops = 2 B T H (2 d_c + d_R);
    units = B.

    Examples
    --------
    >>> mla_absorbed_work(1, 1000, n_heads=128, latent_dim=512, rope_dim=64, bytes_per_scalar=2)
    (1152000.0, 278528000.0, 1)
    """
    tokens = 1.0 * batch_size * context_tokens  # floats: int64 arrays would wrap
    n_bytes = tokens * (latent_dim + rope_dim) * bytes_per_scalar
    return n_bytes, 2 * tokens * n_heads * (2 * latent_dim + rope_dim), batch_size


def _check(name: str, value: Number) -> None:
    """Refuse what is negative or not a number; infinities included."""
    is_good = (value >= 0).all() if is_array(value) else value >= 0  # type: ignore[union-attr]
    if not is_good:
        raise UsageError(f"{name} {value!r}: must be numbers from 0")


def _larger(one: Number, other: Number) -> Number:
    if is_array(one) or is_array(other):
        import numpy as np

        return np.maximum(one, other)
    return max(one, other)


def _smaller(one: Number, other: Number) -> Number:
    if is_array(one) or is_array(other):
        import numpy as np

        return np.minimum(one, other)
    return min(one, other)
