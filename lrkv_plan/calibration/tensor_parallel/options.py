"""What a tensor-parallel run measures: designs, sizes, placements and where results go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lrkv_plan.attention.spec import AttentionSpec

# Designs that are measured unless others are named, with what must divide the heads.
DESIGNS = {
    "mha": 1, "gqa:8": 8, "gqa:2": 2, "mqa": 1, "mla:512+64": 1, "lrkv:54": 1,
    "lrkv:54,groups=8": 8,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to measure. None, or nothing, means the device's usual value."""

    device: str
    designs: tuple[AttentionSpec, ...]
    policies: tuple[str, ...]
    model_dim: int
    batch_size: int
    context_tokens: tuple[int, ...]
    query_tokens: int
    dtype: str | None
    path: str | None
    n_repeats: int
    largest_bytes: int | None
    gpu: str | None
    output: Path
    force: bool
    seed: int
    command: str


def usual_designs(n_heads: int) -> tuple[str, ...]:
    """The designs of ``DESIGNS`` that ``n_heads`` heads can have.

    Examples
    --------
    >>> usual_designs(6)
    ('mha', 'gqa:2', 'mqa', 'mla:512+64', 'lrkv:54')
    """
    return tuple(text for text, groups in DESIGNS.items() if n_heads % groups == 0)
