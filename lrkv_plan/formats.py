"""Storage formats of cached scalars and of weights: exact bits, with the scales that they keep.

A cached row (one token, one copy of one tensor) of ``width`` scalars takes
``width * bits_per_scalar`` bits plus ``scale_bits`` per group of ``group_size`` scalars. Scales
that do not grow with the number of tokens (one per tensor) cost nothing per token. Quantised
weights do not change the cache; repacking and padding for a kernel belong to an engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.gguf_mixtures import MIXTURES, Shares, mixed_bits


@dataclass(frozen=True, kw_only=True)
class StorageFormat:
    """How one scalar of a cached row is kept.

    ``group_size`` None with ``scale_bits`` above 0 means one scale per row. ``whole_groups``
    means that a partly filled group is stored in full (llama.cpp blocks). ``spare_bits`` of every
    row hold nothing. ``by_tensor`` are cached tensors kept otherwise; a key's inverse RMS is a
    plain 16-bit scalar in formats with scales.
    """

    name: str
    bits_per_scalar: int
    scale_bits: int = 0
    group_size: int | None = None
    whole_groups: bool = False
    spare_bits: int = 0
    by_tensor: Mapping[str, StorageFormat] = field(default_factory=dict)
    source: str

    def of_tensor(self, name: str) -> StorageFormat:
        """The format of that cached tensor; entry layouts such as fp8_ds_mla mix formats."""
        return self.by_tensor.get(name, self)

    def row_bytes(self, width: int) -> Fraction:
        """Bytes of one row of ``width`` scalars, scales included; exact. [bytes]

        Examples
        --------
        >>> STORAGE_FORMATS["q8_0"].row_bytes(128)
        Fraction(136, 1)
        """
        if width == 0:
            return Fraction(0)
        group_size = self.group_size or width
        n_groups = -(-width // group_size)
        stored_scalars = n_groups * group_size if self.whole_groups else width
        scalar_bits = stored_scalars * self.bits_per_scalar
        return Fraction(scalar_bits + n_groups * self.scale_bits + self.spare_bits, 8)

    @property
    def bits_per_scalar_in_full_groups(self) -> Fraction | None:
        """Bits per scalar, scales included, when the width is a multiple of the group.

        None where one scale serves a whole row, so that it depends on the row's width.
        """
        if self.scale_bits == 0:
            return Fraction(self.bits_per_scalar)
        if self.group_size is None:
            return None
        return self.bits_per_scalar + Fraction(self.scale_bits, self.group_size)


# The inverse RMS that ``key_norm=rms_cached`` keeps is one scalar per row. A format that stores
# scales of its own would spend a whole block on it, and an error in it is an error in every logit
# of the row: it is kept beside the blocks as a plain 16-bit scalar, as their own scales are.
_KEY_SCALE = StorageFormat(name="16-bit key scale", bits_per_scalar=16, source="assumed")
_BESIDE_BLOCKS = {"key_scale": _KEY_SCALE}
_IEEE = "IEEE 754 / bfloat16: no scales"
_FORMATS = (
    StorageFormat(name="fp32", bits_per_scalar=32, source=_IEEE),
    StorageFormat(name="bf16", bits_per_scalar=16, source=_IEEE),
    StorageFormat(name="fp16", bits_per_scalar=16, source=_IEEE),
    StorageFormat(
        name="fp8", bits_per_scalar=8,
        source="one scale per tensor, nothing per token (vLLM kv_cache_dtype=fp8)",
    ),
    StorageFormat(
        name="int8", bits_per_scalar=8,
        source="one scale per tensor, nothing per token (TensorRT-LLM int8 KV cache)",
    ),
    StorageFormat(
        name="int4", bits_per_scalar=4, scale_bits=32,
        by_tensor=_BESIDE_BLOCKS,
        source="fp16 scale and fp16 zero point per token and head (LMDeploy quant_policy=4)",
    ),
    StorageFormat(
        name="fp8_per_token_head", bits_per_scalar=8, scale_bits=32,
        by_tensor=_BESIDE_BLOCKS,
        source="one fp32 scale per token and head (vLLM fp8_per_token_head)",
    ),
    StorageFormat(
        name="int8_per_token_head", bits_per_scalar=8, scale_bits=32,
        by_tensor=_BESIDE_BLOCKS,
        source="one fp32 scale per token and head (vLLM int8_per_token_head)",
    ),
    StorageFormat(
        name="nvfp4", bits_per_scalar=4, scale_bits=8, group_size=16,
        by_tensor=_BESIDE_BLOCKS,
        source="e2m1 with one e4m3 scale per 16 scalars (NVIDIA NVFP4)",
    ),
    StorageFormat(
        name="mxfp4", bits_per_scalar=4, scale_bits=8, group_size=32,
        by_tensor=_BESIDE_BLOCKS,
        source="e2m1 with one e8m0 scale per 32 scalars (OCP MX v1.0)",
    ),
    StorageFormat(
        name="q8_0", bits_per_scalar=8, scale_bits=16, group_size=32, whole_groups=True,
        by_tensor=_BESIDE_BLOCKS,
        source="32 int8 and one fp16 scale: 34 bytes per 32 scalars (ggml)",
    ),
    StorageFormat(
        name="q4_0", bits_per_scalar=4, scale_bits=16, group_size=32, whole_groups=True,
        by_tensor=_BESIDE_BLOCKS,
        source="32 int4 and one fp16 scale: 18 bytes per 32 scalars (ggml)",
    ),
)  # fmt: skip
_BY_NAME = {f.name: f for f in _FORMATS}
_DS_MLA_LATENT = StorageFormat(
    name="fp8 with one fp32 scale per 128 scalars", bits_per_scalar=8, scale_bits=32,
    group_size=128, source="DeepSeek-V3.2 reference cache",
)  # fmt: skip
# The place of 64 rotary bf16 scalars stays empty in a model without them: GLM-5.3-Flash, 656 bytes.
_DS_MLA_ALONE = replace(_DS_MLA_LATENT, spare_bits=64 * 16)
_FP8_DS_MLA = StorageFormat(
    name="fp8_ds_mla", bits_per_scalar=8,
    by_tensor={
        "latent": _DS_MLA_LATENT, "rope_key": _BY_NAME["bf16"], "latent_alone": _DS_MLA_ALONE,
    },
    source="656 bytes per token of MLA 512+64: 512 fp8, 16 of scales, 64 bf16 (vLLM fp8_ds_mla)",
)  # fmt: skip
STORAGE_FORMATS = {**_BY_NAME, "fp8_ds_mla": _FP8_DS_MLA}

_ALIASES = {
    "float32": "fp32", "float": "fp32", "f32": "fp32",
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def storage_format(name: str) -> StorageFormat:
    """The format of that name, or of an alias such as ``bfloat16``.

    Raises
    ------
    SpecError
        If the name is unknown; the message lists the known ones.
    """
    if not isinstance(name, str):
        raise SpecError(f"kv_dtype {shown(name)}: must be the name of a storage format, as 'bf16'")
    key = name.strip().lower()
    found = STORAGE_FORMATS.get(_ALIASES.get(key, key))
    if found is None:
        known = ", ".join(STORAGE_FORMATS)
        hint = did_you_mean(key, [*STORAGE_FORMATS, *_ALIASES])
        raise SpecError(f"storage format {shown(name)} is unknown{hint}; known: {known}")
    return found


LINEAR_PARTS = frozenset({"attention", "feed_forward", "experts", "shared_experts"})
MLP_PARTS = LINEAR_PARTS - {"attention"}


@dataclass(frozen=True, kw_only=True)
class WeightFormat:
    """One weight format.

    A matrix of a part in ``quantised_parts`` takes ``bits_per_scalar`` and ``scale_bits`` (scale
    and zero point) per block of ``block_rows`` input rows (None: all of them) by ``block_cols``
    outputs. Everything else - vectors, embeddings, head, norms, router - takes ``plain_bits``.
    ``operand`` is the name under which measured kernels know the quantised matrices. A GGUF
    ``mixture`` states all its parts, embedding and head among them, instead.
    """

    name: str
    operand: str
    bits_per_scalar: int
    scale_bits: int = 0
    block_rows: int | None = None
    block_cols: int = 1
    plain_bits: int = 16
    quantised_parts: frozenset[str] = frozenset()
    mixture: Mapping[str, Shares] = field(default_factory=dict, hash=False)
    source: str

    @property
    def plain_operand(self) -> str:
        """The same name for matrices that stay as they are."""
        return "bf16" if self.plain_bits == 16 else "fp32"

    def operand_of(self, part: str) -> str:
        """The name under which measured kernels know the matrices of that part."""
        quantised = part in self.mixture or part in self.quantised_parts
        return self.operand if quantised else self.plain_operand

    def table_bits(self, part: str, width: int) -> Fraction:
        """Bits of a scalar of the ``embedding`` or ``head``, ``width`` wide. [bits]"""
        if not self.mixture:
            return Fraction(self.plain_bits)
        return mixed_bits(self.mixture, part, width)

    def matrix_bits(self, part: str, rows: int, cols: int) -> int | Fraction:
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
        if self.mixture:
            return rows * cols * mixed_bits(self.mixture, part, rows)
        n_blocks = -(-rows // (self.block_rows or rows)) * -(-cols // self.block_cols)
        return rows * cols * self.bits_per_scalar + n_blocks * self.scale_bits


def _plain(name: str, bits: int) -> WeightFormat:
    return WeightFormat(
        name=name, operand="bf16" if bits == 16 else "fp32", bits_per_scalar=bits, plain_bits=bits,
        source="IEEE 754 / bfloat16: no scales",
    )  # fmt: skip


_WEIGHT_FORMATS = (
    _plain("fp32", 32),
    _plain("bf16", 16),
    _plain("fp16", 16),
    WeightFormat(
        name="fp8", operand="fp8", bits_per_scalar=8, scale_bits=32, quantised_parts=LINEAR_PARTS,
        source="fp32 scale per output channel; one per tensor takes less than 0.1 % less "
        "(compressed-tensors, ModelOpt)",
    ),
    WeightFormat(
        name="fp8_block", operand="fp8_block", bits_per_scalar=8, scale_bits=32, block_rows=128,
        block_cols=128, quantised_parts=LINEAR_PARTS,
        source="fp32 scale per 128 x 128 block (DeepSeek-V3 checkpoints)",
    ),
    WeightFormat(
        name="int8", operand="sq", bits_per_scalar=8, scale_bits=32, quantised_parts=LINEAR_PARTS,
        source="W8A8: fp32 scale per output channel (compressed-tensors)",
    ),
    WeightFormat(
        name="int4", operand="int4_wo", bits_per_scalar=4, scale_bits=20, block_rows=128,
        quantised_parts=LINEAR_PARTS,
        source="GPTQ and AWQ: fp16 scale and 4-bit zero point per 128 inputs of each output",
    ),
    WeightFormat(
        name="nvfp4", operand="nvfp4", bits_per_scalar=4, scale_bits=8, block_rows=16,
        quantised_parts=LINEAR_PARTS,
        source="e2m1 with one e4m3 scale per 16 scalars (NVIDIA ModelOpt NVFP4)",
    ),
    WeightFormat(
        name="mxfp4", operand="mxfp4", bits_per_scalar=4, scale_bits=8, block_rows=32,
        quantised_parts=MLP_PARTS,
        source="e2m1 with one e8m0 scale per 32 scalars (OCP MX v1.0); attention stays bf16, as "
        "gpt-oss ships it",
    ),
    *(
        WeightFormat(
            name=name, operand="int8_wo" if name == "q8_0" else "int4_wo",
            bits_per_scalar=int(name[1]), mixture=mixture, quantised_parts=LINEAR_PARTS,
            source="block types of ggml, mixed as llama.cpp's quantize does (2026-11)",
        )
        for name, mixture in MIXTURES.items()
    ),
)  # fmt: skip
WEIGHT_FORMATS = {f.name: f for f in _WEIGHT_FORMATS}

_WEIGHT_ALIASES = {
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
    found = WEIGHT_FORMATS.get(_WEIGHT_ALIASES.get(key, key))
    if found is None:
        hint = did_you_mean(key, [*WEIGHT_FORMATS, *_WEIGHT_ALIASES])
        raise SpecError(
            f"weight format {shown(name)} is unknown{hint}; known: {', '.join(WEIGHT_FORMATS)}; or "
            "give the size with --weights"
        )
    return found
