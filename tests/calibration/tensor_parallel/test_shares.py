"""Who keeps which rows: the same bytes as the calculators, no row lost, every head served."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from lrkv_plan.attention.layout import AttentionLayout
from lrkv_plan.attention.registry import layout_of, parse_attention
from lrkv_plan.attention.spec import Backbone
from lrkv_plan.calibration.tensor_parallel.sharded import TensorShare, heads_of, shares_of
from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.memory.placement import placements
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import SOURCE
from tests.drawing import drawn

DESIGNS = (
    "mha", "gqa:8", "gqa:4", "gqa:2", "mqa", "mla:24+8", "mla:24+8,cached_form=heads", "lrkv:5",
    "lrkv:0", "lrkv:5,groups=2", "lrkv:5,groups=4,key_norm=rms_cached", "lrkv:5,align=8",
    "lrkv:5,position=rope_decoupled,rope=8",
)  # fmt: skip


def model_of(design: str) -> ModelSpec:
    spec = parse_attention(design, Backbone(n_heads=16, head_dim=16, v_head_dim=16))
    return ModelSpec.model_validate({
        "name": "one layer", "source": SOURCE, "model_dim": 256,
        "layers": [{"count": 1, "attention": spec.model_dump()}],
    })  # fmt: skip


def layout(design: str) -> AttentionLayout:
    spec = model_of(design).layers[0].attention
    assert spec is not None
    return layout_of(spec, 256)


def all_shares(design: str, policy: str, n_gpus: int, tokens: int) -> list[tuple[TensorShare, ...]]:
    return [
        shares_of(layout(design), policy, index=k, tp_size=n_gpus, context_tokens=tokens)
        for k in range(n_gpus)
    ]


@settings(deadline=None, max_examples=drawn(50))
@given(st.sampled_from(DESIGNS), st.sampled_from((1, 2, 4, 8, 16)), st.integers(1, 9))
def test_bytes_are_those_of_the_placement_calculator(design: str, n_gpus: int, times: int) -> None:
    tokens = times * n_gpus
    for placement in placements(model_of(design), tp_size=n_gpus, kv_dtype="fp32"):
        for shares in all_shares(design, placement.policy, n_gpus, tokens):
            kept = sum(4 * s.kept_rows * s.width for s in shares)
            fetched = sum(4 * (s.used_rows - s.kept_rows) * s.width for s in shares)
            assert kept == Fraction(placement.cache_bytes_per_token_per_gpu) * tokens
            assert fetched == Fraction(placement.link_bytes_per_token_per_gpu) * tokens


@settings(deadline=None, max_examples=drawn(50))
@given(st.sampled_from(DESIGNS), st.sampled_from((1, 2, 4, 8, 16)), st.integers(1, 9))
def test_every_gpu_uses_the_copies_that_its_heads_read(
    design: str, n_gpus: int, times: int
) -> None:
    for policy in ("replicated", "gathered"):
        for index, shares in enumerate(all_shares(design, policy, n_gpus, times * n_gpus)):
            for share in shares:
                copies = {t.name: t.copies_per_layer for t in layout(design).cached}[share.name]
                for head in heads_of(layout(design), index, n_gpus):
                    assert head * copies // 16 in share.copies


@settings(deadline=None, max_examples=drawn(50))
@given(st.sampled_from(DESIGNS), st.sampled_from((2, 4, 8)), st.integers(1, 9))
def test_rows_spread_by_token_are_each_on_one_gpu(design: str, n_gpus: int, times: int) -> None:
    everyone = all_shares(design, "by_token", n_gpus, times * n_gpus)
    for place in range(len(everyone[0])):
        tokens = [t for shares in everyone for t in shares[place].tokens]
        assert tokens == list(range(times * n_gpus))


@settings(deadline=None, max_examples=drawn(50))
@given(st.sampled_from(DESIGNS), st.sampled_from((2, 4, 8)))
def test_gpus_that_fetch_from_each_other_need_the_same_copies(design: str, n_gpus: int) -> None:
    everyone = all_shares(design, "gathered", n_gpus, 8)
    for shares in everyone:
        for place, share in enumerate(shares):
            sharing = range(share.first_sharing, share.first_sharing + share.n_sharing)
            assert {everyone[k][place].copies for k in sharing} == {share.copies}


def test_contexts_that_do_not_spread_evenly_are_refused_with_those_that_do() -> None:
    with pytest.raises(UsageError, match="use 100 or 104"):
        shares_of(layout("mqa"), "by_token", index=0, tp_size=4, context_tokens=101)
    with pytest.raises(UsageError, match=r"use 4$"):
        shares_of(layout("mqa"), "gathered", index=0, tp_size=4, context_tokens=3)
    shares_of(layout("mqa"), "replicated", index=0, tp_size=4, context_tokens=101)


def test_heads_that_cannot_be_dealt_out_are_refused() -> None:
    with pytest.raises(PlacementError, match="16 query heads"):
        shares_of(layout("mha"), "replicated", index=0, tp_size=3, context_tokens=12)
