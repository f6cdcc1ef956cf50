"""How long one kernel call takes: a fixed time plus the slower of memory traffic and arithmetic.

``t = t0 + max(bytes / (beta BW), flops / (phi peak))``, and three named variants where
measurements demand them; and which constants apply to a kernel on a GPU. Left out: what a kernel
reads and computes (the caller counts it), and launch gaps between kernels. Scalars and numpy arrays
both work.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.registry import kernel_of
from lrkv_plan.errors import SpecError, UsageError, did_you_mean
from lrkv_plan.latency.operation import like
from lrkv_plan.memory.exact import is_array, larger, smaller
from lrkv_plan.specs.hardware import HardwareProfile, KernelConstants

if TYPE_CHECKING:
    from lrkv_plan.attention.family import Kernel
    from lrkv_plan.memory.exact import Number

FORMS = ("base", "per_work_unit", "no_split", "sum", "sum_per_work_unit")
SUMS = ("sum", "sum_per_work_unit")
CHARGES_WORK_UNITS = ("per_work_unit", "sum_per_work_unit")
COUNTS_WORK_UNITS = (*CHARGES_WORK_UNITS, "no_split")


@dataclass(frozen=True, kw_only=True)
class ShortCalls:
    """How calls over few rows start: constants of the same kernel where its rows lay in the L2.

    Cold rows were measured from tens of megabytes on, so that their start is an extrapolation.
    A short call takes no longer than the hot start, the hot traffic and the cold traffic together.
    ``bytes_per_s`` is of both traffics.
    """

    t0_s: float
    bytes_per_s: float
    work_unit_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class KernelModel:
    """Constants of one kernel path on one GPU in base units, with what they rest on.

    ``band90`` are factors: 90 % of held-out measurements lie between ``time * band90[0]`` and
    ``time * band90[1]``. ``basis`` is measured, other_shape, generation, datasheet or assumed.
    The held-out errors are None where nothing was measured on this GPU. ``constants_of`` is the
    kernel that lent its constants (``kernel`` itself where empty); it says what a work unit is.
    ``short`` bounds the time of calls over few rows, where that is known.
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
    short: ShortCalls | None = None
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
        Constants, from ``kernel_model``.
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
            occupancy = smaller(1.0, larger(work_units, 1.0) / model.full_work_units)
    memory_s = n_bytes / (model.bytes_per_s * occupancy)
    compute_s = flops / (model.flops_per_s * occupancy)
    busy_s = memory_s + compute_s if model.form in SUMS else larger(memory_s, compute_s)
    time_s: Number = model.t0_s + busy_s
    if model.form in CHARGES_WORK_UNITS:
        time_s = time_s + model.work_unit_s * work_units  # type: ignore[operator]
    if model.short is not None:
        short = model.short
        few = short.t0_s + n_bytes / short.bytes_per_s + flops / model.flops_per_s
        units: Any = 0.0 if work_units is None else work_units
        time_s = smaller(time_s, few + short.work_unit_s * units)
    return KernelTime(
        time_s=time_s, low_s=time_s * model.band90[0], high_s=time_s * model.band90[1],
        memory_s=memory_s, compute_s=compute_s, model=model,
    )  # fmt: skip


def _check(name: str, value: Number) -> None:
    """Refuse what is negative or not a number; infinities included."""
    is_good = (value >= 0).all() if is_array(value) else value >= 0  # type: ignore[union-attr]
    if not is_good:
        raise UsageError(f"{name} {value!r}: must be numbers from 0")


# Typical constants where nothing was measured: the priors of ``calibration/fit.py``.
DATASHEET_T0_S = 15e-6
DATASHEET_BETA = 0.85
DATASHEET_PHI = 0.6
# What those do on all preferred kernels measured, the slow ones that do not split a sequence
# included (``scripts/fit_kernels.py`` prints it).
DATASHEET_BAND = (0.88, 3.35)
# Constants carry within 10 % between GPUs of one generation (993,206 public points);
# another head width of the same kernel moved them by up to 25 % (FlashAttention 3, fp8).
GENERATION_FACTOR = 1.10
OTHER_SHAPE_FACTOR = 1.25
_SAME_WIDTH = {"fp16": "bf16"}


def kernel_model(
    profile: HardwareProfile,
    kernel: str,
    kv_dtype: str,
    *,
    query_heads_per_kv_head: int = 1,
    head_dim: int | None = None,
    backend: str | None = None,
    engine: str | None = None,
    regime: str = "cold",
    relatives: Sequence[HardwareProfile] = (),
) -> KernelModel:
    """The constants to use for one kernel on one GPU.

    Parameters
    ----------
    profile
        The GPU.
    kernel
        ``grouped`` (MHA, GQA, MQA), ``mla_absorbed``, ``low_rank`` ...: those of the families.
    kv_dtype
        Storage format of the cache; fp16 counts as bf16.
    query_heads_per_kv_head : query heads that read one cached head; for MLA the heads per GPU.
    head_dim : width of a cached row, where constants depend on it.
    backend : an engine's kernel such as ``sglang/fa3``; None takes the preferred one.
    engine : whose kernel is taken where it was measured; the preferred one elsewhere.
    regime : ``cold``, as in a real decode step, or ``l2_hot``, as in benchmarks of small caches.
    relatives : other profiles; those of the same generation may lend their constants.

    Returns
    -------
    KernelModel: base units, with ``basis`` and ``notes``.

    Raises
    ------
    UsageError
        If the kernel or regime is unknown, or no entry has that backend.
    SpecError
        If the profile states no peak for the arithmetic.

    Examples
    --------
    >>> from lrkv_plan.loader import load_hardware
    >>> found = kernel_model(load_hardware("h100-sxm"), "grouped", "nvfp4")
    >>> found.basis, found.t0_s, found.held_out_median_error
    ('datasheet', 1.5e-05, None)
    """
    asked = _checked(kernel, regime)
    kv_dtype = _SAME_WIDTH.get(kv_dtype, kv_dtype)
    kin = [one for one in like(profile, relatives) if one.generation == profile.generation]
    for owner in (profile, *kin):
        entries = [e for e in owner.kernels if (e.kernel, e.kv_dtype) == (kernel, kv_dtype)]
        backend_here = backend or _engines_own(entries, engine, regime)
        wanted = [e for e in entries if _is_wanted(e, backend_here)]
        if cold := [e for e in wanted if e.regime == regime]:
            hot = [e for e in wanted if e.regime == "l2_hot"] if regime == "cold" else []
            return _from_entries(profile, owner, cold, hot, query_heads_per_kv_head, head_dim)
    shape = {"query_heads_per_kv_head": query_heads_per_kv_head, "head_dim": head_dim}
    if backend is not None:
        raise UsageError(_no_backend(profile, kernel, kv_dtype, backend))
    if asked.fallback is None:
        return _datasheet(profile, kernel, kv_dtype, regime)
    if asked.query_heads_per_kv_head is not None:
        shape["query_heads_per_kv_head"] = asked.query_heads_per_kv_head
    found = kernel_model(
        profile, asked.fallback, kv_dtype, engine=engine, regime=regime, relatives=relatives,
        **shape  # type: ignore[arg-type]
    )  # fmt: skip
    return _assumed(found, asked) if asked.assumptions else _lent(found, kernel)


def _checked(kernel: str, regime: str) -> Kernel:
    try:
        found = kernel_of(kernel)
    except SpecError as error:
        raise UsageError(str(error)) from None
    if regime not in ("cold", "l2_hot"):
        raise UsageError(f"regime {regime!r}: must be cold or l2_hot")
    return found


# The attention kernel that an engine takes, best first; of vLLM the preferred entries.
BACKENDS_OF = {
    "sglang": ("sglang/trtllm_mla", "sglang/trtllm_mha", "sglang/flash_attention"),
    "tensorrt_llm": ("trtllm/default", "trtllm/torch_flow"),
}


def _engines_own(entries: Sequence[KernelConstants], engine: str | None, regime: str) -> str | None:
    """The engine's own backend among the entries, if one was measured."""
    there = {entry.backend for entry in entries if entry.regime == regime}
    return next((name for name in BACKENDS_OF.get(engine or "", ()) if name in there), None)


def _is_wanted(entry: KernelConstants, backend: str | None) -> bool:
    return entry.preferred if backend is None else entry.backend == backend


def _from_entries(
    profile: HardwareProfile,
    owner: HardwareProfile,
    entries: list[KernelConstants],
    hot: list[KernelConstants],
    query_heads: int,
    head_dim: int | None,
) -> KernelModel:
    """The entry for the shape, or the one of the nearest shape with a wider band."""
    entry = min(entries, key=lambda e: _distance(e, query_heads, head_dim))
    found = _as_model(profile, entry)
    if hot:
        start = min(hot, key=lambda e: _distance(e, query_heads, head_dim))
        found = replace(found, short=_short(found, _as_model(profile, start)))
    if any(_distance(entry, query_heads, head_dim)):
        shape = f"{query_heads} query heads per cached head, head_dim {head_dim}"
        note = f"{shape}: not measured with {entry.backend}; its nearest shape is used"
        found = _widened(found, OTHER_SHAPE_FACTOR, "other_shape", note)
    lender = owner.name if owner is not profile else entry.borrowed_from
    if lender is not None:
        note = f"not measured on {profile.name}: constants of {lender}, same generation"
        found = replace(
            _widened(found, GENERATION_FACTOR, "generation", note),
            held_out_median_error=None,
            held_out_p90_error=None,
        )
    return found


def _short(cold: KernelModel, hot: KernelModel) -> ShortCalls | None:
    """The bound of short calls; None where idle processors or sums make its form another."""
    plain = {"base", "per_work_unit"}
    if not {cold.form, hot.form} <= plain or hot.t0_s >= cold.t0_s:
        return None
    return ShortCalls(
        t0_s=hot.t0_s,
        bytes_per_s=1 / (1 / cold.bytes_per_s + 1 / hot.bytes_per_s),
        work_unit_s=hot.work_unit_s,
    )


def _distance(
    entry: KernelConstants, query_heads: int, head_dim: int | None
) -> tuple[float, float]:
    """How far off the entry's widths and numbers of heads are, on log scales; 0 where covered.

    The width counts first: designs of one width then share its tiles, whatever their heads, so that
    fewer cached heads never take the constants of a slower width.
    """
    off_width = off_heads = 0.0
    if head_dim is not None and not entry.covers_head_dim(head_dim) and entry.head_dims:
        off_width = min(abs(math.log(head_dim / width)) for width in entry.head_dims)
    if not entry.covers_query_heads(query_heads) and entry.query_heads_per_kv_head:
        ends = entry.query_heads_per_kv_head
        off_heads = min(abs(math.log(query_heads / end)) for end in ends)
    return off_width, off_heads


def _as_model(profile: HardwareProfile, entry: KernelConstants) -> KernelModel:
    held = [n for n in ("t0_s", "beta", "phi") if n not in entry.identified]
    whose = f"{entry.kernel.replace('_', ' ')} in {entry.kv_dtype}"
    notes = [f"{whose}: {', '.join(held)} not identified: held at the prior"] if held else []
    if entry.remark:
        notes.append(f"{whose}: {entry.remark}")
    return KernelModel(
        t0_s=entry.t0_s,
        bytes_per_s=entry.beta * profile.mem_bandwidth_bytes_per_s,
        flops_per_s=entry.phi * _peak(profile, entry.peak),
        form=entry.form,
        work_unit_s=entry.work_unit_s or 0.0,
        full_work_units=entry.full_work_units or 1.0,
        band90=entry.band90, basis="measured", kernel=entry.kernel, kv_dtype=entry.kv_dtype,
        backend=entry.backend, constants_of=entry.kernel, regime=entry.regime,
        identified=entry.identified,
        held_out_median_error=entry.held_out_median_error,
        held_out_p90_error=entry.held_out_p90_error, notes=tuple(notes),
    )  # fmt: skip


def _widened(found: KernelModel, factor: float, basis: str, note: str) -> KernelModel:
    low, high = found.band90
    band = (low / factor, high * factor)
    return replace(found, band90=band, basis=basis, notes=(*found.notes, note))


def _assumed(found: KernelModel, kernel: Kernel) -> KernelModel:
    """The fallback's constants under what the kernel's own family assumes."""
    worst, best = kernel.bandwidth_left
    band = (found.band90[0] / best, found.band90[1] / worst)
    stated = (f"assumed: {sentence}" for sentence in kernel.assumptions)
    return replace(
        found, kernel=kernel.name, basis="assumed", band90=band, held_out_median_error=None,
        held_out_p90_error=None,
        notes=(*found.notes, *stated),
    )  # fmt: skip


def _lent(found: KernelModel, kernel: str) -> KernelModel:
    """The constants of another path of the same family."""
    if found.basis in ("assumed", "datasheet"):
        return found  # its notes say so
    note = f"assumed: {kernel} was not measured; constants are those of {found.kernel}"
    return replace(
        found, kernel=kernel, basis="assumed", held_out_median_error=None, held_out_p90_error=None,
        notes=(*found.notes, note),
    )  # fmt: skip


def _datasheet(profile: HardwareProfile, kernel: str, kv_dtype: str, regime: str) -> KernelModel:
    peak = profile.matmul_peak
    note = (
        f"datasheet: {kernel} with {kv_dtype} cache ({regime}) was not measured on "
        f"{profile.generation} GPUs; typical t0 15 us, beta 0.85, phi 0.6 of {peak}"
    )
    return KernelModel(
        t0_s=DATASHEET_T0_S,
        bytes_per_s=DATASHEET_BETA * profile.mem_bandwidth_bytes_per_s,
        flops_per_s=DATASHEET_PHI * _peak(profile, peak),
        band90=DATASHEET_BAND, basis="datasheet", kernel=kernel, kv_dtype=kv_dtype, regime=regime,
        notes=(note,),
    )  # fmt: skip


def _peak(profile: HardwareProfile, name: str) -> float:
    if name not in profile.peak_flops_per_s:
        known = ", ".join(profile.peak_flops_per_s)
        raise SpecError(f"{profile.name}: no peak_flops_per_s for {name}; known: {known}")
    return profile.peak_flops_per_s[name]


def _no_backend(profile: HardwareProfile, kernel: str, kv_dtype: str, backend: str) -> str:
    entries = [e for e in profile.kernels if (e.kernel, e.kv_dtype) == (kernel, kv_dtype)]
    known = sorted({e.backend for e in entries})
    hint = did_you_mean(backend, known)
    return (
        f"backend {backend!r} has no {kernel} constants for {kv_dtype} on {profile.name}{hint}; "
        f"known: {', '.join(known) or 'none'}"
    )
