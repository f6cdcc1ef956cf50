"""What a plan settles before it computes: GPUs per replica, cache budget, designs to compare."""

from __future__ import annotations

from dataclasses import replace

from lrkv_plan.calculators.cache_bytes import ratio_to_mha
from lrkv_plan.calculators.rank_ceiling import RankCeiling
from lrkv_plan.engines.deployment import Deployment
from lrkv_plan.engines.planning import capacity_row
from lrkv_plan.errors import PlacementError, RequirementError, UsageError
from lrkv_plan.specs.attention_text import design_label
from lrkv_plan.specs.model import ModelSpec


def widened_to_fit(model: ModelSpec, deployment: Deployment, most_gpus: int) -> Deployment:
    """The deployment at the smallest size, doubled from its own, that holds one sequence.

    Raises
    ------
    UsageError
        If the deployment's own size is above ``most_gpus``.
    RequirementError
        If no size up to ``most_gpus`` holds one.
    """
    tp_size = deployment.parallel.tp_size
    if tp_size > most_gpus:
        raise UsageError(f"--tp-size {tp_size} takes more GPUs than --n-gpus {most_gpus}")
    reason = "no size was tried"
    while tp_size <= most_gpus:
        wider = replace(deployment, parallel=replace(deployment.parallel, tp_size=tp_size))
        try:
            row = capacity_row(model, wider)
        except PlacementError as error:
            reason = str(error)
        else:
            if row.max_sequences:
                return wider
            reason = row.binds
        tp_size *= 2
    raise RequirementError(
        f"{model.name}: no tensor-parallel size up to {most_gpus} holds a sequence of "
        f"{deployment.settings.context_tokens:,} tokens ({reason}); use a shorter context, a "
        "smaller format or more GPUs"
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
