"""The way to Triton: its decorator and language, or stand-ins that only let kernels be imported.

Triton comes with CUDA builds of torch on Linux. Set TRITON_INTERPRET=1 before a kernel's file is
imported to run kernels on CPU tensors, slowly. A process that only reads samples, or ends in an
error, never imports it: its libraries report leaks on stderr when such a process ends.
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


def __getattr__(name: str) -> Any:
    """``jit`` and ``tl``, imported when a kernel's file asks for them and not before."""
    if name not in ("jit", "tl"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not triton_is_installed():
        return _undecorated if name == "jit" else None
    library = importlib.import_module("triton.language" if name == "tl" else "triton")
    return library if name == "tl" else library.jit
