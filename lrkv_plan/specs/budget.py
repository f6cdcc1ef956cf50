"""``--budget`` text: ``50%``, ``1/18+55/128``, ``50% of own``, ``96 KiB/token``, ``gqa:6``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.attention.registry import is_family
from lrkv_plan.errors import UsageError, shown
from lrkv_plan.units import parse_bytes, parse_number, refuse_comma

_PER_TOKEN = re.compile(r"(.+?)/\s*token(\s*/\s*gpu)?\s*", re.IGNORECASE)
_OF = re.compile(r"(.+?)\s+(?:of\s+)?(own|mha)", re.IGNORECASE)
_MAX_BARE_SHARE = 2


@dataclass(frozen=True, kw_only=True)
class Budget:
    """A cache budget: exactly one of a share, bytes per token, or another design.

    A share is of MHA's bytes on the same backbone, or of the model's own design.
    """

    text: str
    share_of_mha: Fraction | None = None
    share_of_own: Fraction | None = None
    bytes_per_token: int | None = None
    per_gpu: bool = False  # bytes on each GPU rather than over the tensor-parallel group
    design: str | None = None

    @property
    def described(self) -> str:
        """The text, with what a bare share is of."""
        is_bare = self.share_of_mha is not None and _OF.fullmatch(self.text) is None
        return f"{self.text} of MHA" if is_bare else self.text


def parse_budget(text: str) -> Budget:
    """A budget from its text.

    Raises
    ------
    UsageError
        If the text is none of the known forms, or a number above 2 without a percent sign.

    Examples
    --------
    >>> parse_budget("1/18+55/128").share_of_mha
    Fraction(559, 1152)
    >>> parse_budget("50% of own").share_of_own
    Fraction(1, 2)
    >>> parse_budget("96 KiB/token").bytes_per_token
    98304
    """
    stripped = text.strip()
    if is_family(re.split("[:,]", stripped.lower())[0]):
        return Budget(text=stripped, design=stripped)
    per_token = _PER_TOKEN.fullmatch(stripped)
    if per_token:
        return Budget(
            text=stripped, bytes_per_token=parse_bytes(per_token[1]), per_gpu=bool(per_token[2])
        )
    of = _OF.fullmatch(stripped)
    share_text = of[1] if of else stripped
    try:
        share = sum((_share(part) for part in share_text.split("+")), start=Fraction(0))
    except UsageError:
        refuse_comma(stripped)
        raise UsageError(
            f"budget {shown(text)} is not a share (50%, 0.5, 1/3, '50% of own'), bytes "
            "('96 KiB/token'), or a design (gqa:6, mla:512+64)"
        ) from None
    if share > _MAX_BARE_SHARE and not set("%/") & set(share_text):
        raise UsageError(
            f"budget {shown(text)} is {float(share):.0%}; write a percent sign if meant"
        )
    if share <= 0:
        raise UsageError(f"budget {shown(text)} must be above 0")
    if of and of[2].lower() == "own":
        return Budget(text=stripped, share_of_own=share)
    return Budget(text=stripped, share_of_mha=share)


def _share(text: str) -> Fraction:
    number, percent = (text.strip()[:-1], 100) if text.strip().endswith("%") else (text, 1)
    above, slash, below = number.partition("/")
    denominator = parse_number(below) if slash else Fraction(1)
    if denominator == 0:
        raise UsageError("division by zero")
    return parse_number(above) / denominator / percent
