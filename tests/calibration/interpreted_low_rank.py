"""Runs fused LRKV cases in Triton's interpreter and prints their errors as JSON.

Started by test_triton_low_rank in a process of its own: the interpreter is chosen by an environment
variable when kernels are defined, and must not be chosen for other tests.
"""

from __future__ import annotations

import json
import math
import sys
from typing import Any


def errors_of(case: dict[str, Any]) -> dict[str, float]:
    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.calibration.decode.fused_low_rank import FusedLowRank
    from lrkv_plan.calibration.decode.step import build_step

    spec = LowRankSpec(**case["spec"])
    shape = {"model_dim": 32, "batch_size": 1, "context_tokens": 40} | case.get("shape", {})
    step = build_step("lrkv/factored", spec, **shape)
    fused = FusedLowRank(step.inputs, **case.get("tiling", {}))
    expected = step.reference()
    found = {"output": relative_error(fused.run(), expected)}
    if case.get("partial"):
        outputs, log_sums = fused.partial()
        found["partial"] = relative_error(outputs, expected)
        found["log_sum"] = float((log_sums - step.partial()[1]).abs().max())
    return found


def relative_error(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape
    return float((found.double() - expected).abs().max() / expected.abs().max())


def by_hand() -> list[float]:
    """Two tokens of one head of width 2 and rank 1; see the test for the arithmetic."""
    import torch

    from lrkv_plan.attention.families.low_rank import LowRankSpec
    from lrkv_plan.calibration.decode.attend import StepInputs
    from lrkv_plan.calibration.decode.fused_low_rank import FusedLowRank
    from lrkv_plan.calibration.decode.step import build_step

    spec = LowRankSpec(n_heads=1, head_dim=2, rank=1)
    step = build_step("lrkv/factored", spec, model_dim=4, batch_size=1, context_tokens=2)
    rows = {
        "shared_key": [[1.0, 3.0], [1.0 + math.log(3) / math.sqrt(2), 3.0]],
        "private_key": [[4.0], [4.0]],
        "shared_value": [[1.0, 0.0], [1.0, 4.0]],
        "private_value": [[2.0], [6.0]],
    }
    for name, row in rows.items():
        step.inputs.cache.tensors[name].copy_(torch.tensor(row))
    column = torch.tensor([1.0, -1.0])
    inputs = StepInputs(
        spec=spec, cache=step.inputs.cache, query=torch.tensor([2.0, 1.0]).view(1, 1, 1, 2),
        weights={"key_basis": column.view(1, 2, 1), "value_basis": column.view(1, 1, 2)},
        mask=step.inputs.mask, positions=step.inputs.positions,
    )  # fmt: skip
    fused = FusedLowRank(inputs)
    return [*fused.run().flatten().tolist(), float(fused.partial()[1])]


if __name__ == "__main__":
    cases = json.load(sys.stdin)
    results = {name: errors_of(case) for name, case in cases.items()}
    json.dump({"errors": results, "by_hand": by_hand()}, sys.stdout)
