"""Layouts: along which kinds of parallelism, and in how many replicas, a model is served."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lrkv_plan.attention.spec import divisors_of
from lrkv_plan.errors import PlacementError, PlanError, RequirementError
from lrkv_plan.serving.capacity import MOST_TP_SIZE, CapacityRow, capacity_row, fitting_row
from lrkv_plan.serving.deployment import Deployment
from lrkv_plan.serving.load import LatencyTarget, admitted_by, timed_step
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A deployment whose GPUs are settled, and what fits; no ``reason`` where it was stated."""

    deployment: Deployment
    row: CapacityRow
    reason: str | None = None


def _may_be(given: Parallelism, tp_size: int) -> bool:
    try:
        replace(given, tp_size=tp_size)
    except PlacementError:
        return False
    return True


def with_layout(
    model: ModelSpec,
    deployment: Deployment,
    target: LatencyTarget,
    batch_size: int | None = None,
    *,
    is_stated: bool,
) -> Layout:
    """The deployment as stated, or with the tensor-parallel size that serves most.

    Raises
    ------
    RequirementError
        If no sequence fits at any size that may be chosen, or at the stated one.
    PlacementError
        If the stated size cannot run, or does not divide ``n_gpus``.
    """
    if is_stated:
        row = capacity_row(model, deployment)
        if not row.max_sequences:
            size = deployment.parallel.tp_size
            raise RequirementError(
                f"{_nothing_fits(model, deployment, f'TP {size}', row.binds)}; leave out --tp-size "
                "to have it chosen"
            )
        return Layout(deployment=deployment, row=row)
    if deployment.n_gpus is None:
        return _narrowest(model, deployment)
    return ranked_layouts(model, deployment, deployment.n_gpus, target, batch_size)[0]


def _narrowest(model: ModelSpec, deployment: Deployment) -> Layout:
    """The smallest power of two that fits one sequence."""
    reason, tp_size = "no size was tried", 1
    while tp_size <= MOST_TP_SIZE:
        wider = _with_tp_size(deployment, tp_size)
        row, reason = fitting_row(model, wider)
        if row is not None:
            return Layout(deployment=wider, row=row, reason="the smallest that fits")
        tp_size *= 2
    up_to = f"any size up to TP {MOST_TP_SIZE}"
    raise RequirementError(_nothing_fits(model, deployment, up_to, reason))


def ranked_layouts(
    model: ModelSpec,
    deployment: Deployment,
    n_gpus: int,
    target: LatencyTarget,
    batch_size: int | None = None,
) -> list[Layout]:
    """Tensor-parallel sizes that fit on ``n_gpus``, the one that serves most first.

    Of equals the smaller stands first. Sizes of other kinds stay as they are. GPUs that are no
    whole replica stay idle, and the reason says so.

    Raises
    ------
    RequirementError
        If no sequence fits at any of them.
    UsageError, SpecError
        If a time is asked for that is not known at TP 1 either.
    """
    found: list[tuple[int, Layout]] = []
    reason = "no size was tried"
    for whole in layouts_on(deployment, n_gpus):
        row, reason_here = fitting_row(model, whole)
        if row is None:
            reason = reason_here
            continue
        served = row.total_sequences
        if target.tpot_s is not None:
            try:
                step = timed_step(model, whole, target)
            except PlanError as error:
                if whole.parallel.tp_size == 1:
                    raise
                reason = str(error)  # such as a GPU without a link
                continue
            load = admitted_by(step, row, whole, target, batch_size)
            served = load.sequences if load is not None and load.meets_target else 0
        idle = n_gpus - row.n_gpus
        left = f"; {idle} of {n_gpus} GPUs idle" if idle else ""
        told = f"serves most sequences{left}"
        found.append((served, Layout(deployment=whole, row=row, reason=told)))
    if not found:
        raise RequirementError(
            _nothing_fits(model, deployment, f"any size up to {n_gpus} GPUs", reason)
        )
    return [layout for _, layout in sorted(found, key=lambda one: -one[0])]


def layouts_on(deployment: Deployment, n_gpus: int) -> list[Deployment]:
    """Tensor-parallel sizes of which a replica stands on ``n_gpus``, each in all that there are."""
    layouts = []
    for tp_size in _sizes(n_gpus):
        if _may_be(deployment.parallel, tp_size):
            wider = _with_tp_size(deployment, tp_size)
            each = wider.parallel.n_gpus
            if each <= n_gpus:
                layouts.append(replace(wider, n_gpus=n_gpus // each * each))
    return layouts


def widest_that_runs(model: ModelSpec, deployment: Deployment, n_gpus: int) -> Deployment:
    """The deployment at the largest tensor-parallel size that can run, whether or not it fits."""
    for whole in reversed(layouts_on(deployment, n_gpus)):
        try:
            capacity_row(model, whole)
        except PlacementError:
            continue
        return whole
    return deployment


def _sizes(n_gpus: int) -> list[int]:
    """Divisors of the GPUs, which leave none idle, and powers of two."""
    powers = [2**k for k in range(n_gpus.bit_length()) if 2**k <= n_gpus]
    return sorted({*divisors_of(n_gpus), *powers})


def _with_tp_size(deployment: Deployment, tp_size: int) -> Deployment:
    return replace(deployment, parallel=replace(deployment.parallel, tp_size=tp_size))


def _nothing_fits(model: ModelSpec, deployment: Deployment, sizes: str, reason: str) -> str:
    return (
        f"{model.name}: no sequence of {deployment.settings.context_tokens:,} tokens fits at "
        f"{sizes} ({reason}); use a shorter context, a smaller format or more GPUs"
    )
