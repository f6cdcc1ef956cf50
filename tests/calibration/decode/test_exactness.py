"""Every path against keys and values written out in float64."""

from __future__ import annotations

import dataclasses

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.attention.families.low_rank import LowRankSpec
from lrkv_plan.calibration.decode.exactness import Case, hard_cases, random_case, relative_error
from lrkv_plan.calibration.decode.paths import PATHS, paths_for
from lrkv_plan.calibration.decode.step import build_step

LIMITS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_random_designs_agree_with_the_reference(dtype: str) -> None:
    cases = [random_case(seed) for seed in range(200)]
    errors = {case.label: case.error(dtype) for case in cases}
    assert max(errors.values()) < LIMITS[dtype], max(errors, key=lambda label: errors[label])
    own = {name for name in PATHS if not name.endswith("fused")}
    assert {case.path for case in cases} == own  # no path is left untested


@pytest.mark.parametrize("dtype", list(LIMITS))
@pytest.mark.parametrize("case", hard_cases(), ids=lambda case: f"{case.label} {case.path}")
def test_hard_steps_agree_with_the_reference(case: Case, dtype: str) -> None:
    assert case.error(dtype) < LIMITS[dtype]


def test_the_check_sees_a_wrong_weight() -> None:
    spec = LowRankSpec(n_heads=4, head_dim=8, rank=3)
    step = build_step("lrkv/factored", spec, model_dim=32, batch_size=2, context_tokens=20)
    basis = step.inputs.weights["key_basis"].clone()
    basis[2, 0, 0] += 0.01
    wrong = dataclasses.replace(step.inputs, weights={**step.inputs.weights, "key_basis": basis})
    assert relative_error(step) < 1e-5
    changed = dataclasses.replace(step, attention=step.path.build(wrong))
    assert relative_error(changed) > 1e-4


def test_rows_of_many_chunks_agree_with_the_reference() -> None:
    # 3 heads x 30,000 tokens x 16 exceed one conversion chunk (2**18 scalars) within a head.
    spec = LowRankSpec(n_heads=3, head_dim=16, rank=5)
    step = build_step(
        "lrkv/factored", spec, model_dim=32, batch_size=2, context_tokens=30_000, dtype="bf16"
    )
    assert relative_error(step) < LIMITS["bf16"]


@pytest.mark.parametrize("position", ["none", "rope_expand", "rope_decoupled"])
def test_paths_of_one_design_agree_on_the_same_rows(position: str) -> None:
    spec = LowRankSpec(
        n_heads=4, head_dim=8, rank=3, position=position,
        rope_dim=4 if position == "rope_decoupled" else 0,
    )  # fmt: skip
    outputs = [
        build_step(path.name, spec, model_dim=32, batch_size=2, context_tokens=[9, 30]).run()
        for path in paths_for(spec)
        if not path.name.endswith("fused")
    ]
    assert len(outputs) == 2
    assert torch.allclose(outputs[0], outputs[1], atol=1e-6)
