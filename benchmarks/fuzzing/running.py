"""One input run in this process through the installed script's entry, in an empty folder.

Measuring is replaced: the commands that time decode steps do everything else, and time nothing.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib.util
import io
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import typer

from benchmarks.fuzzing.files import write_files
from benchmarks.fuzzing.inputs import Input
from lrkv_plan.cli.app import main
from lrkv_plan.errors import CalibrationError

PROCESSOR_S = 2.0  # that an input may take
# Commands that draw pictures, fit and bootstrap: what they take on valid input, with room.
SLOWER_S = {
    "report": 40.0,
    "explore": 10.0,
    "plot": 6.0,
    "calibrate": 6.0,
    "audit": 4.0,
    "plan": 4.0,
}
WAITING_S = 10.0  # for input that never comes, with no more processor time than
IDLE_S = 0.02
MORE_MEMORY_BYTES = 3 * 2**30  # that an input may ask for before it gets a MemoryError
MADE_UP_PEAKS = {"stream_bytes_per_s": 10e9, "peak_flops_per_s": {"fp32": 100e9}}
PROJECT = Path(__file__).resolve().parent.parent.parent


class TooSlow(BaseException):
    """Raised by the timer; no ``except Exception`` keeps it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one run did.

    ``error`` is the last line of a traceback and ``raised_at`` the innermost place of it in the
    package; both empty where the program ended by itself. ``grown_bytes`` is how far the process
    grew above what it held before. [bytes]
    """

    exit_code: int
    stdout: str
    stderr: str
    error: str
    raised_at: str
    python_warnings: tuple[str, ...]
    too_slow: bool
    grown_bytes: int
    files_before: Mapping[str, str]
    files_after: Mapping[str, str]


@contextlib.contextmanager
def prepared() -> Iterator[None]:
    """The commands built once rather than for every input, memory bounded, measuring replaced."""
    with contextlib.ExitStack() as stack:
        built = functools.cache(typer.main.get_command)
        stack.enter_context(mock.patch("typer.main.get_command", built))
        stack.enter_context(mock.patch("webbrowser.open", return_value=False))
        if importlib.util.find_spec("torch") is not None:
            for where, what in _measuring().items():
                stack.enter_context(mock.patch(where, what))
        stack.enter_context(_bounded_memory())
        yield


@contextlib.contextmanager
def _bounded_memory() -> Iterator[None]:
    """No more than ``MORE_MEMORY_BYTES`` above what the process holds already."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + MORE_MEMORY_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _measuring() -> dict[str, Any]:
    """What probes and times the machine, and what stands there instead."""

    def refused(*_: Any, **__: Any) -> Any:
        raise CalibrationError("nothing is measured here")

    session = "lrkv_plan.calibration.session"
    return {
        f"{session}.Measuring.run": lambda *_: 0,
        f"{session}.measured_peaks": lambda *_: MADE_UP_PEAKS,
        f"{session}.stopwatch_of": lambda _: mock.Mock(method="none"),
        f"{session}.prepare_cpu": lambda _: "none",
        "lrkv_plan.cli.calibrate_tensor_parallel._measured": refused,
        "lrkv_plan.calibration.validate.stopwatch_of": refused,
        "lrkv_plan.calibration.validate.prepare_cpu": lambda _: None,
    }


def run(one: Input, folder: Path, *, processor_s: float | None = None) -> Outcome:
    """Run one input in ``folder`` (made, and removed at the end), with a limit on its time.

    Needs ``prepared``, without which a fault may take all memory of the machine.
    """
    here = folder / "here"
    here.mkdir(parents=True)
    before_cwd = Path.cwd()
    try:
        write_files(here, one.files)
        os.chdir(here)
        tempfile.tempdir = str(folder)  # what goes to no file that was named
        files = _snapshot(here)
        limit = processor_s or SLOWER_S.get(one.arguments[0] if one.arguments else "", PROCESSOR_S)
        return _run(one, here, files, limit)
    finally:
        tempfile.tempdir = None
        os.chdir(before_cwd)
        shutil.rmtree(folder)


def _run(one: Input, here: Path, files: Mapping[str, str], limit: float) -> Outcome:
    streams = _Streams(one.stdout)
    code, error, place, too_slow = 0, "", "", False
    interrupted = signal.getsignal(signal.SIGINT)
    held = _forget_peak()
    with warnings.catch_warnings(record=True) as heard, streams, mock.patch.object(
        sys, "argv", ["lrkv-plan", *one.arguments]
    ):  # fmt: skip
        _default_filters()
        try:
            with _limited(limit):
                main()
                streams.flush()
        except TooSlow:
            too_slow, place = True, _place(sys.exc_info()[2])
        except SystemExit as ended:
            code, error = _exit_code(ended, streams)
        except BaseException as escaped:
            code, place = 1, _place(escaped.__traceback__)
            error = traceback.format_exception_only(escaped)[-1].strip()
        finally:
            # The entry ends a process: collections off, all objects exempt, interrupts ignored.
            gc.enable()
            gc.unfreeze()
            signal.signal(signal.SIGINT, interrupted)
    grown = max(0, _peak_bytes() - held)
    return Outcome(
        exit_code=code, stdout=streams.text(0), stderr=streams.text(1), error=error,
        raised_at=place, python_warnings=tuple(_shown(w) for w in heard), too_slow=too_slow,
        grown_bytes=grown, files_before=files, files_after=_snapshot(here),
    )  # fmt: skip


def _exit_code(ended: SystemExit, streams: _Streams) -> tuple[int, str]:
    """The code, and the error of flushing what is still held, as the interpreter does at exit."""
    code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    try:
        streams.flush()
    except (OSError, ValueError) as error:
        return 120, f"at exit: {type(error).__name__}: {error}"
    return code, ""


class _Streams:
    """Standard output and error as the program sees them, and the text that went there."""

    def __init__(self, stdout: str) -> None:
        self._raw = [io.BytesIO(), io.BytesIO()]
        out: io.TextIOWrapper | None
        if stdout == "closed":
            out = None
        elif stdout == "full":
            out = open("/dev/full", "w", encoding="utf-8")  # noqa: SIM115
        else:
            out = io.TextIOWrapper(self._raw[0], encoding=stdout, write_through=True)
        self._encoding = stdout if stdout in ("latin-1", "ascii") else "utf-8"
        self._streams = [
            out,
            io.TextIOWrapper(
                self._raw[1], encoding="utf-8", errors="backslashreplace", write_through=True
            ),
        ]

    def __enter__(self) -> _Streams:
        self._before = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._streams  # type: ignore[assignment]
        return self

    def __exit__(self, *_: object) -> None:
        sys.stdout, sys.stderr = self._before

    def flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()

    def text(self, which: int) -> str:
        encoding = "utf-8" if which else self._encoding
        return self._raw[which].getvalue().decode(encoding, "surrogateescape")


@contextlib.contextmanager
def _limited(processor_s: float) -> Iterator[None]:
    """Raise ``TooSlow`` after so much processor time, or waiting; again where it is swallowed.

    A process that others keep from the processor still gets some of it; one that waits gets none.
    """
    used_s = [time.process_time()]

    def spent(*_: object) -> None:
        raise TooSlow

    def waited(*_: object) -> None:
        used_s.append(time.process_time())
        if used_s[-1] - used_s[-2] < IDLE_S:
            raise TooSlow

    alarms = ((signal.SIGPROF, signal.ITIMER_PROF, spent, processor_s, 1.0),
              (signal.SIGALRM, signal.ITIMER_REAL, waited, WAITING_S, WAITING_S))  # fmt: skip
    before = [(number, signal.signal(number, handler)) for number, _, handler, _, _ in alarms]
    try:
        for _, timer, _, seconds, again in alarms:
            signal.setitimer(timer, seconds, again)
        yield
    finally:
        for _, timer, *_ in alarms:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


def _default_filters() -> None:
    """The warnings that a user of the installed script sees, each every time."""
    warnings.resetwarnings()
    warnings.simplefilter("always")
    for kind in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", kind)


def _shown(heard: warnings.WarningMessage) -> str:
    return f"{_relative(heard.filename)}:{heard.lineno}: {heard.category.__name__}: {heard.message}"


def _place(trace: Any) -> str:
    """The innermost line of the package in a traceback, or the innermost of all."""
    frames = traceback.extract_tb(trace)
    own = [f for f in frames if f.filename.startswith(str(PROJECT / "lrkv_plan"))] or frames
    return f"{_relative(own[-1].filename)}:{own[-1].lineno}" if own else ""


def _relative(name: str) -> str:
    path = Path(name)
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else path.name


def _forget_peak() -> int:
    """Bytes held now; from here on the kernel counts the peak anew, where it can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _peak_bytes()


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _snapshot(folder: Path) -> dict[str, str]:
    """Every file below the folder with a word on what it is and holds."""
    return {str(path.relative_to(folder)): _described(path) for path in sorted(_walk(folder))}


def _walk(folder: Path) -> Iterator[Path]:
    for root, folders, files in os.walk(folder):
        yield from (Path(root, name) for name in (*folders, *files))


def _described(path: Path) -> str:
    if path.is_symlink():
        return "link"
    if not path.is_file():
        return f"special {path.stat().st_mode:o}"
    content = path.read_bytes()
    return f"{len(content)} bytes {hashlib.sha256(content).hexdigest()[:12]}"
