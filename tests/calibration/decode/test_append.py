"""Append after prefill, then decode, against attention computed from the hidden states.

The judge never sees a cache: it multiplies hidden states by each head's full W_h = W_S + U_h B_h^T
in float64, normalises and rotates the keys, and attends.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.attention.families.grouped import GroupedSpec
from lrkv_plan.attention.families.latent import LatentSpec
from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.calibration.decode.attend import (
    ScanMask,
    StepInputs,
)
from lrkv_plan.calibration.decode.cache import build_cache
from lrkv_plan.calibration.decode.paths import paths_for
from lrkv_plan.calibration.decode.rotary import angles, frequencies, rotate
from lrkv_plan.calibration.decode.weights import Weights, drawing
from tests.calibration.decode.projections import draw_projections, inverse_rms, projected_rows

CPU = torch.device("cpu")
MODEL_DIM, PREFILL, STEPS = 24, (5, 14), 4
LRKV = {"n_heads": 4, "head_dim": 8, "n_shared_groups": 2}
MLA = {"n_heads": 3, "latent_dim": 20, "rope_dim": 4, "nope_dim": 6, "v_head_dim": 5}
SPECS: tuple[AttentionSpec, ...] = (
    GroupedSpec(family="gqa", n_heads=4, n_kv_heads=2, head_dim=8),
    GroupedSpec(family="mqa", n_heads=4, head_dim=8, qk_norm=True),
    GroupedSpec(family="gqa", n_heads=4, n_kv_heads=2, head_dim=8, value_from_key=True),
    LatentSpec(**MLA),
    LatentSpec(**MLA, cached_form="heads"),
    LowRankSpec(**LRKV, key_rank=3, value_rank=2),
    LowRankSpec(**LRKV, rank=3, key_norm="rms_cached", rank_alignment=4),
    LowRankSpec(**LRKV, rank=3, position="rope_expand", key_norm="rms_cached"),
    LowRankSpec(**LRKV, rank=4, position="rope_rank", basis_spans_rotary_planes=True),
    LowRankSpec(**LRKV, rank=3, position="rope_decoupled", rope_dim=4, key_norm="rms_cached"),
    LowRankSpec(**LRKV, rank=0, position="rope_expand"),
)


def head_rows(
    spec: AttentionSpec, w: Weights, proj: Weights, x: torch.Tensor, at: torch.Tensor, head: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of one head from hidden states x (T, d), in float64."""

    def turned(rows: torch.Tensor) -> torch.Tensor:
        return rotate(rows, angles(at, frequencies(rows.shape[-1])))

    if isinstance(spec, GroupedSpec):
        kv = head // (spec.n_heads // spec.n_kv_heads)
        key = raw = x @ proj["key"][kv]
        key = key * inverse_rms(key) if spec.qk_norm else key
        return turned(key), raw if spec.value_from_key else x @ proj["value"][kv]
    if isinstance(spec, LatentSpec):
        latent = x @ proj["latent"][0]
        latent = latent * inverse_rms(latent)
        key = torch.cat((latent @ w["key_up"][head].T, turned(x @ proj["rope_key"][0])), dim=1)
        return key, latent @ w["value_up"][head]
    assert isinstance(spec, LowRankSpec)
    group = head // (spec.n_heads // spec.n_shared_groups)
    full_key, full_value = proj["shared_key"][group], proj["shared_value"][group]
    if spec.key_rank:
        full_key = full_key + proj["private_key"][head] @ w["key_basis"][head, :, : spec.key_rank].T
    if spec.value_rank:
        up = w["value_basis"][head, : spec.value_rank]
        full_value = full_value + proj["private_value"][head] @ up
    key = x @ full_key
    key = key * inverse_rms(key) if spec.key_norm == "rms_cached" else key
    key = turned(key) if spec.position in ("rope_expand", "rope_rank") else key
    if spec.rope_dim:
        key = torch.cat((key, turned(x @ proj["rope_key"][0])), dim=1)
    return key, x @ full_value


@pytest.mark.parametrize("page_tokens", [None, 4])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.label())
def test_appended_rows_decode_like_attention_over_hidden_states(
    spec: AttentionSpec, page_tokens: int | None
) -> None:
    layout, heads, draw = layout_of(spec, MODEL_DIM), spec.n_heads, drawing(5)
    path = paths_for(spec)[-1]
    drawn_from = paths_for(LatentSpec(**MLA))[0] if isinstance(spec, LatentSpec) else path
    weights = drawn_from.family.draw_weights(spec, layout, heads, draw)
    projections = draw_projections(spec, MODEL_DIM, draw)
    totals = [n + STEPS for n in PREFILL]
    hidden = draw(2, max(totals), MODEL_DIM)
    # Positions that differ by sequence: the second one starts at 1,000.
    at = torch.arange(max(totals)) + torch.tensor([[0], [1_000]])
    cache = build_cache(layout, capacity_tokens=totals, page_tokens=page_tokens)

    def rows_of(tokens: slice) -> dict[str, torch.Tensor]:
        x, places = hidden[:, tokens], at[:, tokens]
        return projected_rows(spec, weights, projections, x, places, rotary=True)

    cache.append(rows_of(slice(0, max(PREFILL))), counts=PREFILL)
    for step in range(STEPS):  # pages of 4: both sequences cross an edge
        new = [rows_of(slice(n + step, n + step + 1)) for n in PREFILL]
        cache.append({name: torch.stack((new[0][name][0], new[1][name][1])) for name in new[0]})
    query = draw(2, heads, 2, path.family.query_width(spec))
    mask = ScanMask(totals, 2, CPU)
    w64 = {k: v.double() if v.is_floating_point() else v for k, v in weights.items()}
    p64 = {k: v.double() for k, v in projections.items()}
    wanted = torch.zeros(2, heads, 2, value_dim(spec)).double()
    for sequence in range(2):
        for head in range(heads):
            x, places = hidden[sequence].double(), at[sequence]
            keys, values = head_rows(spec, w64, p64, x, places, head)
            for token, seen in enumerate(mask.visible[sequence].tolist()):
                q = query[sequence, head, token].double()
                shares = torch.softmax(keys[:seen] @ q / q.numel() ** 0.5, dim=0)
                wanted[sequence, head, token] = shares @ values[:seen]
    for path in paths_for(spec):
        inputs = StepInputs(
            spec=spec, cache=cache, query=query, weights=weights, mask=mask, positions=at
        )
        got = path.build(inputs).run().double()
        assert float((got - wanted).abs().max() / wanted.abs().max()) < 1e-5, path.name


def value_dim(spec: AttentionSpec) -> int:
    return spec.backbone().v_head_dim


def test_key_scales_are_those_of_the_joint_key() -> None:
    spec = LowRankSpec(n_heads=2, head_dim=4, rank=2, key_norm="rms_cached")
    draw = drawing(1)
    path = paths_for(spec)[0]
    weights = path.family.draw_weights(spec, layout_of(spec, 8), 2, draw)
    projections = draw_projections(spec, 8, draw)
    x = draw(1, 3, 8)
    rows = projected_rows(spec, weights, projections, x, torch.arange(3))
    for head in range(2):
        full = projections["shared_key"][0]
        full = full + projections["private_key"][head] @ weights["key_basis"][head].T
        norm = (x[0] @ full).square().mean(dim=1).sqrt()
        assert torch.allclose(rows["key_scale"][0, head, :, 0], 1 / norm, rtol=1e-4)
