"""Options as a person gave them: each at most once, and none that the question does not use.

An option that is given twice, or that the answer would not depend on, is refused: silently taking
the last one, or dropping it, answers another question than the one that was asked.
"""

import enum
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.models import CommandFunctionType

from lrkv_plan.cli import panels
from lrkv_plan.errors import UsageError

_GIVEN: ContextVar[dict[str, tuple[str, Any]]] = ContextVar("given", default={})  # noqa: B039  (never changed)


class _Strict:
    """Mixed into commands and groups: no option twice, the given ones on record, help in panels."""

    _help_all: Any = None

    def get_params(self, ctx: Any) -> list[Any]:
        """The declared parameters, ``--help-all`` and ``--help``."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        if self._help_all is None:
            self._help_all = panels.help_all_option(params[-1])
        return [*params[:-1], self._help_all, params[-1]]

    def get_help_option(self, ctx: Any) -> Any:
        """``--help``, as typer makes it."""
        return panels.settled(super().get_help_option(ctx))  # type: ignore[misc]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """What ``--help`` writes."""
        panels.write_short(self, ctx, formatter)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and refuse options that are given more than once."""
        words = list(args)
        rest: list[str] = super().parse_args(ctx, args)  # type: ignore[misc]
        if not ctx.resilient_parsing:
            _refuse_repeats(self, ctx, words)
        return rest

    def invoke(self, ctx: Any) -> Any:
        """Run with this command's options on record for ``given``."""
        token = _GIVEN.set(_on_command_line(self, ctx))
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        finally:
            _GIVEN.reset(token)


class StrictCommand(_Strict, TyperCommand):
    """A command that takes each option at most once."""


class StrictGroup(_Strict, TyperGroup):
    """A group of commands, the same for its own options."""


class StrictTyper(typer.Typer):
    """A Typer application whose commands are ``StrictCommand``, its groups ``StrictGroup``."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": StrictGroup, **settings})

    def command(
        self, name: str | None = None, **settings: Any
    ) -> Callable[[CommandFunctionType], CommandFunctionType]:
        """As ``Typer.command``."""
        return super().command(name, **{"cls": StrictCommand, **settings})


def _refuse_repeats(command: Any, ctx: Any, words: list[str]) -> None:
    _, _, order = command.make_parser(ctx).parse_args(list(words))
    for param in {id(one): one for one in order}.values():
        if param.param_type_name != "option" or param.multiple or param.is_flag:
            continue
        if sum(one is param for one in order) > 1:
            flag = max(param.opts, key=len)
            takes_list = "[," in (param.metavar or "")
            if not takes_list:
                raise UsageError(f"{flag} is given twice: give one value")
            from lrkv_plan.cli.advice import as_one_list, pasted

            line = pasted([*ctx.command_path.split(), *as_one_list(words, param.opts)])
            raise UsageError(
                f"{flag} is given twice: write one list, such as {flag} A,B",
                advice=[line] if line else [],
            )


def _on_command_line(command: Any, ctx: Any) -> dict[str, tuple[str, Any]]:
    """Parameter name to flag and value of every option that stands on the command line."""
    return {
        param.name: (max(param.opts, key=len), ctx.params.get(param.name))
        for param in command.get_params(ctx)
        if param.param_type_name == "option"
        and getattr(ctx.get_parameter_source(param.name), "name", "") == "COMMANDLINE"
    }


def given(*names: str) -> list[str]:
    """Flags of those parameters that stand on the command line."""
    found = _GIVEN.get()
    return [found[name][0] for name in names if name in found]


def all_given() -> list[str]:
    """Flags of all options that stand on the command line."""
    return [flag for flag, _ in _GIVEN.get().values()]


def asked(*apart: str) -> dict[str, Any]:
    """Parameter name to value of every option on the command line but those named."""
    found = {name: value for name, (_, value) in _GIVEN.get().items() if name not in apart}
    return {n: v.value if isinstance(v, enum.Enum) else v for n, v in found.items()}


def refuse(names: Iterable[str], why: str) -> None:
    """Refuse options that the question does not use.

    Raises
    ------
    UsageError
        If one of the named parameters was given: ``--flag: why``.
    """
    _refuse(given(*names), why)


def refuse_before(subcommand: str) -> None:
    """Refuse a group's own options in front of a subcommand, which would not see them."""
    _refuse(all_given(), f"stands before {subcommand}, which does not see it; write it after")


def _refuse(flags: list[str], why: str) -> None:
    if flags:
        raise UsageError(f"{', '.join(flags)}: {why}")
