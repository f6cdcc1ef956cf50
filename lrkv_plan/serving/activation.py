"""The activation peak that vLLM measures at start, as a formula with three fitted constants.

vLLM runs one step with the most tokens and the most sequences it may schedule, samples from it, and
keeps the peak free. The peak is the sampler's (logits of every sequence, in float32 three times
over) or the feed-forward's, beside buffers that stay: expert workspaces, what a pipeline stage
receives, encoder outputs.
"""

from __future__ import annotations

from dataclasses import dataclass

from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.model import DenseFeedForward, ExpertFeedForward, ModelSpec
from lrkv_plan.units import GIB

# Not fitted, but read off the printed peaks of all rows: the sampler holds the logits in their own
# dtype, three float32 arrays of their size, and the step's last hidden states.
LOGIT_COPIES_BYTES = 12


@dataclass(frozen=True, kw_only=True)
class ActivationConstants:
    """What the formula does not derive, and where it comes from.

    ``base_bytes`` at the sampler's peak; ``forward_hidden_states`` (tokens x model_dim) alive at
    the feed-forward's peak; ``encoder_bytes`` of models with parts outside the layers.
    ``band_bytes`` is the worst error on rows that the fit did not see, ``n_rows`` what it saw.
    """

    base_bytes: float
    forward_hidden_states: float
    encoder_bytes: float
    logit_bytes: float = LOGIT_COPIES_BYTES
    band_bytes: int = 0
    n_rows: int = 0


# Printed by scripts/fit_vllm_budget.py; a test fits again and compares.
FITTED = ActivationConstants(
    base_bytes=0.151 * GIB,
    forward_hidden_states=4.45,
    encoder_bytes=0.026 * GIB,
    band_bytes=15 * GIB // 100,
    n_rows=11,
)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The step that is profiled, on one GPU: sizes of its activations.

    ``quantised_bytes`` is the width of the copy that 8-bit kernels make of their input. Kernels of
    MXFP4 experts keep no workspace of their own.
    """

    max_sequences: int
    batched_tokens: int
    scalar_bytes: int
    quantised_bytes: int = 0
    keeps_expert_workspace: bool = True


def activation_peak_bytes(
    model: ModelSpec,
    step: Step,
    parallel: Parallelism,
    *,
    has_head: bool,
    constants: ActivationConstants = FITTED,
) -> int:
    """The peak on a stage with or without the head. [bytes]

    Notes
    -----
    With M tokens, S sequences, d model_dim, V vocabulary, b scalar bytes, w the widest dense
    feed-forward on this GPU and h = M d b:
    sampler S V (b + 12) + h + base, only with the head;
    forward M w (n_in + 1) b + M w q + k_f h;
    peak = max(sampler, forward) + experts + 2 h with a pipeline + (h + e) with an encoder.
    Experts keep M k [max(w_e, d) + max(n_in w_e, d)] b for k experts per token of width w_e
    (vLLM's modular expert kernels, two workspaces of 16-bit scalars).
    """
    peak = forward_peak_bytes(model, step, parallel, constants)
    if has_head:
        peak = max(peak, sampler_peak_bytes(model, step, constants))
    return int(peak + kept_buffers_bytes(model, step, parallel, constants))


def _hidden_bytes(model: ModelSpec, step: Step) -> int:
    return step.batched_tokens * model.model_dim * step.scalar_bytes


def sampler_peak_bytes(model: ModelSpec, step: Step, constants: ActivationConstants) -> float:
    """Logits, their float32 copies and hidden states while tokens are drawn. [bytes]"""
    logits = step.max_sequences * (model.vocab_size or 0)
    return (
        logits * (step.scalar_bytes + constants.logit_bytes)
        + _hidden_bytes(model, step)
        + constants.base_bytes
    )


def forward_peak_bytes(
    model: ModelSpec, step: Step, parallel: Parallelism, constants: ActivationConstants
) -> float:
    """Inputs and output of the widest dense feed-forward, its quantised copy, hidden states."""
    widest = 0
    for group in model.layers:
        block = group.feed_forward
        if isinstance(block, DenseFeedForward):
            width, gated = block.hidden_dim, block.gated
        elif isinstance(block, ExpertFeedForward):
            width, gated = max(block.shared_hidden_dim, block.dense_hidden_dim), block.gated
        else:
            continue
        scalars = step.batched_tokens * width // parallel.tp_size
        copies = (3 if gated else 2) * step.scalar_bytes + step.quantised_bytes
        widest = max(widest, scalars * copies)
    return widest + constants.forward_hidden_states * _hidden_bytes(model, step)


def kept_buffers_bytes(
    model: ModelSpec,
    step: Step,
    parallel: Parallelism,
    constants: ActivationConstants,
) -> float:
    """Expert workspaces, pipeline inputs and encoder outputs, beside either peak. [bytes]"""
    hidden = _hidden_bytes(model, step)
    kept: float = _workspace_bytes(model, step, parallel)
    if parallel.pp_size > 1:
        kept += 2 * hidden
    if model.extra_params or model.encoders:
        kept += hidden + constants.encoder_bytes
    return kept


def _workspace_bytes(model: ModelSpec, step: Step, parallel: Parallelism) -> int:
    """Two workspaces of the modular expert kernels, where the weight format has them."""
    blocks = [g.feed_forward for g in model.layers if isinstance(g.feed_forward, ExpertFeedForward)]
    if not step.keeps_expert_workspace or not blocks:
        return 0
    block = max(blocks, key=lambda b: b.hidden_dim * b.experts_per_token)
    width = block.hidden_dim // parallel.expert_slices
    n_inputs = 2 if block.gated else 1
    dim = block.expert_dim(model.model_dim)
    per_row = max(width, dim) + max(n_inputs * width, dim)
    return step.batched_tokens * block.experts_per_token * per_row * step.scalar_bytes
