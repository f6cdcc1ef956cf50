"""Rounding to blocks, for numbers and int64 arrays alike."""

from __future__ import annotations

from typing import Any


def ceil_div(value: Any, divisor: int) -> Any:
    """ceil(value / divisor) for an int or an int64 array."""
    return -(-value // divisor)


def smaller(value: Any, limit: int) -> Any:
    """min(value, limit) for an int or an int64 array."""
    return min(value, limit) if isinstance(value, int) else value.clip(max=limit)
