"""Designs side by side on one backbone: one frozen row each for weights and placement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.calculators.parameters import (
    MatchedWidth,
    kv_params_ratio_to_mha,
    matched_feed_forward,
    parameter_count,
)
from lrkv_plan.calculators.placement import Placement, try_placements
from lrkv_plan.specs.attention_text import design_label, swap_attention, swapped_label
from lrkv_plan.specs.model import ModelSpec


def designs(model: ModelSpec, texts: Sequence[str]) -> list[tuple[str, ModelSpec]]:
    """(label, model) for the model's own design, or for each ``--attention`` text."""
    if not texts:
        return [(design_label(model), model)]
    swapped = [(text, swap_attention(model, text)) for text in texts]
    return [(swapped_label(model, text, one), one) for text, one in swapped]


@dataclass(frozen=True, kw_only=True)
class ParamsRow:
    """Weights of one design; parts that the spec does not state are None."""

    model: str
    attention: str
    kv_params: int
    ratio_to_mha: Fraction | None
    attention_params: int
    feed_forward_params: int | None
    embedding_params: int | None
    norm_params: int | None
    model_params: int | None
    missing: tuple[str, ...]
    matched: MatchedWidth | None = None


def params_rows(
    model: ModelSpec, texts: Sequence[str] = (), *, match_params: bool = False
) -> list[ParamsRow]:
    """One row per design; with ``match_params`` also the width that restores the model's total.

    Raises
    ------
    SpecError, RequirementError
        As ``matched_feed_forward``.
    """
    rows = []
    for label, design in designs(model, texts):
        count = parameter_count(design)
        rows.append(
            ParamsRow(
                model=model.name,
                attention=label,
                kv_params=count.kv_params,
                ratio_to_mha=kv_params_ratio_to_mha(design),
                attention_params=count.attention_params,
                feed_forward_params=count.feed_forward_params,
                embedding_params=count.embedding_params,
                norm_params=count.norm_params,
                model_params=count.model_params,
                missing=count.missing,
                matched=matched_feed_forward(model, design) if match_params else None,
            )
        )
    return rows


@dataclass(frozen=True, kw_only=True)
class ShardRow:
    """One design, size and policy; ``placement`` is None where ``refused`` says why."""

    model: str
    attention: str
    tp_size: int
    placement: Placement | None
    refused: str | None


def shard_rows(
    model: ModelSpec, texts: Sequence[str] = (), *, tp_sizes: Iterable[int], kv_dtype: str = "bf16"
) -> list[ShardRow]:
    """One row per design, size and policy that an engine can run, or one that says why not."""
    rows = []
    for label, design in designs(model, texts):
        for tp_size in tp_sizes:
            found, refused = try_placements(design, tp_size=tp_size, kv_dtype=kv_dtype)
            rows += [
                ShardRow(
                    model=model.name, attention=label, tp_size=tp_size, placement=one,
                    refused=refused,
                )
                for one in (found or (None,))
            ]  # fmt: skip
    return rows
