"""Help in panels by subject: ``--help`` fits a screen, ``--help-all`` says everything.

A panel is named where its option is declared (``rich_help_panel``). An option without one belongs
to the question: ``--help`` shows it with the first sentence of its help, and names the others. Of
those that only some engines know it says how many there are.
"""

import copy
import enum
import textwrap
from collections.abc import Sequence
from typing import Any

import typer

QUESTION = "Question"
DEPLOYMENT = "Deployment"
ENGINE = "The engine's own"
LOW_RANK = "Low-rank designs"
LENGTHS = "Request lengths"
REQUIREMENTS = "Requirements"
PRICE = "Price, speculation"
MEASURING = "Measuring"
OUTPUT = "Files and output"
# In this order; the panel of a package of its own would follow.
PANELS = (
    QUESTION, DEPLOYMENT, ENGINE, LOW_RANK, LENGTHS, REQUIREMENTS, PRICE, MEASURING, OUTPUT,
)  # fmt: skip

_NAME_COLUMN = 2 + max(map(len, PANELS))
_MOST_LEFT = 28  # of a line for an option's name; a longer one stands on a line of its own
_HELP_FLAGS = ("--help", "--help-all")


def settled(help_option: Any) -> Any:
    """``--help`` with a default that is a bool: some versions of typer import pydantic for None."""
    help_option.default = False
    return help_option


def help_all_option(help_option: Any) -> Any:
    """``--help-all``, made of a command's ``--help``."""
    option = copy.copy(help_option)
    option.name, option.opts = "help_all", ["--help-all"]
    option.help = "Show every option with its full help, and exit."

    def show(ctx: Any, param: Any, value: Any) -> None:  # noqa: ARG001
        if value and not ctx.resilient_parsing:
            formatter = ctx.make_formatter()
            write_all(ctx.command, ctx, formatter)
            typer.echo(formatter.getvalue().rstrip("\n"))
            ctx.exit()

    option.callback = show
    return option


def write_short(command: Any, ctx: Any, formatter: Any) -> None:
    """Usage, example, the question's options in one line each, and the names of the others."""
    write_head(command, ctx, formatter, whole=False)
    panels = _by_panel(command, ctx)
    question = panels.pop(QUESTION, [])
    if question:
        formatter.write(f"\n{QUESTION}\n")
        formatter.write(_lines([_short_row(one, ctx) for one in question], formatter.width))
    write_commands(command, ctx, formatter)
    formatter.write("\n")
    for name, params in panels.items():
        flags = " ".join(_flag(one) for one in params)
        if name == ENGINE:
            flags = f"{len(params)} settings by their names in engines: --help-all"
        head = f"{name:{_NAME_COLUMN}}"
        formatter.write(_wrapped(flags, formatter.width, head, " " * _NAME_COLUMN))
    told = f"All options in full: {ctx.command_path} --help-all"
    formatter.write(_wrapped(told, formatter.width, "", "  "))


def write_all(command: Any, ctx: Any, formatter: Any) -> None:
    """Usage, example, and every option with its full help, by panel."""
    write_head(command, ctx, formatter, whole=True)
    for name, params in _by_panel(command, ctx, with_help=True).items():
        formatter.write(f"\n{name}\n")
        formatter.write(_lines([_full_row(one, ctx) for one in params], formatter.width))
    write_commands(command, ctx, formatter)


def write_head(command: Any, ctx: Any, formatter: Any, *, whole: bool) -> None:
    """The usage, the summary (all of the help if ``whole``) and the example."""
    text, _, example = (command.help or "").partition("Example: ")
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n") if part.strip()]
    formatter.write(_wrapped(_usage(command, ctx), formatter.width, "Usage: ", " " * 7))
    for paragraph in paragraphs if whole else paragraphs[:1]:
        formatter.write("\n" + _wrapped(paragraph, formatter.width, "  ", "  "))
    if example:
        words = " ".join(example.split())
        formatter.write(_wrapped(f"Example: {words}", formatter.width, "  ", "    "))


def write_commands(command: Any, ctx: Any, formatter: Any) -> None:
    """The commands of a group with their summaries."""
    if hasattr(command, "list_commands"):
        found = [command.get_command(ctx, name) for name in command.list_commands(ctx)]
        write_rows("Commands", [(one.name, summary_of(one)) for one in found], formatter)


def write_options(command: Any, ctx: Any, formatter: Any) -> None:
    """All options with their help, whatever their panel."""
    rows = [
        (_left(one), one.help or "")
        for one in command.get_params(ctx)
        if not getattr(one, "hidden", False)
    ]
    write_rows("Options", rows, formatter)


def write_rows(title: str, rows: Sequence[tuple[str, str]], formatter: Any) -> None:
    """A titled list of names and texts."""
    formatter.write(f"\n{title}\n")
    formatter.write(_lines([(name, text, "") for name, text in rows], formatter.width))


def summary_of(command: Any) -> str:
    """The first paragraph of a command's help, on one line."""
    return summary_of_text(command.help)


def summary_of_text(text: str | None) -> str:
    """The first paragraph of a help, on one line."""
    said = (text or "").partition("Example: ")[0]
    return " ".join(said.split("\n\n")[0].split())


def example_of(command: Any) -> str:
    """The ``Example:`` line of a command's help, on one line; empty if it has none."""
    return " ".join((command.help or "").partition("Example: ")[2].split())


def first_sentence(text: str | None) -> str:
    """A help's first sentence, without its full stop."""
    return (text or "").partition(". ")[0].rstrip(".")


def _usage(command: Any, ctx: Any) -> str:
    words = [ctx.command_path]
    params = [one for one in command.get_params(ctx) if not getattr(one, "hidden", False)]
    for one in params:
        if one.param_type_name == "argument":
            name = _bare(_metavar(one))
            words.append(name if one.required else f"[{name}]")
    words += [
        _left(one, short=True) for one in params if one.param_type_name == "option" and one.required
    ]
    words.append("[OPTIONS]")
    if hasattr(command, "list_commands"):
        words.append("COMMAND [ARGS]...")
    return " ".join(words)


def _by_panel(command: Any, ctx: Any, *, with_help: bool = False) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {name: [] for name in PANELS}
    for one in command.get_params(ctx):
        is_help = any(flag in _HELP_FLAGS for flag in one.opts)
        if getattr(one, "hidden", False) or (is_help and not with_help):
            continue
        panel = OUTPUT if is_help else getattr(one, "rich_help_panel", None) or QUESTION
        found.setdefault(panel, []).append(one)
    return {name: params for name, params in found.items() if params}


def _flag(param: Any) -> str:
    flag: str = max(param.opts, key=len)
    return flag


def _bare(metavar: str) -> str:
    """``MODEL`` of an optional ``[MODEL]``; brackets inside stay."""
    return metavar[1:-1] if metavar.startswith("[") and metavar.endswith("]") else metavar


def _metavar(param: Any) -> str:
    if param.metavar:
        return str(param.metavar)
    takes_value = param.param_type_name == "argument" or not (param.is_flag or param.count)
    return str(param.name).upper() if takes_value else ""


def _left(param: Any, *, short: bool = False) -> str:
    if param.param_type_name == "argument":
        return _bare(_metavar(param))
    flags = _flag(param) if short else ", ".join(sorted(param.opts, key=len))
    return f"{flags} {_metavar(param)}".rstrip()


def _default(param: Any, ctx: Any) -> str:
    """``required``, the default as a person would write it, or nothing."""
    if param.required:
        return "required"
    value = param.get_default(ctx, call=False)
    if value is None or isinstance(value, bool | list | tuple) or callable(value):
        return ""
    return str(value.value if isinstance(value, enum.Enum) else value)


def _short_row(param: Any, ctx: Any) -> tuple[str, str, str]:
    return _left(param, short=True), first_sentence(param.help), _default(param, ctx)


def _full_row(param: Any, ctx: Any) -> tuple[str, str, str]:
    settled = _default(param, ctx)
    if settled and settled != "required":
        settled = f"default: {settled}"
    text = (param.help or "") + (f"  [{settled}]" if settled else "")
    return _left(param), text, ""


def _lines(rows: Sequence[tuple[str, str, str]], width: int) -> str:
    """Rows of a name, a text and what stands at the right edge."""
    most = min(_MOST_LEFT, width * 2 // 5)
    left = 4 + max((len(name) for name, _, _ in rows if len(name) <= most), default=0)
    return "".join(_row(*row, left=left, width=width) for row in rows)


def _row(name: str, text: str, right: str, *, left: int, width: int) -> str:
    head = f"  {name:{left - 2}}"
    if len(name) > left - 4:
        return f"  {name}\n" + _row("", text, right, left=left, width=width)
    if right and left + len(text) + 2 + len(right) <= width:
        return f"{head}{text}{right:>{width - left - len(text)}}\n"
    return _wrapped(f"{text}  [{right}]" if right else text, width, head, " " * left)


def _wrapped(text: str, width: int, first: str, later: str) -> str:
    lines = textwrap.wrap(
        text, width=width, initial_indent=first, subsequent_indent=later,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines or [first.rstrip()]) + "\n"
