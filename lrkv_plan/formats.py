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

from lrkv_plan.errors import PlacementError, SpecError, did_you_mean, shown
from lrkv_plan.gguf_mixtures import BLOCK_TYPES, MIXTURES, Shares, mixed_bits


@dataclass(frozen=True, kw_only=True)
class StorageFormat:
    """How one scalar of a cached row is kept.

    ``group_size`` None with ``scale_bits`` above 0 means one scale per row. ``whole_groups``
    means that a partly filled group is stored in full (llama.cpp blocks). ``spare_bits`` of every
    row hold nothing. ``by_tensor`` are cached tensors kept otherwise; a key's inverse RMS is a
    plain 16-bit scalar in formats with scales. ``halves`` are the formats of keys and of values
    where they differ. Rows of ``whole_bytes`` end at a byte, at an even one together with the row
    of ``evens``, if given.
    ``plain_ends`` first and last layers keep 16 bits, in models whose layers all attend.
    """

    name: str
    bits_per_scalar: int
    scale_bits: int = 0
    group_size: int | None = None
    whole_groups: bool = False
    spare_bits: int = 0
    by_tensor: Mapping[str, StorageFormat] = field(default_factory=dict)
    halves: tuple[StorageFormat, StorageFormat] | None = None
    whole_bytes: bool = False
    evens: StorageFormat | None = None
    plain_ends: int = 0
    source: str

    def half(self, holds: str) -> StorageFormat:
        """The format of rows that hold a ``key``, a ``value`` or ``both``.

        Raises
        ------
        PlacementError
            If keys and values have formats of their own and the row is both.
        """
        if self.halves is None:
            return self
        if holds == "both":
            raise PlacementError(
                f"kv_dtype {self.name}: one cached row is key and value here, so it has one "
                "format; give one, such as bf16 or fp8"
            )
        return self.halves[holds == "value"]

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
        return Fraction(self.row_bits(width), 8)

    def row_bits(self, width: int) -> int:
        """Bits of one row of ``width`` scalars, scales included. [bits]"""
        if width == 0:
            return 0
        group_size = self.group_size or width
        n_groups = -(-width // group_size)
        stored_scalars = n_groups * group_size if self.whole_groups else width
        row = stored_scalars * self.bits_per_scalar + n_groups * self.scale_bits + self.spare_bits
        if self.whole_bytes:
            row += -row % 8
        return row if self.evens is None else row + (row + self.evens.row_bits(width)) % 16

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


_BITS_OF_BLOCKS = {"q8_0": 8, "q5_1": 5, "q5_0": 5, "q4_1": 4, "q4_0": 4, "iq4_nl": 4}


def _blocks(name: str, bits: int) -> StorageFormat:
    """A block type of ggml that llama.cpp keeps a cache in: 32 scalars with their scales."""
    block = BLOCK_TYPES[name]
    return StorageFormat(
        name=name, bits_per_scalar=bits, scale_bits=8 * block.n_bytes - bits * block.width,
        group_size=block.width, whole_groups=True, by_tensor=_BESIDE_BLOCKS,
        source=f"{block.n_bytes} bytes per {block.width} scalars with their scales (ggml)",
    )  # fmt: skip


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
    *(_blocks(name, bits) for name, bits in _BITS_OF_BLOCKS.items()),
    *(
        StorageFormat(
            name=f"int{bits}_group64", bits_per_scalar=bits, scale_bits=32, group_size=64,
            by_tensor=_BESIDE_BLOCKS,
            source="16-bit scale and bias per 64 scalars (MLX, mlx_lm/models/cache.py)",
        )
        for bits in (8, 4)
    ),
    *(
        StorageFormat(
            name=f"exl3_{bits}", bits_per_scalar=bits, scale_bits=16, group_size=32,
            by_tensor=_BESIDE_BLOCKS,
            source="fp16 scale per 32 scalars (ExLlamaV3, exllamav3/cache/quant.py)",
        )
        for bits in (8, 7, 6, 5, 4, 3, 2)
    ),
)  # fmt: skip
_BY_NAME = {f.name: f for f in _FORMATS}
_DS_MLA_LATENT = StorageFormat(
    name="fp8 with one fp32 scale per 128 scalars", bits_per_scalar=8, scale_bits=32,
    group_size=128, source="DeepSeek-V3.2 reference cache",
)  # fmt: skip
# The place of 64 rotary bf16 scalars stays empty in a model without them: GLM-5.3-Flash, 656 bytes.
_DS_MLA_ALONE = replace(_DS_MLA_LATENT, spare_bits=64 * 16)
# DeepSeek-V4: 448 scalars with 7 one-byte scales, one for 64, and a byte of padding (vLLM).
_DS_SHARED_ROW = StorageFormat(
    name="fp8 with one byte of scale per 64 scalars", bits_per_scalar=8, scale_bits=8,
    group_size=64, spare_bits=8, source="vLLM, models/deepseek_v4",
)  # fmt: skip
_FP8_DS_MLA = StorageFormat(
    name="fp8_ds_mla", bits_per_scalar=8,
    by_tensor={
        "latent": _DS_MLA_LATENT, "rope_key": _BY_NAME["bf16"], "latent_alone": _DS_MLA_ALONE,
        "key_value": _DS_SHARED_ROW,
    },
    source="656 bytes per token of MLA 512+64: 512 fp8, 16 of scales, 64 bf16 (vLLM fp8_ds_mla); "
    "584 a row of DeepSeek-V4: 448 fp8, 8 of scales, 64 bf16",
)  # fmt: skip


# Keys are rotated and kept with one fp16 norm, values with an fp16 scale and an fp16 zero point;
# keys of 8 bits are plain fp8. What a head keeps of key and value is rounded up to an even number
# of bytes (vllm/model_executor/layers/quantization/turboquant/config.py, 0.22; from there also
# the bits of keys and values by name and the layers left alone).
_TURBO = {"k8v4": (8, 4), "4bit_nc": (4, 4), "k3v4_nc": (3, 4), "3bit_nc": (3, 3)}


def _turboquant(name: str, key_bits: int, value_bits: int) -> StorageFormat:
    name, source = f"turboquant_{name}", "vLLM TurboQuant presets (0.22)"
    key = StorageFormat(
        name=f"{name} keys", bits_per_scalar=key_bits, scale_bits=0 if key_bits == 8 else 16,
        whole_bytes=True, source=source, by_tensor=_BESIDE_BLOCKS,
    )  # fmt: skip
    value = StorageFormat(
        name=f"{name} values", bits_per_scalar=value_bits, scale_bits=32, whole_bytes=True,
        evens=key, source=source, by_tensor=_BESIDE_BLOCKS,
    )  # fmt: skip
    return StorageFormat(
        name=name, bits_per_scalar=key_bits, halves=(key, value), plain_ends=2, source=source
    )


STORAGE_FORMATS = {
    **_BY_NAME, "fp8_ds_mla": _FP8_DS_MLA,
    **{f"turboquant_{name}": _turboquant(name, *bits) for name, bits in _TURBO.items()},
}  # fmt: skip

_ALIASES = {
    "float32": "fp32", "float": "fp32", "f32": "fp32",
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "f16": "fp16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8",
}  # fmt: skip


def storage_format(name: str) -> StorageFormat:
    """The format of that name or alias, or of keys and of values apart: ``q8_0/iq4_nl``.

    Raises
    ------
    SpecError
        If the name is unknown; the message lists the known ones.

    Examples
    --------
    >>> apart = storage_format("q8_0/iq4_nl")
    >>> [int(apart.half(row).row_bytes(128)) for row in ("key", "value")]
    [136, 72]
    """
    if not isinstance(name, str):
        raise SpecError(f"kv_dtype {shown(name)}: must be the name of a storage format, as 'bf16'")
    if "/" in name:
        return _apart(name)
    key = name.strip().lower()
    found = STORAGE_FORMATS.get(_ALIASES.get(key, key))
    if found is None:
        known = ", ".join(STORAGE_FORMATS)
        hint = did_you_mean(key, [*STORAGE_FORMATS, *_ALIASES])
        raise SpecError(f"storage format {shown(name)} is unknown{hint}; known: {known}")
    return found


def _apart(text: str) -> StorageFormat:
    """Keys in one format and values in another; one format where both are the same."""
    parts = text.split("/")
    if len(parts) != 2 or not all(part.strip() for part in parts):
        raise SpecError(f"kv_dtype {shown(text)}: write formats of keys and values, q8_0/iq4_nl")
    key, value = (storage_format(part) for part in parts)
    if key is value:
        return key
    for one in (key, value):
        if one.halves is not None or one is _FP8_DS_MLA:
            raise SpecError(f"kv_dtype {shown(text)}: {one.name} is a format of whole rows")
    return StorageFormat(
        name=f"{key.name}/{value.name}",
        bits_per_scalar=max(key.bits_per_scalar, value.bits_per_scalar),
        halves=(key, value),
        source=f"keys: {key.source}; values: {value.source}",
    )


LINEAR_PARTS = frozenset({"attention", "mixers", "feed_forward", "experts", "shared_experts"})
MLP_PARTS = LINEAR_PARTS - {"attention", "mixers"}


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
        quantised_parts=LINEAR_PARTS - {"mixers"},
        source="e2m1 with one e4m3 scale per 16 scalars; recurrent mixers stay in 16 bit, as "
        "RedHatAI's Qwen3.6 checkpoints keep them (ollama/ollama#15866); NVIDIA's keep them in fp8",
    ),
    WeightFormat(
        name="mxfp4", operand="mxfp4", bits_per_scalar=4, scale_bits=8, block_rows=32,
        quantised_parts=MLP_PARTS,
        source="e2m1 with one e8m0 scale per 32 scalars (OCP MX v1.0); attention stays bf16, as "
        "gpt-oss ships it",
    ),
    *(
        WeightFormat(
            name=name, operand=mixture.operand, bits_per_scalar=mixture.bits_per_scalar,
            mixture=mixture.parts, quantised_parts=LINEAR_PARTS,
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
