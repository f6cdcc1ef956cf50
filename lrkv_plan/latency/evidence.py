"""Kinds of evidence behind a time, from measured here to assumed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

Basis: TypeAlias = Literal["measured", "borrowed", "datasheet", "assumed"]
STRONGEST_FIRST: tuple[Basis, ...] = ("measured", "borrowed", "datasheet", "assumed")


def evidence(basis: str) -> Basis:
    """The kind of evidence behind a kernel's or all-reduce's basis.

    Examples
    --------
    >>> [evidence(one) for one in ("measured", "other_shape", "generation", "assumed")]
    ['measured', 'borrowed', 'borrowed', 'assumed']
    """
    for known in STRONGEST_FIRST:
        if basis == known:
            return known
    return "borrowed"


def weakest(bases: Iterable[str]) -> Basis:
    """The weakest evidence among some; measured where there is none.

    Examples
    --------
    >>> weakest(["measured", "generation", "datasheet"])
    'datasheet'
    """
    return max(map(evidence, bases), key=STRONGEST_FIRST.index, default="measured")
