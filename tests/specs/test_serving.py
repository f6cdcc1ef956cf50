"""Placements, pipeline stages and weight formats by hand."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lrkv_plan.errors import PlacementError, SpecError
from lrkv_plan.formats import weight_format
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
