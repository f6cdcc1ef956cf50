"""Quantities of stated numbers: differences, means, conversions of losses, training cost."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

from lrkv_plan.audit.inputs import (
    ComputeSaved,
    Entropy,
    EntropyByReference,
    Pairs,
    Steps,
    Training,
    Two,
    Values,
)
from lrkv_plan.audit.printed import Kind
from lrkv_plan.audit.registry import quantity
from lrkv_plan.errors import SpecError

_BPB = "review of arXiv:2601.11471v3, section 5"
# The only irrational input: ln 2 to 50 digits, far beyond any print.
LN_2 = Fraction(Decimal(2).ln(Context(prec=50)))


def _divided(above: Fraction, below: Fraction, what: str) -> Fraction:
    if not below:
        raise SpecError(f"{what} is zero")
    return above / below


def _of(values: Any) -> list[Fraction]:
    return [number.value for number in values]


@quantity(Values, Kind.NUMBER, "sum x_i", monotone=True)
def total(inputs: Values) -> Fraction:
    """Sum of the values."""
    return sum(_of(inputs.values), start=Fraction(0))


@quantity(Values, Kind.NUMBER, "product x_i", monotone=True)
def product(inputs: Values) -> Fraction:
    """Product of the values."""
    result = Fraction(1)
    for value in _of(inputs.values):
        result *= value
    return result


@quantity(Values, Kind.NUMBER, "sum x_i / n", monotone=True)
def mean(inputs: Values) -> Fraction:
    """Arithmetic mean of the values."""
    return total(inputs) / len(inputs.values)


@quantity(Values, Kind.NUMBER, "min x_i", monotone=True)
def smallest(inputs: Values) -> Fraction:
    """The smallest value."""
    return min(_of(inputs.values))


@quantity(Values, Kind.NUMBER, "max x_i", monotone=True)
def largest(inputs: Values) -> Fraction:
    """The largest value."""
    return max(_of(inputs.values))


@quantity(Two, Kind.NUMBER, "x - y", monotone=True)
def difference(inputs: Two) -> Fraction:
    """Value minus reference."""
    return Fraction(inputs.value.value - inputs.reference.value)


@quantity(Two, Kind.RATIO, "(x - y) / y", monotone=True)
def relative_difference(inputs: Two) -> Fraction:
    """Value minus reference, over the reference."""
    return _divided(difference(inputs), inputs.reference.value, "reference")


@quantity(Two, Kind.RATIO, "(y - x) / y", monotone=True)
def relative_decrease(inputs: Two) -> Fraction:
    """How far the value lies below the reference, over the reference."""
    return -relative_difference(inputs)


@quantity(Two, Kind.RATIO, "x / y", monotone=True)
def ratio(inputs: Two) -> Fraction:
    """Value over reference."""
    return _divided(inputs.value.value, inputs.reference.value, "reference")


@quantity(Pairs, Kind.NUMBER, "sum x_i y_i", monotone=True)
def dot_product(inputs: Pairs) -> Fraction:
    """Dot product; also one coordinate of a matrix product, or a weighted sum."""
    pairs = zip(_of(inputs.left), _of(inputs.right), strict=True)
    return sum((x * y for x, y in pairs), start=Fraction(0))


@quantity(Pairs, Kind.RATIO, "cov(x, y)^2 / (var x var y)")
def r_squared(inputs: Pairs) -> Fraction:
    """Share of variance that a straight line explains."""
    left, right = _of(inputs.left), _of(inputs.right)
    x_mean, y_mean = sum(left) / len(left), sum(right) / len(right)
    covariance = sum((x - x_mean) * (y - y_mean) for x, y in zip(left, right, strict=True))
    spread = sum((x - x_mean) ** 2 for x in left) * sum((y - y_mean) ** 2 for y in right)
    return _divided(Fraction(covariance) ** 2, Fraction(spread), "the spread of a list")


@quantity(Entropy, Kind.RATIO, "CE / (bytes per token x ln 2)", source=_BPB, monotone=True)
def bits_per_byte(inputs: Entropy) -> Fraction:
    """Bits per byte of a cross-entropy in nats per token."""
    below = inputs.bytes_per_token.value * LN_2
    return _divided(inputs.cross_entropy.value, below, "bytes_per_token")


@quantity(EntropyByReference, Kind.RATIO, "BPB_ref CE / CE_ref", source=_BPB, monotone=True)
def bits_per_byte_by_reference(inputs: EntropyByReference) -> Fraction:
    """Bits per byte on a text whose bytes per token follow from another model's two losses."""
    above = inputs.reference_bits_per_byte.value * inputs.cross_entropy.value
    return _divided(above, inputs.reference_cross_entropy.value, "reference_cross_entropy")


@quantity(Steps, Kind.COUNT, "tokens / tokens per step")
def training_steps(inputs: Steps) -> Fraction:
    """Optimiser steps of a run; ``batch_tokens`` is over all GPUs."""
    return Fraction(inputs.training_tokens, inputs.batch_tokens)


@quantity(
    Training, Kind.COUNT, "6 N D (1 + change)", source="Kaplan et al. 2020, arXiv:2001.08361",
    monotone=True,
)  # fmt: skip
def training_flops(inputs: Training) -> Fraction:
    """FLOPs of a training run, forward and backward."""
    forward_and_backward = 6 * inputs.parameters.value * inputs.training_tokens
    return Fraction(forward_and_backward * (1 + inputs.change.value))


@quantity(
    ComputeSaved, Kind.RATIO, "1 - (1 - s)(1 + own change) / (1 + reference change)", monotone=True
)
def compute_saving(inputs: ComputeSaved) -> Fraction:
    """Share of training FLOPs saved to a target, each side at its own FLOPs per token."""
    own = (1 - inputs.step_saving.value) * (1 + inputs.change.value)
    return 1 - _divided(own, 1 + inputs.reference_change.value, "reference cost per token")
