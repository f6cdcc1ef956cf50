"""The one way to read a file that somebody names: a regular one, of bounded size.

Links are followed. A pipe, a device, a socket or a folder is refused for what it is, before it is
opened: opening a pipe waits for its writer, and reading a device may never end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from lrkv_plan.errors import PlanError, SpecError, shown

_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a block device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}
# O_NONBLOCK: a pipe that took the file's place since it was looked at must not be waited for.
_READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOCTTY", 0)
    | getattr(os, "O_BINARY", 0)
)
_UNPACKED_AT_ONCE = 2**18


def kind_of(mode: int) -> str:
    """What a file of that mode is, as a message says it: a file, a folder, a named pipe, ..."""
    return _KINDS.get(stat.S_IFMT(mode), "something that is not a file")


def as_path(text: str | Path, *, error: type[PlanError] = SpecError) -> Path:
    """The path that a person wrote, with its ``~`` replaced.

    Raises
    ------
    PlanError
        Of class ``error``, if it is empty, holds a NUL or names the home of an unknown user.
    """
    written = str(text)
    if not written or "\0" in written:
        raise error(f"{shown(written)} is not a path")
    try:
        return Path(written).expanduser()
    except RuntimeError:
        raise error(f"{written}: there is no such user") from None


def open_regular(path: Path, *, max_bytes: int, error: type[PlanError] = SpecError) -> BinaryIO:
    """The file, open for reading bytes.

    Parameters
    ----------
    path : a regular file, or a link to one.
    max_bytes : how large it may be, as the open file says it. [bytes]
    error : what is raised.

    Raises
    ------
    PlanError
        Of class ``error``, if the file is missing, unreadable, too large or not a regular one.
    """
    with _reasons(path, error):
        _refuse_other_kinds(path, os.stat(path), error)
        descriptor = os.open(path, _READ_FLAGS)
        try:
            found = os.fstat(descriptor)
            _refuse_other_kinds(path, found, error)
            if found.st_size > max_bytes:
                raise error(too_large(path, max_bytes))
            return os.fdopen(descriptor, "rb")
        except BaseException:
            os.close(descriptor)
            raise


def read_regular(path: Path, *, max_bytes: int, error: type[PlanError] = SpecError) -> bytes:
    """The file's bytes, at most ``max_bytes`` even while it grows. Raises as ``open_regular``."""
    with _reasons(path, error), open_regular(path, max_bytes=max_bytes, error=error) as file:
        data = file.read(max_bytes + 1)
        if data is None:
            raise error(f"{path}: cannot be read: its bytes are not there yet")
    if len(data) > max_bytes:
        raise error(too_large(path, max_bytes))
    return data


def unpacked(
    path: Path, data: bytes, *, max_bytes: int, error: type[PlanError] = SpecError
) -> bytes:
    """``data`` of that file without its gzip; what is not packed with gzip is returned as it is.

    Raises
    ------
    PlanError
        Of class ``error``, if it is damaged, or more than ``max_bytes`` once unpacked. No more
        than that is ever held.
    """
    if not data.startswith(b"\x1f\x8b"):
        return data
    import gzip
    import io
    import zlib

    parts, n_bytes = [], 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as file:
            while part := file.read(_UNPACKED_AT_ONCE):
                n_bytes += len(part)
                if n_bytes > max_bytes:
                    raise error(f"{too_large(path, max_bytes)} (once unpacked)")
                parts.append(part)
    except (OSError, EOFError, zlib.error) as problem:
        raise error(f"{path}: cannot be unpacked: {problem}") from None
    return b"".join(parts)


def names_in(
    folder: Path, suffix: str, *, at_most: int, error: type[PlanError] = SpecError
) -> list[str]:
    """Names in a folder that end in ``suffix`` and are not hidden, in order.

    Raises
    ------
    PlanError
        Of class ``error``, if the folder cannot be listed or holds more than ``at_most`` names.
    """
    with _reasons(folder, error), os.scandir(folder) as entries:
        names = []
        for number, entry in enumerate(entries):
            if number == at_most:
                raise error(f"{folder}: holds more than {at_most:,} files; name one of them")
            if entry.name.endswith(suffix) and not entry.name.startswith("."):
                names.append(entry.name)
    return sorted(names)


def too_large(path: Path, max_bytes: int) -> str:
    """The message for a file of more than ``max_bytes``."""
    exponent, unit = (30, "GiB") if max_bytes >= 2**30 else (20, "MiB")
    return f"{path}: larger than {max_bytes >> exponent} {unit}, the most that is read of it"


def _refuse_other_kinds(path: Path, found: os.stat_result, error: type[PlanError]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path}: cannot be read: is {kind_of(found.st_mode)}; a file is needed")


@contextmanager
def _reasons(path: Path, error: type[PlanError]) -> Iterator[None]:
    """The reason of the system in one line, naming the file."""
    try:
        yield
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}") from None
    except ValueError:  # a NUL in the name
        raise error(f"{shown(str(path))} is not a path") from None
    except MemoryError:
        raise error(f"{path}: cannot be read: needs more memory than there is") from None
