"""Warnings of libraries as one line each, without the path of an installation."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

import typer

from lrkv_plan.errors import one_line


@contextmanager
def plain_warnings() -> Iterator[None]:
    """While it lasts, a Python warning is ``warning: text`` on stderr, each text once."""
    said: set[str] = set()

    def say(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        del category, filename, lineno, file, line
        text = one_line(str(message))
        if text not in said:
            said.add(text)
            typer.echo(f"warning: {text}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield
