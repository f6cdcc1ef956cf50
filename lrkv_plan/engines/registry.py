"""Engines by name, and the pool of a whole model: the pipeline stage with the fewest blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lrkv_plan.engines import ideal, llama_cpp, paged, sglang, tensorrt_llm, vllm, vllm_v0
from lrkv_plan.engines.pool import Pool
from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.specs.engine_settings import EngineName, EngineSettings, parse_engine
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.specs.serving import Parallelism, pipeline_stages

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
        As the engine's rule.
    """
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
