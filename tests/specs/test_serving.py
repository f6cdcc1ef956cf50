"""Placements, pipeline stages and weight formats by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.formats import weight_format
from lrkv_plan.loader import load_model
from lrkv_plan.memory.weights import weight_bytes_per_gpu
from lrkv_plan.specs.deployment import Parallelism, pipeline_stages


@pytest.mark.parametrize(
    ("dtype", "matrix_bits"),
    [  # a matrix of 256 inputs and 384 outputs, worked by hand
        ("bf16", 256 * 384 * 16),
        ("fp32", 256 * 384 * 32),
        ("fp8", 256 * 384 * 8 + 384 * 32),
        ("fp8_block", 256 * 384 * 8 + 2 * 3 * 32),
        ("int8", 256 * 384 * 8 + 384 * 32),
        ("int4", 256 * 384 * 4 + 2 * 384 * 20),
        ("nvfp4", 256 * 384 * 4 + 16 * 384 * 8),
        ("mxfp4", 256 * 384 * 4 + 8 * 384 * 8),
    ],
)
def test_formats_by_hand(dtype: str, matrix_bits: int) -> None:
    assert weight_format(dtype).matrix_bits("experts", 256, 384) == matrix_bits


@pytest.mark.parametrize(
    ("dtype", "bits_per_weight"),
    # llama.cpp's quantize README (read 2026-12-01) prints these for Llama-3.1-8B's files.
    [("q8_0", 8.5008), ("q6_k", 6.5633), ("q5_k_m", 5.7036), ("q4_k_m", 4.8944), ("q4_k_s", 4.6672)],
)  # fmt: skip
def test_gguf_mixtures_weigh_what_their_files_do(dtype: str, bits_per_weight: float) -> None:
    llama = load_model("llama-3.1-8b")
    held = weight_bytes_per_gpu(llama, parallel=Parallelism(), weight_dtype=dtype)
    assert 8 * held.fullest.total / 8_030_261_248 == pytest.approx(bits_per_weight, rel=1.5e-3)


def test_a_gguf_mixture_by_hand() -> None:
    # q4_k: 144 bytes per 256 weights, 4.5 bits; q6_k: 210 bytes, 6.5625. A third of a block's
    # weights is its last matrix, of which half the layers take q6_k.
    storage = weight_format("q4_k_m")
    assert storage.matrix_bits("feed_forward", 256, 6) == 256 * 6 * (4.5 + 2.0625 / 6)
    assert storage.matrix_bits("attention", 256, 20) == 256 * 20 * (4.5 + 2.0625 / 20)
    assert storage.table_bits("head", 256) == 6.5625
    # 384 inputs are no multiple of 256: q5_0 (22 bytes per 32) and q8_0 (34).
    assert storage.matrix_bits("feed_forward", 384, 6) == 384 * 6 * (5.5 + 3 / 6)


def test_aliases_and_unknown_formats() -> None:
    assert weight_format("torch.bfloat16") is weight_format("bf16")
    assert weight_format("gptq").name == weight_format("AWQ").name == "int4"
    with pytest.raises(SpecError, match=r"weight format 'int5' is unknown.*--weights"):
        weight_format("int5")


@given(n_layers=st.integers(1, 200), pp=st.integers(1, 16))
def test_stages_cover_the_layers_in_order(n_layers: int, pp: int) -> None:
    if pp > n_layers:
        return
    found = pipeline_stages(n_layers, pp)
    assert [i for stage in found for i in stage] == list(range(n_layers))
    sizes = [len(stage) for stage in found]
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == n_layers // pp


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"tp_size": 0}, "tp_size 0"),
        ({"pp_size": 2.0}, "pp_size 2.0: must be a whole number"),
        ({"tp_size": True}, "must be a whole number"),
        ({"tp_size": 4, "ep_size": 3}, "ep_size 3"),
        ({"tp_size": 6, "dp_size": 2, "ep_size": 4}, "divide tp_size 6 or be a multiple"),
        ({"tp_size": 4, "dcp_size": 3}, "dcp_size 3: must divide tp_size 4"),
    ],
)
def test_parallelism_that_no_engine_runs_is_refused(sizes: dict[str, Any], message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        Parallelism(**sizes)
