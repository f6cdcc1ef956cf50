"""How long the small kernels of a layer and a step take: norms, rotary, activation, sampling.

Measured fused, as engines run them, on two GPUs only (``small_kernels.yaml``); they stand for every
GPU, as such kernels are mostly launch and one pass over few bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.documents import read_yaml
from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.latency.operation import OperationModel, OperationTime, banded, check_numbers

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import Number

TABLE = Path(__file__).with_name("small_kernels.yaml")


@dataclass(frozen=True, kw_only=True)
class SmallKernelModel(OperationModel):
    """Constants of one kind of small kernel, in base units; ``width`` says what its width is."""

    kind: str
    width: str
    t0_s: float
    width_s: float
    scalar_s: float


@cache
def small_kernel_models() -> dict[str, SmallKernelModel]:
    """Every kind by name."""
    table = read_yaml(TABLE)
    note = f"small kernels: measured on {table['measured_on']} and taken for every GPU"
    return {
        kind: SmallKernelModel(
            engine="vllm", lender="vllm", gpu=table["measured_on"], basis="generation",
            notes=(note,), kind=kind, width=row["width"], t0_s=row["t0_s"],
            width_s=row["width_s"], scalar_s=row["scalar_s"],
            band90=(row["band90"][0], row["band90"][1]),
            held_out_median_error=row["median_error"], held_out_p90_error=row["p90_error"],
        )
        for kind, row in table["kinds"].items()
    }  # fmt: skip


def small_kernel_time(kind: str, tokens: Number, width: Number) -> OperationTime:
    """The time of one small kernel.

    Parameters
    ----------
    kind : ``norm`` (with residual), ``rotary``, ``activation``, ``qk_norm``, ``embedding``,
        ``sampler``.
    tokens : tokens of the GPU.
    width : scalars of a token that it works on; what they are is the kind's ``width``.

    Raises
    ------
    UsageError
        If the kind is unknown, or a value negative or not a number.

    Notes
    -----
    t = t0 + a width + b tokens width

    Examples
    --------
    >>> f"{small_kernel_time('norm', 1, 4096).time_s * 1e6:.1f} us"
    '2.4 us'
    """
    model = small_kernel_models().get(kind)
    if model is None:
        known = list(small_kernel_models())
        hint = did_you_mean(kind, known)
        raise UsageError(f"small kernel {shown(kind)} is unknown{hint}; known: {', '.join(known)}")
    check_numbers(tokens=tokens, width=width)
    time_s = model.t0_s + (model.width_s + model.scalar_s * tokens) * width
    return banded(model, time_s)
