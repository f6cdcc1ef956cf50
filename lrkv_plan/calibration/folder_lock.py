"""One run at a time in a folder: a lock of the operating system's, which ends with its process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from lrkv_plan.errors import UsageError

LOCK_FILE = ".running"


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the folder against a second run; a killed process holds nothing.

    Raises
    ------
    UsageError
        If another run holds it, or the folder cannot be written.
    """
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        yield
        return
    path = folder / LOCK_FILE
    with _opened(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_current = _is_same_file(lock, path)
        except OSError:
            is_current = False
        if not is_current:  # locked, or locked by one that has just ended and removed it
            raise UsageError(f"{folder}: another run writes there; wait, or choose another")
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("ab")
    except OSError as error:
        raise UsageError(f"{path.parent}: cannot be written: {error.strerror}") from None


def _is_same_file(lock: IO[bytes], path: Path) -> bool:
    return os.path.samestat(os.fstat(lock.fileno()), path.stat())
