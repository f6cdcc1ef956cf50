"""What a plan settles before it computes: layout, cache budget, designs to compare."""

from __future__ import annotations

from dataclasses import dataclass, replace

from lrkv_plan.calculators.cache_bytes import ratio_to_mha
from lrkv_plan.calculators.rank_ceiling import RankCeiling
from lrkv_plan.engines.deployment import Deployment
from lrkv_plan.engines.latency import LatencyTarget, admitted_by, timed_step
from lrkv_plan.engines.planning import CapacityRow, capacity_row
from lrkv_plan.errors import PlacementError, RequirementError
from lrkv_plan.specs.attention_families import divisors_of
from lrkv_plan.specs.attention_text import design_label
from lrkv_plan.specs.model import ModelSpec

MOST_TP_SIZE = 64


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A deployment with its tensor-parallel size settled; no ``reason`` where it was stated."""

    deployment: Deployment
    reason: str | None = None


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
        return Layout(deployment=deployment)
    if deployment.n_gpus is None:
        return _smallest(model, deployment)
    return _fullest(model, deployment, deployment.n_gpus, target, batch_size)


def _smallest(model: ModelSpec, deployment: Deployment) -> Layout:
    """The smallest power of two that fits one sequence."""
    reason, tp_size = "no size was tried", 1
    while tp_size <= MOST_TP_SIZE:
        row, wider, refused = _at(model, deployment, tp_size)
        if row is not None and row.max_sequences:
            return Layout(deployment=wider, reason="the smallest that fits")
        reason = row.binds if row else refused
        tp_size *= 2
    up_to = f"any size up to TP {MOST_TP_SIZE}"
    raise RequirementError(_nothing_fits(model, deployment, up_to, reason))


def _fullest(
    model: ModelSpec,
    deployment: Deployment,
    n_gpus: int,
    target: LatencyTarget,
    batch_size: int | None,
) -> Layout:
    """Of the sizes up to ``n_gpus``, the one that serves most; the smaller of equals.

    GPUs that are no whole replica stay idle, and the reason says so.
    """
    best: tuple[int, Deployment] | None = None
    reason = "no size was tried"
    for tp_size in _sizes(n_gpus):
        whole = replace(deployment, n_gpus=n_gpus // tp_size * tp_size)
        row, wider, refused = _at(model, whole, tp_size)
        if row is None or not row.max_sequences:
            reason = row.binds if row else refused
            continue
        served = row.total_sequences
        if target.tpot_s is not None:
            step = timed_step(model, wider, target)
            load = admitted_by(step, row, wider, target, batch_size)
            served = load.sequences if load is not None and load.meets_target else 0
        if best is None or served > best[0]:
            best = served, wider
    if best is None:
        raise RequirementError(
            _nothing_fits(model, deployment, f"any size up to {n_gpus} GPUs", reason)
        )
    idle = n_gpus - (best[1].n_gpus or 0)
    left = f"; {idle} of {n_gpus} GPUs idle" if idle else ""
    return Layout(deployment=best[1], reason=f"serves most sequences{left}")


def _sizes(n_gpus: int) -> list[int]:
    """Divisors of the GPUs, which leave none idle, and powers of two."""
    powers = [2**k for k in range(n_gpus.bit_length()) if 2**k <= n_gpus]
    return sorted({*divisors_of(n_gpus), *powers})


def _at(
    model: ModelSpec, deployment: Deployment, tp_size: int
) -> tuple[CapacityRow | None, Deployment, str]:
    wider = replace(deployment, parallel=replace(deployment.parallel, tp_size=tp_size))
    try:
        return capacity_row(model, wider), wider, ""
    except PlacementError as error:
        return None, wider, str(error)


def _nothing_fits(model: ModelSpec, deployment: Deployment, sizes: str, reason: str) -> str:
    return (
        f"{model.name}: no sequence of {deployment.settings.context_tokens:,} tokens fits at "
        f"{sizes} ({reason}); use a shorter context, a smaller format or more GPUs"
    )


def own_budget(model: ModelSpec) -> str:
    """The own design's cache as a budget, or half of MHA.

    Half where the own design saves nothing against MHA, or its layers differ.
    """
    share = ratio_to_mha(model)
    label = design_label(model)
    uniform = " " not in label
    return "50%" if share is None or share >= 1 or not uniform else label


def compared_designs(model: ModelSpec, ceiling: RankCeiling) -> list[tuple[str, str | None]]:
    """(role, design text); the model's own design has no text."""
    own = design_label(model)
    designs: list[tuple[str, str | None]] = [("own design", None)]
    others = [("MHA", "mha"), ("MQA", "mqa")]
    if ceiling.grouped is not None:
        others.insert(1, ("GQA in the budget", ceiling.grouped.text))
    if ceiling.latent is not None:
        others.append(("MLA in the budget", _usual_latent(model, ceiling)))
    others += _low_rank(ceiling)
    shortest = own.split(",")[0]
    return designs + [(role, text) for role, text in others if text not in (own, shortest)]


def _low_rank(ceiling: RankCeiling) -> list[tuple[str, str]]:
    """The aligned rank, without rotary positions and with keys rotated as they are rebuilt."""
    text = ceiling.aligned.text
    if ceiling.aligned.value == 0:
        return [("LRKV, no aligned rank in the budget", text)]
    rotated = f"{text},position=rope_expand"
    return [("LRKV, aligned rank in the budget", text), ("LRKV, keys rotated", rotated)]


def _usual_latent(model: ModelSpec, ceiling: RankCeiling) -> str:
    """DeepSeek's proportions, d_c = 4 d_h (arXiv:2405.04434, 3.1.2), or less if the budget asks."""
    assert ceiling.latent is not None
    head_dim = next(g.attention.backbone().head_dim for g in model.attention_groups if g.attention)
    rope = ceiling.latent.text.partition("+")[2]
    return f"mla:{min(ceiling.latent.value, 4 * head_dim)}+{rope}"
