"""The fused LRKV kernel: exact in Triton's interpreter, and compiled for Hopper without a GPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.calibration.decode.fused_low_rank import (
    FusedLowRank,
    block_constants,
    fused_is_available,
    tiling,
)
from lrkv_plan.calibration.decode.paths import PATHS
from lrkv_plan.calibration.decode.step import build_step
from lrkv_plan.calibration.triton_gate import is_interpreting, triton_is_installed
from lrkv_plan.errors import CalibrationError, UsageError

needs_triton = pytest.mark.skipif(
    not triton_is_installed(), reason="triton is not installed (Linux: pip install triton)"
)
ODD = {"n_heads": 3, "head_dim": 16, "rank": 5}
CASES: dict[str, dict[str, Any]] = {
    # 70 rows are 3 tiles of 32 in 2 parts; 9 rows leave the second part empty
    "odd rank, uneven lengths, two parts": {
        "spec": ODD, "shape": {"batch_size": 2, "context_tokens": [70, 9]},
        "tiling": {"n_parts": 2}, "partial": True,
    },
    "rank 0, one head, one token": {
        "spec": {"n_heads": 1, "head_dim": 16, "rank": 0}, "shape": {"context_tokens": 1},
    },
    "private values only, widths that differ": {
        "spec": {"n_heads": 2, "head_dim": 24, "v_head_dim": 20, "key_rank": 0, "value_rank": 3},
    },
    "groups, one head per tile": {
        "spec": {"n_heads": 4, "head_dim": 16, "rank": 3, "n_shared_groups": 2},
        "tiling": {"heads_per_tile": 1},
    },
    "a last tile with fewer heads": {"spec": ODD, "tiling": {"heads_per_tile": 2}},
    "key scales, rope key, query tokens, pages": {
        "spec": {
            "n_heads": 2, "head_dim": 16, "rank": 4, "n_shared_groups": 2,
            "key_norm": "rms_cached", "position": "rope_decoupled", "rope_dim": 8,
        },
        "shape": {
            "batch_size": 2, "context_tokens": [30, 41], "query_tokens": 2, "page_tokens": 12,
        },
        "tiling": {"n_parts": 2},
    },
    "rank padded in memory": {
        "spec": {
            "n_heads": 2, "head_dim": 16, "rank": 6, "rank_alignment": 8,
            "position": "rope_rank", "basis_spans_rotary_planes": True,
        },
    },
    "bf16 rank 55": {
        "spec": {"n_heads": 2, "head_dim": 128, "rank": 55},
        "shape": {"context_tokens": 150, "dtype": "bf16"}, "tiling": {"n_parts": 2},
    },
    "fp16": {"spec": ODD, "shape": {"dtype": "fp16"}},
}  # fmt: skip


@pytest.fixture(scope="module")
def interpreted() -> dict[str, Any]:
    """Errors of all cases, measured in one process that interprets kernels."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted_low_rank.py"))],
        input=json.dumps(CASES), capture_output=True, text=True, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@needs_triton
@pytest.mark.parametrize("name", CASES)
def test_fused_decode_equals_the_float64_reference(name: str, interpreted: dict[str, Any]) -> None:
    dtype = CASES[name].get("shape", {}).get("dtype", "fp32")
    limit = {"fp32": 1e-5, "fp16": 2e-3, "bf16": 2e-2}[dtype]
    for what, error in interpreted["errors"][name].items():
        assert error < limit, what


@needs_triton
def test_fused_decode_equals_a_hand_calculation(interpreted: dict[str, Any]) -> None:
    # Query (2, 1), basis column (1, -1): in rank space 2 - 1 = 1. Token 0 has shared key (1, 3) and
    # latent 4: 2 + 3 + 4 = 9, over sqrt(2). Token 1's shared key adds 2 ln 3 / sqrt 2 to that, so
    # after the scale its logit is larger by ln 3 and the weights are 1/4 and 3/4. Shared values
    # (1, 0) and (1, 4) mix to (1, 3), latents 2 and 6 to 5, which maps to (5, -5): (6, -2).
    # Log-sum-exp: 9 / sqrt 2 + ln(1 + 3).
    expected = [6.0, -2.0, 9 / math.sqrt(2) + math.log(4)]
    assert interpreted["by_hand"] == pytest.approx(expected, rel=1e-6)


def test_one_tile_serves_all_heads_that_fit_and_parts_fill_the_processors() -> None:
    shape = {"n_query": 1, "longest": 32768, "n_processors": 132}
    cut = tiling(n_heads=18, n_groups=1, batch_size=8, **shape)
    # 18 of 32 rows; 4 * 132 programs over 8 sequences: 66 parts
    assert (cut.heads_per_tile, cut.rows, cut.n_parts) == (18, 32, 66)
    # 4 groups of 10 heads, each one tile of 16 rows: 528 / (4 * 8) = 16.5, so 17 parts
    cut = tiling(n_heads=40, n_groups=4, batch_size=8, **shape)
    assert (cut.heads_per_tile, cut.rows, cut.n_parts) == (10, 16, 17)
    # 2 query tokens: 16 heads fill 32 rows, so 18 heads go in two equal tiles
    cut = tiling(n_heads=18, n_groups=1, batch_size=8, **{**shape, "n_query": 2})
    assert (cut.heads_per_tile, cut.rows, cut.n_parts) == (9, 32, 33)
    # 300 rows are too few to be cut at 256 each
    assert tiling(n_heads=18, n_groups=1, batch_size=1, **{**shape, "longest": 300}).n_parts == 1


def test_more_query_tokens_than_a_tile_holds_are_refused() -> None:
    with pytest.raises(UsageError, match=r"query_tokens 33: .* at most 32; use lrkv/factored"):
        tiling(n_heads=2, n_groups=1, n_query=33, batch_size=1, longest=64, n_processors=1)


@pytest.mark.skipif(is_interpreting(), reason="TRITON_INTERPRET is set for this process")
def test_a_cpu_is_refused_in_one_line() -> None:
    spec = LowRankSpec(**ODD)
    step = build_step("lrkv/factored", spec, model_dim=32, batch_size=1, context_tokens=4)
    with pytest.raises(CalibrationError, match=r"lrkv/fused: runs on CUDA .* not on cpu"):
        FusedLowRank(step.inputs)


def test_the_path_is_offered_only_where_it_can_run() -> None:
    for position, expected in (("none", fused_is_available()), ("rope_expand", False)):
        spec = LowRankSpec(n_heads=2, head_dim=16, rank=4, position=position)
        assert PATHS["lrkv/fused"].applies(spec) is expected


@needs_triton
def test_the_kernels_compile_for_hopper_and_fit_its_registers(tmp_path: Path) -> None:
    tools = Path(find_spec("triton").origin).parent / "backends" / "nvidia" / "bin"
    if not (tools / "ptxas").exists() or not (tools / "cuobjdump").exists():
        pytest.skip("this triton comes without ptxas or cuobjdump")
    script = Path(__file__).parent.parent.parent / "scripts" / "compile_fused_low_rank.py"
    done = subprocess.run(
        [sys.executable, str(script), "--rank", "55", "64"],
        capture_output=True, text=True, check=False,
        env=os.environ | {"TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {(row["kernel"], row["rank"]): row for row in json.loads(done.stdout)}
    assert set(rows) == {(k, r) for k in ("decode_parts", "merge_parts") for r in (55, 64)}
    for row in rows.values():
        # triton 3.7 spills nothing, 3.9 16 bytes at rank 55 and 32 at rank 64
        assert row["spill_bytes"] <= 64
        assert row["shared_bytes"] <= 227 * 1024  # of a streaming multiprocessor of sm_90
    assert rows["decode_parts", 64]["tensor_core_instructions"] > 0
    # rows of 64 scalars are copied asynchronously, rows of 55 in 16 bits cannot be
    assert rows["decode_parts", 64]["async_copies"] > 0
    assert rows["decode_parts", 55]["async_copies"] == 0


def test_blocks_are_padded_and_stored_rows_are_not() -> None:
    cut = tiling(n_heads=6, n_groups=1, n_query=1, batch_size=1, longest=64, n_processors=1)
    widths = {"shared_key": 96, "shared_value": 128, "private_key": 55, "key_scale": 1}
    constants = block_constants(widths, cut, n_query=1, paged=False)
    found = {name: constants[name] for name in constants if name.startswith(("KEY", "VALUE"))}
    assert found == {
        "KEY_DIM": 96, "KEY_BLOCK": 128, "VALUE_DIM": 128, "VALUE_BLOCK": 128,
        "KEY_RANK": 55, "KEY_RANK_BLOCK": 64, "VALUE_RANK": 0, "VALUE_RANK_BLOCK": 16,
    }  # fmt: skip
    assert constants["SCALED"]
    assert constants["ROPE_DIM"] == 0
