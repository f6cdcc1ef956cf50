"""The way to Triton: its decorator and language, or stand-ins that only let kernels be imported.

Triton comes with CUDA builds of torch on Linux. Set TRITON_INTERPRET=1 before this module is
imported to run kernels on CPU tensors, slowly.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any


def triton_is_installed() -> bool:
    """Whether Triton can be imported here."""
    return importlib.util.find_spec("triton") is not None


def is_interpreting() -> bool:
    """Whether kernels are to run in Triton's interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _undecorated(function: Any) -> Any:
    return function


jit: Any = _undecorated
tl: Any = None
if triton_is_installed():
    jit = importlib.import_module("triton").jit
    tl = importlib.import_module("triton.language")
