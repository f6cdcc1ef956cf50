"""Quantities that a claim can compute: name -> function, inputs, kind, equation and source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

from lrkv_plan.audit.printed import Kind
from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.specs.base import Frozen

Compute = Callable[[Any], int | Fraction]
AnyCompute = TypeVar("AnyCompute", bound=Compute)


@dataclass(frozen=True, kw_only=True)
class Quantity:
    """One computable quantity. ``monotone`` in every input, so that corners bound its values."""

    name: str
    kind: Kind
    inputs: type[Frozen]
    compute: Compute
    equation: str
    source: str
    monotone: bool = False

    def __call__(self, inputs: Frozen) -> Fraction:
        """The exact value in base units."""
        return Fraction(self.compute(inputs))


QUANTITIES: dict[str, Quantity] = {}


def quantity(
    inputs: type[Frozen], kind: Kind, equation: str, *, source: str = "", monotone: bool = False
) -> Callable[[AnyCompute], AnyCompute]:
    """Register the decorated function under its own name."""

    def register(compute: AnyCompute) -> AnyCompute:
        name = getattr(compute, "__name__", "")
        QUANTITIES[name] = Quantity(
            name=name, kind=kind, inputs=inputs, compute=compute, equation=equation,
            source=source or "arithmetic", monotone=monotone,
        )  # fmt: skip
        return compute

    return register


def quantity_named(name: str) -> Quantity:
    """The quantity of that name. Raises ``SpecError`` with the nearest known name."""
    if name not in QUANTITIES:
        raise SpecError(
            f"computes: quantity {shown(name)} is unknown{did_you_mean(name, QUANTITIES)}; "
            f"known: {', '.join(sorted(QUANTITIES))}"
        )
    return QUANTITIES[name]
