"""How the weights of a matrix are stored and multiplied: bits with scales, and whose peak counts.

The names are those of measured tables: ``fp8`` has one scale per tensor, ``fp8_block`` one per
128 x 128 weights; ``int8_wo`` and ``int4_wo`` keep activations in 16 bit; ``sq`` multiplies int8.
"""

from __future__ import annotations

from dataclasses import dataclass

from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.specs.hardware import HardwareProfile

_WIDE = ("bf16", "fp16", "tf32", "fp32")


@dataclass(frozen=True, kw_only=True)
class OperandFormat:
    """One weight format: bits of a weight with its scales, and peaks in order of preference."""

    name: str
    bits_per_weight: float
    peaks: tuple[str, ...] = _WIDE

    def peak_of(self, hardware: HardwareProfile) -> str:
        """Name of the first peak that the GPU states.

        Raises
        ------
        SpecError
            If it states none of them.
        """
        for name in self.peaks:
            if name in hardware.peak_flops_per_s:
                return name
        known = ", ".join(hardware.peak_flops_per_s)
        raise SpecError(f"{hardware.name}: no peak_flops_per_s for {self.name}; known: {known}")


_FP8 = ("fp8", *_WIDE)
_FORMATS = (
    OperandFormat(name="fp32", bits_per_weight=32, peaks=("tf32", "fp32", "bf16", "fp16")),
    OperandFormat(name="bf16", bits_per_weight=16),
    OperandFormat(name="fp8", bits_per_weight=8, peaks=_FP8),
    OperandFormat(name="fp8_block", bits_per_weight=8 + 32 / (128 * 128), peaks=_FP8),
    OperandFormat(name="nvfp4", bits_per_weight=4 + 8 / 16, peaks=("fp4", *_FP8)),
    OperandFormat(name="mxfp4", bits_per_weight=4 + 8 / 32),
    OperandFormat(name="mxfp4_mxfp8", bits_per_weight=4 + 8 / 32, peaks=_FP8),
    OperandFormat(name="int8_wo", bits_per_weight=8),
    OperandFormat(name="int4_wo", bits_per_weight=4 + 16 / 128),
    OperandFormat(name="sq", bits_per_weight=8, peaks=("int8", *_FP8)),
)
OPERAND_FORMATS = {f.name: f for f in _FORMATS}
_SAME = {"fp16": "bf16"}


def operand_format(name: str) -> OperandFormat:
    """The format of that name; fp16 counts as bf16.

    Raises
    ------
    UsageError
        If the name is unknown; the message lists the known ones.

    Examples
    --------
    >>> operand_format("nvfp4").bits_per_weight
    4.5
    """
    found = OPERAND_FORMATS.get(_SAME.get(name, name))
    if found is None:
        hint = did_you_mean(name, list(OPERAND_FORMATS))
        known = ", ".join(OPERAND_FORMATS)
        raise UsageError(f"format {shown(name)} of a matrix is unknown{hint}; known: {known}")
    return found
