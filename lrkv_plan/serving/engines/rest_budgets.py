"""Cache budgets of engines without a fit: SGLang, TensorRT-LLM, llama.cpp, and no engine at all.

Each engine means something else by its fraction; that is why there is no common formula.
"""

from __future__ import annotations

from fractions import Fraction

from lrkv_plan.serving.budget import (
    BudgetInputs,
    BudgetTerm,
    MemoryBudget,
    StageBudget,
    assumed,
    memory_term,
    stages_of,
    taken,
    utilisation_term,
    weight_terms,
)
from lrkv_plan.serving.engines.vllm import NON_TORCH_GIB
from lrkv_plan.serving.engines.vllm_activation import GIB, Step, activation_peak_bytes

MICRO_BATCH_TOKENS = 512  # llama.cpp's default --ubatch-size
CONTEXT_GIB = (0.4, 0.2, 0.7)  # CUDA context and libraries of a plain C++ program


def weights_only_budget(inputs: BudgetInputs) -> MemoryBudget:
    """total * utilisation - weights: an upper bound without any runtime."""
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    shared = [memory, utilisation_term(memory.n_bytes, inputs.utilisation)]
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
        remarks=(
            *remarks,
            *weight_remarks,
            "no activations and no runtime are taken off: an upper bound",
        ),
    )


def sglang_budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total - non-torch) * mem_fraction_static - weights.

    The fraction applies to the memory free before the weights are loaded, and covers weights and
    pool; activations and CUDA graphs live in the rest. A public case: 125.65 GB of weights of
    137.90 free need a fraction of 0.9112, and the engine printed 0.9113 (InferenceX issue 2128).
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    non_torch = _non_torch(inputs)
    free = memory.n_bytes + non_torch.n_bytes
    shared = [memory, non_torch, utilisation_term(free, inputs.utilisation)]
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
        remarks=(
            *remarks,
            *weight_remarks,
            "activations and CUDA graphs live outside mem_fraction_static",
        ),
    )


def _non_torch(inputs: BudgetInputs) -> BudgetTerm:
    kind = "tensor" if inputs.parallel.tp_size > 1 else "one"
    runtime = int(NON_TORCH_GIB[kind][0] * GIB)
    return taken(
        "non-torch", runtime, assumed(runtime, 2 * runtime, "as vLLM's"), runtime, 2 * runtime
    )


def tensorrt_llm_budget(inputs: BudgetInputs) -> MemoryBudget:
    """(total - weights - activation - non-torch) * fraction: a fraction of what is FREE after load.

    A printed case: 17.83 GiB free, fraction 0.9, 16.05 GiB of pool. Activation and non-torch are
    vLLM's forms without the sampler's float32 copies, with a wide range.
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    peak = _forward_only(inputs, inputs.settings.max_batched_tokens)
    low, high = peak // 2, peak * 2
    activation = taken(
        "activation peak", peak, assumed(low, high, "feed-forward of one step"), low, high
    )
    non_torch = _non_torch(inputs)
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=tuple(
            _of_free((memory, term, activation, non_torch), inputs.utilisation) for term in weights
        ),
        remarks=(*remarks, *weight_remarks, "the fraction applies to memory free after load"),
    )


def _of_free(terms: tuple[BudgetTerm, ...], fraction: Fraction) -> StageBudget:
    free = StageBudget(terms=terms)
    kept = max(0, free.kv_bytes) * (1 - fraction)
    note = f"1 - {float(fraction):.4g} of the memory free after load"
    return StageBudget(terms=(*terms, taken("outside the fraction", int(kept), note)))


def llama_cpp_budget(inputs: BudgetInputs) -> MemoryBudget:
    """total * utilisation - weights - compute buffer; the cache is what -c asks for, not a rest.

    The compute buffer is assumed to hold one micro batch of 512 tokens in float32: logits and two
    hidden states; the range goes to three times that.
    """
    memory, remarks = memory_term(inputs.hardware)
    weights, weight_remarks = weight_terms(inputs)
    vocab = inputs.model.vocab_size or 0
    buffer = MICRO_BATCH_TOKENS * 4 * (vocab + 2 * inputs.model.model_dim)
    context, low, high = (int(gib * GIB) for gib in CONTEXT_GIB)
    shared = [
        memory,
        utilisation_term(memory.n_bytes, inputs.utilisation),
        taken("compute buffer", buffer,
              assumed(buffer, 3 * buffer, "one micro batch of 512"), buffer, 3 * buffer),
        taken("driver context", context, assumed(low, high, "CUDA context"), low, high),
    ]  # fmt: skip
    return MemoryBudget(
        engine=inputs.engine,
        utilisation=inputs.utilisation,
        stages=stages_of(shared, [(term,) for term in weights]),
        remarks=(*remarks, *weight_remarks, "llama.cpp has no budget: -c must ask for this much"),
    )


def _forward_only(inputs: BudgetInputs, tokens: int) -> int:
    """The feed-forward's peak: the formula without sequences to sample."""
    step = Step(max_sequences=0, batched_tokens=tokens, scalar_bytes=inputs.activation_scalar_bytes)
    return activation_peak_bytes(inputs.model, step, inputs.parallel, has_head=False)
