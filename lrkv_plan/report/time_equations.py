"""A decode step as a sum with its numbers put in, and what each constant rests on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from lrkv_plan.latency.basis import evidence
from lrkv_plan.latency.kernel import CHARGES_WORK_UNITS, SUMS, kernel_time
from lrkv_plan.latency.step import (
    LAYER_OVERHEAD_S,
    LINEAR_BETA,
    LINEAR_PHI,
    STEP_OVERHEAD_S,
    Assumed,
)
from lrkv_plan.report.screen import GLYPHS, milliseconds, short, significant
from lrkv_plan.report.tables import count

if TYPE_CHECKING:
    from lrkv_plan.latency.kernel import KernelModel
    from lrkv_plan.latency.step import StepModel, StepTime
    from lrkv_plan.latency.work import AttentionWork


def step_equations(
    model: StepModel, step: StepTime, context_tokens: int, batch_size: int, query_tokens: int = 1
) -> list[str]:
    """One line for the sum, then one per term; the step is that of the same load."""
    at = (context_tokens, batch_size, query_tokens)
    lines = [_sum(step, model)]
    for work, kernel in zip(model.work.attention, model.kernels, strict=True):
        lines.append(_attention(work, kernel, at))
    lines.append(_weights(model, step, batch_size * query_tokens))
    lines += _all_reduce(model, batch_size * query_tokens)
    lines.append(_overhead(model, step))
    return lines


def _sum(step: StepTime, model: StepModel) -> str:
    terms = [
        ("attention", step.attention_s),
        ("weights", step.linear_s),
        *([("all-reduce", step.all_reduce_s)] if model.all_reduce is not None else []),
        ("everything else", step.overhead_s),
    ]
    summed = " + ".join(f"{term} {_exactly(seconds)}" for term, seconds in terms)
    band = f"({_ms(step.low_s)} to {_ms(step.high_s)}, all constants at their ends)"
    return f"{summed} = {_exactly(step.step_s)} ms {band}"


def _exactly(seconds: Any) -> str:
    """Milliseconds of four digits, so that a sum adds up."""
    return significant(1e3 * float(seconds), 4)


def _attention(work: AttentionWork, kernel: KernelModel, at: tuple[int, int, int]) -> str:
    n_bytes, flops = work.n_bytes(*at), work.n_flops(*at)
    units = work.n_units(at[0], at[1], kernel.constants_of or kernel.kernel)
    call = kernel_time(kernel, n_bytes, flops, units)
    moved = f"{count(round(n_bytes))} B / {_rate(kernel.bytes_per_s, 'B/s')}"
    worked = f"{_rate(flops, 'FLOP')} / {_rate(kernel.flops_per_s, 'FLOP/s')}"
    if kernel.form in SUMS:
        busy = f"{moved} + {worked}"
    else:
        busy = moved if call.is_memory_bound else worked
    if kernel.form == "no_split" and units < kernel.full_work_units:
        busy = f"({busy}) x {short(kernel.full_work_units)} / {count(units)}"
    if kernel.work_unit_s:
        busy = f"{busy} + {count(units)} x {_rate(kernel.work_unit_s, 's')}"
    low, high = kernel.band90
    return (
        f"attention: {count(work.layers)} layers x ({_rate(kernel.t0_s, 's')} + {busy}) = "
        f"{_ms(work.layers * call.time_s)} ms  {_kernel_words(kernel)}, band "
        f"{low:.2f} to {high:.2f}"
    )


def kernel_equation(constants: Mapping[str, Any], bytes_per_s: float, flops_per_s: float) -> str:
    """The time of one call with a kernel's constants put in.

    Parameters
    ----------
    constants : form, t0_s, beta, phi, and work_unit_s or full_work_units where the form has them.
    bytes_per_s, flops_per_s : what beta and phi are shares of.
    """
    form = constants["form"]
    moved = f"bytes / ({constants['beta']:.3f} x {_rate(bytes_per_s, 'B/s')})"
    worked = f"FLOP / ({constants['phi']:.3f} x {_rate(flops_per_s, 'FLOP/s')})"
    busy = f"{moved} + {worked}" if form in SUMS else f"max({moved}, {worked})"
    if form == "no_split":
        busy += f" / min(1, units / {short(constants['full_work_units'])})"
    if form in CHARGES_WORK_UNITS:
        busy += f" + units x {_rate(constants['work_unit_s'], 's')}"
    return f"t = {_rate(constants['t0_s'], 's')} + {busy}"


def _kernel_words(kernel: KernelModel) -> str:
    """What the constants of an attention kernel rest on."""
    kind = evidence(kernel.basis)
    error = kernel.held_out_median_error
    told = "" if error is None else f", error {100 * error:.1f} %"
    backend = f" ({kernel.backend})" if kernel.backend else ""
    return f"{GLYPHS[kind]} {kernel.kernel} {kernel.kv_dtype} {kernel.basis}{backend}{told}"


def _weights(model: StepModel, step: StepTime, tokens: int) -> str:
    linear = model.work.linear
    if step.linear_memory_s >= step.linear_compute_s:
        share: Assumed = LINEAR_BETA
        sum_ = f"{count(round(linear.n_bytes(tokens)))} B / ({share.value:.2f} x "
        sum_ += f"{_rate(model.mem_bandwidth_bytes_per_s, 'B/s')})"
    else:
        share = LINEAR_PHI
        sum_ = f"{_rate(linear.n_flops(tokens), 'FLOP')} / ({share.value:.2f} x "
        sum_ += f"{_rate(model.peak_flops_per_s, 'FLOP/s')})"
    return (
        f"weights: {sum_} = {_ms(step.linear_s)} ms  {GLYPHS['datasheet']} of the datasheet, "
        f"{100 * share.low:.0f} to {100 * share.high:.0f} %"
    )


def _all_reduce(model: StepModel, tokens: int) -> Iterator[str]:
    if model.all_reduce is None or model.all_reduce_basis is None:
        return
    message, n = tokens * model.work.all_reduce_token_bytes, model.work.n_all_reduces
    once = float(model.all_reduce(message)[0])
    yield (
        f"all-reduce: {count(n)} x {_rate(once, 's')} of {count(round(message))} B each = "
        f"{_ms(n * once)} ms  {GLYPHS[evidence(model.all_reduce_basis)]} {model.all_reduce_basis}"
    )


def _overhead(model: StepModel, step: StepTime) -> str:
    layer, whole = LAYER_OVERHEAD_S, STEP_OVERHEAD_S
    return (
        f"everything else: {count(model.work.n_layers)} layers x {_rate(layer.value, 's')} + "
        f"{_rate(whole.value, 's')} = {_ms(step.overhead_s)} ms  {GLYPHS['assumed']} "
        f"{_rate(layer.low, 's')} to {_rate(layer.high, 's')} a layer, "
        f"{_rate(whole.low, 's')} to {_rate(whole.high, 's')} a step"
    )


def _ms(seconds: Any) -> str:
    return milliseconds(float(seconds))


_SCALES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"),
           (1e-6, "u"), (1e-9, "n"), (1e-12, "p"))  # fmt: skip


def _rate(value: float, unit: str) -> str:
    """A figure with the prefix that leaves one to three digits before the point.

    Examples
    --------
    >>> _rate(2.95e12, "B/s"), _rate(20e-6, "s"), _rate(0, "s")
    ('2.95 TB/s', '20 us', '0 s')
    """
    for scale, prefix in _SCALES:
        if value >= scale:
            return f"{short(value / scale)} {prefix}{unit}"
    return f"{significant(value)} {unit}" if value else f"0 {unit}"
