"""How weights are stored: bits per scalar, scales, and which parts a format leaves in 16 bit.

Formats of cached rows are another table (``lrkv_plan.dtypes``): quantised weights do not change
the cache. Kernel-specific repacking and padding belong to an engine, not to a format.
"""

from __future__ import annotations

from dataclasses import dataclass

from lrkv_plan.errors import SpecError, did_you_mean, shown

LINEAR_PARTS = frozenset({"attention", "feed_forward", "experts", "shared_experts"})
MLP_PARTS = LINEAR_PARTS - {"attention"}


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """One weight format.

    A matrix of a part in ``quantised_parts`` takes ``bits_per_scalar`` and ``scale_bits`` (scale
    and zero point) per block of ``block_rows`` input rows (None: all of them) by ``block_cols``
    outputs. Everything else - vectors, embeddings, head, norms, router - takes ``plain_bits``.
    """

    name: str
    bits_per_scalar: int
    scale_bits: int = 0
    block_rows: int | None = None
    block_cols: int = 1
    plain_bits: int = 16
    quantised_parts: frozenset[str] = frozenset()
    source: str

    def matrix_bits(self, part: str, rows: int, cols: int) -> int:
        """Bits of a matrix from ``rows`` inputs to ``cols`` outputs in that part. [bits]

        Examples
        --------
        >>> weight_format("int4").matrix_bits("attention", 256, 1)  # a vector stays plain
        4096
        >>> weight_format("int4").matrix_bits("attention", 256, 10)  # 2560 * 4 + 2 * 10 * 20
        10640
        """
        if part not in self.quantised_parts or cols == 1:
            return rows * cols * self.plain_bits
        n_blocks = -(-rows // (self.block_rows or rows)) * -(-cols // self.block_cols)
        return rows * cols * self.bits_per_scalar + n_blocks * self.scale_bits


def _plain(name: str, bits: int) -> WeightFormat:
    return WeightFormat(
        name=name, bits_per_scalar=bits, plain_bits=bits, source="IEEE 754 / bfloat16: no scales"
    )


_FORMATS = (
    _plain("fp32", 32),
    _plain("bf16", 16),
    _plain("fp16", 16),
    WeightFormat(
        name="fp8", bits_per_scalar=8, scale_bits=32, block_rows=128, block_cols=128,
        quantised_parts=LINEAR_PARTS,
        source="fp32 scale per 128 x 128 block (DeepSeek-V3 checkpoints); one scale per tensor or "
        "per output takes less than 0.1 % in any case",
    ),
    WeightFormat(
        name="int8", bits_per_scalar=8, scale_bits=32, quantised_parts=LINEAR_PARTS,
        source="W8A8: fp32 scale per output channel (compressed-tensors)",
    ),
    WeightFormat(
        name="int4", bits_per_scalar=4, scale_bits=20, block_rows=128,
        quantised_parts=LINEAR_PARTS,
        source="GPTQ and AWQ: fp16 scale and 4-bit zero point per 128 inputs of each output",
    ),
    WeightFormat(
        name="nvfp4", bits_per_scalar=4, scale_bits=8, block_rows=16,
        quantised_parts=LINEAR_PARTS,
        source="e2m1 with one e4m3 scale per 16 scalars (NVIDIA ModelOpt NVFP4)",
    ),
    WeightFormat(
        name="mxfp4", bits_per_scalar=4, scale_bits=8, block_rows=32, quantised_parts=MLP_PARTS,
        source="e2m1 with one e8m0 scale per 32 scalars (OCP MX v1.0); attention stays bf16, as "
        "gpt-oss ships it",
    ),
)  # fmt: skip
WEIGHT_FORMATS = {f.name: f for f in _FORMATS}

_ALIASES = {
    "float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16",
    "fp8_e4m3": "fp8", "float8_e4m3fn": "fp8", "w8a8": "int8", "w4a16": "int4", "gptq": "int4",
    "awq": "int4",
}  # fmt: skip


def weight_format(name: str) -> WeightFormat:
    """The weight format of that name, or of an alias such as ``gptq`` or ``w8a8``.

    Raises
    ------
    SpecError
        If the name is unknown; the message lists the known ones.
    """
    if not isinstance(name, str):
        raise SpecError(f"weight_dtype {shown(name)}: must be the name of a weight format: 'bf16'")
    key = name.strip().lower().removeprefix("torch.")
    found = WEIGHT_FORMATS.get(_ALIASES.get(key, key))
    if found is None:
        hint = did_you_mean(key, [*WEIGHT_FORMATS, *_ALIASES])
        raise SpecError(
            f"weight format {shown(name)} is unknown{hint} known: {', '.join(WEIGHT_FORMATS)}; or "
            "give the size with --weights"
        )
    return found
