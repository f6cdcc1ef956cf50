"""What every attention spec has: its backbone, its text, its sizes.

``on_backbone`` builds the spec that ``--attention`` text asks for on the heads of an existing
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from typing_extensions import Self

from lrkv_plan.schema import Flag, Frozen, HeadCount


class Backbone(NamedTuple):
    """What stays when the attention design of a layer is swapped."""

    n_heads: int
    head_dim: int
    v_head_dim: int
    rope_dim: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False


class AttentionSpec(Frozen):
    """Fields that every family has; ``family`` names the subclass."""

    family: str
    n_heads: HeadCount
    output_bias: Flag = False
    output_gate: Flag = False  # a second query-sized projection gates the heads' output

    # The keyword that the part after the colon in ``family:ARGUMENT`` fills.
    text_argument: ClassVar[str | None] = None
    text_aliases: ClassVar[Mapping[str, str]] = {}

    def backbone(self) -> Backbone:
        """Heads and widths that a swapped design takes over."""
        raise NotImplementedError

    def label(self) -> str:
        """The shortest ``--attention`` text that gives this design on its backbone."""
        raise NotImplementedError

    def aligned(self, alignment: int) -> AttentionSpec:  # noqa: ARG002
        """This design as a kernel with that row alignment stores it; most rows need none."""
        return self

    @classmethod
    def on_backbone(cls, backbone: Backbone, family: str, fields: Mapping[str, Any]) -> Self:
        """This family on the heads of ``backbone``; ``fields`` come from the text."""
        raise NotImplementedError

    def stated(self, *names: str) -> str:
        """``,name=value`` for each named field that differs from its default."""
        fields = type(self).model_fields
        values = ((n, getattr(self, n)) for n in names)
        return "".join(f",{n}={_text(v)}" for n, v in values if v != fields[n].default)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def divisors_of(n: int) -> list[int]:
    """Divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
