"""The code for CUDA, run on the CPU: its products, dtypes and tiles, with torch's one CUDA-only
call (a half-precision product that keeps its fp32 sums) computed here.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.calibration.decode import attend as products
from lrkv_plan.calibration.decode.exactness import hard_cases, random_case
from lrkv_plan.calibration.decode.paths import PATHS

LIMITS = {"fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}


@pytest.fixture
def as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    wide_products: list[Any] = []
    product = torch.bmm

    def bmm(left: torch.Tensor, right: torch.Tensor, out_dtype: Any = None, **more: Any) -> Any:
        if out_dtype is None:
            return product(left, right, **more)
        assert left.dtype == right.dtype != torch.float32
        wide_products.append(left.shape)
        return product(left.to(out_dtype), right.to(out_dtype))

    monkeypatch.setattr(torch, "bmm", bmm)
    monkeypatch.setattr(products, "on_cpu", lambda device: False)
    return wide_products


@pytest.mark.parametrize("dtype", list(LIMITS))
def test_accelerator_branch_agrees_with_the_reference(as_on_cuda: list[Any], dtype: str) -> None:
    cases = [random_case(seed) for seed in range(40)]
    cases += [case for case in hard_cases() if case.cancelling is None]
    errors = {(case.label, case.path): case.error(dtype) for case in cases}
    assert max(errors.values()) < LIMITS[dtype], max(errors, key=lambda key: errors[key])
    assert {name for name in PATHS if not name.endswith("fused")} == {c.path for c in cases}
    assert bool(as_on_cuda) == (dtype != "fp32")


def test_torch_knows_the_wide_product() -> None:
    left = torch.empty(2, 3, 4, dtype=torch.bfloat16, device="meta")
    right = torch.empty(2, 4, 5, dtype=torch.bfloat16, device="meta")
    assert torch.bmm(left, right, out_dtype=torch.float32).dtype == torch.float32
