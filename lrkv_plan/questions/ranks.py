"""What does every LRKV rank cost: cache, weights, work, and the sequences that fit?"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan import words
from lrkv_plan.errors import RequirementError, UsageError
from lrkv_plan.questions.arguments import (
    Gpu,
    Model,
    Number,
    budget_text,
    context_of,
    deployment_of,
    load_model,
    low_rank_variant,
    refuse,
    refuse_beside_pool,
    with_provenance,
)
from lrkv_plan.questions.result import Result
from lrkv_plan.report.tables import Column, Table, count, percent

if TYPE_CHECKING:
    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.memory.largest import RankCeiling
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, repr=False, eq=False)
class Ranks(Result):
    """The answer of ``ranks``, with the budget's share of MHA and the ranks within it.

    ``ceiling`` is None without a budget, or where ``refused`` says why no rank fits it.
    ``mha_sequences`` are those of MHA where a pool was named.
    """

    model: ModelSpec
    design: LowRankSpec
    alignment: int
    budget_share: Fraction | None
    ceiling: RankCeiling | None
    refused: str | None
    mha_sequences: int | None


def ranks(
    model: Model,
    *,
    budget: Number | None = None,
    context_tokens: Number | None = None,
    gpu: Gpu | None = None,
    engine: str | None = None,
    n_gpus: Number | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    kv_dtype: str | None = None,
    tp_size: Number | None = None,
    groups: Number | None = None,
    position: str | None = None,
    rope_dim: Number | None = None,
    key_norm: str | None = None,
    spec_dir: str | Path | None = None,
) -> Ranks:
    """Count what each LRKV rank costs against MHA, one row per rank.

    Parameters
    ----------
    budget : also which ranks are within it, as ``rank`` takes it.
    context_tokens : where decode arithmetic is compared, and the length of sequences that fit.
    gpu, kv_memory : also the sequences that fit, with those options that are of an engine.
    align : multiple that a kernel wants ranks to be, 16.
    groups, position, rope_dim, key_norm : of the LRKV design; 1, none, 0, none.

    Raises
    ------
    SpecError, UsageError, PlacementError
        If an argument names nothing, cannot be read, or the answer would not depend on it.

    Notes
    -----
    cache_ratio = P g'/H + r/d_h: the slope is the head width's, the number of heads moves the
    intercept (arXiv:2601.11471v3 eq. 9 and its review, section 4).
    """
    from lrkv_plan.memory.arithmetic import arithmetic_ratio_to_mha
    from lrkv_plan.memory.cache import ratio_to_mha, reference_mha
    from lrkv_plan.memory.weights import kv_params_ratio_to_mha
    from lrkv_plan.report.views.specs import model_inputs
    from lrkv_plan.serving.capacity import capacity_row
    from lrkv_plan.specs.design import sizes_of, swap_attention, widest_rank, with_size

    spec = load_model(model, spec_dir=spec_dir)
    widest_rank(spec)
    of_pool: dict[str, Any] = {
        "engine": engine, "n_gpus": n_gpus, "weight_dtype": weight_dtype, "weights": weights,
        "utilisation": utilisation,
    }  # fmt: skip
    if gpu is None and kv_memory is None:
        refuse(of_pool, "counts only with a GPU (--gpu) or a pool (--kv-memory); leave it out")
    refuse_beside_pool(
        kv_memory, utilisation=utilisation, weights=weights, weight_dtype=weight_dtype
    )
    context = context_of(context_tokens, spec)
    size = 1 if tp_size is None else words.count("tp_size", tp_size)
    kv_format = words.given(kv_dtype, "bf16")
    alignment = words.count("align", words.given(align, 16))
    design = low_rank_variant(
        spec,
        n_shared_groups=1 if groups is None else words.count("groups", groups),
        position=words.given(position, "none"),
        rope_dim=words.optional(words.whole, "rope_dim", rope_dim),
        key_norm=words.given(key_norm, "none"),
    )
    deployment = None
    if gpu is not None or kv_memory is not None:
        deployment = deployment_of(
            model, spec, gpu=gpu, context_tokens=context, kv_dtype=kv_dtype, tp_size=size,
            kv_memory=kv_memory, align=align, spec_dir=spec_dir, **of_pool,
        )  # fmt: skip
    share, ceiling, refused = _within(spec, budget_text(budget), alignment, kv_format, size, design)
    varied = swap_attention(spec, design)
    rows = []
    for rank in sizes_of(varied):
        one = with_size(varied, rank)
        cached = ratio_to_mha(one, kv_dtype=kv_format, tp_size=size)
        if cached is None:
            raise UsageError(f"{spec.name}: no layer keeps keys and values")
        rows.append({
            "model": spec.name,
            "rank": rank,
            "cache_ratio": cached,
            "kv_params_ratio": kv_params_ratio_to_mha(one),
            "arithmetic_ratio": arithmetic_ratio_to_mha(one, context),
            "total_sequences": _held(one, deployment),
            "is_aligned": rank % alignment == 0,
            "in_budget": None if budget is None else (
                ceiling is not None and rank <= ceiling.largest.value
            ),
        })  # fmt: skip
    stated = {
        "model": model_inputs(spec), "budget": budget, "align": alignment,
        "context_tokens": context, "kv_dtype": kv_format, "tp_size": size,
        "n_shared_groups": design.n_shared_groups, "position": design.position,
        "rope_dim": design.rope_dim, "key_norm": design.key_norm,
        "deployment": None if deployment is None else _deployment_inputs(deployment),
    }  # fmt: skip
    mha = None if deployment is None else capacity_row(reference_mha(spec), deployment)
    gpus = None if deployment is None else deployment.hardware
    return Ranks(
        with_provenance(_table(spec, stated, rows, refused), spec, gpus),
        model=spec, design=design, alignment=alignment, budget_share=share, ceiling=ceiling,
        refused=refused, mha_sequences=None if mha is None else mha.total_sequences,
    )  # fmt: skip


def _deployment_inputs(deployment: Deployment) -> dict[str, Any]:
    from lrkv_plan.report.views.capacity import deployment_inputs

    return deployment_inputs(deployment)


def _held(design: ModelSpec, deployment: Deployment | None) -> int | None:
    from lrkv_plan.serving.capacity import capacity_row

    return None if deployment is None else capacity_row(design, deployment).total_sequences


def _within(
    model: ModelSpec,
    budget: str | None,
    alignment: int,
    kv_dtype: str,
    tp_size: int,
    design: LowRankSpec,
) -> tuple[Fraction | None, RankCeiling | None, str | None]:
    """The budget as a share of MHA, the ranks within it, or why there is none."""
    from lrkv_plan.memory.cache import bytes_per_token, reference_mha
    from lrkv_plan.memory.largest import budget_bytes, rank_ceiling
    from lrkv_plan.specs.budget import parse_budget

    if budget is None:
        return None, None, None
    place: dict[str, Any] = {"kv_dtype": kv_dtype, "tp_size": tp_size}
    share = budget_bytes(model, parse_budget(budget), **place) / Fraction(
        bytes_per_token(reference_mha(model), **place)
    )
    try:
        found = rank_ceiling(model, budget=budget, alignment=alignment, design=design, **place)
    except RequirementError as error:
        return share, None, str(error)
    return share, found, None


def _table(
    model: ModelSpec, inputs: dict[str, Any], rows: list[dict[str, Any]], refused: str | None
) -> Table:
    is_placed = inputs["deployment"] is not None
    return Table(
        title=f"What each LRKV rank costs on {model.name}, of MHA",
        inputs=inputs,
        rows=rows,
        columns=(
            Column(key="rank", title="rank", text=count),
            Column(key="cache_ratio", title="cache", text=percent),
            Column(key="kv_params_ratio", title="K/V weights", text=percent),
            Column(key="arithmetic_ratio", title="arithmetic", text=percent),
            *((Column(key="total_sequences", title="fits", text=count),) if is_placed else ()),
        ),
        notes=(*([refused] if refused else []), *model.remarks),
    )
