"""What designs keep, how large one may be, what it weighs, and where its cache lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, PlacementError
from lrkv_plan.questions.arguments import (
    Designs,
    Gpu,
    Model,
    Models,
    Number,
    Numbers,
    Texts,
    asked_designs,
    budget_text,
    context_of,
    default_context,
    deployment_of,
    designs_of,
    load_model,
    low_rank_variant,
    models_of,
    named,
    refuse,
    refuse_beside_pool,
    with_provenance,
)
from lrkv_plan.questions.asking import Asking
from lrkv_plan.questions.listed import listed
from lrkv_plan.questions.result import Result

if TYPE_CHECKING:
    from lrkv_plan.specs.model import ModelSpec

Row = TypeVar("Row")


def cache(
    model: Models,
    *,
    attention: Designs | None = None,
    context_tokens: Numbers | None = None,
    batch_size: Number | None = None,
    kv_dtype: Texts | None = None,
    tp_size: Numbers | None = None,
    encoder_tokens: Number | None = None,
    detail: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Count the bytes that each design caches, per token, sequence and GPU.

    Parameters
    ----------
    model : one, or several: "llama-3.1-8b,qwen3-8b" or a list.
    attention : designs to swap in, one row each; the model's own when None.
    context_tokens : cached tokens per sequence, one or several; 8k or the smallest maximum.
    batch_size : sequences resident together, 1. [sequences]
    kv_dtype : storage format of cached scalars, one or several; bf16.
    tp_size : GPUs that share the model, one or several sizes; 1.
    encoder_tokens : encoder rows of cross-attention.
    detail : one row per cached tensor.

    Raises
    ------
    SpecError, UsageError
        If an argument names nothing, cannot be read, or the answer would not depend on it.
    """
    given = dict(locals())
    from lrkv_plan.memory.side_by_side import cache_rows, tensor_rows
    from lrkv_plan.report.views.cache import cache_table, tensor_table
    from lrkv_plan.specs.deployment import Workload

    named_models = models_of(model, spec_dir)
    specs = [spec for _, spec in named_models]
    sizes = [1] if tp_size is None else words.counts("tp_size", tp_size)
    workloads = [
        Workload(
            batch_size=_count("batch_size", batch_size, 1),
            kv_dtype=kv_format,
            tp_size=size,
            encoder_tokens=words.optional(words.whole, "encoder_tokens", encoder_tokens),
        )
        for kv_format in listed("kv_dtype", words.given(kv_dtype, "bf16"))
        for size in dict.fromkeys(sizes)
    ]
    contexts = (
        [min(default_context(spec) for spec in specs)]
        if context_tokens is None
        else words.token_counts("context_tokens", context_tokens)
    )
    if all(group.cached_over != "encoder" for spec in specs for group in spec.layers):
        why = (
            f"{specs[0].name} has no cross-attention" if len(specs) == 1
            else "no model here has cross-attention"
        )  # fmt: skip
        refuse({"encoder_tokens": encoder_tokens}, f"{why}; leave it out")
    designs = [(spec, designs_of(spec, attention)) for spec in specs]
    every = [one for _, named_designs in designs for one in named_designs]
    told: dict[str, Any] = {
        "asked": asked_designs(attention), "ask": Asking(_joined(named_models), specs[0], given),
    }  # fmt: skip
    if detail:
        tensors = [
            row
            for spec, some in designs
            for workload in workloads
            for row in _of_model(
                spec,
                specs,
                partial(tensor_rows, some, contexts=contexts, workload=workload),
            )
        ]
        return Result(
            with_provenance(tensor_table(specs, every, tensors, workloads, **told), *specs)
        )
    rows = [
        row
        for spec, some in designs
        for workload in workloads
        for row in _of_model(
            spec,
            specs,
            partial(cache_rows, some, own=spec, contexts=contexts, workload=workload),
        )
    ]
    return Result(with_provenance(cache_table(specs, every, rows, workloads, **told), *specs))


def rank(
    model: Model,
    *,
    budget: Number | None = None,
    fit_sequences: Number | None = None,
    gpu: Gpu | None = None,
    n_gpus: Number | None = None,
    engine: str | None = None,
    weight_dtype: str | None = None,
    weights: int | str | None = None,
    utilisation: Number | None = None,
    kv_memory: int | str | None = None,
    align: Number | None = None,
    tp_size: Number | None = None,
    kv_dtype: str | None = None,
    groups: Number | None = None,
    position: str | None = None,
    rope_dim: Number | None = None,
    key_norm: str | None = None,
    context_tokens: Number | None = None,
    mla_rope_dim: Number | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Find the largest LRKV rank within a cache budget, and what else fits it.

    Parameters
    ----------
    budget : "50%", 0.5 or "1/3" of MHA; "50% of own"; "96 KiB/token"; "24 KiB/token/gpu"; or a
        design: "gqa:6".
    fit_sequences : instead of ``budget``: sequences of ``context_tokens`` that must fit on ``gpu``.
    align : multiple that a kernel wants ranks to be, 16.
    groups, position, rope_dim, key_norm : of the LRKV design; 1, none, 0, none.
    mla_rope_dim : rope width of the MLA that is compared with.

    Raises
    ------
    SpecError, UsageError
        If an argument names nothing, cannot be read, or the answer would not depend on it.
    """
    given = dict(locals())
    from lrkv_plan.formats import storage_format
    from lrkv_plan.report.views.specs import model_inputs

    if (budget is None) == (fit_sequences is None):
        raise ArgumentError(
            ["budget", "fit_sequences"], ": give one of the two, the latter with --gpu"
        )
    placed: dict[str, Any] = {
        "gpu": gpu, "n_gpus": n_gpus, "engine": engine, "weight_dtype": weight_dtype,
        "weights": weights, "utilisation": utilisation, "kv_memory": kv_memory,
    }  # fmt: skip
    if budget is not None:
        refuse(
            placed,
            "a --budget of bytes does not depend on it; leave it out, or ask with --fit-sequences",
        )
    refuse_beside_pool(
        kv_memory, utilisation=utilisation, weights=weights, weight_dtype=weight_dtype
    )
    spec = load_model(model, spec_dir=spec_dir)
    context = context_of(context_tokens, spec)
    kv_format = words.given(kv_dtype, "bf16")
    variant: dict[str, Any] = {
        "position": words.given(position, "none"),
        "rope_dim": words.optional(words.whole, "rope_dim", rope_dim),
        "key_norm": words.given(key_norm, "none"),
    }
    n_groups = _count("groups", groups, 1)
    design = low_rank_variant(spec, n_shared_groups=n_groups, **variant)
    latent_rope = words.optional(words.whole, "mla_rope_dim", mla_rope_dim)
    alignment, gpus = _count("align", align, 16), _count("tp_size", tp_size, 1)
    budget = budget_text(budget)
    stated = {
        "model": model_inputs(spec),
        "budget": budget,
        "align": alignment,
        "tp_size": gpus,
        "kv_dtype": storage_format(kv_format).name,
        "context_tokens": context,
        "n_shared_groups": n_groups,
        **variant,
        "rope_dim": words.given(variant["rope_dim"], 0),
        "mla_rope_dim": latent_rope,
    }
    if budget is not None:
        from lrkv_plan.memory.largest import own_reading, rank_ceiling
        from lrkv_plan.report.views.cache import rank_table

        told: dict[str, Any] = {
            "alignment": alignment, "tp_size": gpus, "kv_dtype": kv_format,
            "context_tokens": context, "design": design, "latent_rope_dim": latent_rope,
        }  # fmt: skip
        answer = rank_ceiling(spec, budget=budget, **told)
        own = own_reading(spec, budget, **told)
        table = rank_table(spec, stated, answer, own, Asking(model, spec, given))
        return Result(with_provenance(table, spec))

    from lrkv_plan.report.views.cache import rank_fit_table
    from lrkv_plan.serving.capacity import rank_for_sequences

    deployment = deployment_of(
        model, spec, context_tokens=context, kv_dtype=kv_format, tp_size=gpus, align=alignment,
        spec_dir=spec_dir, **placed,
    )  # fmt: skip
    wanted = words.count("fit_sequences", fit_sequences)
    fitted = rank_for_sequences(
        spec, deployment, wanted, design=design, latent_rope_dim=latent_rope
    )
    place = {
        "fit_sequences": wanted,
        "gpu": None if gpu is None else named(gpu, spec_dir),
        "engine": words.given(engine, "vllm"),
    }
    ask = Asking(model, spec, given)
    title = None if deployment.hardware is None else deployment.hardware.title
    table = rank_fit_table(spec, {**stated, **place}, fitted, title, ask)
    return Result(with_provenance(table, spec, deployment.hardware))


def params(
    model: Models,
    *,
    attention: Designs | None = None,
    match_params: bool | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Count key/value weights and the whole model's, per design.

    Parameters
    ----------
    model : one, or several: "llama-3.1-8b,qwen3-8b" or a list.
    attention : designs to swap in, one row each; the model's own when None.
    match_params : also the feed-forward width that restores the model's parameter count.

    Raises
    ------
    SpecError, UsageError
        If an argument names nothing or cannot be read.
    """
    given = dict(locals())
    from lrkv_plan.memory.side_by_side import params_rows
    from lrkv_plan.report.views.cache import params_table

    named_models = models_of(model, spec_dir)
    specs = [spec for _, spec in named_models]
    designs, matched = [(spec, designs_of(spec, attention)) for spec in specs], bool(match_params)
    rows = [row for spec, some in designs for row in params_rows(spec, some, match_params=matched)]
    table = params_table(
        specs, [one for _, some in designs for one in some], rows, matched,
        asked=asked_designs(attention), ask=Asking(_joined(named_models), specs[0], given),
    )  # fmt: skip
    return Result(with_provenance(table, *specs))


def shard(
    model: Model,
    *,
    attention: Designs | None = None,
    tp_size: Numbers | None = None,
    kv_dtype: str | None = None,
    spec_dir: str | Path | None = None,
) -> Result:
    """Place each design's cache on tensor-parallel GPUs: bytes per GPU and the repeated share.

    Parameters
    ----------
    tp_size : GPUs that share the model, one or several sizes; 1, 2, 4 and 8.
    kv_dtype : storage format of cached scalars, bf16.

    Raises
    ------
    SpecError, UsageError
        If an argument names nothing or cannot be read.
    """
    given = dict(locals())
    from lrkv_plan.formats import storage_format
    from lrkv_plan.memory.side_by_side import shard_rows
    from lrkv_plan.report.views.cache import shard_table
    from lrkv_plan.report.views.specs import model_inputs

    spec = load_model(model, spec_dir=spec_dir)
    sizes = [1, 2, 4, 8] if tp_size is None else words.counts("tp_size", tp_size)
    designs, kv_format = designs_of(spec, attention), words.given(kv_dtype, "bf16")
    rows = shard_rows(designs, tp_sizes=sizes, kv_dtype=kv_format)
    inputs = {
        "model": model_inputs(spec),
        "tp_size": sizes,
        "kv_dtype": storage_format(kv_format).name,
    }
    table = shard_table(
        spec, designs, rows, inputs, asked=asked_designs(attention),
        ask=Asking(model, spec, given),
    )  # fmt: skip
    return Result(with_provenance(table, spec))


def _joined(models: Sequence[tuple[str, ModelSpec]]) -> str:
    """The models as one argument."""
    return ",".join(text for text, _ in models)


def _of_model(
    model: ModelSpec, models: Sequence[ModelSpec], rows: Callable[[], list[Row]]
) -> list[Row]:
    """The rows of one model; of several, a size that it cannot run on names it."""
    try:
        return rows()
    except PlacementError as error:
        if len(models) == 1:
            raise
        raise PlacementError(f"{model.name}: {error}") from None


def _count(name: str, value: Number | None, default: int) -> int:
    return default if value is None else words.count(name, value)
