"""Random layer weights that a decode step itself uses, scaled so that rows stay of order one."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.layout import AttentionLayout

BLOCK_SCALARS = 1_048_583


@functools.lru_cache(maxsize=1)
def _block() -> torch.Tensor:
    return torch.randn(BLOCK_SCALARS, generator=torch.Generator().manual_seed(0))


def fill_normal(tensor: torch.Tensor, generator: torch.Generator) -> None:
    """Fill a contiguous tensor of any dtype and device with numbers of N(0, 1)."""
    block = _block().to(tensor.device, tensor.dtype)
    start = int(torch.randint(BLOCK_SCALARS, (1,), generator=generator))
    flat, done = tensor.view(-1), 0
    while done < flat.numel():
        piece = block[start : start + flat.numel() - done]
        flat[done : done + piece.numel()].copy_(piece)
        done, start = done + piece.numel(), 0


def normal(shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """A new fp32 tensor of N(0, 1) on the CPU."""
    tensor = torch.empty(shape)
    fill_normal(tensor, generator)
    return tensor


Weights = dict[str, torch.Tensor]
# A shape and the number of summed terms: a map of entries N(0, 1 / terms).
Draw = Callable[..., torch.Tensor]

RESIDUAL_SCALE = 0.5  # private part of a key or value beside a shared part of order one


def drawing(seed: int) -> Draw:
    """A source of fp32 maps ``draw(*shape, terms=n)`` with entries N(0, 1/n)."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, terms: int = 1) -> torch.Tensor:
        scale = float(max(terms, 1)) ** -0.5
        return normal(shape, generator).mul_(scale)

    return draw


def grouped_weights(spec: GroupedSpec, layout: AttentionLayout, heads: int, draw: Draw) -> Weights:
    """One sink logit per head where the spec has them; nothing else is used in the step."""
    del layout
    return {"sinks": draw(heads)} if spec.sinks else {}


def latent_weights(spec: LatentSpec, layout: AttentionLayout, heads: int, draw: Draw) -> Weights:
    """``key_up`` (H, d_nope, d_c) and ``value_up`` (H, d_c, d_v)."""
    del layout
    latent = spec.latent_dim
    return {
        "key_up": draw(heads, spec.nope_dim, latent, terms=latent),
        "value_up": draw(heads, latent, spec.v_head_dim, terms=latent),
    }


def low_rank_weights(spec: LowRankSpec, layout: AttentionLayout, heads: int, draw: Draw) -> Weights:
    """``key_basis`` (H, d_h, stored rank) and ``value_basis`` (H, stored rank, d_v).

    Columns beyond the rank are zero, so that a padded row can be read whole. With ``rope_rank`` the
    basis spans rotary planes that differ by head; ``key_planes`` (H, r/2) names them.
    """
    stored = {t.name: t.width for t in layout.cached}
    weights: Weights = {}
    if spec.key_rank:
        basis = RESIDUAL_SCALE * draw(heads, spec.head_dim, spec.key_rank, terms=spec.key_rank)
        if spec.position == "rope_rank":
            basis, weights["key_planes"] = _plane_basis(spec, heads, draw)
        weights["key_basis"] = _padded(basis, stored["private_key"], dim=2)
    if spec.value_rank:
        rank, width = spec.value_rank, spec.v_head_dim
        basis = RESIDUAL_SCALE * draw(heads, rank, width, terms=rank)
        weights["value_basis"] = _padded(basis, stored["private_value"], dim=1)
    return weights


def _padded(basis: torch.Tensor, width: int, dim: int) -> torch.Tensor:
    missing = width - basis.shape[dim]
    pad = (0, missing) if dim == 2 else (0, 0, 0, missing)
    return torch.nn.functional.pad(basis, pad)


def _plane_basis(spec: LowRankSpec, heads: int, draw: Draw) -> tuple[torch.Tensor, torch.Tensor]:
    """A basis on r/2 whole planes per head: column pair i is a turn and a stretch of plane i.

    With columns (a, b) and (-b, a) of a plane, a rotation of the plane is the same rotation of the
    pair of latents: E_j B^T = B^T D_j.
    """
    half, pairs = spec.head_dim // 2, spec.key_rank // 2
    planes = torch.stack([draw(half).argsort()[:pairs].sort().values for _ in range(heads)])
    basis = torch.zeros(heads, spec.head_dim, spec.key_rank)
    a, b = (RESIDUAL_SCALE * draw(heads, pairs) for _ in range(2))
    head = torch.arange(heads)[:, None]
    pair = torch.arange(pairs)[None, :]
    basis[head, planes, pair] = a
    basis[head, planes + half, pair] = b
    basis[head, planes, pair + pairs] = -b
    basis[head, planes + half, pair + pairs] = a
    return basis, planes
