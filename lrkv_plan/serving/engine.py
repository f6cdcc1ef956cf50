"""Engines by name, and the pool of a whole model: the pipeline stage with the fewest blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lrkv_plan.errors import PlacementError, UsageError, did_you_mean, shown
from lrkv_plan.serving.engines import ideal, llama_cpp, paged, sglang, tensorrt_llm, vllm, vllm_v0
from lrkv_plan.serving.pool import Pool
from lrkv_plan.specs.deployment import (
    EngineName,
    EngineSettings,
    Parallelism,
    parse_engine,
    pipeline_stages,
)
from lrkv_plan.specs.model import ModelSpec

PoolRule = Callable[..., Pool]

ENGINES: dict[str, PoolRule] = {
    "ideal": ideal.pool,
    "paged": paged.pool,
    "vllm": vllm.pool,
    "vllm_v0": vllm_v0.pool,
    "vllm_ascend": vllm.pool,
    "sglang": sglang.pool,
    "llama_cpp": llama_cpp.pool,
    "ik_llama_cpp": llama_cpp.pool,
    "tensorrt_llm": tensorrt_llm.pool,
}


_ALL_SIZES = frozenset({"tp_size", "pp_size", "dp_size", "ep_size", "dcp_size"})
# Kinds of parallelism that an engine runs; those without a row here are no engine and run all.
SIZES: dict[str, frozenset[str]] = {
    "vllm_v0": frozenset({"tp_size", "pp_size"}),
    "sglang": _ALL_SIZES - {"dcp_size"},
    "tensorrt_llm": _ALL_SIZES - {"dcp_size"},
    "llama_cpp": frozenset({"pp_size"}),
    "ik_llama_cpp": frozenset({"pp_size"}),
}
# Settings that an engine's rules read, beside those that all read.
READS: dict[str, frozenset[str]] = {
    "ideal": frozenset(),
    "paged": frozenset({"page_tokens"}),
    "vllm": frozenset({"page_tokens", "max_batched_tokens", "prefix_cache"}),
    "vllm_v0": frozenset({"page_tokens", "max_batched_tokens"}),
    "vllm_ascend": frozenset({"page_tokens", "max_batched_tokens", "prefix_cache"}),
    "sglang": frozenset({"page_tokens"}),
    "tensorrt_llm": frozenset({"page_tokens", "max_batched_tokens"}),
    "llama_cpp": frozenset({"max_batched_tokens"}),
    "ik_llama_cpp": frozenset({"max_batched_tokens"}),
}


def check_layout(model: ModelSpec, engine: EngineName, parallel: Parallelism) -> None:
    """Refuse sizes that the engine does not run, or that nothing in the model is dealt out by.

    Raises
    ------
    PlacementError
        Naming the sizes.
    """
    used = [name for name in sorted(_ALL_SIZES) if getattr(parallel, name) > 1]
    unknown = [name for name in used if name not in SIZES.get(engine.name, _ALL_SIZES)]
    if unknown:
        runs = ", ".join(f"--{name.replace('_', '-')}" for name in sorted(SIZES[engine.name]))
        raise PlacementError(
            f"{engine.name} does not run {', '.join(unknown)} above 1; it runs {runs}, and "
            "replicas (--n-gpus)"
        )
    has_experts = any(
        group.feed_forward is not None and group.feed_forward.kind == "experts"
        for group in model.layers
    )
    is_stated = all(group.feed_forward is not None for group in model.layers)
    if parallel.ep_size > 1 and is_stated and not has_experts:
        raise PlacementError(f"ep_size {parallel.ep_size}: {model.name} has no experts to deal out")


def engine_named(text: str) -> EngineName:
    """The engine of ``--engine`` text; vLLM before 0.8 is its V0 engine.

    Raises
    ------
    UsageError
        If no such engine is known; the message lists them.

    Examples
    --------
    >>> engine_named("vllm@0.6.3").name
    'vllm_v0'
    """
    engine = parse_engine(text)
    if engine.name not in ENGINES:
        hint = did_you_mean(engine.name, ENGINES)
        raise UsageError(f"engine {shown(text)} is unknown{hint}; known: {', '.join(ENGINES)}")
    if engine.name == "vllm" and not engine.at_least(0, 8):
        return replace(engine, name="vllm_v0")
    return engine


def stage_models(model: ModelSpec, pp_size: int) -> tuple[ModelSpec, ...]:
    """The layers of each pipeline stage as a model of their own.

    Raises
    ------
    PlacementError
        If there are fewer layers than stages.
    """
    if pp_size == 1:
        return (model,)
    order = model.layer_order or tuple(
        index for index, group in enumerate(model.layers) for _ in range(group.count)
    )
    stages = []
    for layers in pipeline_stages(len(order), pp_size):
        counts: dict[int, int] = {}
        for layer in layers:
            counts[order[layer]] = counts.get(order[layer], 0) + 1
        groups = tuple(
            model.layers[index].model_copy(update={"count": count})
            for index, count in counts.items()
        )
        stages.append(model.model_copy(update={"layers": groups, "layer_order": None}))
    return tuple(stages)


def pool_of(
    model: ModelSpec,
    stage_budgets_bytes: tuple[int, ...],
    settings: EngineSettings,
    *,
    engine: EngineName,
    parallel: Parallelism,
) -> Pool:
    """The pool of one engine replica.

    ``stage_budgets_bytes`` is the cache budget of one GPU of each pipeline stage. All stages hold
    the same sequences, so the stage with the fewest sequences (then tokens) decides. Draft layers
    run on the last stage.

    Raises
    ------
    PlacementError
        As ``check_layout`` and the engine's rule.
    """
    check_layout(model, engine, parallel)
    stages = stage_models(model, parallel.pp_size)
    pools = []
    for index, (stage, budget) in enumerate(zip(stages, stage_budgets_bytes, strict=True)):
        is_last = index == len(stages) - 1
        told = settings if is_last else replace(settings, draft_layers=0)
        if not _keeps_anything(stage):
            continue
        pools.append(
            ENGINES[engine.name](
                stage, max(0, budget), told, engine=engine,
                tp_size=parallel.tp_size, dcp_size=parallel.dcp_size,
            )
        )  # fmt: skip
    return min(pools, key=_fewest)


def _fewest(pool: Pool) -> Any:
    return (pool.max_concurrency, pool.kv_tokens)


def _keeps_anything(stage: ModelSpec) -> bool:
    return any(g.state or (g.attention is not None and not g.reuses_cache) for g in stage.layers)
