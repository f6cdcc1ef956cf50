"""A few fresh calls of a model's own shapes against what a profile predicts for them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode.paths import DecodePath, paths_for
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.calibration.machine import describe, prepare_cpu, stopwatch_of, threads_on
from lrkv_plan.calibration.profile import profile_of_device
from lrkv_plan.calibration.samples import estimator
from lrkv_plan.calibration.torch_gate import resolve_device
from lrkv_plan.errors import CalibrationError
from lrkv_plan.formats import storage_format
from lrkv_plan.latency.kernel import KernelModel, KernelTime, kernel_model, kernel_time
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

MAX_STEP_BYTES = 2 * 2**30


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One attention layer's design at one batch and context, heads dealt out over ``tp_size``."""

    spec: AttentionSpec
    model_dim: int
    batch_size: int
    context_tokens: int
    tp_size: int = 1


def model_shapes(
    model: ModelSpec, contexts: Sequence[int], batches: Sequence[int], tp_size: int, dtype: str
) -> list[Shape]:
    """Distinct shapes of the model's attention layers; those above ``MAX_STEP_BYTES`` left out."""
    found: dict[Shape, None] = {}
    for group in model.attention_groups:
        if group.attention is None or group.reuses_cache or group.cached_over != "context":
            continue
        layout_of(group.attention, model.model_dim).check_tp_size(tp_size)
        limits = [group.window_tokens, model.max_context_tokens]
        for context, batch in itertools.product(contexts, batches):
            tokens = min([context, *(n for n in limits if n is not None)])
            shape = Shape(
                spec=group.attention, model_dim=model.model_dim, batch_size=batch,
                context_tokens=tokens, tp_size=tp_size,
            )  # fmt: skip
            if _scalars(shape) * storage_format(dtype).bits_per_scalar / 8 <= MAX_STEP_BYTES:
                found[shape] = None
    return list(found)


def changed_shapes(
    model: ModelSpec, contexts: Sequence[int], batches: Sequence[int], dtype: str
) -> list[str]:
    """What of the asked contexts and batches is measured otherwise, or not at all, and why."""
    said: dict[str, None] = {}
    for group in model.attention_groups:
        if group.attention is None or group.reuses_cache or group.cached_over != "context":
            continue
        limits = [n for n in (group.window_tokens, model.max_context_tokens) if n is not None]
        for context, batch in itertools.product(contexts, batches):
            tokens = min([context, *limits])
            label = group.attention.label()
            if tokens < context:
                why = "its window" if tokens == group.window_tokens else "the model's maximum"
                said[f"{label}: {context:,} tokens are measured as {tokens:,}, {why}"] = None
            shape = Shape(
                spec=group.attention, model_dim=model.model_dim, batch_size=batch,
                context_tokens=tokens,
            )  # fmt: skip
            if _scalars(shape) * storage_format(dtype).bits_per_scalar / 8 > MAX_STEP_BYTES:
                what = f"{label}: batch {batch:,} at {tokens:,} tokens"
                said[f"{what} is left out: its cache is above {MAX_STEP_BYTES:,} bytes"] = None
    return list(said)


def _scalars(shape: Shape) -> int:
    layout = layout_of(shape.spec, shape.model_dim)
    return layout.scalars_per_token() * shape.batch_size * shape.context_tokens


N_ROUNDS = 6
REPEATS_PER_ROUND = 8
BAND_SHARE = 0.9
CHANCE = 0.05  # that a good profile fails
DEFAULT_DTYPES = {"cpu": "fp32", "cuda": "bf16"}


@dataclass(frozen=True, kw_only=True)
class ValidatedPoint:
    """One shape predicted and measured. ``error`` is predicted / measured - 1."""

    attention: str
    path: str
    kernel: str
    dtype: str
    batch_size: int
    context_tokens: int
    tp_size: int
    n_bytes: int
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    error: float
    in_band: bool
    basis: str
    backend: str
    held_out_median_error: float | None


def validate_model(
    model: ModelSpec,
    profile: HardwareProfile,
    *,
    device: str = "auto",
    dtype: str | None = None,
    contexts: Sequence[int] = (512, 2048, 8192),
    batches: Sequence[int] = (1, 4),
    tp_size: int = 1,
    threads: int | None = None,
    relatives: Sequence[HardwareProfile] = (),
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> list[ValidatedPoint]:
    """Predict and measure every distinct attention layer of a model.

    Parameters
    ----------
    contexts : cached tokens; more than a layer's window or the model's maximum count as those.
    tp_size : the shapes of one GPU among so many.

    Raises
    ------
    CalibrationError
        If the profile describes another device, or no path runs one of the designs.
    PlacementError
        If the heads cannot be dealt out.

    Notes
    -----
    Measured: ``N_ROUNDS`` rounds in random order, the device's estimator over all repeats.
    """
    place = resolve_device(device)
    name = str(describe(place).get("device_name", place.type))
    _check_device(profile, place, name)
    n_threads = threads_on(place, threads)
    if place.type == "cpu":
        prepare_cpu(n_threads)
    chosen = dtype or DEFAULT_DTYPES[place.type]
    cases = [
        (shape, *_path_and_model(shape, profile, chosen, relatives))
        for shape in model_shapes(model, contexts, batches, tp_size, chosen)
    ]
    if not cases:
        raise CalibrationError(
            f"{model.name}: no attention layer's cache at these sizes is between 1 byte and "
            f"{MAX_STEP_BYTES:,} bytes; choose other --context-tokens or --batch-size"
        )
    times: list[list[float]] = [[] for _ in cases]
    works: dict[int, tuple[float, float, float]] = {}
    watch, order = stopwatch_of(place), list(range(len(cases)))
    few = [replace(shape, batch_size=1, context_tokens=8) for shape, _, _ in cases]
    small = [_step(s, case[1].name, chosen, place, 0) for s, case in zip(few, cases, strict=True)]
    for number in range(N_ROUNDS):
        random.Random(number).shuffle(order)  # noqa: S311
        for done, index in enumerate(order):
            progress(number * len(cases) + done, N_ROUNDS * len(cases))
            step = _step(cases[index][0], cases[index][1].name, chosen, place, number)
            times[index] += watch.time(
                step.run, n_repeats=REPEATS_PER_ROUND, small=small[index].run
            ).repeats_s
            shape, _, model_of = cases[index]
            lender = model_of.constants_of or model_of.kernel
            units = step.work.n_units(shape.context_tokens, shape.batch_size, lender)
            n_bytes = float(step.read_bytes + step.weight_bytes)
            works[index] = (n_bytes, float(step.flops), float(units))
    measured = [estimator(place.type)[1](repeats) for repeats in times]
    return [_point(case, chosen, works[index], measured[index]) for index, case in enumerate(cases)]


def outside_allowed(n_points: int) -> int:
    """How many of ``n_points`` a true 90 % band leaves outside, but for ``CHANCE``; never all.

    Notes
    -----
    The smallest m with P(more than m of n outside) <= ``CHANCE``, each outside with probability
    1 - ``BAND_SHARE``: the binomial tail.

    Examples
    --------
    >>> outside_allowed(1), outside_allowed(6)  # 1 - 0.9^6 - 6 0.1 0.9^5 = 11 %; with 2: 1.6 %
    (0, 2)
    """
    miss, tail = 1 - BAND_SHARE, 1.0
    for m in range(n_points + 1):
        tail -= math.comb(n_points, m) * miss**m * BAND_SHARE ** (n_points - m)
        if tail <= CHANCE:
            break
    return min(m, n_points - 1)


def failure(points: Sequence[ValidatedPoint]) -> str | None:
    """Why the profile fails on this model, in one line; None if it holds."""
    outside = sum(not p.in_band for p in points)
    allowed = outside_allowed(len(points))
    if outside <= allowed:
        return None
    worst = max(points, key=lambda p: abs(math.log(p.predicted_s / p.measured_s)))
    return (
        f"{outside} of {len(points)} points lie outside their 90 % band, at most {allowed} may by "
        f"chance; the worst is {worst.attention} at batch {worst.batch_size}, "
        f"{worst.context_tokens} tokens: predicted {worst.predicted_s:.3g} s, measured "
        f"{worst.measured_s:.3g} s; calibrate this device: lrkv-plan calibrate run"
    )


def _check_device(profile: HardwareProfile, device: torch.device, name: str) -> None:
    """A profile of another device is refused: its errors would say nothing about it."""
    if name.lower() in profile.title.lower():
        return
    generic = device.type == "cpu" and profile.vendor == "generic"
    if not generic and not (device.type == "cuda" and profile_of_device(name, [profile])):
        raise CalibrationError(
            f"profile {profile.name} ({profile.title}) does not describe this machine's "
            f"{device.type} ({name}); calibrate it with: lrkv-plan calibrate run --output DIR"
        )


def _path_and_model(
    shape: Shape, profile: HardwareProfile, dtype: str, relatives: Sequence[HardwareProfile]
) -> tuple[DecodePath, KernelModel]:
    """The path that the profile prefers where it measured one, else the first that runs."""
    known = paths_for(shape.spec)
    if not known:
        raise CalibrationError(f"no decode path runs {shape.spec.label()}")
    layout = layout_of(shape.spec, shape.model_dim)
    heads = layout.n_heads // shape.tp_size
    copies = max(t.copies_per_gpu(shape.tp_size) for t in layout.cached)
    engine_path = layout.work[0].path
    for path in sorted(known, key=lambda p: p.work_path != engine_path):
        found = kernel_model(
            profile, path.kernel, dtype, query_heads_per_kv_head=max(1, heads // copies),
            head_dim=layout.cached[0].width, relatives=relatives,
        )  # fmt: skip
        own = [p for p in known if found.backend == f"torch/{p.name}"]
        if own or found.basis != "assumed":
            return (own[0] if own else path), found
    return path, found


def _step(shape: Shape, path: str, dtype: str, device: torch.device, seed: int) -> DecodeStep:
    return build_step(
        path, shape.spec, model_dim=shape.model_dim, batch_size=shape.batch_size,
        context_tokens=shape.context_tokens, dtype=dtype, device=str(device),
        tp_size=shape.tp_size, seed=seed,
    )  # fmt: skip


def _point(
    case: tuple[Shape, DecodePath, KernelModel],
    dtype: str,
    work: tuple[float, float, float],
    measured_s: float,
) -> ValidatedPoint:
    shape, path, model = case
    call: KernelTime = kernel_time(model, *work)
    return ValidatedPoint(
        attention=shape.spec.label(), path=path.name, kernel=path.kernel, dtype=dtype,
        batch_size=shape.batch_size, context_tokens=shape.context_tokens, tp_size=shape.tp_size,
        n_bytes=int(work[0]), predicted_s=float(call.time_s), low_s=float(call.low_s),
        high_s=float(call.high_s), measured_s=measured_s,
        error=float(call.time_s) / measured_s - 1,
        in_band=bool(call.low_s <= measured_s <= call.high_s), basis=model.basis,
        backend=model.backend, held_out_median_error=model.held_out_median_error,
    )  # fmt: skip
