"""What a server's own log says: its runs, the settings they state and the figures they print.

How each engine writes its lines is said in its record's ``log``; here a file is read once, in
bounded memory, and each line is offered to the formats of all engines.
"""

from __future__ import annotations

import codecs
import gzip
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, Literal

from lrkv_plan.errors import SpecError
from lrkv_plan.files import open_regular
from lrkv_plan.specs.deployment import EngineSettings
from lrkv_plan.specs.model import ModelSpec
from lrkv_plan.units import GIB

MAX_LOG_BYTES = 2**30  # read, unpacked: about a minute at worst
MAX_LINES = 300_000  # that are looked at closely; a start has a few hundred
MAX_LINE_CHARACTERS = 65_536  # of a longer line the rest is skipped
MAX_FIGURES = 4_096  # of one kind in one run: more GPUs than any server has
MAX_RUNS = 100  # of one file; of more the last are kept
_READ_AT_ONCE = 2**20
_SCALES = {"gib": GIB, "mib": 2**20, "bytes": 1}
# Colours and other control sequences of a terminal.
_CONTROL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[@-Z\\-_])")
_NUMBER = re.compile(r"-?\d[\d,]{0,20}(?:\.\d{1,9})?")  # what is longer was not printed so
_STAGE = re.compile(r"\bPP(\d{1,3})\b|_PP(\d{1,3})\b")
Start = Literal["always", "new_model"]


@dataclass(frozen=True, kw_only=True)
class LogLine:
    """One kind of line.

    Parameters
    ----------
    holds : text without which a line is none of these.
    pattern : its named groups are facts. A figure's name ends in its unit (``cache_gib``,
        ``weights_mib``, ``cache_bytes``, ``n_tokens``, ``n_blocks``, ``x_concurrency``); any other
        is a setting, kept as text.
    keys : settings written ``key=value`` or ``'key': value`` anywhere in the line, to our names.
    starts : a server's first line: always, or unless it names the model that is being read.
    names_engine : how strongly the line tells the engine from others of its server; 0 is not.
    clears : facts that are forgotten here, since the engine allots them again.
    ends : nothing of the run is read after it.
    """

    holds: str
    pattern: re.Pattern[str] | None = None
    keys: Mapping[str, str] = field(default_factory=dict)
    starts: Start | None = None
    names_engine: int = 0
    clears: tuple[str, ...] = ()
    ends: bool = False


@dataclass(frozen=True, kw_only=True)
class LogFormat:
    """How an engine's log is written.

    Parameters
    ----------
    lines : the kinds of lines.
    server : the kind of server whose lines these are; engines that share it stand in one log.
    terms : figure -> terms of the engine's budget that are printed as this one.
    combine : figure -> how several of one run are one: the least or most of all GPUs, their sum, or
        the first; the least when not named.
    asked_bytes : (model, settings, sequences) -> bytes that the cache is asked to take; None where
        it is what memory leaves.
    """

    lines: tuple[LogLine, ...]
    server: str
    terms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    combine: Mapping[str, Literal["least", "most", "sum", "first"]] = field(default_factory=dict)
    asked_bytes: Callable[[ModelSpec, EngineSettings, int], Fraction] | None = None


@dataclass(frozen=True, kw_only=True)
class Printed:
    """A figure in base units, with half a unit of its last digit and where it stands."""

    value: Fraction
    half_unit: Fraction
    line: int
    stage: int | None = None

    @property
    def low(self) -> Fraction:
        """The least value that prints as this."""
        return self.value - self.half_unit

    @property
    def high(self) -> Fraction:
        """The largest value that prints as this."""
        return self.value + self.half_unit


@dataclass(kw_only=True)
class LogRun:
    """One start of a server: what it was told and what it printed."""

    server: str
    first_line: int
    engine: str | None = None
    strength: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[Printed]] = field(default_factory=dict)
    is_over: bool = False

    @property
    def prints_memory(self) -> bool:
        """Whether it says what the cache takes or holds."""
        return any(name in self.figures for name in ("cache", "key", "n_tokens", "n_blocks"))

    def figure(self, name: str, how: str = "least") -> Printed | None:
        """The figure of that name, several made one; None where it was not printed."""
        several = self.figures.get(name)
        if not several:
            return None
        if how == "first":
            return several[0]
        if how == "sum":
            return Printed(
                value=sum((one.value for one in several), Fraction(0)),
                half_unit=sum((one.half_unit for one in several), Fraction(0)),
                line=several[0].line,
            )
        return (min if how == "least" else max)(several, key=lambda one: one.value)


def read_log(path: Path, formats: Mapping[str, LogFormat]) -> list[LogRun]:
    """The runs of a log that print memory, in the order of their starts.

    Parameters
    ----------
    path : text, plain or packed with gzip; UTF-8, UTF-16 with its mark, or whatever else: the
        lines that count are ASCII.
    formats : engine -> how its log is written.

    Raises
    ------
    SpecError
        If the file cannot be read, is no text or too large, or no engine's memory lines are there.
    """
    lines = [(name, one, line) for name, one in formats.items() for line in one.lines]
    holds = sorted({line.holds for _, _, line in lines})
    runs: list[LogRun] = []
    with open_regular(path, max_bytes=sys.maxsize) as file:
        for number, text in _numbered_lines(path, file, holds):
            plain = _CONTROL.sub("", text)
            for name, one, line in lines:
                if line.holds in plain:
                    _take(runs, name, one.server, line, plain, number)
    printing = [run for run in runs if run.prints_memory]
    if not printing:
        raise SpecError(_nothing(path, runs))
    return printing


def _nothing(path: Path, runs: Sequence[LogRun]) -> str:
    if not runs:
        return (
            f"{path}: holds no line of a known engine; a log of vLLM, SGLang, TensorRT-LLM or "
            "llama.cpp is read from the server's start on"
        )
    return (
        f"{path}: a {runs[-1].server} log without memory lines: it ends before the cache was "
        "allotted, or was cut"
    )


def _take(
    runs: list[LogRun], engine: str, server: str, line: LogLine, text: str, number: int
) -> None:
    """Put a line's facts into the run that it belongs to."""
    found = line.pattern.search(text) if line.pattern is not None else None
    if line.pattern is not None and found is None:
        return
    told = {} if found is None else {k: v for k, v in found.groupdict().items() if v is not None}
    told |= dict(_pairs(text, line.keys))
    run = _run_of(runs, server, line, told, number)
    if run.is_over:
        return
    if line.names_engine > run.strength:
        run.engine, run.strength = engine, line.names_engine
    for name in line.clears:
        run.figures.pop(name, None)
    run.is_over = line.ends
    for name, value in told.items():
        figure, unit = _figure(name)
        if not unit:
            run.settings[name] = value.strip()
        elif _NUMBER.fullmatch(value):
            several = run.figures.setdefault(figure, [])
            if len(several) < MAX_FIGURES:
                several.append(_printed(value, unit, number, text))


def _run_of(
    runs: list[LogRun], server: str, line: LogLine, told: Mapping[str, str], number: int
) -> LogRun:
    """The last run of that kind of server, or a new one where the line starts a server."""
    own = next((run for run in reversed(runs) if run.server == server), None)
    is_new = own is None or line.starts == "always"
    if own is not None and not (own.settings or own.figures):
        return own  # only its engine is known yet: named before the server's first line
    if own is not None and line.starts == "new_model":
        named = own.settings.get("model")
        is_new = own.prints_memory or named not in (None, told.get("model"))
    if is_new or own is None:
        if own is not None and not own.prints_memory:
            runs.remove(own)
        own = LogRun(server=server, first_line=number)
        runs.append(own)
        del runs[:-MAX_RUNS]
    return own


_UNITS = ("gib", "mib", "bytes")


def _figure(name: str) -> tuple[str, str]:
    """A fact's name without its unit, and the unit: empty for a setting.

    Examples
    --------
    >>> _figure("cache_gib"), _figure("n_tokens"), _figure("tp_size")
    (('cache', 'gib'), ('n_tokens', 'n'), ('tp_size', ''))
    """
    stem, _, unit = name.rpartition("_")
    if unit in _UNITS:
        return stem, unit
    if name.startswith(("n_", "x_")):
        return name, name[0]
    return name, ""


def _printed(text: str, unit: str, number: int, line: str) -> Printed:
    digits = text.replace(",", "")
    decimals = len(digits.partition(".")[2])
    scale = _SCALES.get(unit, 1)
    half = Fraction(scale, 2 * 10**decimals) if decimals or scale > 1 else Fraction(0)
    stage = _STAGE.search(line[: line.find(text)])
    return Printed(
        value=Fraction(digits) * scale, half_unit=half, line=number,
        stage=None if stage is None else int(stage[1] or stage[2]),
    )  # fmt: skip


def _pairs(text: str, keys: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Settings of a line by our names; what is None or empty was not stated."""
    for key, name in keys.items():
        pattern = (
            rf"(?<![\w-])['\"]?{key}['\"]?\s*[=:]\s*(?:'([^']*)'|\"([^\"]*)\"|([^,\s(){{}}\[\]]+))"
        )
        found = re.search(pattern, text)
        value = None if found is None else next((one for one in found.groups() if one), None)
        if value not in (None, "None"):
            yield name, str(value)


def _numbered_lines(path: Path, file: BinaryIO, holds: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Lines that hold one of some texts, with their numbers.

    Whole blocks without any of them are counted and skipped; lines are cut at
    ``MAX_LINE_CHARACTERS``.
    """
    number, rest, n_lines = 1, "", 0
    for block in _blocks(path, file):
        text = rest + block
        head, end, rest = text.rpartition("\n")
        if not end:
            rest = text[:MAX_LINE_CHARACTERS]
            continue
        counted = 0
        for start in sorted(_starts(head, holds)):
            number += head.count("\n", counted, start)
            counted = start
            n_lines += 1
            if n_lines > MAX_LINES:
                raise SpecError(
                    f"{path}: more than {MAX_LINES:,} lines look like a server's start; give those "
                    "of one start"
                )
            yield number, _line_at(head, start)
        number += head.count("\n", counted) + 1
    if any(one in rest for one in holds):
        yield number, rest[:MAX_LINE_CHARACTERS]


def _starts(text: str, holds: Sequence[str]) -> set[int]:
    """Where the lines begin that hold one of some texts."""
    found = set()
    for one in holds:
        place = text.find(one)
        while place >= 0:
            found.add(text.rfind("\n", 0, place) + 1)
            end = text.find("\n", place)
            place = -1 if end < 0 else text.find(one, end)
    return found


def _line_at(text: str, start: int) -> str:
    end = text.find("\n", start)
    last = start + MAX_LINE_CHARACTERS
    return text[start : last if end < 0 else min(end, last)]


def _blocks(path: Path, file: BinaryIO) -> Iterator[str]:
    """The file's text in blocks, unpacked and decoded.

    Raises
    ------
    SpecError
        If it is damaged, no text, or too large.
    """
    start = file.read(4)
    file.seek(0)
    is_packed = start.startswith(b"\x1f\x8b")
    source: Iterable[bytes] = _unpacked(path, file) if is_packed else _pieces(file)
    decoder, n_bytes, is_first = None, 0, True
    for piece in source:
        if decoder is None:
            decoder = codecs.getincrementaldecoder(_encoding(piece))(errors="replace")
        n_bytes += len(piece)
        if n_bytes > MAX_LOG_BYTES:
            raise SpecError(
                f"{path}: larger than {MAX_LOG_BYTES >> 30} GiB; give the lines of the server's "
                "start"
            )
        text = decoder.decode(piece)
        if is_first and text.count("\0") > len(text) // 1_000:
            raise SpecError(f"{path}: is no text; a server's log is needed")
        is_first = False
        yield text.replace("\r\n", "\n").replace("\r", " ").replace("\0", "")


def _encoding(start: bytes) -> str:
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    return "utf-8-sig"


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_READ_AT_ONCE):
        yield piece


def _unpacked(path: Path, file: BinaryIO) -> Iterator[bytes]:
    try:
        with gzip.GzipFile(fileobj=file) as packed:
            while piece := packed.read(_READ_AT_ONCE):
                yield piece
    except (OSError, EOFError, zlib.error) as problem:
        raise SpecError(f"{path}: cannot be unpacked: {problem}") from None
