"""What a TAB is answered: names for the word that is being typed, without loading a library.

The shell's script (``completion_scripts``) starts the program with ``_LRKV_PLAN_COMPLETE`` set to
its name. Which names an option takes is declared with the option (``autocompletion=``).
"""

import gc
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from lrkv_plan.cli.panels import first_sentence

VARIABLE = "_LRKV_PLAN_COMPLETE"
_LISTING = "63"  # bash's COMP_TYPE when it lists what is possible

Row = tuple[str, str]


def answer() -> None:
    """Write the answer to the shell that asks."""
    gc.disable()  # as ``app.main`` does, for the same reason
    shell = os.environ.get(VARIABLE, "")
    words, incomplete = _of_bash(os.environ) if shell == "bash" else _of_arguments(sys.argv[1:])
    rows = candidates(words, incomplete)
    if shell == "bash":
        rows = _from_the_break(rows, incomplete)
        listing = os.environ.get("COMP_TYPE") == _LISTING and len(rows) > 1
        lines = _columns(rows) if listing else [name for name, _ in rows]
    elif shell == "zsh":
        lines = [_described(name, told) for name, told in rows]
    else:
        lines = [f"{name}\t{told}" if told else name for name, told in rows]
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def candidates(words: Sequence[str], incomplete: str) -> list[Row]:
    """Names that ``incomplete`` may become behind those words, each with a short help."""
    import typer.main

    from lrkv_plan.cli.app import (
        app,
        commands_with_summaries,
        one_of_group,
        summaries_of_group,
    )

    rest = list(words)
    if len(rest) == 1 and not incomplete.startswith("-"):
        rows = summaries_of_group(rest[0])
        if rows:
            return [row for row in rows if row[0].startswith(incomplete)]
    command: Any = one_of_group(*rest[:2]) if len(rest) > 1 else None
    if command is not None:
        rest = rest[2:]
    else:
        command = typer.main.get_command(app)
    while hasattr(command, "list_commands"):
        flags = _flags_before(command, rest)
        if flags == len(rest):
            break
        found = command.get_command(None, rest[flags])
        if found is None:
            return []
        command, rest = found, rest[flags + 1 :]
    waiting, n_given = _read(command, rest)
    if waiting is not None:
        return _values(waiting, incomplete)
    if incomplete.startswith("-") and "--" not in rest:
        return _options(command, rest, incomplete)
    if hasattr(command, "list_commands"):
        rows = commands_with_summaries(command)
        return [row for row in rows if row[0].startswith(incomplete)]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if n_given < len(arguments):
        return _values(arguments[n_given], incomplete)
    return []


def _flags_before(command: Any, words: Sequence[str]) -> int:
    """How many words stand before the name of a subcommand."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        place += 2 if _takes_next(command, words[place]) is not None else 1
    return min(place, len(words))


def _read(command: Any, words: Sequence[str]) -> tuple[Any, int]:
    """The option that waits for a value behind the words, and how many arguments were given."""
    waiting, n_given, options_end = None, 0, False
    for word in words:
        if waiting is not None:
            waiting = None
        elif word == "--":
            options_end = True
        elif word.startswith("-") and not options_end:
            waiting = _takes_next(command, word)
        else:
            n_given += 1
    return waiting, n_given


def _takes_next(command: Any, word: str) -> Any:
    """The option of that flag, if its value is the next word."""
    return next((one for one in _takers(command) if word in one.opts), None)


def _takers(command: Any) -> Iterable[Any]:
    options = (one for one in command.params if one.param_type_name == "option")
    return (one for one in options if not (one.is_flag or one.count))


def _options(command: Any, words: Sequence[str], incomplete: str) -> list[Row]:
    flag, equals, value = incomplete.partition("=")
    if equals:
        param = _takes_next(command, flag)
        rows = [] if param is None else _values(param, value)
        return [(f"{flag}={name}", told) for name, told in rows]
    given = {word.partition("=")[0] for word in words}
    return [
        (max(one.opts, key=len), first_sentence(one.help))
        for one in (*command.params, *_help_options(command))
        if one.param_type_name == "option"
        and max(one.opts, key=len).startswith(incomplete)
        and (one.multiple or not given & set(one.opts))
    ]


def _help_options(command: Any) -> list[Any]:
    import typer

    params = command.get_params(typer.Context(command))
    return [one for one in params if one not in command.params]


def _values(param: Any, incomplete: str) -> list[Row]:
    """Names that the parameter says it takes; none lets the shell propose files."""
    items = param.shell_complete(None, incomplete)
    rows = [(item.value, item.help or "") for item in items if item.type == "plain"]
    return [row for row in rows if row[0] != incomplete or incomplete[-1:] != ":"]


def _of_arguments(words: Sequence[str]) -> tuple[list[str], str]:
    return list(words[:-1]), words[-1] if words else ""


def _of_bash(environment: Any) -> tuple[list[str], str]:
    """The words before the cursor; bash itself parts them at ``:`` and ``=`` too."""
    line, point = environment.get("COMP_LINE", ""), environment.get("COMP_POINT", "")
    before = line[: int(point)] if point.isdecimal() else line
    reader = shlex.shlex(before, posix=True, punctuation_chars=False)
    reader.whitespace_split, reader.commenters = True, ""
    words: list[str] = []
    try:
        while (word := reader.get_token()) is not None:
            words.append(word)
        whole = not before or before[-1].isspace()
    except ValueError:  # a quote is open
        words.append(reader.token.lstrip("\"'"))
        whole = False
    return (words[1:], "") if whole else (words[1:-1], words[-1] if words[1:] else "")


def _from_the_break(rows: Iterable[Row], incomplete: str) -> list[Row]:
    """Rows without what bash takes for words of their own: up to the last ``:`` or ``=``."""
    breaks = set(os.environ.get("COMP_WORDBREAKS", ":=")) & set(":=")
    cut = 1 + max((incomplete.rfind(one) for one in breaks), default=-1)
    return [(name[cut:], told) for name, told in rows]


def _columns(rows: Sequence[Row]) -> list[str]:
    width = max(len(name) for name, _ in rows)
    return [f"{name:{width}}  {told}".rstrip() for name, told in rows]


def _described(name: str, told: str) -> str:
    """A row of zsh's ``_describe``."""
    plain = name.replace(":", "\\:")
    return f"{plain}:{told}" if told else plain
