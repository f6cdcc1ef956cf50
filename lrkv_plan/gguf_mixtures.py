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
    """A block of ``width`` weights in ``n_bytes`` with its scales; ``narrow`` stands in for it."""

    n_bytes: int
    width: int
    narrow: str | None = None

    @property
    def bits(self) -> Fraction:
        """Bits of one weight with its share of the scales. [bits]"""
        return Fraction(8 * self.n_bytes, self.width)


BLOCK_TYPES = {
    "q4_0": BlockType(n_bytes=18, width=32),
    "q4_1": BlockType(n_bytes=20, width=32),
    "q5_0": BlockType(n_bytes=22, width=32),
    "q5_1": BlockType(n_bytes=24, width=32),
    "iq4_nl": BlockType(n_bytes=18, width=32),
    "q8_0": BlockType(n_bytes=34, width=32),
    "q4_k": BlockType(n_bytes=144, width=256, narrow="q5_0"),
    "q5_k": BlockType(n_bytes=176, width=256, narrow="q5_1"),
    "q6_k": BlockType(n_bytes=210, width=256, narrow="q8_0"),
}

_ALL = Fraction(1)
# The share of each part's weights that takes more bits, where half or an eighth of the layers give
# a matrix more: one of three feed-forward matrices; of attention the values, a tenth at 4 query
# heads per key/value head (a quarter in MHA, of which half is 0.06 bits more than counted here).
_HALF, _EIGHTH = Fraction(1, 2), Fraction(1, 8)
_DOWN, _VALUES = Fraction(1, 3), Fraction(1, 10)


def _mixed(base: str, more: str, layers: Fraction, head: str = "q6_k") -> Mapping[str, Shares]:
    def part(share: Fraction) -> Shares:
        return ((_ALL - share * layers, base), (share * layers, more))

    block = part(_DOWN)
    return {
        "attention": part(_VALUES), "feed_forward": block, "experts": block,
        "shared_experts": block, "embedding": ((_ALL, base),), "head": ((_ALL, head),),
    }  # fmt: skip


MIXTURES: Mapping[str, Mapping[str, Shares]] = {
    "q8_0": _mixed("q8_0", "q8_0", _HALF, head="q8_0"),
    "q6_k": _mixed("q6_k", "q6_k", _HALF),
    "q5_k_m": _mixed("q5_k", "q6_k", _HALF),
    "q4_k_m": _mixed("q4_k", "q6_k", _HALF),
    "q4_k_s": _mixed("q4_k", "q5_k", _EIGHTH),
    "q4_0": _mixed("q4_0", "q4_1", _EIGHTH),
}


def mixed_bits(mixture: Mapping[str, Shares], part: str, inputs: int) -> Fraction:
    """Mean bits of a weight of a part, in a matrix of that many inputs. [bits]

    Examples
    --------
    >>> float(mixed_bits(MIXTURES["q4_k_m"], "feed_forward", 4096))  # 4.5 + (6.5625 - 4.5) / 6
    4.84375
    >>> float(mixed_bits(MIXTURES["q4_k_m"], "head", 2880))  # no multiple of 256: q8_0
    8.5
    """
    total = Fraction(0)
    for share, name in mixture[part]:
        block = BLOCK_TYPES[name]
        if inputs % block.width and block.narrow is not None:
            block = BLOCK_TYPES[block.narrow]
        total += share * block.bits
    return total
