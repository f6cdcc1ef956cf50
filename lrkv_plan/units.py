"""Units: the one place where human sizes become base units, and base units become text.

Base units are bytes, seconds, FLOPs and tokens. GB is 10**9 bytes and GiB is 2**30 bytes.
One multiply-add is 2 FLOPs.
"""

from __future__ import annotations

import re
from fractions import Fraction

from lrkv_plan.errors import UsageError, shown

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
FLOPS_PER_MULTIPLY_ADD = 2
INT64_MAX = 2**63 - 1

_BYTE_UNITS = {
    "b": 1, "byte": 1, "bytes": 1,
    "kb": KB, "mb": MB, "gb": GB, "tb": TB, "pb": 10**15,
    "kib": KIB, "mib": MIB, "gib": GIB, "tib": TIB, "pib": 2**50,
}  # fmt: skip
_FLOP_UNITS = {
    "flop": 1, "mflop": 10**6, "gflop": 10**9, "tflop": 10**12, "pflop": 10**15,
    "flops": 1, "mflops": 10**6, "gflops": 10**9, "tflops": 10**12, "pflops": 10**15,
}  # fmt: skip
_BINARY_SIZES = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"))
# Context lengths are named in powers of two: a "128k" model has 131,072 positions.
_TOKEN_UNITS = {"": 1, "k": 2**10, "m": 2**20}

_NUMBER = re.compile(r"(\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE]([+-]?\d{1,2}))?", re.ASCII)
_WITH_COMMA = re.compile(r"\s*(\d[\d_]*(?:,\d+)+(?:\.\d+)?)", re.ASCII)
_MAX_TEXT = 60


def parse_number(text: str) -> Fraction:
    """An exact decimal: ``80``, ``3.35``, ``1.5e+12``, ``80_000``.

    Raises
    ------
    UsageError
        If the text is not a non-negative decimal number, or has a comma inside.
    """
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= _MAX_TEXT else None
    if match is None:
        refuse_comma(text)
        raise UsageError(f"{shown(text)} is not a number")
    digits = match[1].replace("_", "")
    return Fraction(digits.rstrip(".")) * Fraction(10) ** int(match[2] or 0)


def refuse_comma(text: str) -> None:
    """Refuse a number with a comma, which some read as a decimal point and others as nothing.

    Raises
    ------
    UsageError
        If the text begins with such a number; the message names both readings.

    Examples
    --------
    >>> refuse_comma("66,89 GiB")
    Traceback (most recent call last):
    lrkv_plan.errors.UsageError: '66,89 GiB': is it 66.89 or 6689? write it without a comma
    """
    match = _WITH_COMMA.match(text) if len(text) <= _MAX_TEXT else None
    if match is None:
        return
    whole, *others = match[1].partition(".")[0].split(",")
    joined = match[1].replace(",", "")
    if len(others) == 1 and "." not in match[1]:
        raise UsageError(
            f"{shown(text)}: is it {whole}.{others[0]} or {joined}? write it without a comma"
        )
    raise UsageError(f"{shown(text)}: has commas inside a number; write {joined} if that is meant")


def _parse_with_unit(text: str, units: dict[str, int], what: str, example: str) -> Fraction:
    stripped = text.strip()
    match = _NUMBER.match(stripped) if len(stripped) <= _MAX_TEXT else None
    unit = stripped[match.end() :].strip().lower() if match else ""
    if match is None or unit not in units:
        refuse_comma(text)
        raise UsageError(f"{shown(text)} is not {what}; write for example {example!r}")
    return parse_number(match[0]) * units[unit]


def parse_bytes(text: str) -> int:
    """Bytes from ``80 GiB``, ``50MB`` or ``4096 B``; the unit is required.

    Raises
    ------
    UsageError
        If the text is not a number with a known unit.

    Examples
    --------
    >>> parse_bytes("80 GiB")
    85899345920
    """
    # "79.19 GiB" is a rounded print; the nearest byte is closer than its last digit.
    return round(_parse_with_unit(text, _BYTE_UNITS, "a size in bytes", "80 GiB"))


def parse_bytes_per_s(text: str) -> float:
    """Bytes per second from ``3.35 TB/s``. Raises ``UsageError``."""
    rate = _strip_per_second(text, "a bandwidth", "3.35 TB/s")
    return float(_parse_with_unit(rate, _BYTE_UNITS, "a bandwidth", "3.35 TB/s"))


def parse_flops_per_s(text: str) -> float:
    """FLOPs per second from ``989.4 TFLOP/s``. Raises ``UsageError``."""
    rate = _strip_per_second(text, "a peak rate", "989.4 TFLOP/s")
    return float(_parse_with_unit(rate, _FLOP_UNITS, "a peak rate", "989.4 TFLOP/s"))


def _strip_per_second(text: str, what: str, example: str) -> str:
    rate, slash, second = text.strip().partition("/")
    if slash and second.strip().lower() in ("s", "sec", "second"):
        return rate
    raise UsageError(f"{shown(text)} is not {what}; write for example {example!r}")


def parse_tokens(text: str) -> int:
    """Tokens from ``8192``, ``8k`` (8,192) or ``1m`` (1,048,576).

    Raises
    ------
    UsageError
        If the text is not a positive whole number of tokens that fits int64.
    """
    value = _parse_with_unit(text, _TOKEN_UNITS, "a number of tokens", "8k")
    if value.denominator != 1 or not 1 <= value <= INT64_MAX:
        raise UsageError(f"{shown(text)} tokens: must be a whole number from 1 to 2**63 - 1")
    return int(value)


def parse_seconds(text: str) -> float:
    """Seconds from ``60s``, ``5min`` or ``1h``; a bare number is seconds.

    Raises
    ------
    UsageError
        If the text is not a positive time.

    Examples
    --------
    >>> parse_seconds("1.5min")
    90.0
    """
    units = {"": 1, "s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600}
    value = float(_parse_with_unit(text, units, "a time", "60s"))
    if not 0 < value <= 1e6:
        raise UsageError(f"{shown(text)}: a time must be above 0 and at most 1e6 s")
    return value


def format_bytes(value: int | float | Fraction) -> str:
    """Bytes for people: exact below 1 MiB, else binary units with four significant digits.

    Examples
    --------
    >>> format_bytes(339_738_624), format_bytes(4096)
    ('324.0 MiB', '4,096 B')
    """
    number = float(value)
    if abs(number) < MIB:
        return f"{int(number):,} B" if number.is_integer() else f"{number:,.3f} B"
    size, unit = next(s for s in _BINARY_SIZES if abs(number) >= s[0])
    scaled = number / size
    return f"{scaled:,.{max(0, 4 - len(str(int(abs(scaled)))))}f} {unit}"


def format_rate(value_per_s: float, unit: str) -> str:
    """A rate for people in decimal units: ``3.35 TB/s``, ``989.4 TFLOP/s``."""
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value_per_s >= size:
            return f"{value_per_s / size:.4g} {prefix}{unit}/s"
    return f"{value_per_s:.4g} {unit}/s"
