"""Cache, ranks, weights and placement as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.formats import storage_format
from lrkv_plan.memory.weights import mtp_params, uncounted_weights
from lrkv_plan.notes import Note, definition, limit
from lrkv_plan.report.screens.cache import (
    Asked,
    CacheAnswer,
    cache_explanation,
    cache_screen,
    tensor_explanation,
    tensors_screen,
)
from lrkv_plan.report.screens.params import ParamsAnswer, params_explanation, params_screen
from lrkv_plan.report.screens.rank import Ask, RankAnswer, rank_equations, rank_screen
from lrkv_plan.report.screens.rank_fit import (
    RankFitAnswer,
    rank_fit_equations,
    rank_fit_screen,
)
from lrkv_plan.report.screens.shard import ShardAnswer, shard_explanation, shard_screen
from lrkv_plan.report.tables import Column, Row, Table, as_row, count, percent, ratio, table_notes
from lrkv_plan.report.views.specs import (
    DESIGN,
    MODEL,
    about,
    at_least,
    listed,
    model_inputs,
    one_or_all,
)
from lrkv_plan.specs.budget import parse_budget
from lrkv_plan.specs.design import design_label
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.memory.largest import Fit, OwnReading, RankCeiling
    from lrkv_plan.memory.side_by_side import CacheRow, ParamsRow, ShardRow, TensorRow
    from lrkv_plan.serving.capacity import CapacityRow, RankFit
    from lrkv_plan.specs.deployment import Workload
    from lrkv_plan.specs.design import NamedDesign
    from lrkv_plan.specs.model import ModelSpec

_CONTEXT = Column(key="context_tokens", title="context", text=count)
_TP_SIZE = Column(key="tp_size", title="GPUs", text=count)


def cache_table(
    models: Sequence[ModelSpec],
    designs: Sequence[NamedDesign],
    rows: Sequence[CacheRow],
    workloads: Sequence[Workload],
    *,
    asked: Sequence[Asked] = (),
    ask: Ask | None = None,
) -> Table:
    """Cache per model, design, format, number of GPUs and context."""
    extra = []
    if any(row.index_bytes_per_token for row in rows):
        extra.append(Column(key="index_bytes_per_token", title="index B/token", text=count))
    if any(row.state_bytes_per_sequence for row in rows):
        extra.append(
            Column(key="state_bytes_per_sequence", title="state/sequence", text=format_bytes)
        )
    answer = CacheAnswer(models=models, named=designs, asked=asked, workloads=workloads, rows=rows)
    table = Table(
        title=_cache_title("Cache", models, workloads),
        inputs=_cache_inputs(models, workloads, [row.context_tokens for row in rows]),
        rows=[as_row(row) for row in rows],
        columns=(
            *_cache_names(models, workloads),
            _CONTEXT,
            Column(key="bytes_per_token", title="B/token", text=count),
            Column(key="bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            *extra,
            Column(key="cache_bytes", title="cache", text=format_bytes),
            Column(key="cache_bytes_per_gpu", title="cache/GPU", text=format_bytes),
            Column(key="ratio_to_mha", title="of MHA", text=percent),
        ),
        notes=_cache_notes(models, rows, workloads[0]),
        explain=cache_explanation(answer),
    )
    return replace(table, screen=lambda: cache_screen(answer, table_notes(table), ask))


def tensor_table(
    models: Sequence[ModelSpec],
    designs: Sequence[NamedDesign],
    rows: Sequence[TensorRow],
    workloads: Sequence[Workload],
    *,
    asked: Sequence[Asked] = (),
    ask: Ask | None = None,
) -> Table:
    """One row per cached tensor."""
    answer = CacheAnswer(models=models, named=designs, asked=asked, workloads=workloads, rows=rows)
    table = Table(
        title=_cache_title("Cached tensors", models, workloads),
        inputs=_cache_inputs(models, workloads, [row.context_tokens for row in rows]),
        rows=[as_row(row) for row in rows],
        columns=(
            *_cache_names(models, workloads),
            _CONTEXT,
            Column(key="layers", title="layers", text=count),
            Column(key="tensor", title="tensor", is_number=False),
            Column(key="width", title="width", text=count),
            Column(key="copies_per_layer", title="copies", text=count),
            Column(key="copies_per_gpu", title="on a GPU", text=count),
            Column(key="sharding", title="sharding", is_number=False),
            Column(key="window_tokens", title="window", text=count),
            Column(key="bytes_per_token", title="B/token", text=count),
            Column(key="cache_bytes", title="cache", text=format_bytes),
            Column(key="cache_bytes_per_gpu", title="cache/GPU", text=format_bytes),
        ),
        notes=_cache_notes(models, (), workloads[0]),
        explain=tensor_explanation,
    )
    return replace(table, screen=lambda: tensors_screen(answer, table_notes(table), ask))


def _cache_names(models: Sequence[ModelSpec], workloads: Sequence[Workload]) -> Iterator[Column]:
    """Columns that tell rows apart."""
    if len(models) > 1:
        yield MODEL
    yield DESIGN
    if len({one.kv_dtype for one in workloads}) > 1:
        yield Column(key="kv_dtype", title="format", is_number=False)
    if len({one.tp_size for one in workloads}) > 1:
        yield _TP_SIZE


def _cache_title(what: str, models: Sequence[ModelSpec], workloads: Sequence[Workload]) -> str:
    batch = workloads[0].batch_size
    sequences = "1 sequence" if batch == 1 else f"{batch:,} sequences"
    sizes = list(dict.fromkeys(one.tp_size for one in workloads))
    gpus = f"tensor parallel over {listed(sizes)} GPUs" if sizes != [1] else "1 GPU"
    names = ", ".join(model.name for model in models)
    formats = " or ".join(dict.fromkeys(one.kv_dtype for one in workloads))
    return f"{what} of {names}: {formats}, {sequences}, {gpus}"


def _cache_inputs(
    models: Sequence[ModelSpec], workloads: Sequence[Workload], contexts: list[int]
) -> dict[str, Any]:
    first, told = workloads[0], workloads[0].encoder_tokens
    return {
        "model": one_or_all([model_inputs(model) for model in models]),
        "context_tokens": list(dict.fromkeys(contexts)),
        "batch_size": first.batch_size,
        "kv_dtype": one_or_all(
            list(dict.fromkeys(storage_format(one.kv_dtype).name for one in workloads))
        ),
        "tp_size": one_or_all(list(dict.fromkeys(one.tp_size for one in workloads))),
        "encoder_tokens": told or (models[0].encoder_tokens if len(models) == 1 else None),
    }


def _cache_notes(
    models: Sequence[ModelSpec], rows: Sequence[CacheRow], workload: Workload
) -> tuple[str | Note, ...]:
    """Notes of every model, with its name where there are several."""
    return tuple(
        note
        for model in models
        for note in about(
            model, models,
            _cache_remarks(model, [row for row in rows if row.model == model.name], workload),
        )
    )  # fmt: skip


def _cache_remarks(
    model: ModelSpec, rows: Sequence[CacheRow], workload: Workload
) -> Iterator[str | Note]:
    windows = sorted({g.window_tokens for g in model.layers if g.window_tokens is not None})
    if windows:
        yield definition(
            f"some layers keep at most {listed(windows)} tokens, so a cache is smaller than "
            "B/token times its context"
        )
    if any(row.index_bytes_per_token for row in rows):
        yield definition(
            "cache includes sparse-index keys (index B/token), which B/token leaves out"
        )
    if any(row.state_bytes_per_sequence for row in rows):
        yield definition("cache includes recurrent state, which does not grow with the context")
    if any(row.encoder_bytes_per_token for row in rows):
        tokens = workload.encoder_tokens or model.encoder_tokens
        yield (
            definition(f"cache includes cross-attention over {tokens:,} encoder tokens")
            if tokens
            else limit(
                "cross-attention is not in the cache: the number of encoder tokens is not "
                "stated (--encoder-tokens)"
            )
        )
    longest = max((row.context_tokens for row in rows), default=0)
    if model.max_context_tokens and longest > model.max_context_tokens:
        yield limit(f"the model's own maximum is {model.max_context_tokens:,} tokens")
    yield from model.remarks


def rank_table(
    model: ModelSpec,
    inputs: dict[str, Any],
    answer: RankCeiling,
    own: OwnReading | None = None,
    ask: Ask | None = None,
) -> Table:
    """The rank ceiling and what else fits the same budget; ``own`` is the other reading of it."""
    whole = RankAnswer(model=model, inputs=inputs, ceiling=answer, own=own)
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
        **{key: inputs[key] for key in ("tp_size", "kv_dtype", "context_tokens")},
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
        notes=(
            *_own_remarks(model, inputs, own),
            next_rank,
            *_rank_remarks(inputs, answer),
            *answer.remarks,
            *model.remarks,
        ),
        screen=lambda: rank_screen(whole, ask),
        explain=lambda _: rank_equations(whole),
    )


def _own_remarks(
    model: ModelSpec, inputs: dict[str, Any], own: OwnReading | None
) -> Iterator[str | Note]:
    """Both readings of a share, where they differ."""
    if own is None:
        return
    held = f"holds rank {own.largest.value}" if own.largest else "holds not even rank 0"
    yield definition(
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


def _rank_remarks(inputs: dict[str, Any], answer: RankCeiling) -> Iterator[str | Note]:
    if answer.padded.spare_bytes_per_token_per_gpu < 0:
        yield limit(
            f"rank {answer.largest.value} padded to a multiple of {answer.alignment} exceeds the "
            f"budget; rank {answer.aligned.value} does not"
        )
    if answer.latent is not None and inputs["mla_rope_dim"] is None:
        yield "MLA's rotary width is the backbone's own, or half a head (--mla-rope-dim)"
    if inputs["position"] == "rope_rank":
        yield limit("rope_rank is exact only if the trained basis spans whole rotary planes")
    yield definition(
        f"of MHA, weights and arithmetic compare with MHA on the same backbone; arithmetic at "
        f"{inputs['context_tokens']:,} cached tokens, softmax and rotations not counted"
    )


def rank_fit_table(
    model: ModelSpec,
    inputs: Row,
    answer: RankFit,
    gpu_title: str | None = None,
    ask: Ask | None = None,
) -> Table:
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
        **{key: getattr(answer.largest.row, key) for key in _FIT_PLACE},
        "align": answer.alignment,
        "rank_low": None if answer.value_range is None else answer.value_range[0],
        "rank_high": None if answer.value_range is None else answer.value_range[1],
    }
    whole = RankFitAnswer(model=model, fit=answer, gpu_title=gpu_title)
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
        notes=(
            definition(
                f"ranks are stored at multiples of {answer.alignment}; of MHA compares what is "
                "stored"
            ),
            *answer.remarks,
            *model.remarks,
        ),
        screen=lambda: rank_fit_screen(whole, ask),
        explain=lambda _: rank_fit_equations(whole),
    )


_FIT_PLACE = ("gpu", "n_gpus", "tp_size", "context_tokens", "kv_dtype")
_FIT_KEYS = (
    "total_sequences", "kv_budget_bytes_per_gpu", "bytes_per_token_per_gpu", "ratio", "waste_share",
)  # fmt: skip


def _fit_facts(row: CapacityRow) -> dict[str, Any]:
    facts = {key: getattr(row, key) for key in _FIT_KEYS if key != "ratio"}
    return {**facts, "ratio": row.ratio_to_mha}


def params_table(
    models: Sequence[ModelSpec],
    designs: Sequence[NamedDesign],
    rows: Sequence[ParamsRow],
    match_params: bool,
    *,
    asked: Sequence[Asked] = (),
    ask: Ask | None = None,
) -> Table:
    """Weights per model and design."""
    flat = [as_row(row) for row in rows]
    matched = (
        Column(key="hidden_dims", title="matched width", text=lambda dims: listed(dims)),
        Column(key="width_change", title="change", text=lambda change: f"{change:+,}"),
        Column(key="remaining_difference", title="left over", text=lambda left: f"{left:+,}"),
    )
    uncounted = {model.name: uncounted_weights(model) for model in models}
    answer = ParamsAnswer(
        models=models, named=designs, asked=asked, rows=rows, matched=match_params
    )
    return Table(
        title=f"Weights of {', '.join(uncounted)}",
        inputs={
            "model": one_or_all([model_inputs(model) for model in models]),
            "match_params": match_params,
        },
        rows=flat,
        shown_rows=[
            {**row, "model_params": at_least(row["model_params"], uncounted[row["model"]])}
            for row in flat
        ],
        columns=(
            *((MODEL,) if len(models) > 1 else ()),
            DESIGN,
            Column(key="kv_params", title="K/V weights", text=count),
            Column(key="ratio_to_mha", title="of MHA", text=percent),
            Column(key="attention_params", title="attention", text=count),
            *_where(rows, "recurrent_params", "recurrent"),
            Column(key="feed_forward_params", title="feed-forward", text=count),
            Column(key="embedding_params", title="embeddings", text=count),
            *_where(rows, "encoder_params", "encoder"),
            Column(key="model_params", title="model"),
            *(
                (Column(key="active_params", title="active", text=count),)
                if any(row.idle_params for row in rows)
                else ()
            ),
            *_where(rows, "mtp_params", "MTP, apart"),
            *(matched if match_params else ()),
        ),
        notes=tuple(
            note for model in models for note in about(model, models, _params_remarks(model, rows))
        ),
        screen=lambda: params_screen(answer, ask),
        explain=params_explanation(answer),
    )


def _where(rows: Sequence[ParamsRow], key: str, title: str) -> tuple[Column, ...]:
    """A column of parameters that only some models have."""
    has_any = any(getattr(row, key) for row in rows)
    return (Column(key=key, title=title, text=count),) if has_any else ()


def _params_remarks(model: ModelSpec, rows: Sequence[ParamsRow]) -> Iterator[str]:
    missing = sorted({part for row in rows if row.model == model.name for part in row.missing})
    if missing:
        yield f"the whole model is unknown: {', '.join(missing)} not stated in the spec"
    left_out = uncounted_weights(model)
    if left_out:
        yield f"not counted: {'; '.join(left_out)}"
    if mtp_params(model) is None:
        yield f"the weights of {model.draft_layers} draft layers are not known"
    yield from model.remarks


def shard_table(
    model: ModelSpec,
    designs: Sequence[NamedDesign],
    rows: Sequence[ShardRow],
    inputs: dict[str, Any],
    *,
    asked: Sequence[Asked] = (),
    ask: Ask | None = None,
) -> Table:
    """Cache per GPU and over the group, per placement policy."""
    answer = ShardAnswer(
        model=model, named=designs, asked=asked, rows=rows, kv_dtype=inputs["kv_dtype"]
    )
    table = Table(
        title=f"Placement of {model.name}: {inputs['kv_dtype']}, bytes per cached token",
        inputs=inputs,
        rows=[_shard_row(row) for row in rows],
        columns=(
            DESIGN,
            _TP_SIZE,
            Column(key="policy", title="policy", is_number=False),
            Column(key="cache_bytes_per_token_per_gpu", title="B/token/GPU", text=count),
            Column(key="aggregate_bytes_per_token", title="B/token, all GPUs", text=count),
            Column(key="replicated_share", title="repeated", text=percent),
            Column(key="link_bytes_per_token_per_gpu", title="link B/token/GPU", text=count),
            Column(key="aggregate_ratio_to_mha", title="of MHA", text=percent),
        ),
        notes=(
            *dict.fromkeys(
                Note(kind="refusal", subject=row.attention, text=row.refused)
                for row in rows
                if row.refused
            ),
            *_policy_remarks(rows),
            *model.remarks,
        ),
        explain=shard_explanation(answer),
    )
    return replace(table, screen=lambda: shard_screen(answer, table_notes(table), ask))


def _shard_row(row: ShardRow) -> dict[str, Any]:
    placement = row.placement
    flat = {
        "model": row.model, "attention": row.attention, "tp_size": row.tp_size,
        "kv_dtype": row.kv_dtype,
    }  # fmt: skip
    if placement is None:
        return {**flat, "policy": "refused", "refused": row.refused}
    share = {"replicated_share": placement.replicated_share}
    return {**flat, **as_row(placement), **share, "refused": None}


def _policy_remarks(rows: Sequence[ShardRow]) -> Iterator[str]:
    from lrkv_plan.memory.placement import POLICIES

    used = {row.placement.policy for row in rows if row.placement is not None}
    yield from (f"{policy}: {what}" for policy, what in POLICIES.items() if policy in used)
