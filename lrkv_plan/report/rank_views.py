"""Ranks as people read them: the ceiling of a cache budget, and what fits wanted sequences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.spec_views import DESIGN
from lrkv_plan.report.tables import Column, Row, Table, count, percent, ratio
from lrkv_plan.specs.attention_text import design_label
from lrkv_plan.specs.budget_text import parse_budget
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.calculators.budget_fit import Fit
    from lrkv_plan.calculators.rank_ceiling import OwnReading, RankCeiling
    from lrkv_plan.engines.planning import CapacityRow
    from lrkv_plan.engines.rank_fit import RankFit
    from lrkv_plan.specs.model import ModelSpec


def rank_table(
    model: ModelSpec, inputs: dict[str, Any], answer: RankCeiling, own: OwnReading | None = None
) -> Table:
    """The rank ceiling and what else fits the same budget; ``own`` is the other reading of it."""
    aligned_name = f"multiple of {answer.alignment}"
    named: list[tuple[str, str, Fit | None]] = [
        ("largest rank", "", answer.largest),
        (aligned_name, "aligned_", answer.aligned),
        (f"stored padded to {answer.alignment}", "padded_", answer.padded),
        ("GQA in the budget", "gqa_", answer.grouped),
        ("MLA in the budget", "mla_", answer.latent),
    ]
    value_keys = {
        "": "rank", "aligned_": "aligned_rank", "padded_": "padded_rank",
        "gqa_": "gqa_kv_heads", "mla_": "mla_latent_dim",
    }  # fmt: skip
    row: dict[str, Any] = {
        "model": model.name,
        "budget": inputs["budget"],
        "budget_bytes_per_token_per_gpu": answer.budget_bytes_per_token_per_gpu,
        "budget_share_of_own": own and own.budget_share_of_own,
        "share_of_own_budget": own and own.text,
        "share_of_own_rank": own and own.largest and own.largest.value,
        "align": answer.alignment,
        "next_rank_price_bytes_per_token_per_gpu": answer.next_rank_price_bytes,
        "next_rank_shortfall_bytes_per_token_per_gpu": answer.next_rank_shortfall_bytes,
    }
    shown = []
    for title, prefix, fit in named:
        row |= {value_keys[prefix]: None if fit is None else fit.value}
        row |= {
            f"{prefix}{key}": None if fit is None else getattr(fit, name)
            for key, name in _CEILING_KEYS
        }
        if fit is not None:
            shown.append(
                {"title": title, **{key: getattr(fit, name) for key, name in _CEILING_KEYS}}
            )
    price, shortfall = answer.next_rank_price_bytes, answer.next_rank_shortfall_bytes
    next_rank = (
        f"the next rank adds {count(price)} B per token and GPU, {count(shortfall)} B beyond the "
        "budget"
        if price is not None and shortfall is not None
        else "the rank is as wide as a head, and the budget would allow more"
    )
    return Table(
        title=f"Rank ceiling of {model.name}: {parse_budget(inputs['budget']).described} = "
        f"{count(answer.budget_bytes_per_token_per_gpu)} B per token and GPU",
        inputs=inputs,
        rows=[row],
        shown_rows=shown,
        columns=(
            Column(key="title", title="", is_number=False),
            DESIGN,
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="spare_bytes_per_token_per_gpu", title="spare", text=count),
            Column(key="ratio", title="of MHA", text=percent),
            Column(key="kv_params_ratio", title="K/V weights", text=percent),
            Column(key="arithmetic_ratio", title="arithmetic", text=ratio),
            Column(key="arithmetic_ratio_limit", title="long context", text=ratio),
        ),
        remarks=(
            *_own_remarks(model, inputs, own),
            next_rank,
            *_rank_remarks(inputs, answer),
            *answer.remarks,
            *model.remarks,
        ),
    )


def _own_remarks(model: ModelSpec, inputs: dict[str, Any], own: OwnReading | None) -> Iterator[str]:
    """Both readings of a share, where they differ."""
    if own is None:
        return
    held = f"holds rank {own.largest.value}" if own.largest else "holds not even rank 0"
    yield (
        f"{parse_budget(inputs['budget']).described} is {float(own.budget_share_of_own):.4g} times "
        f"what this model caches now ({design_label(model)}); {own.text} {held} "
        f"(--budget '{own.text}')"
    )


_CEILING_KEYS = (
    ("attention", "text"),
    ("ratio", "ratio_to_mha"),
    ("bytes_per_token_per_gpu", "bytes_per_token_per_gpu"),
    ("spare_bytes_per_token_per_gpu", "spare_bytes_per_token_per_gpu"),
    ("kv_params_ratio", "kv_params_ratio"),
    ("arithmetic_ratio", "arithmetic_ratio"),
    ("arithmetic_ratio_limit", "arithmetic_ratio_limit"),
)


def _rank_remarks(inputs: dict[str, Any], answer: RankCeiling) -> Iterator[str]:
    if answer.padded.spare_bytes_per_token_per_gpu < 0:
        yield (
            f"rank {answer.largest.value} padded to a multiple of {answer.alignment} exceeds the "
            f"budget; rank {answer.aligned.value} does not"
        )
    if answer.latent is not None and inputs["mla_rope_dim"] is None:
        yield "MLA's rotary width is the backbone's own, or half a head (--mla-rope-dim)"
    if inputs["position"] == "rope_rank":
        yield "rope_rank is exact only if the trained basis spans whole rotary planes"
    yield (
        f"of MHA, weights and arithmetic compare with MHA on the same backbone; arithmetic at "
        f"{inputs['context_tokens']:,} cached tokens, softmax and rotations not counted"
    )


def rank_fit_table(model: ModelSpec, inputs: Row, answer: RankFit) -> Table:
    """The largest rank with which the wanted sequences fit, and what else does."""
    named = (
        ("largest rank", "", "rank", answer.largest),
        (f"multiple of {answer.alignment}", "aligned_", "aligned_rank", answer.aligned),
        ("next rank", "next_", "next_rank", answer.following),
        ("GQA that fits", "gqa_", "gqa_kv_heads", answer.grouped),
        ("MLA that fits", "mla_", "mla_latent_dim", answer.latent),
    )
    flat: dict[str, Any] = {
        "model": model.name,
        "fit_sequences": answer.n_sequences,
        "align": answer.alignment,
    }
    shown = []
    for title, prefix, value_key, fit in named:
        facts = {} if fit is None else {"attention": fit.text, **_fit_facts(fit.row)}
        flat[value_key] = None if fit is None else fit.value
        flat |= {f"{prefix}{key}": facts.get(key) for key in ("attention", *_FIT_KEYS)}
        if facts:
            shown.append({"title": title, **facts})
    row = answer.largest.row
    context = f"{row.context_tokens:,} tokens on {row.n_gpus} x {row.gpu or 'a stated pool'}"
    return Table(
        title=f"Rank of {model.name} that fits {answer.n_sequences:,} sequences of {context}",
        inputs=inputs,
        rows=[flat],
        shown_rows=shown,
        columns=(
            Column(key="title", title="", is_number=False),
            DESIGN,
            Column(key="total_sequences", title="sequences", text=count),
            Column(key="kv_budget_bytes_per_gpu", title="budget/GPU", text=format_bytes),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="ratio", title="of MHA", text=percent),
            Column(key="waste_share", title="waste", text=percent),
        ),
        remarks=(
            f"ranks are stored at multiples of {answer.alignment}; of MHA compares what is stored",
            *answer.remarks,
            *model.remarks,
        ),
    )


_FIT_KEYS = (
    "total_sequences", "kv_budget_bytes_per_gpu", "bytes_per_token_per_gpu", "ratio", "waste_share",
)  # fmt: skip


def _fit_facts(row: CapacityRow) -> dict[str, Any]:
    facts = {key: getattr(row, key) for key in _FIT_KEYS if key != "ratio"}
    return {**facts, "ratio": row.ratio_to_mha}
