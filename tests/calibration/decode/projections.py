"""From hidden states to the rows that a layer caches: what a prefill or a new token appends.

Each family has one function (spec, layer weights of the step, projection weights, hidden states
(B, n, d), positions (n,) or (B, n)) -> rows by cached tensor, (B, copies, n, width). Positions are
rotary where the design has any: always for MLA and for LRKV other than ``none``, on request for
grouped attention, whose spec does not say. Normalised keys have no learned gain.
"""

from __future__ import annotations

import torch

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode.rotary import angles, frequencies, rotate
from lrkv_plan.calibration.decode.weights import Draw, Weights

RMS_EPSILON = 1e-6
Rows = dict[str, torch.Tensor]


def draw_projections(spec: AttentionSpec, model_dim: int, draw: Draw) -> Weights:
    """Random projections from hidden states, (copies, d, width), entries N(0, 1/d).

    Raises
    ------
    TypeError
        If the family has none here.
    """

    def maps(**shapes: tuple[int, int]) -> Weights:
        return {
            name: draw(copies, model_dim, width, terms=model_dim)
            for name, (copies, width) in shapes.items()
            if width
        }

    if isinstance(spec, GroupedSpec):
        kv_heads = spec.n_kv_heads
        value = {} if spec.value_from_key else {"value": (kv_heads, spec.v_head_dim)}
        return maps(key=(kv_heads, spec.head_dim), **value)
    if isinstance(spec, LatentSpec):
        return maps(latent=(1, spec.latent_dim), rope_key=(1, spec.rope_dim))
    if isinstance(spec, LowRankSpec):
        groups, heads = spec.n_shared_groups, spec.n_heads
        return maps(
            shared_key=(groups, spec.head_dim), shared_value=(groups, spec.v_head_dim),
            private_key=(heads, spec.key_rank), private_value=(heads, spec.value_rank),
            rope_key=(1, spec.rope_dim),
        )  # fmt: skip
    raise TypeError(f"no projections for {type(spec).__name__}")


def projected_rows(
    spec: AttentionSpec,
    weights: Weights,
    projections: Weights,
    hidden: torch.Tensor,
    positions: torch.Tensor,
    *,
    rotary: bool = False,
) -> Rows:
    """Rows to append for hidden states; ``rotary`` turns the keys of grouped attention."""
    raw = {name: hidden[:, None] @ maps for name, maps in projections.items()}
    if isinstance(spec, GroupedSpec):
        return _grouped(spec, raw, positions, rotary)
    if isinstance(spec, LatentSpec):
        return _latent(spec, weights, raw, positions)
    assert isinstance(spec, LowRankSpec)
    return _low_rank(spec, weights, raw, positions)


def inverse_rms(rows: torch.Tensor) -> torch.Tensor:
    """1 / sqrt(mean of squares + 1e-6) of each row (..., w), as (..., 1)."""
    return (rows.square().mean(dim=-1, keepdim=True) + RMS_EPSILON).rsqrt()


def _turned(rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """(B, copies, n, w) rotated by each token's position."""
    turned = angles(positions, frequencies(rows.shape[-1]))
    return rotate(rows, turned if positions.dim() == 1 else turned[:, None])


def _grouped(spec: GroupedSpec, raw: Rows, positions: torch.Tensor, rotary: bool) -> Rows:
    key = raw["key"] * inverse_rms(raw["key"]) if spec.qk_norm else raw["key"]
    value = raw["key"] if spec.value_from_key else raw["value"]
    return {"key": _turned(key, positions) if rotary else key, "value": value}


def _latent(spec: LatentSpec, weights: Weights, raw: Rows, positions: torch.Tensor) -> Rows:
    """The normalised latent and the rotated shared key, or every head's rows built from them."""
    latent = raw["latent"] * inverse_rms(raw["latent"])
    rows = {"latent": latent}
    if spec.rope_dim:
        rows["rope_key"] = _turned(raw["rope_key"], positions)
    if spec.cached_form == "latent":
        return rows
    key = latent @ weights["key_up"].to(latent.dtype).transpose(1, 2)
    if spec.rope_dim:
        shared = rows["rope_key"].expand(-1, spec.n_heads, -1, -1)
        key = torch.cat((key, shared), dim=-1)
    return {"key": key, "value": latent @ weights["value_up"].to(latent.dtype)}


def _low_rank(spec: LowRankSpec, weights: Weights, raw: Rows, positions: torch.Tensor) -> Rows:
    """Shared rows rotated where positions are rotary; latents only in rank space.

    The key scale is 1 / rms of the joint key s + z B^T, which a rotation does not change: the norm
    of each branch alone would turn the key's direction.
    """
    rows = dict(raw)
    if spec.key_norm == "rms_cached":
        sharing = spec.n_heads // spec.n_shared_groups
        key = raw["shared_key"].repeat_interleave(sharing, dim=1)
        if spec.key_rank:
            basis = weights["key_basis"][:, :, : spec.key_rank].to(key.dtype)
            key = key + raw["private_key"] @ basis.transpose(1, 2)
        rows["key_scale"] = inverse_rms(key)
    if spec.position in ("rope_expand", "rope_rank"):
        rows["shared_key"] = _turned(raw["shared_key"], positions)
    if spec.position == "rope_rank" and spec.key_rank:
        speed = torch.stack([frequencies(spec.head_dim, p) for p in weights["key_planes"]])
        turned = positions.double()[..., None, :, None] * speed[:, None]  # ([B,] H, n, r/2)
        rows["private_key"] = rotate(raw["private_key"], turned)
    if spec.rope_dim:
        rows["rope_key"] = _turned(raw["rope_key"], positions)
    return rows
