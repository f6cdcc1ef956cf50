"""What every attention spec has: its backbone, its text, its sizes.

``on_backbone`` builds the spec that ``--attention`` text asks for on the heads of an existing
model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, TypeVar

from pydantic import ValidationError
from typing_extensions import Self

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.schema import Flag, Frozen, HeadCount, explain


class Backbone(NamedTuple):
    """What stays when the attention design of a layer is swapped.

    ``head_dim`` is a key's width beside the ``rope_dim`` scalars that all heads share, if any;
    ``key_dim`` is the whole key of one head where that is another width.
    """

    n_heads: int
    head_dim: int
    v_head_dim: int
    rope_dim: int | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False
    output_gate: bool = False
    wide_qk_norm: bool = False
    key_dim: int | None = None

    @property
    def whole_key_dim(self) -> int:
        """What a design whose heads share no rotary part caches as a key. [scalars]"""
        return self.head_dim if self.key_dim is None else self.key_dim


class AttentionSpec(Frozen):
    """Fields that every family has; ``family`` names the subclass."""

    family: str
    n_heads: HeadCount
    output_bias: Flag = False
    output_gate: Flag = False  # a second query-sized projection gates the heads' output

    # The keyword that the part after the colon in ``family:ARGUMENT`` fills.
    text_argument: ClassVar[str | None] = None
    text_aliases: ClassVar[Mapping[str, str]] = {}
    # Fields that come from the backbone; the others are the design's own.
    backbone_fields: ClassVar[frozenset[str]] = frozenset(Backbone._fields) - {
        "rope_dim",
        "key_dim",
    }
    # What can be varied, in the family's word, and the fields that take it; None and none where
    # nothing can.
    size_name: ClassVar[str | None] = None
    size_fields: ClassVar[tuple[str, ...]] = ()

    def backbone(self) -> Backbone:
        """Heads and widths that a swapped design takes over."""
        raise NotImplementedError

    def label(self) -> str:
        """The shortest ``--attention`` text that gives this design on its backbone."""
        raise NotImplementedError

    def text(self, size: int | str | None = None) -> str:  # noqa: ARG002
        """The design as one would type it, with another size or a word for it where given."""
        return self.label()

    def sizes(self, model_dim: int) -> Sequence[int]:  # noqa: ARG002
        """Sizes that the design can take on its backbone, ascending: ranks, KV heads, widths."""
        return ()

    @classmethod
    def common_sizes(cls, layers: Sequence[Self], model_dim: int) -> Sequence[int]:
        """Sizes that the design can take in all of a model's layers, ascending."""
        every = [layer.sizes(model_dim) for layer in layers]
        if all(sizes == every[0] for sizes in every):
            return every[0]
        return sorted(set.intersection(*map(set, every)))

    def with_size(self, size: int) -> Self:
        """The same design with another size.

        Raises
        ------
        SpecError
            If the backbone does not allow it, or the family has no size.
        """
        if not self.size_fields:
            raise SpecError(f"attention {self.label()}: has no size that could be varied")
        sized: Self = _sized(self, size)
        return sized

    def sized_fields(self, size: int) -> dict[str, Any]:
        """The fields that change with the size, and their values."""
        return dict.fromkeys(self.size_fields, size)

    def changed(self, fields: Mapping[str, Any], text: str) -> Self:
        """The design with other values; ``text`` names it where they are refused."""
        try:
            return type(self)(**{**dict(self), **fields})
        except ValidationError as error:
            what = explain(error, type(self))
            raise SpecError(f"attention {shown(text)}: {what}") from None

    def moved_to(self, backbone: Backbone) -> AttentionSpec:
        """This design on the heads of another backbone.

        Raises
        ------
        SpecError
            If it does not fit there.
        """
        if backbone == self.backbone():
            return self
        try:
            return self.on_backbone(backbone, self.family, self.own_fields())
        except ValidationError as error:
            what = explain(error, type(self))
            raise SpecError(f"attention {shown(self.text())}: {what}") from None

    def own_fields(self) -> dict[str, Any]:
        """What the design states beside its backbone."""
        kept = {"family", "output_bias", "output_gate", *self.backbone_fields}
        return {
            name: value
            for name, value in self
            if name not in kept and value != type(self).model_fields[name].default
        }

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


_Spec = TypeVar("_Spec", bound=AttentionSpec)


@lru_cache(maxsize=4096)  # searches ask for the same sizes again
def _sized(design: _Spec, size: int) -> _Spec:
    return design.changed(design.sized_fields(size), design.text(size))


def divisors_of(n: int) -> list[int]:
    """Divisors of n, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
