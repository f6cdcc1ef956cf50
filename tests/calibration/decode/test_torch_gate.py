from __future__ import annotations

import subprocess
import sys

import pytest

from lrkv_plan.calibration import torch_gate
from lrkv_plan.errors import CalibrationError, UsageError

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from lrkv_plan.errors import CalibrationError
try:
    import lrkv_plan.calibration.decode.step
except CalibrationError as error:
    print(error)
"""


def test_decode_without_torch_says_how_to_install_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    assert "pip install 'lrkv-plan[calibrate]'" in done.stdout
    assert done.stdout.count("\n") == 1


def test_devices_are_named_in_three_ways() -> None:
    torch = pytest.importorskip("torch")
    assert torch_gate.resolve_device("cpu") == torch.device("cpu")
    assert torch_gate.resolve_device("auto").type in ("cpu", "cuda")
    for name in ("gpu", "cuda:", "cuda:x", "cpu:0", ""):
        with pytest.raises(UsageError, match="auto, cpu, cuda"):
            torch_gate.resolve_device(name)


def test_a_missing_cuda_device_is_a_calibration_error() -> None:
    pytest.importorskip("torch")
    with pytest.raises(CalibrationError, match="--device cpu"):
        torch_gate.resolve_device("cuda:99")


def test_formats_that_torch_cannot_multiply_are_refused() -> None:
    torch = pytest.importorskip("torch")
    assert torch_gate.torch_dtype("bf16") == torch.bfloat16
    with pytest.raises(UsageError, match=r"'fp8'.*fp32, bf16, fp16"):
        torch_gate.torch_dtype("fp8")
