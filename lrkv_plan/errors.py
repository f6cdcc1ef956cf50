"""The errors that a person can mend, each with the exit code of the command line.

A ``PlanError`` is printed as one line: what, where, which value, what is allowed; below it at most
two lines of advice, with a command to paste where there is one.
Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

_MAX_WORD = 200  # a path of an ordinary machine is shorter
_MAX_PRINTED_BITS = 1_000  # str() of a whole number takes a time that grows with its square


class PlanError(Exception):
    """No answer, for a reason that ``message`` states in one line; ``advice`` says what to try."""

    exit_code = 1

    def __init__(self, message: str, *, advice: Sequence[str] = ()) -> None:
        self.message = one_line(message)
        self.advice = tuple(printable(line) for line in advice)
        super().__init__(self.message)

    def __str__(self) -> str:
        return "; ".join([self.message, *(" ".join(line.split()) for line in self.advice)])


class UsageError(PlanError):
    """A flag or argument that cannot be understood."""

    exit_code = 2


class ArgumentError(UsageError):
    """Arguments that cannot be understood or honoured, by their names in Python.

    ``problem`` follows the names: `` '8,192': takes one value`` or ``: is not used``. It may name
    others as ``--flags``; Python's message says ``keywords``, the command line's ``--flags``.
    """

    def __init__(
        self, names: str | Sequence[str], problem: str, *, advice: Sequence[str] = ()
    ) -> None:
        self.names = (names,) if isinstance(names, str) else tuple(names)
        self.problem = problem
        told = re.sub(r"--([a-z][a-z-]*)", lambda flag: flag[1].replace("-", "_"), problem)
        super().__init__(", ".join(self.names) + told, advice=advice)

    def of_options(self) -> str:
        """The message with ``--context-tokens`` for ``context_tokens``."""
        flags = (f"--{name.replace('_', '-')}" for name in self.names)
        return one_line(", ".join(flags) + self.problem)


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
    """Text on one line, control characters escaped.

    Long words are cut in their middle, and so is the whole text at ``limit`` characters: the file
    stands at the start of a message, and what is wrong with it at the end.
    """
    return _cut(printable(" ".join(_cut(word, _MAX_WORD) for word in text.split())), limit)


def printable(text: str) -> str:
    """Text with its control characters escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 3]}...{text[-tail:]}"


def shown(value: object, limit: int = 60) -> str:
    """A value as an error message shows it: its repr, cut to ``limit`` characters."""
    if isinstance(value, str) and len(value) > limit:
        value = value[:limit]  # one letter may become ten: quote no more of them than are shown
    if isinstance(value, int) and value.bit_length() > _MAX_PRINTED_BITS:
        return f"a whole number of {value.bit_length():,} bits"
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an endless number or nesting inside a list
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 3] + "..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``'; did you mean X?'`` for the nearest known name, or an empty string."""
    by_lower = {k.lower(): k for k in known}
    near = difflib.get_close_matches(name.lower()[:80], by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


# Words of a model's name that say how it was trained or is stored, not what it caches.
_VARIANTS = frozenset(
    ("instruct", "chat", "base", "it", "hf", "meta", "pt", "awq", "gptq", "bf16", "fp8")
)


def nearest_names(name: str, known: Iterable[str], at_most: int = 3) -> list[str]:
    """Known names that a name may mean, nearest first: one if only case or marks differ.

    A hub id counts by its last part.

    Examples
    --------
    >>> known = ["llama-2-7b", "llama-3.1-70b", "llama-3.1-8b", "qwen3-8b"]
    >>> nearest_names("llama-70b", known)
    ['llama-3.1-70b']
    >>> nearest_names("meta-llama/Llama-3.1-8B-Instruct", known)
    ['llama-3.1-8b']
    >>> nearest_names("nothing", known)
    []
    """
    last = name[:200].lower().rstrip("/").rpartition("/")[2]
    words = [word for word in re.split(r"[-_ ]+", last) if word and word not in _VARIANTS]
    by_marks: dict[str, str] = {}
    for one in known:
        by_marks.setdefault(_without_marks(one), one)
    same = by_marks.get(_without_marks("".join(words)))
    if same is not None:
        return [same]
    parted = {one: set(re.split(r"[-_ ]+", one.lower())) for one in by_marks.values()}
    holding = [one for one in parted if words and set(words) <= parted[one]]
    if holding:
        return sorted(holding, key=lambda one: (len(parted[one]), one))[:at_most]
    near = difflib.get_close_matches("-".join(words)[:80], parted, n=at_most, cutoff=0.6)
    held = [one for one in parted if len(parted[one]) > 1 and parted[one] <= set(words)]
    return list(dict.fromkeys([*sorted(held, key=len, reverse=True), *near]))[:at_most]


# Words that say how weights are stored or when they were made.
_STORAGE = re.compile(
    r"quantized.*|dynamic|w\d+a\d+|int[48]|nvfp4|mxfp4|modelopt|gguf|q\d(_\w+)*|\d{4}|block"
)


def same_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that a hub id, path or file name means beyond doubt, or None.

    Words of training, storage and dates do not count; all others must be the same.

    Examples
    --------
    >>> known = ["llama-3.1-8b", "mistral-small-3.1-24b", "kimi-k2"]
    >>> same_name("RedHatAI/Meta-Llama-3.1-8B-Instruct-quantized.w8a8", known)
    'llama-3.1-8b'
    >>> same_name("/models/Mistral-Small-3.1-24B-Instruct-2503/", known)
    'mistral-small-3.1-24b'
    >>> same_name("moonshotai/Kimi-K2-Thinking", known) is None
    True
    """
    last = name[-200:].lower().rstrip("/").rpartition("/")[2]
    words = [
        word
        for word in re.split(r"[-_ ]+", last.removesuffix(".gguf"))
        if word not in _VARIANTS and not _STORAGE.fullmatch(word)
    ]
    wanted = "".join(words)
    return next((one for one in known if wanted and _without_marks(one) == wanted), None)


def _without_marks(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())
