"""How far is a long task? Told to whoever listens: a command line, or nobody."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_LISTENER: ContextVar[Callable[[Callable[[], str]], None] | None] = ContextVar(
    "_LISTENER", default=None
)


def tell_progress(text: Callable[[], str]) -> None:
    """Tell how far a task is; ``text`` is only called if somebody listens and it is time."""
    listener = _LISTENER.get()
    if listener is not None:
        listener(text)


@contextmanager
def listening(
    show: Callable[[str], None], *, after_s: float = 1.0, every_s: float = 0.2
) -> Iterator[None]:
    """Show what tasks within tell: nothing in the first ``after_s``, then once an ``every_s``. [s]

    Examples
    --------
    >>> with listening(print, after_s=0):
    ...     tell_progress(lambda: "half of it")
    half of it
    """
    due = time.monotonic() + after_s

    def listener(text: Callable[[], str]) -> None:
        nonlocal due
        now = time.monotonic()
        if now >= due:
            due = now + every_s
            show(text())

    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)
