"""An LRKV variant without its rank, as the rank solver varies it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LowRankOptions:
    """What an LRKV design fixes besides its rank (specs.attention.LowRankSpec)."""

    n_shared_groups: int = 1
    position: str = "none"
    rope_dim: int = 0
    key_norm: str = "none"

    def text(self, rank: int, alignment: int = 1) -> str:
        """``--attention`` text of this design at that rank."""
        options = {
            "groups": (self.n_shared_groups, 1),
            "position": (self.position, "none"),
            "rope_dim": (self.rope_dim, 0),
            "key_norm": (self.key_norm, "none"),
            "align": (alignment, 1),
        }
        stated = [f"{key}={value}" for key, (value, default) in options.items() if value != default]
        if self.position == "rope_rank":
            stated.append("basis_spans_rotary_planes=true")
        return ",".join([f"lrkv:{rank}", *stated])

    @property
    def rank_step(self) -> int:
        """Ranks come in multiples of this: rope_rank rotates pairs."""
        return 2 if self.position == "rope_rank" else 1
