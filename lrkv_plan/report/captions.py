"""The small line under a picture: its inputs, in the same words everywhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel


def caption(*parts: str) -> str:
    """The stated inputs, separated by semicolons; empty ones are left out."""
    return "; ".join(part for part in parts if part)


def gpus(tp_size: int) -> str:
    """How many GPUs share the model, where it is more than one."""
    return "" if tp_size == 1 else f"tensor parallel over {tp_size} GPUs"


def unmeasured(models: Iterable[tuple[str, StepModel]]) -> str:
    """Designs whose attention constants are not measurements of that GPU, and what they are."""
    found: dict[str, list[str]] = {}
    for label, model in models:
        for basis in dict.fromkeys(kernel.basis for kernel in model.kernels):
            if basis != "measured":
                found.setdefault(basis.replace("_", " "), []).append(label)
    return caption(
        *(f"attention constants {basis}: {', '.join(of)}" for basis, of in found.items())
    )
