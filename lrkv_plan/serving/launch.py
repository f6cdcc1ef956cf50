"""The engine's own command line for a layout: what it must be told to serve what was planned.

Each engine's words are said in its record's ``launch``; here is what they are made of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.errors import UsageError
from lrkv_plan.specs.deployment import EngineName, EngineSettings, Parallelism


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one replica is told.

    ``model`` is a hub id or a path, ``name`` what it is called here; ``n_sequences`` the most that
    one core decodes together. ``weight_dtype`` is None where the checkpoint's own format is served.
    Pages are None where the engine's default is meant.
    """

    engine: EngineName
    model: str
    name: str
    settings: EngineSettings
    parallel: Parallelism
    n_sequences: int
    utilisation: Fraction
    weight_dtype: str | None = None
    kv_memory_bytes: int | None = None

    def unsaid(self, option: str, why: str) -> UsageError:
        """The error for an option that the engine's command line cannot express."""
        return UsageError(
            f"--launch: {self.engine.name} has no words for {option}: {why}; leave {option} or "
            "--launch out"
        )

    def word(self, option: str, value: str, words: Mapping[str, str]) -> str:
        """The engine's word for a value of an option.

        Raises
        ------
        UsageError
            If it has none.
        """
        if value not in words:
            known = ", ".join(words)
            raise self.unsaid(f"{option} {value}", f"it takes {known}")
        return words[value]


def options(told: Mapping[str, object]) -> list[str]:
    """Flags with their values; None and False are left out, True is a flag alone.

    Examples
    --------
    >>> options({"--tp-size": 2, "--trust": True, "--none": None})
    ['--tp-size', '2', '--trust']
    """
    words: list[str] = []
    for flag, value in told.items():
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words


def above_one(size: int) -> int | None:
    """A size that has to be told: None for 1, every engine's default."""
    return size if size > 1 else None


def decimal(share: Fraction) -> str:
    """A share as engines read it: four digits, without zeros at the end."""
    return f"{float(share):.4f}".rstrip("0")
