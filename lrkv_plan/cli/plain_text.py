"""Output streams that take any text: plain characters where others cannot be printed.

A terminal or a file in ASCII or Latin-1 gets ``x`` for a multiplication sign and ``\u03b1`` for a
Greek letter. The escapes are those of JSON, so that JSON stays what it was.
"""

import codecs
import os
import sys
from typing import TextIO

_HANDLER = "lrkv-plan-plain"
_LENIENT = ("strict", "surrogateescape", "backslashreplace")  # what Python chooses by itself
# Never a quote, a comma or a backslash: those would change what CSV and JSON hold.
_PLAIN = {
    "×": "x", "·": ".", "•": "*", "–": "-", "—": "-", "−": "-", "…": "...", "≤": "<=", "≥": ">=",
    "±": "+-", "≈": "~", "→": "->", "←": "<-", "‘": "'", "’": "'", "“": "'", "”": "'", "µ": "u",
    "μ": "u", "²": "2", "³": "3", "√": "sqrt", "∞": "inf", "●": "m", "◐": "b", "○": "a",
    "\u00a0": " ", "\u202f": " ",
}  # fmt: skip


def _replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(map(plain, text)), error.end


def plain(character: str) -> str:
    """ASCII for one character: what looks like it, or its escape.

    Examples
    --------
    >>> plain("×"), plain("─"), plain("α"), plain("😀")
    ('x', '-', '\\\\u03b1', '\\\\ud83d\\\\ude00')
    """
    if character in _PLAIN:
        return _PLAIN[character]
    if "▀" <= character <= "▟":  # bars
        return "#"
    if "─" <= character <= "╿":  # lines of a table
        return {"─": "-", "━": "-", "═": "-", "│": "|", "┃": "|", "║": "|"}.get(character, "+")
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))


codecs.register_error(_HANDLER, _replaced)


class _Closed:
    """Stands for a stdout that the shell closed: a write tells so, and nothing else fails."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Refuse any text."""
        if text:
            raise BrokenOutput("is closed")
        return 0

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """Never a terminal."""
        return False


class BrokenOutput(Exception):
    """A standard stream that takes no text; the message says why."""


def settle_streams() -> None:
    """Make stdout and stderr take any text, and stand in for those that are closed."""
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (open to the end)
    for stream in (sys.stdout, sys.stderr):
        _make_lenient(stream)


def _make_lenient(stream: object) -> None:
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None and getattr(stream, "errors", None) in _LENIENT:
        reconfigure(errors=_HANDLER)


def abandon(stream: TextIO) -> None:
    """Send what a failed stream still holds to nowhere, so that the exit does not fail on it."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):  # not a stream of the process
        pass
