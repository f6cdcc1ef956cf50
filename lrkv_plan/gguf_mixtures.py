"""How llama.cpp mixes block types in a quantised file: bits of a weight by part of the model.

Block types: ggml-common.h of ggml. Mixtures: ``llama_tensor_get_type`` in llama-quant.cpp of
llama.cpp (2026-11): the value projection and the feed-forward's last matrix take more bits in half
of the layers (``_M``) or in the first eighth (``_S``), the head q6_k. A matrix whose inputs are no
multiple of 256 falls back to a wider type. Exceptions for single architectures are left out:
mixtures of 8 experts, whose few attention matrices are wider, and 70B's values, by a bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

Shares = tuple[tuple[Fraction, str], ...]


@dataclass(frozen=True, kw_only=True)
class BlockType:
    """A block of ``width`` weights in ``n_bytes`` with its scales; ``narrow`` stands in for it.

    ``number`` is what a GGUF file calls it.
    """

    number: int
    n_bytes: int
    width: int
    narrow: str | None = None

    @property
    def bits(self) -> Fraction:
        """Bits of one weight with its share of the scales. [bits]"""
        return Fraction(8 * self.n_bytes, self.width)


_NARROW = {"q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0"}
# Name, number in a file, weights of a block and its bytes (ggml_type in ggml.h).
_TYPES = (
    ("f32", 0, 1, 4), ("f16", 1, 1, 2), ("q4_0", 2, 32, 18), ("q4_1", 3, 32, 20),
    ("q5_0", 6, 32, 22), ("q5_1", 7, 32, 24), ("q8_0", 8, 32, 34), ("q8_1", 9, 32, 40),
    ("q2_k", 10, 256, 84), ("q3_k", 11, 256, 110), ("q4_k", 12, 256, 144), ("q5_k", 13, 256, 176),
    ("q6_k", 14, 256, 210), ("q8_k", 15, 256, 292), ("iq2_xxs", 16, 256, 66),
    ("iq2_xs", 17, 256, 74), ("iq3_xxs", 18, 256, 98), ("iq1_s", 19, 256, 50),
    ("iq4_nl", 20, 32, 18), ("iq3_s", 21, 256, 110), ("iq2_s", 22, 256, 82),
    ("iq4_xs", 23, 256, 136), ("i8", 24, 1, 1), ("i16", 25, 1, 2), ("i32", 26, 1, 4),
    ("i64", 27, 1, 8), ("f64", 28, 1, 8), ("iq1_m", 29, 256, 56), ("bf16", 30, 1, 2),
    ("tq1_0", 34, 256, 54), ("tq2_0", 35, 256, 66), ("mxfp4", 39, 32, 17), ("nvfp4", 40, 64, 36),
    ("q1_0", 41, 128, 18), ("q2_0", 42, 64, 18),
)  # fmt: skip
BLOCK_TYPES = {
    name: BlockType(number=number, width=width, n_bytes=n_bytes, narrow=_NARROW.get(name))
    for name, number, width, n_bytes in _TYPES
}

_ALL = Fraction(1)
# The share of each part's weights that takes more bits, where half or an eighth of the layers give
# a matrix more: one of three feed-forward matrices; of attention the values, a tenth at 4 query
# heads per key/value head (a quarter in MHA, of which half is 0.06 bits more than counted here).
_HALF, _EIGHTH = Fraction(1, 2), Fraction(1, 8)
_DOWN, _VALUES = Fraction(1, 3), Fraction(1, 10)


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Block types by part of the model, and how measured kernels know most of its matrices."""

    bits_per_scalar: int
    operand: str
    parts: Mapping[str, Shares]


def _mixed(base: str, more: str, layers: Fraction, head: str = "q6_k") -> Mapping[str, Shares]:
    def part(share: Fraction) -> Shares:
        return ((_ALL - share * layers, base), (share * layers, more))

    block, inputs = part(_DOWN), part(_VALUES)
    return {
        "attention": inputs, "mixers": inputs, "feed_forward": block, "experts": block,
        "shared_experts": block, "embedding": ((_ALL, base),), "head": ((_ALL, head),),
    }  # fmt: skip


MIXTURES = {
    "q8_0": Mixture(
        bits_per_scalar=8, operand="int8_wo", parts=_mixed("q8_0", "q8_0", _HALF, head="q8_0")
    ),
    "q6_k": Mixture(bits_per_scalar=6, operand="int4_wo", parts=_mixed("q6_k", "q6_k", _HALF)),
    "q5_k_m": Mixture(bits_per_scalar=5, operand="int4_wo", parts=_mixed("q5_k", "q6_k", _HALF)),
    "q4_k_m": Mixture(bits_per_scalar=4, operand="int4_wo", parts=_mixed("q4_k", "q6_k", _HALF)),
    "q4_k_s": Mixture(bits_per_scalar=4, operand="int4_wo", parts=_mixed("q4_k", "q5_k", _EIGHTH)),
    "q4_0": Mixture(bits_per_scalar=4, operand="int4_wo", parts=_mixed("q4_0", "q4_1", _EIGHTH)),
}  # fmt: skip


def mixed_bits(parts: Mapping[str, Shares], part: str, inputs: int) -> Fraction:
    """Mean bits of a weight of a part, in a matrix of that many inputs. [bits]

    Examples
    --------
    >>> float(mixed_bits(MIXTURES["q4_k_m"].parts, "feed_forward", 4096))  # 4.5 + 2.0625 / 6
    4.84375
    >>> float(mixed_bits(MIXTURES["q4_k_m"].parts, "head", 2880))  # no multiple of 256: q8_0
    8.5
    """
    total = Fraction(0)
    for share, name in parts[part]:
        block = BLOCK_TYPES[name]
        if inputs % block.width and block.narrow is not None:
            block = BLOCK_TYPES[block.narrow]
        total += share * block.bits
    return total
