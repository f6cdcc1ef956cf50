"""The way to torch: present or one line that says how to install it; devices and dtypes by name."""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import CalibrationError, UsageError, did_you_mean, shown

if TYPE_CHECKING:
    import torch

TORCH_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


DEVICES = ("auto", "cpu", "cuda")


def require_torch() -> Any:
    """The torch module, its large CPU tensors on huge pages unless the environment says otherwise.

    Huge pages need fewer address look-ups, and times on them repeat better. torch reads the
    variable at its first allocation, so whatever measures must come here first.

    Raises
    ------
    CalibrationError
        If torch is missing or its import fails.
    """
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        reason = "torch is not installed" if missing else f"torch cannot be imported ({error})"
        raise CalibrationError(
            f"{reason}: calibration runs real decode steps with it; "
            "install it with: pip install 'lrkv-plan[calibrate]'"
        ) from None


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a storage format that calibration can run: fp32, bf16 or fp16.

    Raises
    ------
    UsageError
        If the name is another one.
    """
    torch_name = TORCH_DTYPES.get(name)
    if torch_name is None:
        raise UsageError(
            f"dtype {shown(name)}{did_you_mean(name, TORCH_DTYPES)}: decode steps run in "
            f"{', '.join(TORCH_DTYPES)}"
        )
    found: torch.dtype = getattr(require_torch(), torch_name)
    return found


def resolve_device(name: str = "auto") -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda`` or ``cuda:1`` names here.

    ``auto`` is the first CUDA device where torch sees one, else the CPU.

    Raises
    ------
    UsageError
        If the name is unknown.
    CalibrationError
        If torch sees no such CUDA device.
    """
    library = require_torch()
    kind, colon, index = name.partition(":")
    if kind not in DEVICES or (colon and not (kind == "cuda" and index.isdecimal())):
        raise UsageError(
            f"device {shown(name)}{did_you_mean(name, DEVICES)}: one of {', '.join(DEVICES)}, "
            "or cuda:1 for another than the first"
        )
    n_gpus = library.cuda.device_count() if library.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= n_gpus:
        raise CalibrationError(
            f"device {name}: torch {library.__version__} sees {n_gpus} CUDA devices here; "
            "use --device cpu, or install a CUDA build of torch"
        )
    on_gpu = kind == "cuda" or (kind == "auto" and n_gpus > 0)
    device: torch.device = library.device(f"cuda:{int(index or 0)}" if on_gpu else "cpu")
    return device
