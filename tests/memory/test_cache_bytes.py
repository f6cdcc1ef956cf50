"""Cache bytes: golden numbers by hand, an independent allocation, arrays, refusals."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from lrkv_plan.attention.registry import layout_of
from lrkv_plan.errors import PlacementError, UsageError
from lrkv_plan.loader import load_model
from lrkv_plan.memory.cache import (
    bytes_per_token,
    cache_bytes,
    encoder_bytes_per_token,
    ratio_to_mha,
    reference_mha,
    state_bytes_per_sequence,
)
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec
from tests.conftest import make_model

MIB = 2**20


def heads(n_heads: int) -> ModelSpec:
    return make_model({"family": "mha", "n_heads": n_heads, "head_dim": 128})


def test_paper_backbone_at_2048_and_8192(paper: ModelSpec) -> None:
    # 2 * 2 B * 18 layers * 2048 tokens * 18 heads * 128 = 339,738,624 B = 324 MiB
    assert cache_bytes(paper, context_tokens=2048).total == 339_738_624 == 324 * MIB
    assert cache_bytes(paper, context_tokens=8192).total == 1_296 * MIB
    lrkv = swap_attention(paper, "lrkv:55")
    # 2 * 2 * 18 * 2048 * (128 + 18 * 55) = 164,855,808 B = 157.21875 MiB
    assert cache_bytes(lrkv, context_tokens=2048).total == Fraction(15_721_875, 100_000) * MIB
    assert cache_bytes(lrkv, context_tokens=8192).total == Fraction(628_875, 1_000) * MIB


@pytest.mark.parametrize(
    ("n_heads", "text", "exact", "percent"),
    [
        (18, "lrkv:55", Fraction(1, 18) + Fraction(55, 128), 48.5243),
        (18, "lrkv:55,align=64", Fraction(1, 18) + Fraction(64, 128), 55.5556),
        (6, "lrkv:8", Fraction(1, 6) + Fraction(8, 128), 22.917),
        (6, "lrkv:32", Fraction(1, 6) + Fraction(32, 128), 41.667),
        (6, "lrkv:46", Fraction(1, 6) + Fraction(46, 128), 52.604),
        (6, "lrkv:64", Fraction(1, 6) + Fraction(64, 128), 66.667),
        (6, "lrkv:128", Fraction(1, 6) + 1, 116.667),
        (12, "lrkv:51", Fraction(1, 12) + Fraction(51, 128), 48.177),
        (32, "lrkv:54", Fraction(1, 32) + Fraction(54, 128), 45.3125),
        (32, "lrkv:64", Fraction(1, 32) + Fraction(64, 128), 53.125),
        (18, "gqa:6", Fraction(1, 3), 33.3333),
        (18, "mqa", Fraction(1, 18), 5.5556),
    ],
)
def test_ratio_to_mha(n_heads: int, text: str, exact: Fraction, percent: float) -> None:
    ratio = ratio_to_mha(swap_attention(heads(n_heads), text))
    assert ratio == exact
    assert round(100 * float(exact), len(str(percent).split(".")[1])) == percent


@pytest.mark.parametrize("tp_size", [1, 2, 4])
@pytest.mark.parametrize(
    "text",
    ["mha", "gqa:2", "mqa", "mla:40+8", "lrkv:5", "lrkv:5,groups=2,key_norm=rms_cached",
     "lrkv:5,position=rope_decoupled,rope_dim=4,align=8"],
)  # fmt: skip
def test_formula_matches_allocated_arrays(text: str, tp_size: int) -> None:
    """Allocate what one GPU keeps, head by head, and count its bytes."""
    model = swap_attention(make_model({"family": "mha", "n_heads": 8, "head_dim": 16}), text)
    attention = model.layers[0].attention
    assert attention is not None
    tokens, batch = 7, 3
    allocated = 0
    for tensor in layout_of(attention, model.model_dim).cached:
        owners = range(tensor.copies_per_layer)
        if tensor.sharding.value == "by_copy":
            # GPU 0 serves query heads 0 .. 8/P - 1 and needs the copies that they read.
            per_copy = 8 // tensor.copies_per_layer
            owners = {head // per_copy for head in range(8 // tp_size)}  # type: ignore[assignment]
        cache = np.zeros((len(owners), batch, tokens, tensor.width), dtype=np.float16)
        allocated += cache.nbytes
    held = cache_bytes(model, context_tokens=tokens, batch_size=batch, tp_size=tp_size)
    assert held.total == allocated


def test_a_window_bounds_the_rows_kept() -> None:
    attention = {"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 16}
    model = make_model(attention, window_tokens=100, window_kind="sliding", n_layers=3)
    per_token = 3 * 2 * 2 * 2 * 16
    contexts = np.array([1, 99, 100, 101, 10**6])
    kept = cache_bytes(model, context_tokens=contexts).total
    assert kept.tolist() == [per_token * n for n in (1, 99, 100, 100, 100)]


def test_layers_that_reuse_a_cache_keep_nothing() -> None:
    attention = {"family": "mqa", "n_heads": 4, "head_dim": 16}
    layers = [
        {"count": 2, "attention": attention},
        {"count": 3, "attention": attention, "reuses_cache": True},
    ]
    model = make_model(attention, layers=layers)
    assert bytes_per_token(model) == 2 * 2 * 2 * 16


def test_state_and_index_are_counted_apart() -> None:
    attention = {
        "family": "mla",
        "n_heads": 4,
        "latent_dim": 32,
        "rope_dim": 8,
        "nope_dim": 16,
        "v_head_dim": 16,
    }
    index = [{"name": "index_key", "bytes_per_copy": 132, "sharding": "replicated"}]
    state = [{"name": "ssm", "bytes_per_copy": 1000, "copies": 8}]
    layers = [{"count": 2, "attention": attention, "index": index}, {"count": 5, "state": state}]
    model = make_model(attention, layers=layers)
    held = cache_bytes(model, context_tokens=10, batch_size=3)
    assert held.kv_bytes == 2 * 2 * 40 * 10 * 3
    assert held.index_bytes == 2 * 132 * 10 * 3
    assert held.state_bytes == 5 * 8 * 1000 * 3
    assert state_bytes_per_sequence(model, tp_size=4) == 5 * 2 * 1000
    # A swap of the attention design drops the index that belonged to it, not the state.
    assert cache_bytes(swap_attention(model, "mqa"), context_tokens=10).index_bytes == 0


def test_cross_attention_keeps_encoder_rows() -> None:
    attention = {"family": "mha", "n_heads": 4, "head_dim": 16}
    layers = [
        {"count": 2, "attention": attention},
        {"count": 2, "attention": attention, "cached_over": "encoder"},
    ]
    model = make_model(attention, layers=layers)
    per_token = 2 * 2 * 2 * 4 * 16
    assert bytes_per_token(model) == encoder_bytes_per_token(model) == per_token
    assert cache_bytes(model, context_tokens=10).total == 10 * per_token
    assert cache_bytes(model, context_tokens=10, encoder_tokens=1500).total == 1510 * per_token


def test_key_and_value_widths_may_differ() -> None:
    model = make_model(
        {"family": "gqa", "n_heads": 4, "n_kv_heads": 2, "head_dim": 24, "v_head_dim": 16}
    )
    assert bytes_per_token(model) == 2 * 2 * (24 + 16)
    assert ratio_to_mha(model) == Fraction(1, 2)


def test_replicated_below_one_head_per_gpu() -> None:
    # Qwen3-235B: 94 layers, 4 KV heads of 128 at TP 8 keep 94 * 2 * 128 * 2 = 48,128 B per GPU.
    model = make_model(
        {"family": "gqa", "n_heads": 64, "n_kv_heads": 4, "head_dim": 128}, n_layers=94
    )
    assert bytes_per_token(model, tp_size=8) == 48_128


def test_latent_is_whole_on_every_gpu() -> None:
    # DeepSeek-V2-Lite: 27 * 576 * 2 = 31,104 B at TP 1, 2 and 4.
    attention = {
        "family": "mla",
        "n_heads": 16,
        "latent_dim": 512,
        "rope_dim": 64,
        "nope_dim": 128,
        "v_head_dim": 128,
    }
    model = make_model(attention, n_layers=27)
    sizes = np.array([1, 2, 4])
    assert bytes_per_token(model, tp_size=sizes).tolist() == [31_104] * 3


@pytest.mark.parametrize("tp_size", [3, 16])
def test_heads_that_cannot_be_dealt_out_are_refused(tp_size: int) -> None:
    model = make_model({"family": "gqa", "n_heads": 8, "n_kv_heads": 2, "head_dim": 16})
    with pytest.raises(PlacementError, match="allowed: 1, 2, 4, 8"):
        bytes_per_token(model, tp_size=tp_size)


def test_kv_heads_that_divide_neither_way_are_refused() -> None:
    model = make_model({"family": "gqa", "n_heads": 12, "n_kv_heads": 6, "head_dim": 16})
    with pytest.raises(PlacementError, match="6 copies of key"):
        bytes_per_token(model, tp_size=4)


def test_int64_overflow_is_refused_for_numbers_and_arrays(paper: ModelSpec) -> None:
    for context in (2**45, np.array([1, 2**45])):
        with pytest.raises(UsageError, match="overflow"):
            cache_bytes(paper, context_tokens=context, batch_size=2**10)


def test_the_largest_products_below_the_limit_are_exact(paper: ModelSpec) -> None:
    tokens = (2**63 - 1) // 165_888
    exact = tokens * 165_888
    assert cache_bytes(paper, context_tokens=tokens).total == exact
    assert cache_bytes(paper, context_tokens=np.array([tokens])).total.tolist() == [exact]


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8", True, np.array([0]), np.array([1.5])])
def test_counts_must_be_positive_whole_numbers(paper: ModelSpec, bad: object) -> None:
    with pytest.raises(UsageError):
        cache_bytes(paper, context_tokens=bad)


def test_a_fraction_of_a_byte_stays_exact() -> None:
    # Rank 5 in int4: 5 scalars take 2.5 B and 4 B of scales per row; two rows (K and V), one head.
    base = make_model({"family": "mha", "n_heads": 1, "head_dim": 16})
    model = swap_attention(base, "lrkv:5")
    shared = 2 * (8 + 4)
    assert bytes_per_token(model, kv_dtype="int4") == shared + 2 * Fraction(13, 2)
    odd = swap_attention(base, "lrkv:key_rank=5,value_rank=4")
    assert bytes_per_token(odd, kv_dtype="int4") == Fraction(24) + Fraction(13, 2) + 6


def test_layouts_of_one_latent_design_by_hand() -> None:
    """DeepSeek-V3, 61 layers of 128 heads: ik_llama.cpp PR 235 prints the second and the third."""
    model = load_model("deepseek-v3")
    assert bytes_per_token(swap_attention(model, "mha")) == 61 * 128 * (128 + 64 + 128) * 2
    assert bytes_per_token(model) == 61 * (512 + 64) * 2
    transposed = swap_attention(model, "mla:512+64,cached_form=transposed")
    assert bytes_per_token(transposed) == 61 * (512 + 64 + 512) * 2
    # -ctk f16 -ctv q8_0: 34 bytes per 32 scalars of the copy alone
    assert bytes_per_token(transposed, kv_dtype="fp16/q8_0") == 61 * (576 * 2 + 544)
    assert ratio_to_mha(model) == Fraction(512 + 64, 128 * 320)


def test_reference_keeps_windows_and_layers(paper: ModelSpec) -> None:
    swapped = swap_attention(paper, "mla:512+64")
    assert bytes_per_token(reference_mha(swapped)) == bytes_per_token(paper)
