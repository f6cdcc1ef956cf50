"""A line on stderr that says what goes on, for people who watch a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from lrkv_plan.progress import listening


@contextmanager
def progress_line(quiet: bool) -> Iterator[Callable[[str], None]]:
    """A function that shows a text in place of the last; silent if quiet or no terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield lambda text: status.update(text)


@contextmanager
def progress_when_long(quiet: bool) -> Iterator[None]:
    """Show on a terminal what tasks within tell of themselves, once they take over a second."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    with ExitStack() as opened:
        shown: list[Callable[[str], None]] = []

        def show(text: str) -> None:
            if not shown:
                shown.append(opened.enter_context(progress_line(quiet)))
            shown[0](text)

        with listening(show):
            yield
