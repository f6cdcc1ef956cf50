"""A decode step as a sum with its numbers put in, and what each constant rests on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from lrkv_plan.latency.basis import basis_by_term
from lrkv_plan.latency.evidence import evidence
from lrkv_plan.latency.experts import expert_resources, expert_time
from lrkv_plan.latency.kernel import CHARGES_WORK_UNITS, SUMS, kernel_time
from lrkv_plan.latency.products import ProductModel, product_time
from lrkv_plan.latency.recurrent import recurrent_time
from lrkv_plan.latency.small_kernels import small_kernel_models, small_kernel_time
from lrkv_plan.latency.step import expert_load, loads
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
    load = loads(model, batch_size, query_tokens)
    at = (context_tokens, int(load.rank_batch), query_tokens)
    tokens = int(load.tokens)
    lines = [_sum(step, model)]
    for work, kernel in _together(zip(model.work.attention, model.kernels, strict=True)):
        lines.append(_attention(work, kernel, at))
    lines += _updates(model, int(load.rank_batch), query_tokens)
    lines += _matrices(model, step, tokens)
    lines += _products(model, step, tokens)
    lines += _experts(model, int(load.expert_tokens))
    lines += _small_kernels(model, step, tokens)
    lines += _all_reduce(model, tokens)
    lines += _exchange(model, step, tokens)
    lines.append(_engine(model, step, int(load.rank_batch)))
    return lines


Work = TypeVar("Work")
Constants = TypeVar("Constants")


def _together(pairs: Iterable[tuple[Work, Constants]]) -> list[tuple[Work, Constants]]:
    """Equal work with equal constants once, with its layers together."""
    found: list[tuple[Any, Any]] = []
    for work, constants in pairs:
        one: Any = work
        for n, (other, its_own) in enumerate(found):
            if replace(other, layers=one.layers) == one and its_own == constants:
                found[n] = replace(other, layers=other.layers + one.layers), constants
                break
        else:
            found.append((one, constants))
    return found


def _sum(step: StepTime, model: StepModel) -> str:
    summed = ""
    for term, _, seconds in basis_by_term(model, step):
        sign = "-" if seconds < 0 else "+"
        summed += f" {sign} {term} {_exactly(abs(seconds))}"
    summed = summed.removeprefix(" + ").strip()
    band = f"({_ms(step.low_s)} to {_ms(step.high_s)}, nine of ten measured steps)"
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
    if _is_short(kernel, call.time_s, n_bytes, flops, units):
        return _short_attention(work, kernel, n_bytes, worked, units, call.time_s)
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


def _updates(model: StepModel, batch_size: int, query_tokens: int) -> Iterator[str]:
    """Every recurrent update: its state and its convolution, each with its rate."""
    for work, update in zip(model.work.recurrent, model.updates, strict=True):
        state = batch_size * work.state_bytes
        conv = batch_size * (work.conv_bytes + query_tokens * work.conv_row_bytes)
        call = recurrent_time(update, state, conv)
        low, high = update.band90
        yield (
            f"attention, recurrent: {count(work.layers)} layers x ("
            f"{_rate(update.t0_s + update.conv_t0_s, 's')} + state {count(round(state))} B / "
            f"{_rate(update.bytes_per_s, 'B/s')} + convolution {count(round(conv))} B / "
            f"{_rate(update.conv_bytes_per_s, 'B/s')}) = {_ms(work.layers * call.time_s)} ms  "
            f"{GLYPHS[evidence(update.basis)]} {update.kind} {update.basis}, band {low:.2f} to "
            f"{high:.2f}"
        )


def _is_short(kernel: KernelModel, time_s: Any, n_bytes: Any, flops: Any, units: Any) -> bool:
    """Whether the start of short calls bounds the time."""
    if kernel.short is None:
        return False
    cold = kernel_time(replace(kernel, short=None), n_bytes, flops, units)
    return bool(time_s < cold.time_s)


def _short_attention(
    work: AttentionWork, kernel: KernelModel, n_bytes: Any, worked: str, units: Any, time_s: Any
) -> str:
    assert kernel.short is not None, "asked of short calls"
    short = kernel.short
    charged = f" + {count(units)} x {_rate(short.work_unit_s, 's')}" if short.work_unit_s else ""
    low, high = kernel.band90
    return (
        f"attention: {count(work.layers)} layers x ({_rate(short.t0_s, 's')} + "
        f"{count(round(n_bytes))} B / {_rate(short.bytes_per_s, 'B/s')} + {worked}{charged}) = "
        f"{_ms(work.layers * time_s)} ms, a short call  {_kernel_words(kernel)}, band "
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
    error = kernel.held_out_median_error
    told = "" if error is None else f", error {100 * error:.1f} %"
    backend = f" ({kernel.backend})" if kernel.backend else ""
    mark = GLYPHS[evidence(kernel.basis)]
    basis = kernel.basis.replace("_", " ")
    return f"{mark} {kernel.kernel} {kernel.kv_dtype} {basis}{backend}{told}"


def _matrices(model: StepModel, step: StepTime, tokens: int) -> Iterator[str]:
    """Every matrix with its shape on this GPU and the three times under the root."""
    bases = "; ".join(
        f"{_basis(one.basis)}, {one.format}" + (f" of {one.lender} on {one.gpu}" if one.gpu else "")
        for one in model.matrix_models
    )
    yield (
        "matrices: t0 + sqrt(memory^2 + compute^2 + walk^2) each = "
        f"{_ms(step.matrices_s)} ms  {bases}"
    )
    for work, term in zip(model.work.linear.matrices, model.matrices, strict=True):
        memory = term.memory_s + tokens * term.memory_token_s
        compute = tokens * term.compute_token_s
        one = term.t0_s + (memory**2 + compute**2 + term.walk_s**2) ** 0.5
        yield (
            f"  {work.name} ({work.format_name}) {count(round(work.inputs))} x "
            f"{count(round(work.outputs))}: {count(work.layers)} x ({_rate(term.t0_s, 's')} + root "
            f"of {_rate(memory, 's')}, {_rate(compute, 's')}, {_rate(term.walk_s, 's')}) = "
            f"{_ms(work.layers * one)} ms"
        )


def _products(model: StepModel, step: StepTime, tokens: int) -> Iterator[str]:
    works = model.work.linear.products
    if not works:
        return
    yield (
        f"products, batched over heads: t0 + heads x the time of one = {_ms(step.products_s)} ms  "
        f"{_basis(model.product_basis)}"
    )
    constants = next(one for one in model.operations if isinstance(one, ProductModel))
    for one, _ in _together((work, None) for work in works):
        time_s = product_time(constants, tokens, one.heads, rows=one.rows, cols=one.cols).time_s
        head = _rate((float(time_s) - constants.t0_s) / one.heads, "s")
        yield (
            f"  {one.name}, {one.rows} x {one.cols} a head: {count(one.layers)} x "
            f"({_rate(constants.t0_s, 's')} + {one.heads} x {head}) = {_ms(one.layers * time_s)} ms"
        )


def _experts(model: StepModel, tokens: int) -> Iterator[str]:
    pairs = zip(model.work.linear.experts, model.experts, strict=True)
    for work, constants in _together(pairs):
        load = expert_load(work, tokens)
        memory_s, compute_s = expert_resources(constants, **load)
        time_s, active = expert_time(constants, **load).time_s, f"{float(load['active']):.1f}"
        read = f"{count(round(work.bytes_per_expert))} B / {_rate(constants.bytes_per_s, 'B/s')}"
        each = f" + {active} x {_rate(constants.expert_s, 's')}" if constants.expert_s else ""
        total = f"{_ms(work.layers * time_s)} ms"
        yield (
            f"experts: t0 + sqrt(memory^2 + compute^2){' + a time each' if each else ''} = "
            f"{total}  {_basis(constants.basis)}, {constants.format}"
        )
        yield (
            f"  {active} of {work.experts_here:,} touched, {read} each: {count(work.layers)} x "
            f"({_rate(constants.t0_s, 's')} + root of {_rate(float(memory_s), 's')}, "
            f"{_rate(float(compute_s), 's')}{each}) = {total}"
        )


def _small_kernels(model: StepModel, step: StepTime, tokens: int) -> Iterator[str]:
    works = model.work.linear.small
    if not works:
        return
    calls = " + ".join(
        f"{count(one.calls)} {one.kind.replace('_', ' ')} x "
        f"{_rate(float(small_kernel_time(one.kind, tokens, one.width).time_s), 's')}"
        for one in works
    )
    measured_on = small_kernel_models()[works[0].kind].gpu
    yield (
        f"small kernels: {calls} = {_ms(step.small_kernels_s)} ms  {GLYPHS['borrowed']} borrowed "
        f"from {measured_on}"
    )


def _all_reduce(model: StepModel, tokens: int) -> Iterator[str]:
    if model.all_reduce is None or model.all_reduce_basis is None:
        return
    message, n = tokens * model.work.all_reduce_token_bytes, model.work.n_all_reduces
    once = float(model.all_reduce(message)[0])
    yield (
        f"all-reduce: {count(n)} x {_rate(once, 's')} of {count(round(message))} B each = "
        f"{_ms(n * once)} ms  {_basis(model.all_reduce_basis)}"
    )


def _exchange(model: StepModel, step: StepTime, tokens: int) -> Iterator[str]:
    """Dispatch and combine of attention ranks, and what the engine adds to each."""
    if model.exchange is None or model.exchange_basis is None:
        return
    once, added = _rate(float(model.exchange(tokens)), "s"), _rate(model.engine.exchange_s, "s")
    yield (
        f"exchange: {count(model.work.n_exchanges)} x ({once} to dispatch and combine + {added} of "
        f"{model.engine.name}) = {_ms(step.exchange_s)} ms  {_basis(model.exchange_basis)}"
    )


def _engine(model: StepModel, step: StepTime, rank_batch: int) -> str:
    engine = model.engine
    added = "".join(
        f" {'-' if one.each_s < 0 else '+'} {count(one.n)} x {_rate(abs(one.each_s), 's')} "
        f"{one.what}" for one in model.added
    )  # fmt: skip
    return (
        f"engine: {engine.name}, {_rate(engine.step_s, 's')} a step + {count(rank_batch)} x "
        f"{_rate(engine.sequence_s, 's')} a sequence{added} = {_ms(step.engine_s)} ms  "
        f"{GLYPHS['borrowed']} fitted on whole steps"
    )


def _basis(basis: str) -> str:
    """What constants rest on, with the mark of the kind of evidence that it is."""
    return f"{GLYPHS[evidence(basis)]} {basis.replace('_', ' ')}"


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
