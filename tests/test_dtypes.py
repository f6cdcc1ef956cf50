from fractions import Fraction

import pytest

from lrkv_plan.attention.layout import CachedTensor, Sharding
from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.formats import STORAGE_FORMATS, storage_format
from lrkv_plan.loader import load_model
from lrkv_plan.memory.cache import bytes_per_token
from lrkv_plan.memory.largest import rank_ceiling
from lrkv_plan.specs.design import swap_attention
from tests.conftest import make_model

# Bytes of a row of 128 scalars, by hand: payload bits + scale bits, over 8.
ROW_OF_128 = {
    "fp32": 512,
    "bf16": 256,
    "fp16": 256,
    "fp8": 128,
    "int8": 128,
    "int4": 64 + 4,  # fp16 scale and zero point for the row
    "fp8_per_token_head": 128 + 4,
    "int8_per_token_head": 128 + 4,
    "nvfp4": 64 + 8,  # 128 / 16 = 8 one-byte scales
    "mxfp4": 64 + 4,  # 128 / 32 = 4 one-byte scales
    "q8_0": 4 * 34,
    "q5_1": 4 * 24,
    "q5_0": 4 * 22,
    "q4_1": 4 * 20,
    "q4_0": 4 * 18,
    "iq4_nl": 4 * 18,
    "int8_group64": 2 * (64 + 4),  # 16-bit scale and bias
    "int4_group64": 2 * (32 + 4),
    **{f"exl3_{bits}": 4 * (4 * bits + 2) for bits in range(2, 9)},
    "fp8_ds_mla": 128,  # rows other than MLA's: plain fp8
}


def test_every_format_has_its_row_worked_by_hand() -> None:
    whole = {n: f for n, f in STORAGE_FORMATS.items() if f.halves is None}
    assert {n: f.row_bytes(128) for n, f in whole.items()} == ROW_OF_128


@pytest.mark.parametrize(
    ("name", "bits"),
    [("nvfp4", Fraction(9, 2)), ("mxfp4", Fraction(17, 4)), ("q8_0", Fraction(17, 2)),
     ("q4_0", Fraction(9, 2)), ("bf16", Fraction(16)), ("int4", None)],
)  # fmt: skip
def test_bits_per_scalar_include_scales(name: str, bits: Fraction | None) -> None:
    assert STORAGE_FORMATS[name].bits_per_scalar_in_full_groups == bits


def test_a_partly_filled_group_pays_its_whole_scale() -> None:
    # 55 scalars: nvfp4 has ceil(55/16) = 4 scales: 27.5 + 4 bytes; ggml stores two whole blocks.
    assert STORAGE_FORMATS["nvfp4"].row_bytes(55) == Fraction(63, 2)
    assert STORAGE_FORMATS["q8_0"].row_bytes(55) == 68


def test_a_row_of_nothing_takes_nothing() -> None:
    assert all(f.row_bytes(0) == 0 for f in STORAGE_FORMATS.values())


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(SpecError, match="did you mean 'bf16'"):
        storage_format("bf61")


def test_checkpoint_spellings_are_aliases() -> None:
    assert storage_format("bfloat16").name == "bf16"
    assert storage_format("fp8_e4m3").name == "fp8"


def test_a_cached_inverse_rms_is_one_scalar_beside_the_blocks() -> None:
    # One scale per head and token: b bytes where nothing else has scales, 2 where blocks have.
    plain = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "int8": 1, "fp8_ds_mla": 1}
    expected = {name: plain.get(name, 2) for name in STORAGE_FORMATS}
    held = {
        n: f.half("key").of_tensor("key_scale").row_bytes(1) for n, f in STORAGE_FORMATS.items()
    }
    assert held == expected


def test_lrkv_with_cached_norms_in_q8_0_by_hand() -> None:
    # 4 heads of 64, rank 32: two shared rows of 2 blocks (2 * 34 B), 8 private rows of 1 block,
    # 4 scales of 2 B: 2 * 68 + 8 * 34 + 4 * 2 = 416, not 4 * 34 for the scales.
    backbone = make_model({"family": "mha", "n_heads": 4, "head_dim": 64})
    model = swap_attention(backbone, "lrkv:32,key_norm=rms_cached")
    assert bytes_per_token(model, kv_dtype="q8_0") == 416
    # mxfp4: 2 * (32 + 2) + 8 * (16 + 1) + 4 * 2 = 212; bf16: 2 * (2 * 64 + 8 * 32 + 4) = 776.
    assert bytes_per_token(model, kv_dtype="mxfp4") == 212
    assert bytes_per_token(model, kv_dtype="bf16") == 776


# Bytes of a head of 128 for keys and for values: ceil(128 b / 8) + 2 (fp8 keys: 128), + 4.
TURBOQUANT = {
    "turboquant_k8v4": (128, 68),
    "turboquant_4bit_nc": (66, 68),
    "turboquant_k3v4_nc": (50, 68),
    "turboquant_3bit_nc": (50, 52),
}


@pytest.mark.parametrize(("name", "rows"), TURBOQUANT.items())
def test_turboquant_keeps_keys_and_values_apart(name: str, rows: tuple[int, int]) -> None:
    found = storage_format(name)
    assert tuple(found.half(row).row_bytes(128) for row in ("key", "value")) == rows


def test_turboquant_leaves_two_layers_at_each_end_alone() -> None:
    # 36 layers of 8 heads: a public run of Qwen3-4B in turboquant_k3v4_nc printed 121,984 tokens
    # where bf16 printed 38,544, 3.16 times: (32 x 118 + 4 x 512) against 36 x 512.
    model = load_model("qwen3-8b")  # as many layers and heads as 4B
    held = bytes_per_token(model, kv_dtype="turboquant_k3v4_nc")
    assert held == 8 * (32 * 118 + 4 * 512)
    plain = bytes_per_token(model, kv_dtype="bf16")
    assert 38_544 * plain / held == pytest.approx(121_984, rel=1e-3)


def test_turboquant_leaves_no_layer_of_a_hybrid_alone() -> None:
    model = load_model("qwen3-next-80b-a3b")  # 12 full layers of 2 heads of 256
    assert bytes_per_token(model, kv_dtype="turboquant_k8v4") == 12 * 2 * (256 + 128 + 4)


def test_a_turboquant_head_takes_an_even_number_of_bytes() -> None:
    # 72 wide: keys 27 + 2, values 36 + 4, one byte of padding
    rows = [
        storage_format("turboquant_k3v4_nc").half(row).row_bytes(72) for row in ("key", "value")
    ]
    assert rows == [29, 41]


def test_keys_and_values_apart_are_what_llama_cpp_prints() -> None:
    # ikawrakow/ik_llama.cpp#92: 68 MiB of keys and 36 MiB of values, 2,048 cells of an 8B model.
    model = load_model("llama-3.1-8b")
    assert 2048 * bytes_per_token(model, kv_dtype="q8_0/iq4_nl") == (68 + 36) * 2**20
    assert storage_format("q8_0/q8_0") is storage_format("q8_0")


def test_a_row_that_is_key_and_value_has_one_format() -> None:
    with pytest.raises(PlacementError, match="one cached row is key and value"):
        bytes_per_token(load_model("deepseek-v3"), kv_dtype="q8_0/iq4_nl")
    tied = CachedTensor(name="tied", width=64, copies_per_layer=1, sharding=Sharding.REPLICATED)
    with pytest.raises(PlacementError, match="such as bf16"):
        tied.format_in(storage_format("bf16/fp8"))


@pytest.mark.parametrize(
    "text", ["q8_0/", "/q8_0", "q8_0/q4_0/q4_0", "q8_0/bf61", "fp8_ds_mla/q8_0"]
)
def test_formats_apart_that_are_none_are_told(text: str) -> None:
    with pytest.raises(SpecError):
        storage_format(text)


def test_low_rank_rows_follow_keys_and_values() -> None:
    # 4 heads of 64, rank 32: shared and private keys in q8_0 (68 + 4 * 34), values in q4_0 (half:
    # 36 + 4 * 18).
    backbone = make_model({"family": "mha", "n_heads": 4, "head_dim": 64})
    model = swap_attention(backbone, "lrkv:32")
    assert bytes_per_token(model, kv_dtype="q8_0/q4_0") == 68 + 4 * 34 + 36 + 4 * 18


def test_rank_and_plan_leave_out_designs_that_a_format_cannot_hold() -> None:
    ceiling = rank_ceiling(load_model("llama-3.1-8b"), budget="50%", kv_dtype="q8_0/q4_0")
    assert ceiling.latent is None
    assert ceiling.remarks[0].startswith("no MLA: kv_dtype q8_0/q4_0: one cached row is")
