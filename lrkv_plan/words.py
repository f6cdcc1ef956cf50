"""Arguments as people write them, turned into values: 8k, 50%, '66.89 GiB', one or a list.

Every function takes the argument's name, which its error names. A number may also be given as one;
a list as a list, or as text with commas. A comma inside a number is refused, naming both readings.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, TypeVar

from lrkv_plan import units
from lrkv_plan.errors import ArgumentError, UsageError, shown

MAX_VALUES = 1000
Value = TypeVar("Value")


def count(name: str, value: Any) -> int:
    """A positive whole number: 8, ``"8"``. Raises ``ArgumentError``, also for a list."""
    return _one(name, value, _count)


def counts(name: str, value: Any) -> list[int]:
    """Positive whole numbers: ``"1,2,4"`` or ``[1, 2, 4]``. Raises ``ArgumentError``."""
    return _each(name, value, _count)


def layer_counts(name: str, value: Any) -> tuple[int, ...]:
    """Layers of each pipeline stage: ``"32,16"`` or ``[32, 16]``. Raises ``ArgumentError``.

    A comma between them is no thousands separator: one number would be one stage.
    """
    parts = value if isinstance(value, list | tuple) else _text(name, value).split(",")
    return tuple(_one(name, part, _count) for part in _few(name, list(parts)))


def whole(name: str, value: Any) -> int:
    """A whole number from 0 up. Raises ``ArgumentError``."""
    return 0 if str(value).strip() == "0" and value is not False else count(name, value)


def tokens(name: str, value: Any) -> int:
    """Tokens: 8192, ``"8192"``, ``"8k"``. Raises ``ArgumentError``, also for a list."""
    return _one(name, value, units.parse_tokens)


def token_counts(name: str, value: Any) -> list[int]:
    """Tokens: ``"2048,8k"`` or ``[2048, "8k"]``. Raises ``ArgumentError``."""
    return _each(name, value, units.parse_tokens)


MOST_IN_A_SPAN = 100_000
_SPAN = re.compile(r"\s*([^.:*\s]+)\s*\.\.\s*([^.:*\s]+)\s*(?::\s*(\*?)\s*([^.:*\s]+)\s*)?")


def spans(name: str, value: Any, parse: Callable[[str], int]) -> list[int]:
    """Whole numbers, one by one or as spans: ``"1..8"``, ``"1k..32k:1k"``, ``"1..64:*2"``, lists.

    Parameters
    ----------
    parse : text of one number to its value: ``units.parse_tokens``.

    Raises
    ------
    ArgumentError
        If one cannot be read or stands twice, or there are more than 100,000.

    Examples
    --------
    >>> spans("tp_size", "1..8:*2", int), spans("batch_size", [1, "16..64:16"], int)
    ([1, 2, 4, 8], [1, 16, 32, 48, 64])
    """
    several = (
        list(value) if isinstance(value, list | tuple | range) else _text(name, value).split(",")
    )
    if _may_be_one_number(value if isinstance(value, str) else ""):
        return _each(name, value, parse)  # which says so
    found: list[int] = []
    for one in several:
        text = _text(name, one).strip()
        match = _SPAN.fullmatch(text)
        found += [_one(name, text, parse)] if match is None else _span(name, text, match, parse)
        if not 1 <= len(found) <= MOST_IN_A_SPAN:
            raise ArgumentError(name, f" {shown(value)}: from 1 to {MOST_IN_A_SPAN:,} values")
    if len(set(found)) < len(found):
        raise ArgumentError(name, f" {shown(value)}: a value stands twice")
    return found


def _span(name: str, text: str, match: re.Match[str], parse: Callable[[str], int]) -> Sequence[int]:
    first, last = (_one(name, end, parse) for end in match.group(1, 2))
    step = 1 if match[4] is None else _one(name, match[4], parse)
    if last < first or (match[3] and step < 2):
        raise ArgumentError(
            name, f" {shown(text)}: is no span; write 1..8, 1..8:2 (steps) or 1..8:*2 (doubling)"
        )
    if not match[3]:
        several = range(first, last + 1, step)
        return several if len(several) <= MOST_IN_A_SPAN else several[: MOST_IN_A_SPAN + 1]
    found = [first]
    while found[-1] * step <= last:
        found.append(found[-1] * step)
    return found


def number(name: str, value: Any, *, least: float = 0.0, most: float = 1e9) -> float:
    """A finite number above ``least`` (from it on where it is not 0) and at most ``most``.

    Raises
    ------
    ArgumentError
        If it is none; the message says what is allowed.
    """
    found = float(_one(name, value, units.parse_number))
    if not (least < found if least == 0 else least <= found) or found > most:
        bound = "above 0" if least == 0 else f"from {least:g}"
        raise ArgumentError(name, f" {shown(value)}: must be {bound} and at most {most:g}")
    return found


def share(name: str, value: Any) -> Fraction:
    """A share above 0 and at most 1: 0.9, ``"90%"``. Raises ``ArgumentError``."""
    text = _text(name, value).strip()
    digits, percent = (text[:-1], 100) if text.endswith("%") else (text, 1)
    try:
        found = units.parse_number(digits) / percent
    except UsageError as error:
        raise ArgumentError(name, f": {error}") from None
    if not 0 < found <= 1:
        raise ArgumentError(
            name, f" {shown(value)}: must be above 0 and at most 1, such as 0.9 or 90%"
        )
    return found


def size(name: str, value: Any) -> int:
    """Bytes: ``"66.89 GiB"``, or a whole number of them. Raises ``ArgumentError``."""
    text = _text(name, value)
    try:
        found = int(text) if isinstance(value, int) else units.parse_bytes(text)
    except UsageError as error:
        raise ArgumentError(name, f": {error}") from None
    if not 1 <= found <= units.INT64_MAX:
        raise ArgumentError(name, f" {shown(value)}: must be at least one byte and below 2**63")
    return found


def texts(name: str, value: Any) -> list[str]:
    """One text or several: ``"gqa:8"`` or ``["gqa:8", "lrkv:55,groups=2"]``.

    Raises
    ------
    ArgumentError
        If anything in it is no text.
    """
    found = list(value) if isinstance(value, list | tuple) else [value]
    for one in found:
        if not isinstance(one, str):
            raise ArgumentError(name, f" {shown(one)}: must be text")
    return found


def given(value: Value | None, default: Value) -> Value:
    """``value``, or ``default`` where the argument was not given: "" and 0 were given."""
    return default if value is None else value


def optional(parse: Callable[..., Value], name: str, value: Any, **bounds: Any) -> Value | None:
    """``parse(name, value)``, or None where the argument was not given."""
    return None if value is None else parse(name, value, **bounds)


def _text(name: str, value: Any) -> str:
    """A single value as text; numbers as Python writes them, whole floats without a point."""
    item = value.item() if hasattr(value, "item") and hasattr(value, "dtype") else value
    if isinstance(item, str):
        return item
    if isinstance(item, float) and item.is_integer():
        return str(int(item))
    if isinstance(item, int | float) and not isinstance(item, bool):
        return repr(item)
    raise ArgumentError(name, f" {shown(value)}: must be a number, or text such as '8k' or '50%'")


def _count(text: str) -> int:
    value = units.parse_number(text)
    if value.denominator != 1 or not 1 <= value <= units.INT64_MAX:
        raise UsageError(f"{shown(text)} is not a whole number from 1 to 2**63 - 1")
    return int(value)


def _one(name: str, value: Any, parse: Callable[[str], Value]) -> Value:
    if isinstance(value, list | tuple):
        raise ArgumentError(name, f" {shown(value)}: takes one value, not {len(value)}")
    text = _text(name, value)
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1:
        is_number = all(part.isdecimal() for part in parts)
        readings = (
            f"; is it {''.join(parts)}, or {' and '.join(parts)}?"
            if is_number and parse is not units.parse_number
            else f", not {len(parts)}"
        )
        if parse is units.parse_number:
            _refuse_comma(name, text)
        raise ArgumentError(name, f" {shown(text)}: takes one value{readings}")
    try:
        return parse(text)
    except UsageError as error:
        raise ArgumentError(name, f": {error}") from None


def _refuse_comma(name: str, text: str) -> None:
    try:
        units.refuse_comma(text)
    except UsageError as error:
        raise ArgumentError(name, f": {error}") from None


def _each(name: str, value: Any, parse: Callable[[str], Value]) -> list[Value]:
    if isinstance(value, list | tuple):
        return [_one(name, item, parse) for item in _few(name, value)]
    text = _text(name, value)
    parts = _few(name, [part.strip() for part in text.split(",")])
    if _may_be_one_number(text):
        joined, listed = "".join(parts), ", ".join(parts)
        raise ArgumentError(
            name,
            f" {shown(text)}: is it {joined}, or {' and '.join(parts)}? write {joined}, or "
            f"{listed!r} with spaces for a list",
        )
    return [_one(name, part, parse) for part in parts]


def _few(name: str, values: Any) -> Any:
    if not 1 <= len(values) <= MAX_VALUES:
        raise ArgumentError(name, f" {shown(values)}: from 1 to {MAX_VALUES} values")
    return values


_GROUPED = re.compile(r"\s*\d{1,3}(?:,\d{3})+\s*", re.ASCII)
_GROUP_INSIDE = re.compile(r"(?:^|,)\d{1,3},\d{3}(?:,|$)", re.ASCII)


def _may_be_one_number(text: str) -> bool:
    """Whether commas may stand between thousands: ``8,192``, ``8,192,16,384``, ``4,096,32k``.

    ``1,2,4,128`` is a list: plain numbers that rise. With spaces after commas every list is one.

    Examples
    --------
    >>> [_may_be_one_number(t) for t in ("8,192", "8, 192", "8k,32k", "1,2,64,128", "8,192,16,384")]
    [True, False, False, False, True]
    """
    if _GROUPED.fullmatch(text):
        return True
    if not _GROUP_INSIDE.search(text):
        return False
    parts = text.split(",")
    if not all(part.isdecimal() and not part.startswith("0") for part in parts):
        return True
    numbers = [int(part) for part in parts]
    return any(later <= earlier for earlier, later in itertools.pairwise(numbers))
