"""Equations as people read them, calculated."""

from __future__ import annotations

import re


def evaluated(text: str) -> float:
    """``3 x (32 layers x 8,192 tokens x 4,096 B + 5 B of state)`` as a number."""
    return float(eval(re.sub(r"[a-zA-Z_-]{2,}|\bB\b|,", "", text).replace("x", "*")))
