"""The errors that a person can mend, each with the exit code of the command line.

A ``PlanError`` is printed as one line: what, where, which value, what is allowed, what to try.
Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class PlanError(Exception):
    """No answer, for a reason that the message states in one line."""

    exit_code = 1

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class UsageError(PlanError):
    """A flag or argument that cannot be understood."""

    exit_code = 2


class SpecError(PlanError):
    """A model, hardware or attention spec that is missing or invalid."""

    exit_code = 3


class RequirementError(PlanError):
    """The stated requirement cannot be met: no rank fits, no engine runs this placement."""

    exit_code = 4


class PlacementError(RequirementError):
    """A tensor-parallel size that no engine can run for this design."""


class CalibrationError(PlanError):
    """Measurements that cannot be read, or a fit that they do not support."""

    exit_code = 5


def one_line(text: str, limit: int = 600) -> str:
    """Text on one line, control characters escaped, cut at ``limit`` characters."""
    flat = " ".join(text.split())
    safe = "".join(c if c.isprintable() else repr(c)[1:-1] for c in flat)
    return safe if len(safe) <= limit else safe[: limit - 3] + "..."


def shown(value: object, limit: int = 60) -> str:
    """A value as an error message shows it: its repr, cut to ``limit`` characters."""
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``'; did you mean X?'`` for the nearest known name, or an empty string."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower()[:80], by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
