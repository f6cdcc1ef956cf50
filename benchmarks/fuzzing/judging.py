"""What is wrong with an outcome: each fault with its kind, a key that equal ones share, and words.

A run may end with an answer (0), or refuse with a short message: 2 for its use, 3 for a file, 4 for
a requirement that cannot be met, 5 for a calibration.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.fuzzing.inputs import Input
from benchmarks.fuzzing.running import Outcome

REFUSALS = (2, 3, 4, 5)
MAX_LINES, MAX_CHARACTERS = 3, 1000  # the error and at most two lines of advice
MAX_GROWN_BYTES = 400 * 2**20
# C0 but for tab and line ends, DEL, C1, bidirectional marks, separators, lone surrogates.
_CONTROL = re.compile(
    "[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_FORMULA = re.compile(r"[=+@\t\r]")
_NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?|-?inf|nan|-", re.IGNORECASE)
# A run keeps what it measured when its fit is refused.
_KEEPS_FILES = ("calibrate run",)


@dataclass(frozen=True)
class Fault:
    """``kind`` is counted, ``key`` tells faults of one kind apart, ``detail`` is shown."""

    kind: str
    key: str
    detail: str


def faults(one: Input, outcome: Outcome) -> Iterator[Fault]:
    """Everything wrong with one run."""
    command = " ".join(one.arguments[:2])
    if outcome.too_slow:
        yield Fault("hang", outcome.raised_at, f"stopped at {outcome.raised_at}")
        return
    if outcome.error:
        name = outcome.error.partition(":")[0]
        yield Fault(
            "traceback",
            f"{name} {outcome.raised_at}",
            f"{outcome.raised_at}: {_cut(outcome.error)}",
        )
    if outcome.grown_bytes > MAX_GROWN_BYTES:
        yield Fault("memory", one.kind, f"grew by {outcome.grown_bytes / 2**20:.0f} MiB")
    for warning in outcome.python_warnings:
        yield Fault("warning", warning[:80], _cut(warning))
    if outcome.error:
        return
    yield from _wrong_codes(outcome)
    yield from _long_messages(outcome)
    yield from _bad_texts(one, outcome)
    yield from _broken_files(one, outcome, command)


def _wrong_codes(outcome: Outcome) -> Iterator[Fault]:
    says_error = re.search(r"^error:|^Error", outcome.stderr, re.MULTILINE)
    shown = f"exit {outcome.exit_code}: {_cut(outcome.stderr)}"
    if outcome.exit_code not in (0, *REFUSALS):
        yield Fault("exit code", str(outcome.exit_code), shown)
    elif outcome.exit_code == 0 and says_error:
        yield Fault("exit code", "0 with an error", shown)
    elif outcome.exit_code in REFUSALS and not outcome.stderr.strip():
        yield Fault("exit code", "no message", f"exit {outcome.exit_code} without a message")
    if outcome.exit_code in (2, 3) and outcome.stdout and "Usage:" not in outcome.stdout:
        yield Fault("answer beside an error", str(outcome.exit_code), _cut(outcome.stderr))


def _long_messages(outcome: Outcome) -> Iterator[Fault]:
    """Refusals of more lines or characters than a person reads; notes and files written are not."""
    told = [line for line in outcome.stderr.splitlines() if line.strip()]
    lines = [line for line in told if not line.startswith(("wrote ", "note: "))]
    if outcome.exit_code not in REFUSALS or "Commands:" in outcome.stderr or not lines:
        return
    refused = [i for i, line in enumerate(lines) if line.startswith("error: ")]
    bare = [line for line in lines[refused[-1] + 1 :] if line[:2] != "  "] if refused else []
    if bare:
        yield Fault("advice not indented", _gist(bare[0]), _cut(bare[0]))
    n_characters = sum(map(len, lines))
    if len(lines) > MAX_LINES or n_characters > MAX_CHARACTERS:
        about = f"{len(lines)} lines, {n_characters:,} characters: {_cut(lines[-1])}"
        yield Fault("long message", _gist(lines[-1]), about)


def _gist(line: str) -> str:
    """A message without what differs from input to input."""
    return re.sub(r"'.*?'|\d+", "_", line)[:50]


def _bad_texts(one: Input, outcome: Outcome) -> Iterator[Fault]:
    """Control characters in any stream; JSON and CSV that a reader would choke on."""
    for name, text in (("stdout", outcome.stdout), ("stderr", outcome.stderr)):
        found = _CONTROL.search(text)
        if found:
            around = text[max(0, found.start() - 50) : found.end() + 20]
            command = " ".join(a for a in one.arguments[:2] if "." not in a)
            yield Fault("control character", f"{name} {command}", f"{name}: {around!r}")
    asked = _format_of(one)
    if outcome.exit_code != 0 or "-h" in one.arguments or "--help" in one.arguments:
        return
    if asked == "json" and outcome.stdout:
        try:
            json.loads(outcome.stdout, parse_constant=_no_constant)
        except ValueError as error:
            yield Fault("bad JSON", str(error)[:40], str(error))
    elif asked == "csv" and one.kind != "options":
        for row in csv.reader(io.StringIO(outcome.stdout, newline="")):
            for cell in row:
                if _FORMULA.match(cell) and not _NUMBER.fullmatch(cell):
                    yield Fault("formula in CSV", one.kind, _cut(cell))
                    return


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _format_of(one: Input) -> str:
    for before, after in zip(one.arguments, one.arguments[1:], strict=False):
        if before in ("-f", "--format"):
            return after
    return ""


def _broken_files(one: Input, outcome: Outcome, command: str) -> Iterator[Fault]:
    before, after = outcome.files_before, outcome.files_after
    changed = [name for name in after if after[name] != before.get(name)]
    gone = [name for name in before if name not in after]
    left = [n for n in changed if any(part.startswith((".", "tmp")) for part in n.split("/"))]
    if left:
        yield Fault("file left behind", command, ", ".join(left))
    if command in _KEEPS_FILES:
        return
    says_so = "wrote " in outcome.stderr  # what was fitted well, beside what was refused
    if outcome.exit_code in (2, 3, 5) and (changed or gone) and not says_so:
        yield Fault("files changed by a refusal", command, ", ".join(changed + gone))
    empty = [name for name in changed if after[name].startswith("0 bytes")]
    if outcome.exit_code == 0 and empty:
        yield Fault("empty file", command, ", ".join(empty))
    special = [n for n in changed if before.get(n, "").startswith(("special", "link"))]
    unasked = [n for n in changed if n in before and "--force" not in one.arguments]
    for name in {*gone, *special, *unasked}:
        yield Fault("file replaced", command, f"{name}: {before[name]}, now {after.get(name)}")


def _cut(text: str) -> str:
    flat = " | ".join(text.split("\n"))
    return ascii(flat[:200])[1:-1]
