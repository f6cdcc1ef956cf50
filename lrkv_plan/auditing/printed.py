"""Printed values: their exact value, their unit, and what their last digit still lets pass.

A print of n decimals stands for every value within half a unit of its last digit, ends included
(a tie may have been rounded either way). Cutting digits off instead is marked, never accepted.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from lrkv_plan.errors import SpecError, UsageError, did_you_mean, shown
from lrkv_plan.units import parse_bytes

_MAX_TEXT = 80
_LARGEST_INPUT = 10**30
_SIGN = r"[+\-\u2212\u2013]?\s*"
_DIGITS = r"(?:\d[\d,_]*(?:\.\d+)?|\.\d+)"
_ONE = re.compile(rf"(?P<sign>{_SIGN})(?P<digits>{_DIGITS})(?:\s*/\s*(?P<over>\d+))?")
_RANGE = re.compile(rf"(?P<low>{_DIGITS})\s*(?:%|x|\u00d7)?\s*(?:-{{1,2}}|\u2013|to)\s*(?=\d)")
_RELATIONS = {">=": ">=", "\u2265": ">=", "<=": "<=", "\u2264": "<=", ">": ">", "<": "<"}
_COUNTS = {
    name: Fraction(10**power)
    for name, power in (("", 0), ("K", 3), ("M", 6), ("B", 9), ("T", 12), ("ExaFLOPs", 18))
}
_RATIOS = {"": Fraction(1), "%": Fraction(1, 100), "x": Fraction(1), "\u00d7": Fraction(1)}
_SIZES = {
    name: Fraction(parse_bytes(f"1 {name}"))
    for name in ("KB", "MB", "GB", "TB", "PB", "KiB", "MiB", "GiB", "TiB", "PiB")
}


class Kind(enum.Enum):
    """What a quantity is, which decides the units that its print may have."""

    RATIO = "ratio"
    BYTES = "bytes"
    COUNT = "count"
    NUMBER = "number"  # of any unit, as its inputs have


class Number(NamedTuple):
    """An input and half a unit of its last printed digit; 0 for an exact one."""

    value: Fraction
    half_unit: Fraction = Fraction(0)


class Agreement(enum.Enum):
    """How a computed value stands to a print."""

    ROUNDED = "rounded"
    TRUNCATED = "truncated"  # only cutting the digits off would print it
    NONE = "none"


_UNITS: dict[Kind, dict[str, Fraction]] = {
    Kind.RATIO: _RATIOS,
    Kind.BYTES: {"B": Fraction(1), "bytes": Fraction(1)} | _SIZES,
    Kind.COUNT: _COUNTS,
    Kind.NUMBER: _RATIOS | _COUNTS | _SIZES,
}


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A print in base units: ``low`` equals ``high`` unless a range was printed."""

    text: str
    kind: Kind
    unit: str
    scale: Fraction
    decimals: int
    low: Fraction
    high: Fraction
    half_unit: Fraction
    relation: str = "="

    def agreement(self, value: Fraction, comparison: str = "equal") -> Agreement:
        """Whether ``value`` prints as this text; with ``at_most`` whether it bounds the print.

        Examples
        --------
        >>> parse_printed("48.4 %", Kind.RATIO).agreement(Fraction(559, 1152))
        <Agreement.NONE: 'none'>
        >>> parse_printed("18 %", Kind.RATIO).agreement(Fraction(187, 1000))
        <Agreement.TRUNCATED: 'truncated'>
        """
        if self._agrees(value, comparison):
            return Agreement.ROUNDED
        step = 2 * self.half_unit
        if comparison == "equal" and self.relation == "=" and self.low == self.high and step:
            cut = abs(value) // step * step
            if cut == abs(self.low) and (value < 0) == (self.low < 0):
                return Agreement.TRUNCATED
        return Agreement.NONE

    @cached_property
    def _window(self) -> tuple[Fraction, Fraction]:
        """Smallest and largest value that round to the print."""
        return self.low - self.half_unit, self.high + self.half_unit

    def _agrees(self, value: Fraction, comparison: str) -> bool:
        low, high = self._window
        if comparison == "at_most":  # the print may not exceed the computed bound
            return self.low < value if self.relation == ">" else low <= value
        if self.relation in (">", ">="):
            return value > self.low if self.relation == ">" else value >= low
        if self.relation in ("<", "<="):
            return value < self.high if self.relation == "<" else value <= high
        return low <= value <= high

    def overlaps(self, low: Fraction, high: Fraction) -> bool:
        """Whether some value between ``low`` and ``high`` prints as this text."""
        return low <= self._window[1] and high >= self._window[0]

    def in_unit(self, value: Fraction) -> str:
        """``value`` in the printed unit: whole numbers exactly, others with two more digits."""
        scaled = value / self.scale
        decimals = 0 if scaled.denominator == 1 else self.decimals + 2
        unit = f" {self.unit}" if self.unit else ""
        return f"{_rounded(scaled, decimals)}{unit}"


def _rounded(value: Fraction, decimals: int) -> str:
    """Exact decimal text, halves up, thousands separated."""
    units = (abs(value) * 10**decimals * 2 + 1) // 2
    whole, part = divmod(units, 10**decimals)
    sign = "-" if value < 0 and units else ""
    return f"{sign}{whole:,}" + (f".{part:0{decimals}d}" if decimals else "")


def parse_printed(text: str, kind: Kind, unit: str | None = None) -> Printed:
    """A printed value such as ``48.52 %``, ``491.5 GB``, ``1.15B``, ``40-50 %``, ``> 5``, ``1/3``.

    Parameters
    ----------
    text : the digits as printed; their number sets the precision.
    kind : B means bytes for a size and 10**9 for a count.
    unit : the unit where the print has none.

    Raises
    ------
    SpecError
        If the text is no number with a unit of that kind.

    Examples
    --------
    >>> print_ = parse_printed("491.5 GB", Kind.BYTES)
    >>> int(print_.low), int(print_.half_unit)
    (491500000000, 50000000)
    """
    stripped = text.strip()
    if len(stripped) > _MAX_TEXT:
        raise SpecError(f"printed {shown(text)}: longer than {_MAX_TEXT} characters")
    sign = next((mark for mark in _RELATIONS if stripped.startswith(mark)), "")
    rest = stripped[len(sign) :].strip()
    low_text, span = "", _RANGE.match(rest)
    if span is not None:
        low_text, rest = span["low"], rest[span.end() :]
    match = _ONE.match(rest)
    if match is None:
        raise SpecError(f"printed {shown(text)}: not a number; write for example '48.52 %'")
    own_unit = rest[match.end() :].strip()
    if own_unit and unit and own_unit != unit:
        raise SpecError(f"printed {shown(text)}: has the unit {own_unit}, but unit says {unit}")
    name = own_unit or unit or ""
    scale = unit_scale(name, kind, text)
    high, decimals, exact = _value(match, text)
    low = _value(_matched(low_text, text), text)[0] if low_text else high
    half = Fraction(0) if exact else scale / 10**decimals / 2
    return Printed(
        text=stripped if own_unit or not unit else f"{stripped} {unit}",
        kind=kind, unit=name, scale=scale, decimals=4 if exact else decimals,
        low=low * scale, high=high * scale, half_unit=half, relation=_RELATIONS.get(sign, "="),
    )  # fmt: skip


def _matched(digits: str, text: str) -> re.Match[str]:
    match = _ONE.fullmatch(digits)
    if match is None:
        raise SpecError(f"printed {shown(text)}: not a range of numbers")
    return match


def _value(match: re.Match[str], text: str) -> tuple[Fraction, int, bool]:
    """Value, decimals, and whether it is a fraction (exact) rather than a decimal."""
    digits = match["digits"].replace(",", "").replace("_", "")
    value = Fraction(digits)
    if match["over"]:
        if not int(match["over"]):
            raise SpecError(f"{shown(text)}: divides by zero")
        value /= int(match["over"])
    negative = match["sign"].strip() not in ("", "+")
    return -value if negative else value, len(digits.partition(".")[2]), bool(match["over"])


def unit_scale(name: str, kind: Kind, text: str = "") -> Fraction:
    """Base units in one unit of that name. Raises ``SpecError`` for a unit of another kind."""
    known = _UNITS[kind]
    by_lower = {n.lower(): scale for n, scale in known.items()}
    if name.lower() not in by_lower:
        allowed = ", ".join(n or "none" for n in known)
        what = f"printed {shown(text)}: " if text else ""
        raise SpecError(
            f"{what}unit {shown(name)} does not fit a {kind.value}"
            f"{did_you_mean(name, known)}; allowed: {allowed}"
        )
    return by_lower[name.lower()]


def read_number(value: object) -> Number:
    """An input: unquoted numbers are exact, quoted ones carry their printed precision.

    Raises
    ------
    ValueError
        If it is neither.

    Examples
    --------
    >>> read_number("2.740")
    Number(value=Fraction(137, 50), half_unit=Fraction(1, 2000))
    >>> read_number("29.7 %").value, read_number("1/4"), read_number("50B").value
    (Fraction(297, 1000), Number(value=Fraction(1, 4), half_unit=Fraction(0, 1)), Fraction(50000000000, 1))
    """  # noqa: E501
    if isinstance(value, Number):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a number, or text such as '2.740' or '29.7 %'")
    if not isinstance(value, str):
        if abs(value) > _LARGEST_INPUT:
            raise ValueError(f"exceeds {_LARGEST_INPUT:.0e}")
        return Number(Fraction(str(value)))
    try:
        printed = parse_printed(value, Kind.NUMBER)
    except (SpecError, UsageError) as error:
        raise ValueError(str(error)) from None
    if printed.relation != "=" or printed.low != printed.high:
        raise ValueError(f"{shown(value)}: one number is needed")
    return Number(printed.low, printed.half_unit)
