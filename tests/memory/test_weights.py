"""Weight bytes per GPU: by hand, against published totals, and properties of every placement."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lrkv_plan
from lrkv_plan.attention.layout import WeightMatrix, WeightRole
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.formats import WEIGHT_FORMATS
from lrkv_plan.loader import shipped_files
from lrkv_plan.memory.weights import StageWeights, parameter_count, weight_bytes_per_gpu
from lrkv_plan.specs.deployment import Parallelism
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model

GQA = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 16}
DENSE = {"kind": "dense", "hidden_dim": 96, "gated": True}
EXPERTS = {
    "kind": "experts", "hidden_dim": 32, "n_experts": 6, "experts_per_token": 2,
    "shared_hidden_dim": 64, "gated": True,
}  # fmt: skip


def model(n_layers: int = 4, block: dict[str, Any] = DENSE, **changes: Any) -> ModelSpec:
    stated = {
        "model_dim": 64, "vocab_size": 1000, "tied_embeddings": False,
        "norms": {"per_mixer": 1, "per_feed_forward": 1},
    }  # fmt: skip
    layers = [{"count": n_layers, "attention": GQA, "feed_forward": block}]
    return make_model(GQA, layers=layers, **{**stated, **changes})


def stages(spec: ModelSpec, dtype: str = "bf16", **sizes: int) -> tuple[StageWeights, ...]:
    return weight_bytes_per_gpu(spec, parallel=Parallelism(**sizes), weight_dtype=dtype).stages


def test_one_gpu_by_hand() -> None:
    (got,) = stages(model())
    # per layer: query and output 2 * 64 * 128, key and value 2 * 64 * 32
    assert got.attention == 2 * 4 * (2 * 64 * 128 + 2 * 64 * 32)
    assert got.feed_forward == 2 * 4 * 3 * 64 * 96
    assert got.norms == 2 * (4 * 2 + 1) * 64
    assert got.embeddings == got.head == 2 * 1000 * 64
    assert got.experts == got.router == got.extra == 0


def test_key_value_heads_are_repeated_beyond_their_number() -> None:
    (got,) = stages(model(), tp_size=4)
    # 2 KV heads on 4 GPUs: each holds one of them, half of the key and value weights
    assert got.attention == 2 * 4 * (2 * 64 * 128 // 4 + 2 * 64 * 32 // 2)
    assert got.feed_forward == 2 * 4 * 3 * 64 * 96 // 4
    assert got.norms == 2 * 9 * 64  # whole
    assert got.embeddings == 2 * 250 * 64


def test_stages_hold_their_layers_and_ends() -> None:
    first, middle, last = stages(model(n_layers=7), pp_size=3)
    layer = 2 * (2 * 64 * 128 + 2 * 64 * 32 + 3 * 64 * 96 + 2 * 64)
    table, norm = 2 * 1000 * 64, 2 * 64
    # 7 layers over 3 stages: 2, 3, 2
    assert (first.total, middle.total, last.total) == (
        2 * layer + table, 3 * layer, 2 * layer + table + norm,
    )  # fmt: skip
    assert (first.head, last.embeddings) == (0, 0)


def test_tied_embeddings_are_stored_once_on_one_stage_and_twice_on_more() -> None:
    tied = model(tied_embeddings=True)
    (only,) = stages(tied)
    assert (only.embeddings, only.head) == (128_000, 0)
    first, last = stages(tied, pp_size=2)
    assert (first.embeddings, last.head) == (128_000, 128_000)


@pytest.mark.parametrize(
    ("sizes", "local", "slices"),
    [
        ({}, 6, 1),
        ({"tp_size": 2}, 6, 2),
        ({"tp_size": 2, "ep_size": 2}, 3, 1),
        ({"tp_size": 4, "ep_size": 2}, 3, 2),
        ({"tp_size": 2, "dp_size": 2, "ep_size": 4}, 2, 1),  # ceil(6 / 4)
        ({"dp_size": 8}, 6, 1),
    ],
)
def test_experts_by_hand(sizes: dict[str, int], local: int, slices: int) -> None:
    (got,) = stages(model(n_layers=1, block=EXPERTS), **sizes)
    assert got.experts == 2 * local * 3 * 64 * 32 // slices
    assert got.shared_experts == 2 * 3 * 64 * 64 // sizes.get("tp_size", 1)
    assert got.router == 2 * 64 * 6


def test_mla_keeps_its_down_projections_whole() -> None:
    spec = swap_attention(model(n_layers=1), "mla:32+8,query_latent=24")
    # whole: query down 64*24 and norm 24, latent down 64*40 and norm 32
    # by head: query up 24*8*24, latent up 32*8*32, output 8*16*64
    by_head = 24 * 8 * 24 + 32 * 8 * 32 + 8 * 16 * 64
    whole = 64 * 24 + 24 + 64 * 40 + 32
    assert stages(spec, tp_size=4)[0].attention == 2 * (whole + by_head // 4)


def test_lrkv_deals_out_the_shared_part_by_group() -> None:
    spec = swap_attention(model(n_layers=1), "lrkv:4,groups=2")
    private = 2 * 8 * 4 * (64 + 16)
    shared = 2 * 2 * 64 * 16
    query_output = 2 * 64 * 128
    got = stages(spec, tp_size=4)[0].attention
    assert got == 2 * (query_output // 4 + private // 4 + shared // 2)


def test_llama_8b_is_its_published_total() -> None:
    (got,) = stages(lrkv_plan.load_model("llama-3.1-8b"))
    assert got.total == 8_030_261_248 * 2


@pytest.mark.parametrize(
    ("name", "published"),
    [  # parameters as their hub pages print them (safetensors totals)
        ("llama-3.1-70b", 70_553_706_496),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("llama-4-scout", 108_641_793_536),
        ("mistral-small-3.1-24b", 24_011_361_280),
        ("gemma-3-12b", 12_187_325_040),
    ],
)
def test_published_totals(name: str, published: int) -> None:
    (got,) = stages(lrkv_plan.load_model(name))
    assert got.total == 2 * published


def test_quantised_formats_leave_the_rest_in_16_bit() -> None:
    plain, quantised = stages(model(block=EXPERTS))[0], stages(model(block=EXPERTS), "int4")[0]
    for part in ("embeddings", "head", "norms", "router"):
        assert getattr(quantised, part) == getattr(plain, part)
    assert quantised.experts < plain.experts / 3
    (gpt_oss_like,) = stages(model(block=EXPERTS), "mxfp4")
    assert gpt_oss_like.attention == plain.attention
    assert gpt_oss_like.experts == plain.experts // 16 * 4.25


def test_what_is_not_stated_is_named_with_what_to_do(paper: ModelSpec) -> None:
    with pytest.raises(SpecError, match=r"feed_forward, vocab_size.*--weights.*safetensors"):
        stages(paper)


def test_uncounted_parts_become_a_remark_unless_their_size_is_stated() -> None:
    def remarks(**changes: Any) -> str:
        counted = weight_bytes_per_gpu(
            model(uncounted_parts=["vision encoder"], **changes),
            parallel=Parallelism(tp_size=2),
            weight_dtype="bf16",
        )
        return " ".join(counted.remarks)

    assert "leave out: vision encoder" in remarks()
    assert "1,001 parameters outside the layers" in remarks(extra_params=1_001)
    assert stages(model(extra_params=1_001), tp_size=2)[0].extra == 1_001


def test_widths_that_cannot_be_sliced_are_refused() -> None:
    narrow = {"kind": "dense", "hidden_dim": 97, "gated": True}
    with pytest.raises(PlacementError, match="width of 97 cannot be sliced over 2"):
        stages(model(block=narrow), tp_size=2)
    with pytest.raises(PlacementError, match="8 query heads"):
        stages(model(), tp_size=3)
    with pytest.raises(PlacementError, match="pp_size 5: must be from 1 to"):
        stages(model(), pp_size=5)


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.integers(1, 4),
    design=st.sampled_from(["mha", "gqa:2", "mqa", "mla:32+8", "lrkv:4", "lrkv:4,groups=2"]),
    block=st.sampled_from([DENSE, EXPERTS]),
    dtype=st.sampled_from(sorted(WEIGHT_FORMATS)),
    tied=st.booleans(),
)
def test_all_gpus_together_hold_at_least_the_model(
    tp: int, pp: int, design: str, block: dict[str, Any], dtype: str, tied: bool
) -> None:
    spec = swap_attention(model(block=block, tied_embeddings=tied), design)
    alone = stages(spec, dtype)[0].total
    spread = stages(spec, dtype, tp_size=tp, pp_size=pp)
    assert tp * sum(stage.total for stage in spread) >= alone
    assert max(stage.total for stage in spread) <= alone


@given(tp=st.sampled_from([1, 2, 4, 8]), pp=st.integers(1, 4))
def test_nothing_repeated_is_exactly_the_model(tp: int, pp: int) -> None:
    spec = swap_attention(model(), "mha")
    alone, spread = stages(spec)[0], stages(spec, tp_size=tp, pp_size=pp)
    repeated = (tp - 1) * alone.norms
    assert tp * sum(stage.total for stage in spread) == alone.total + repeated


@pytest.mark.parametrize("path", shipped_files("model_specs"), ids=lambda p: p.stem)
def test_one_gpu_holds_the_counted_parameters_of_every_shipped_model(path: Any) -> None:
    spec = lrkv_plan.load_model(path)
    counted = parameter_count(spec).model_params
    if counted is None:
        with pytest.raises(SpecError, match="not stated"):
            stages(spec)
        return
    assert stages(spec)[0].total == 2 * counted


def test_every_weight_of_every_family_is_dealt_out_or_whole() -> None:
    for design in ("mha", "gqa:2", "mla:32+8", "lrkv:4,groups=2"):
        spec = swap_attention(model(), design).layers[0].attention
        assert spec is not None
        for weight in layout_of(spec, 64).weights:
            assert weight.share_per_gpu(1) == 1
            assert weight.share_per_gpu(2) in (Fraction(1, 2), 1)


def test_shares_that_cannot_be_dealt_out_are_refused() -> None:
    weight = WeightMatrix(name="key", rows=4, cols=6, role=WeightRole.KEY_VALUE, units=6)
    assert weight.share_per_gpu(12) == Fraction(1, 6)  # two GPUs for each share
    with pytest.raises(PlacementError, match="6 shares of weight key"):
        weight.share_per_gpu(4)


@pytest.mark.parametrize(("name", "published_gib"), [("gpt-oss-20b", 12.8), ("gpt-oss-120b", 60.8)])
def test_a_quantised_checkpoint_counts_in_its_own_format(name: str, published_gib: float) -> None:
    # "Checkpoint size" in table 1 of the gpt-oss model card, arXiv 2508.10925: rounded to 0.1 GiB.
    model = lrkv_plan.load_model(name)
    assert model.weight_dtype == "mxfp4"
    weights = weight_bytes_per_gpu(model, parallel=Parallelism(), weight_dtype=model.weight_dtype)
    assert round(weights.fullest.total / 2**30, 1) == published_gib
