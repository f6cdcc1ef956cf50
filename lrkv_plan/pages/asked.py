"""A public call on a page: its answer, and the command line that asks the same."""

from __future__ import annotations

import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import PlanError
from lrkv_plan.questions.asking import command_words
from lrkv_plan.report.document import Part, joined

if TYPE_CHECKING:
    from lrkv_plan.report.figures import Figure
    from lrkv_plan.report.tables import Table


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One call: ``command`` is ``step-time`` or ``plot roofline``, ``keywords`` are its options.

    ``subject`` is what the call is about as it was given, ``name`` how a command line writes it.
    ``also`` are words of the command that are not of the call, such as where it writes.
    """

    command: str
    subject: Any = None
    name: str | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    also: Sequence[str] = ()

    @cached_property
    def answer(self) -> Any:
        """The call's answer: a ``Result``, or a ``Figure`` of a picture. Raises what it raises."""
        function = called(self.command)
        subjects = () if self.subject is None else (self.subject,)
        return function(*subjects, **self.keywords)

    @property
    def table(self) -> Table:
        """The answer's table."""
        table: Table = self.answer.table
        return table

    @property
    def line(self) -> str:
        """The command line, from the very keywords of the call."""
        return shlex.join([*command_words(self.command, self.name, self.keywords), *self.also])


def called(command: str) -> Callable[..., Any]:
    """The public function that a command asks: of ``plot`` the picture, else of ``lrkv_plan``."""
    import lrkv_plan
    from lrkv_plan.pages import pictures

    group, _, picture = command.rpartition(" ")
    home = pictures if group == "plot" else lrkv_plan
    function: Callable[..., Any] = getattr(home, (picture or command).replace("-", "_"))
    return function


def keywords_of(command: str) -> list[str]:
    """Keywords of the call that a command asks, in its own order."""
    return list(inspect.signature(called(command)).parameters)


def subject_name(subject: Any, spec_name: str) -> str:
    """A model as a command line writes it: the text that was given, else its name."""
    return str(subject) if isinstance(subject, str | Path) else spec_name


def part_of(
    key: str,
    title: str,
    asked: Sequence[Asked],
    view: Callable[[Table], Table] | None = None,
    **shown: Any,
) -> Part:
    """The part that calls answer, their tables under one another, or why one is refused.

    Parameters
    ----------
    asked : calls, each with its command line on the page; of a picture one.
    view : what is shown of the table, where it is not all.
    """
    blank = Part(key=key, title=title, commands=tuple(one.line for one in asked), **shown)
    try:
        if asked[0].command.startswith("plot "):
            figure: Figure = asked[0].answer
            return replace(blank, figure=figure)
        table = joined([one.table for one in asked]) if len(asked) > 1 else asked[0].table
        return replace(blank, table=table if view is None else view(table))
    except PlanError as error:
        return replace(blank, refused=str(error))
