"""Pictures of public answers; each function is a kind of ``plot``, its keywords are the options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lrkv_plan
from lrkv_plan import words
from lrkv_plan.errors import UsageError
from lrkv_plan.questions.arguments import (
    Designs,
    Gpu,
    Model,
    Number,
    Numbers,
    Texts,
    budget_text,
    load_gpu,
    load_model,
    refuse,
)
from lrkv_plan.questions.maps import faster_map
from lrkv_plan.questions.ranks import ranks
from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.series import cache_vs_rank as rank_series
from lrkv_plan.report.series import capacity as capacity_series
from lrkv_plan.report.series import crossovers, published, steps
from lrkv_plan.report.series import roofline as roofline_series
from lrkv_plan.report.views.specs import model_inputs
from lrkv_plan.specs.design import default_contexts

if TYPE_CHECKING:
    from lrkv_plan.questions.ranks import Ranks
    from lrkv_plan.questions.times import Rooflines, StepTimes
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.specs.model import ModelSpec


def cache_vs_rank(
    model: Model,
    *,
    heads: Numbers | None = None,
    budget: Number | None = None,
    align: Number | None = None,
    kv_dtype: str | None = None,
    tp_size: Number | None = None,
    groups: Number | None = None,
    position: str | None = None,
    rope_dim: Number | None = None,
    key_norm: str | None = None,
    spec_dir: str | Path | None = None,
) -> Figure:
    """Draw LRKV's cache against its rank, a line for each head count, from ``ranks``.

    Parameters
    ----------
    heads : query heads on the model's backbone; its own when None.
    budget : a share of MHA; with one head count also bytes or a design.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``ranks``, or if the budget is another share of MHA for each head count.
    """
    spec = load_model(model, spec_dir=spec_dir)
    counts = [] if heads is None else words.counts("heads", heads)
    backbones = [(n, _with_heads(spec, n)) for n in counts] or [(rank_series.heads_of(spec), spec)]
    told: dict[str, Any] = {
        "budget": budget, "align": align, "kv_dtype": kv_dtype, "tp_size": tp_size,
        "groups": groups, "position": position, "rope_dim": rope_dim, "key_norm": key_norm,
    }  # fmt: skip
    found = [(n, ranks(backbone, **told)) for n, backbone in backbones]
    shares = {answer.budget_share for _, answer in found}
    if len(shares) > 1:
        raise UsageError(
            f"--budget {budget}: another share of MHA for each head count; give a share such as "
            "50%, or one head count"
        )
    first = found[0][1]
    return rank_series.cache_vs_rank(
        spec,
        [_rank_line(n, answer) for n, answer in found],
        design=first.design,
        budget=budget_text(budget),
        share=shares.pop(),
        alignment=first.alignment,
        kv_dtype=first.table.inputs["kv_dtype"],
        tp_size=first.table.inputs["tp_size"],
    )


def _with_heads(model: ModelSpec, n_heads: int) -> ModelSpec:
    """The same backbone as MHA with that number of heads of the same width."""
    from lrkv_plan.attention.registry import parse_attention
    from lrkv_plan.specs.design import backbones_of

    designs = (parse_attention("mha", b._replace(n_heads=n_heads)) for b in backbones_of(model))
    return model.with_attention(tuple(designs))


def _rank_line(n_heads: int, answer: Ranks) -> rank_series.RankLine:
    ceiling = answer.ceiling
    return rank_series.RankLine(
        n_heads=n_heads,
        ratios={row["rank"]: row["cache_ratio"] for row in answer.table.rows},
        largest=None if ceiling is None else ceiling.largest.value,
        aligned=None if ceiling is None else ceiling.aligned.value,
        refused=answer.refused,
    )


def rank_sweep(
    model: Model,
    *,
    align: Number | None = None,
    context_tokens: Number | None = None,
    gpu: Gpu | None = None,
    engine: str | None = None,
    n_gpus: Number | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    kv_dtype: str | None = None,
    tp_size: Number | None = None,
    groups: Number | None = None,
    position: str | None = None,
    rope_dim: Number | None = None,
    key_norm: str | None = None,
    spec_dir: str | Path | None = None,
) -> Figure:
    """Draw cache, K/V weights, work and, on a GPU, the sequences that fit, from ``ranks``.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``ranks``.
    """
    told = dict(locals())
    answer = ranks(told.pop("model"), **told)
    table = answer.table
    return rank_series.rank_sweep(
        answer.model, table.rows, table.inputs, design=answer.design,
        mha_sequences=answer.mha_sequences,
    )  # fmt: skip


def capacity_vs_context(
    model: Model,
    *,
    gpu: Gpu | None = None,
    attention: Designs | None = None,
    context_tokens: Numbers | None = None,
    engine: str | None = None,
    n_gpus: Number | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    kv_dtype: str | None = None,
    tp_size: Number | None = None,
    beside_own: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Figure:
    """Draw the sequences that fit against their length, a line per design, from ``capacity``.

    Parameters
    ----------
    context_tokens : lengths; powers of two from 1k to the model's maximum, or 128k, when None.
    beside_own : also the model's own design, first.

    Raises
    ------
    SpecError, UsageError, BudgetError, PlacementError
        As ``capacity``, or if no design fits at any length.
    """
    told = dict(locals())
    spec = load_model(told.pop("model"), spec_dir=spec_dir)
    lengths = (
        default_contexts(spec)
        if context_tokens is None
        else sorted(set(words.token_counts("context_tokens", context_tokens)))
    )
    told |= {"context_tokens": lengths, "tp_size": 1 if tp_size is None else tp_size}
    tables = [
        lrkv_plan.capacity(model, **told | one).table
        for one in _asked_twice(told.pop("beside_own"), attention)
    ]
    return capacity_series.capacity_vs_context(
        spec.name,
        [row for table in tables for row in table.rows],
        tables[0].inputs,
        list(dict.fromkeys(remark for table in tables for remark in table.remarks)),
    )


def payload_vs_loss(*, scale: Texts | None = None) -> Figure:
    """Draw cache against the paper's final cross-entropies, a panel for each scale.

    Parameters
    ----------
    scale : "2.5B" and "128M" when None.

    Raises
    ------
    UsageError
        If a scale is unknown, or none of its runs can be placed.
    """
    scales = ["2.5B", "128M"] if scale is None else words.texts("scale", scale)
    return published.payload_vs_loss(scales)


def roofline(
    model: Model,
    *,
    gpu: Gpu,
    attention: Designs | None = None,
    every_path: bool | None = None,
    units: Texts | None = None,
    context_tokens: Number | None = None,
    query_tokens: Number | None = None,
    heads_per_tile: Number | None = None,
    kv_dtype: str | None = None,
    tp_size: Number | None = None,
    beside_own: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Figure:
    """Draw a GPU's datasheet roofline with designs placed on it, from ``roofline``.

    Parameters
    ----------
    every_path : place each decode path of a design, not only its first.
    beside_own : also the model's own design, first.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``roofline``.
    """
    hardware = load_gpu(gpu, spec_dir=spec_dir)
    told: dict[str, Any] = {
        "gpu": gpu, "units": units, "context_tokens": context_tokens, "query_tokens": query_tokens,
        "heads_per_tile": heads_per_tile, "kv_dtype": kv_dtype, "tp_size": tp_size,
        "spec_dir": spec_dir,
    }  # fmt: skip
    answers: list[Rooflines] = [
        lrkv_plan.roofline(model, **told | one) for one in _asked_twice(beside_own, attention)
    ]
    inputs = answers[0].table.inputs
    return roofline_series.roofline(
        answers[0].model,
        [placed for answer in answers for placed in _placed(answer, bool(every_path))],
        hardware,
        units=[unit.strip() for unit in inputs["units"].split(",")],
        **{
            key: inputs[key]
            for key in ("context_tokens", "kv_dtype", "tp_size", "query_tokens", "heads_per_tile")
        },
    )


def _placed(answer: Rooflines, every_path: bool) -> list[tuple[str, list[Any]]]:
    """Each design, or each of its paths, with its point on each unit."""
    placed: dict[tuple[str, str], list[Any]] = {}
    for label, point in answer.points:
        placed.setdefault((label, point.path), []).append(point)
    if every_path:
        return [(f"{label}, {path}", points) for (label, path), points in placed.items()]
    first: dict[str, list[Any]] = {}
    for (label, _), points in placed.items():
        first.setdefault(label, points)
    return list(first.items())


def crossover_map(
    model: Model,
    *,
    gpu: Gpu,
    attention: Designs,
    over: str | None = None,
    context_tokens: Numbers | None = None,
    at_most: Number | None = None,
    batch_size: Number | None = None,
    query_tokens: Number | None = None,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    tp_size: Number | None = None,
    engine: str | None = None,
    spec_dir: str | Path | None = None,
) -> Figure:
    """Draw which of two designs decodes faster, over two axes, from ``faster_map``.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``faster_map``.
    """
    told = dict(locals())
    answer = faster_map(told.pop("model"), **told)
    inputs = answer.table.inputs
    where = (inputs["gpu"], gpus(inputs["tp_size"]), f"{inputs['kv_dtype']} cache")
    return crossovers.crossover_map(
        answer.map, answer.labels, where=caption(answer.model.name, *where), inputs=inputs
    )


def step_stack(
    model: Model,
    *,
    gpu: Gpu,
    attention: Designs | None = None,
    context_tokens: Number | None = None,
    batch_size: Number | None = None,
    query_tokens: Number | None = None,
    kv_dtype: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    tp_size: Number | None = None,
    engine: str | None = None,
    beside_own: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Figure:
    """Draw where a decode step's time goes, a bar per design, from ``step_time``.

    Parameters
    ----------
    beside_own : also the model's own design, first.

    Raises
    ------
    SpecError, UsageError, PlacementError
        As ``step_time``.
    """
    told = dict(locals())
    told.pop("model")
    answers: list[StepTimes] = [
        lrkv_plan.step_time(model, **told | one)
        for one in _asked_twice(told.pop("beside_own"), attention)
    ]
    spec, inputs = answers[0].model, answers[0].table.inputs
    where = (inputs["gpu"], gpus(inputs["tp_size"]), f"{inputs['kv_dtype']} cache")
    return steps.step_stack(
        [one for answer in answers for one in answer.steps],
        context_tokens=inputs["context_tokens"],
        batch_size=inputs["batch_size"],
        query_tokens=inputs["query_tokens"],
        where=caption(spec.name, *where),
        inputs={
            "model": model_inputs(spec),
            "gpu": inputs["gpu"],
            "kv_dtype": inputs["kv_dtype"],
            "weight_dtype": weight_dtype,
            "tp_size": inputs["tp_size"],
            "weight_bytes": inputs["weight_bytes_per_gpu"],
            "engine": inputs["engine"],
        },
    )


def _asked_twice(beside_own: bool | None, attention: Designs | None) -> Sequence[dict[str, Any]]:
    """The designs of one call, or the model's own and then those."""
    if attention is None:
        refuse({"beside_own": beside_own or None}, "without --attention it is drawn alone")
    return [*([{"attention": None}] if beside_own else []), {"attention": attention}]
