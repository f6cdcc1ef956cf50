"""Memory that is left for the cache on each GPU: engine, model, GPU and settings in, terms out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction

from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.serving.budget import BudgetInputs, BudgetTerm, MemoryBudget, StageBudget
from lrkv_plan.serving.engines.rest_budgets import (
    llama_cpp_budget,
    sglang_budget,
    tensorrt_llm_budget,
    weights_only_budget,
)
from lrkv_plan.serving.engines.vllm import default_utilisation, vllm_budget
from lrkv_plan.specs.deployment import EngineName, EngineSettings, Parallelism
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

__all__ = ["BudgetTerm", "MemoryBudget", "StageBudget", "budget_for"]


@dataclass(frozen=True, kw_only=True)
class BudgetRule:
    """An engine's rule, its default utilisation, and what is not certain about that default."""

    rule: Callable[[BudgetInputs], MemoryBudget]
    utilisation: Callable[[EngineName], Fraction]
    doubt: str | None = None


def _always(value: str) -> Callable[[EngineName], Fraction]:
    def fixed(_engine: EngineName) -> Fraction:
        return Fraction(value)

    return fixed


BUDGETS: dict[str, BudgetRule] = {
    "ideal": BudgetRule(rule=weights_only_budget, utilisation=_always("1")),
    "paged": BudgetRule(
        rule=weights_only_budget, utilisation=_always("0.9"), doubt="0.9 as engines commonly take"
    ),
    "vllm": BudgetRule(
        rule=vllm_budget,
        utilisation=default_utilisation,
        doubt="0.92 is vLLM's default of 0.25 and later, 0.9 of 0.20 and before; the release that "
        "changed it is assumed to be 0.21",
    ),
    "vllm_v0": BudgetRule(rule=vllm_budget, utilisation=default_utilisation),
    "vllm_ascend": BudgetRule(
        rule=vllm_budget,
        utilisation=default_utilisation,
        doubt="vLLM's default; the constants are those of vLLM on an H100",
    ),
    "sglang": BudgetRule(
        rule=sglang_budget,
        utilisation=_always("0.88"),
        doubt="mem_fraction_static 0.88 is assumed, range 0.79..0.91: SGLang derives it from the "
        "GPU, tp_size and CUDA graphs",
    ),
    "tensorrt_llm": BudgetRule(rule=tensorrt_llm_budget, utilisation=_always("0.9")),
    "llama_cpp": BudgetRule(rule=llama_cpp_budget, utilisation=_always("1")),
    "ik_llama_cpp": BudgetRule(rule=llama_cpp_budget, utilisation=_always("1")),
}


def budget_for(
    engine: EngineName,
    model: ModelSpec,
    hardware: HardwareProfile,
    parallel: Parallelism,
    settings: EngineSettings,
    *,
    utilisation: Fraction | None = None,
    weight_dtype: str | None = None,
    weight_bytes: int | None = None,
    max_sequences: int | None = None,
) -> MemoryBudget:
    """What one GPU of each pipeline stage has left for the cache.

    Parameters
    ----------
    engine : decides what the fraction applies to, and what is inside it.
    model, hardware, parallel, settings : ``settings.max_batched_tokens`` is profiled by vLLM.
    utilisation : the engine's fraction; None takes its default.
    weight_dtype : weight format; None takes the model's own.
    weight_bytes : weights on one GPU as known, instead of counting them. [bytes]
    max_sequences : vLLM's max_num_seqs; None takes its default for the GPU. [sequences]

    Returns
    -------
    Signed terms per stage whose sum is the budget; below 0 nothing fits and the sum is what is
    short.

    Raises
    ------
    UsageError
        If the engine has no budget rule, the utilisation is not in 0..1, or the weight format is
        not stated anywhere.
    SpecError
        If the weights cannot be counted from the spec and are not given.
    PlacementError
        If the weights cannot be dealt out.

    Notes
    -----
    vLLM: total u - weights - activation - non-torch (- CUDA graphs from 0.21).
    SGLang: (total - non-torch) f - weights.
    TensorRT-LLM: (total - weights - activation - non-torch) f.
    llama.cpp: total - weights - compute buffer.

    Examples
    --------
    >>> from lrkv_plan import load_hardware, load_model
    >>> from lrkv_plan.specs.deployment import parse_engine
    >>> budget = budget_for(
    ...     parse_engine("vllm@0.19.0"), load_model("llama-3.1-8b"), load_hardware("h100-sxm"),
    ...     Parallelism(), EngineSettings(context_tokens=8192), utilisation=Fraction(95, 100))
    >>> f"{budget.kv_bytes_per_gpu / 2**30:.1f} GiB"  # the engine printed 58.11
    '58.1 GiB'
    """
    rule = BUDGETS.get(engine.name)
    if rule is None:
        hint = did_you_mean(engine.name, BUDGETS)
        raise UsageError(
            f"engine {shown(engine.name)} has no budget rule{hint}; known: {', '.join(BUDGETS)}"
        )
    fraction = rule.utilisation(engine) if utilisation is None else utilisation
    if not 0 < fraction <= 1:
        raise UsageError(f"utilisation {float(fraction):g}: must be above 0 and at most 1")
    budget = rule.rule(
        BudgetInputs(
            engine=engine, model=model, hardware=hardware, parallel=parallel, settings=settings,
            utilisation=fraction, weight_dtype=weight_dtype, weight_bytes=weight_bytes,
            max_sequences=max_sequences,
        )
    )  # fmt: skip
    return _with_remarks(budget, rule.doubt if utilisation is None else None)


def _shortage(budget: MemoryBudget) -> str:
    """How much is short, and the utilisation from which something is left, if there is one."""
    stage = budget.deciding
    short = f"nothing is left for the cache: {-stage.kv_bytes / 2**30:.2f} GiB short on each GPU"
    missing = Fraction(-stage.kv_bytes, stage.bytes_of("memory"))
    least = math.floor((budget.utilisation + missing) * 10_000 + 1) / 10_000
    is_of_all = stage.bytes_of("outside utilisation") or budget.utilisation == 1
    if not is_of_all or least > 1:
        return f"{short}; spread the model over more GPUs"
    return f"{short}; needs a utilisation of at least {least:.4f}"


def _with_remarks(budget: MemoryBudget, doubt: str | None) -> MemoryBudget:
    """The budget with what is unsure about its fraction, and the fraction that would fit."""
    remarks = list(budget.remarks)
    if doubt:
        remarks.append(f"utilisation: {doubt}")
    if budget.kv_bytes_per_gpu <= 0:
        remarks.append(_shortage(budget))
    return replace(budget, remarks=tuple(remarks))
