"""Notes of an answer: what it assumes, rests on, cannot say, means, and leaves to try."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal[
    "assumption",  # taken where a source is silent
    "provenance",  # what a number rests on
    "limit",  # where the answer stops being true
    "definition",  # what a word or a column means
    "hint",  # what to ask or try next
    "refusal",  # what was asked for and has no answer
]
_PREFIXES: dict[Kind, str] = {"provenance": "rests on: ", "refusal": "refused: "}


@dataclass(frozen=True, kw_only=True)
class Note:
    """One sentence. ``subject`` is the design, GPU or model that it is about, None for all."""

    kind: Kind
    text: str
    subject: str | None = None

    def __str__(self) -> str:
        """The sentence as people read it, with its subject in front."""
        about = "" if self.subject is None else f"{self.subject}: "
        return f"{_PREFIXES.get(self.kind, '')}{about}{self.text}"
