"""The judge of every path: keys and values of each head written out in float64, plain softmax.

Slow and obvious on purpose: one head of one sequence at a time, from the same cached rows and layer
weights that the fast paths read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.calibration.decode.attend import StepInputs
from lrkv_plan.calibration.decode.rotary import angles, frequencies, rotate, unrotate

# (inputs, sequence, head) -> keys (T, key width), values (T, v_head_dim), in float64
HeadRows = Callable[[StepInputs, int, int], tuple[torch.Tensor, torch.Tensor]]


def reference_attention(inputs: StepInputs, head_rows: HeadRows) -> torch.Tensor:
    """softmax(q K^T / sqrt(key width)) V per head, masked; (B, H, q, v_head_dim) in float64."""
    query = inputs.query.double()
    sinks = inputs.weights.get("sinks")
    batch, heads, n_query, width = query.shape
    outputs = []
    for sequence in range(batch):
        for head in range(heads):
            keys, values = head_rows(inputs, sequence, head)
            for token in range(n_query):
                seen = int(inputs.mask.visible[sequence, token])
                logits = keys[:seen] @ query[sequence, head, token] / width**0.5
                if sinks is not None:
                    logits = torch.cat((logits, sinks[head : head + 1].double()))
                shares = torch.softmax(logits, dim=0)[:seen]
                outputs.append(shares @ values[:seen])
    return torch.stack(outputs).view(batch, heads, n_query, -1)


def cached_rows(inputs: StepInputs, name: str, sequence: int, head: int) -> torch.Tensor:
    """(T, width) in float64 of the copy of that tensor that a query head reads."""
    rows = inputs.cache.rows(name)
    sharing = inputs.n_heads // rows.shape[1]
    return rows[sequence, head // sharing].double()


def grouped_rows(inputs: StepInputs, sequence: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cached keys and values as they are."""
    return (
        cached_rows(inputs, "key", sequence, head),
        cached_rows(inputs, "value", sequence, head),
    )


def latent_rows(inputs: StepInputs, sequence: int, head: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [c W_uk^T, rope key] and values c W_uv of MLA."""
    spec = inputs.spec
    assert isinstance(spec, LatentSpec)
    latents = cached_rows(inputs, "latent", sequence, head)
    keys = latents @ inputs.weights["key_up"][head].double().T
    if spec.rope_dim:
        keys = torch.cat((keys, cached_rows(inputs, "rope_key", sequence, head)), dim=1)
    return keys, latents @ inputs.weights["value_up"][head].double()


def low_rank_rows(
    inputs: StepInputs, sequence: int, head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys S + Z B^T, positions and norm applied, and values S + Z B^T of LRKV."""
    spec = inputs.spec
    assert isinstance(spec, LowRankSpec)
    keys = cached_rows(inputs, "shared_key", sequence, head)
    if spec.key_rank:
        keys = keys + _private_keys(inputs, spec, sequence, head)
    if spec.key_norm == "rms_cached":
        keys = keys * cached_rows(inputs, "key_scale", sequence, head)
    if spec.rope_dim:
        keys = torch.cat((keys, cached_rows(inputs, "rope_key", sequence, head)), dim=1)
    values = cached_rows(inputs, "shared_value", sequence, head)
    if spec.value_rank:
        latents = cached_rows(inputs, "private_value", sequence, head)[:, : spec.value_rank]
        basis = inputs.weights["value_basis"][head, : spec.value_rank].double()
        values = values + latents @ basis
    return keys, values


def _private_keys(inputs: StepInputs, spec: LowRankSpec, sequence: int, head: int) -> torch.Tensor:
    """Z B^T, turned to each token's position. Rank-rotated latents are turned back first."""
    latents = cached_rows(inputs, "private_key", sequence, head)[:, : spec.key_rank]
    basis = inputs.weights["key_basis"][head, :, : spec.key_rank].double()
    rows = inputs.positions.shape[0]
    positions = inputs.positions[sequence if rows > 1 else 0]
    turned = angles(positions, frequencies(spec.head_dim))
    if spec.position == "rope_rank":
        planes = inputs.weights["key_planes"][head]
        latents = unrotate(latents, angles(positions, frequencies(spec.head_dim, planes)))
    keys = latents @ basis.T
    return rotate(keys, turned) if spec.position in ("rope_rank", "rope_expand") else keys
