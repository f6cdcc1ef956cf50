"""Where a cache's rows live on a tensor-parallel group, one tensor and one GPU at a time."""

from __future__ import annotations

from fractions import Fraction

# (bytes of a row times layers, copies, dealt out by copy)
Tensor = tuple[Fraction, int, bool]


def resident(copies: int, dealt: bool, gpus: int) -> list[list[int]]:
    """The copies that each GPU keeps: all, an equal run of them, or one that several share."""
    if not dealt:
        return [list(range(copies))] * gpus
    if copies >= gpus:
        each = copies // gpus
        return [list(range(g * each, (g + 1) * each)) for g in range(gpus)]
    return [[g * copies // gpus] for g in range(gpus)]


def policies(tensors: list[Tensor], gpus: int) -> dict[str, tuple[Fraction, ...]]:
    """Per policy: bytes on one GPU, in all, beyond one copy, and read over the link by one GPU."""
    fullest, whole, away = Fraction(0), Fraction(0), Fraction(0)
    for row, copies, dealt in tensors:
        places = resident(copies, dealt, gpus)
        assert {c for place in places for c in place} == set(range(copies)), "nothing is lost"
        assert len({len(place) for place in places}) == 1, "GPUs hold equally much"
        fullest += row * len(places[0])
        whole += row * copies
        away += row * (len(places[0]) - Fraction(copies, gpus))
    if fullest * gpus == whole:
        return {"by_copy": (fullest, whole, Fraction(0), Fraction(0))}
    return {
        "replicated": (fullest, fullest * gpus, fullest * gpus - whole, Fraction(0)),
        "by_token": (whole / gpus, whole, Fraction(0), Fraction(0)),
        "gathered": (whole / gpus, whole, Fraction(0), away),
    }
