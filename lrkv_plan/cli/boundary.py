"""What a person sees when a command cannot go on: one line, some advice, and an exit code.

The error is one line on stderr, with at most two indented lines of advice below.

Bugs pass through and keep their traceback; ``--debug`` lets everything through.
"""

import errno
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperGroup

from lrkv_plan.cli.plain_text import BrokenOutput, abandon, settle_streams
from lrkv_plan.errors import ArgumentError, PlanError, UsageError, one_line, shown

_FULL = (errno.ENOSPC, errno.EIO, errno.EFBIG, errno.EDQUOT, errno.EAGAIN)
INTERRUPTED = 130  # 128 and the number of SIGINT, as shells say it
# Of the click that typer brings along, or of click itself in older versions.
_BadUsage, _ClickError = typer.BadParameter.__mro__[1:3]


class PlanGroup(TyperGroup):
    """The commands behind the error boundary, so that the test runner sees the real exit code."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command line and leave with its exit code."""
        given = list(sys.argv[1:] if args is None else args)

        def run() -> None:
            _refuse_nul(given)
            with self.make_context(
                prog_name or self.name or "lrkv-plan", given, **extra
            ) as context:
                self.invoke(context)

        if not standalone_mode:
            return run()
        flags = itertools.takewhile(lambda text: text.startswith("-"), given)
        sys.exit(exit_code_of(run, debug="--debug" in list(flags), words=given))


def exit_code_of(run: Callable[[], Any], *, debug: bool = False, words: Sequence[str] = ()) -> int:
    """Run, tell what a person can mend, and return the exit code; ``words`` are what was typed."""
    settle_streams()
    try:
        try:
            run()
            code = 0
        except typer.Exit as done:
            code = int(done.exit_code)
        sys.stdout.flush()
        return code
    except BaseException as error:
        told = None if debug else what_is_told(error, words)
        if told is None:
            raise
        text, code = told
        tell(text)
        return code


def _refuse_nul(given: Sequence[str]) -> None:
    for text in given:
        if "\0" in text:
            raise UsageError(f"{shown(text)} holds a NUL character")


def tell(text: str) -> None:
    """``error: ...`` on stderr, if stderr takes it."""
    try:
        if text:
            sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        abandon(sys.stderr)


def what_is_told(error: BaseException, words: Sequence[str] = ()) -> tuple[str, int] | None:
    """What is said about an error and its exit code; None for a bug."""
    if isinstance(error, BrokenPipeError):
        abandon(sys.stdout)  # the reader (head, less) has seen enough
        return "", 0
    if isinstance(error, _ClickError):
        return _usage_text(error, words)
    known = _reason(error)
    advice = error.advice if isinstance(error, PlanError) else ()
    return None if known is None else (_told(known[0], advice), known[1])


def _told(message: str, advice: Sequence[str]) -> str:
    """The error's line, and at most two of advice below."""
    lines = [f"error: {one_line(message)}", *(f"  {line}" for line in advice[:2])]
    return "\n".join(lines) + "\n"


def _reason(error: BaseException) -> tuple[str, int] | None:
    if isinstance(error, ArgumentError):
        return error.of_options(), error.exit_code
    if isinstance(error, PlanError):
        return error.message, error.exit_code
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        return "interrupted", INTERRUPTED
    if isinstance(error, MemoryError):
        return "this needs more memory than there is; ask for less", UsageError.exit_code
    if isinstance(error, BrokenOutput):
        return f"stdout {error}; -o FILE writes to a file", UsageError.exit_code
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}", UsageError.exit_code
    if isinstance(error, OSError) and error.errno in _FULL:
        abandon(sys.stdout)
        return f"stdout cannot be written: {error.strerror}", UsageError.exit_code
    return None


def _usage_text(error: Any, words: Sequence[str]) -> tuple[str, int]:
    """A usage error in our form; the help of a group that was named alone is shown as it is."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"{error.format_message()}\n", error.exit_code
    context = getattr(error, "ctx", None)
    near = _near_options(error, context, words)
    message = _in_our_form(error, near)
    if context is not None and "; did you mean" not in message:
        message += f"; see {context.command_path} --help"
    line = _to_paste(error, context, words, _meant(message))
    return _told(message, [line] if line else []), error.exit_code


def _meant(message: str) -> list[str]:
    """The one word that a message proposes, and the one in whose place it stands."""
    found = re.fullmatch(r"no such \w+ (\S+); did you mean ((?:(?! or ).)+)\?", message)
    return [] if found is None else [word.strip("'") for word in found.groups()]


def _near_options(error: Any, context: Any, words: Sequence[str]) -> list[str]:
    if type(error).__name__ != "NoSuchOption":
        return []
    from lrkv_plan.cli.advice import near_options, value_of

    known = context.command.get_params(context) if context is not None else []
    flags = [flag for one in known for flag in (*one.opts, *one.secondary_opts)]
    value = value_of(words, error.option_name)
    return near_options(error.option_name, flags, error.possibilities or (), value)


def _to_paste(error: Any, context: Any, words: Sequence[str], meant: Sequence[str]) -> str:
    """A command to paste: a word as it was meant, or what is missing put in."""
    if context is None:
        return ""
    from lrkv_plan.cli.advice import completed, pasted, renamed

    program = context.find_root().command_path
    if meant and meant[1].split()[0] not in words:
        return pasted([program, *renamed(words, *meant)])
    if type(error).__name__ == "MissingParameter":
        whole = pasted(completed(words, context.command, context))
        return whole and f"for example:  {whole}"
    return ""


def _in_our_form(error: Any, near: Sequence[str]) -> str:
    """``no such option --foo; did you mean --bar?`` from typer's ``No such option: --foo ...``."""
    if type(error).__name__ == "NoSuchOption":
        return f"no such option {_cut(error.option_name)}" + (
            f"; did you mean {' or '.join(near)}?" if near else ""
        )
    text = " ".join(_cut(word) for word in error.format_message().split())
    text = text.replace(": Value error, ", ": ")
    # Some versions of typer and of click each add the hint, so that it may be there twice.
    text = re.sub(r"[.;]? Did you mean ([^?]*)\?.*$", r"; did you mean \1?", text)
    return (text[:1].lower() + text[1:]).rstrip(".")


def _cut(word: str) -> str:
    return word if len(word) <= 60 else word[:57] + "..."
