"""Files written whole or not at all.

A regular file is replaced by a finished one, which keeps its mode and owner; where the path is a
link, its target is replaced and the link stays. Pipes and devices are written to and stay.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from pathlib import Path

from lrkv_plan.errors import UsageError, shown
from lrkv_plan.files import kind_of

_DESCRIPTOR = re.compile(r"/dev/std(?P<name>out|err)|(?:/dev|/proc/self)/fd/(?P<number>\d{1,6})")
_MAX_LINKS = 40  # as many as Linux follows
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)
_WRITE_THERE = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)


def write_whole(path: Path | str, content: str | bytes, *, force: bool = False) -> None:
    """Write through a temporary file in the target's folder, synced, then renamed.

    Parameters
    ----------
    path : a file, a link, a pipe that a process reads, a character device, or a descriptor of
        this process such as ``/dev/stdout``. New files have the mode that the umask leaves.
    content : text is written as UTF-8; the odd byte of a file's name as ``\\udc..``.
    force : replace an existing file. Pipes and devices need none.

    Raises
    ------
    UsageError
        If the file exists and ``force`` is not given, it is a folder, or it cannot be written.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")
    target = check_target(path, force=force)
    try:
        if isinstance(target, int):
            _write_to(os.dup(target), data)
        elif not _is_regular_or_new(target):
            _write_there(target, data)
        else:
            _replace(target, data, force=force)
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        if isinstance(target, int) and isinstance(error, BrokenPipeError):
            raise  # the reader of stdout has seen enough
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None


def check_target(path: Path | str, *, force: bool = False) -> Path | int:
    """What a path would be written to, links followed: a path or a descriptor of this process.

    Ask this before a long computation. A descriptor is what ``/dev/stdout`` names, which
    may be a file that the shell opened.

    Raises
    ------
    UsageError
        If it is a folder, a socket or a block device, exists and ``force`` is not given, its
        folder does not exist, or the name is empty or no path.
    """
    if not str(path):
        raise UsageError("the name of the file to write is empty")
    try:
        followed = _followed(Path(path))
        if isinstance(followed, int):
            return followed
        target = followed
        found = os.stat(target)
    except (FileNotFoundError, NotADirectoryError):
        _check_folder(path, target.parent)
        return target
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
    except ValueError:
        raise UsageError(f"{shown(str(path))} is not a path") from None
    if stat.S_ISREG(found.st_mode):
        if not force:
            raise _exists(path)
    elif not (stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)):
        hint = " (or its name is empty)" if str(path) == "." else ""
        raise UsageError(f"{path}: is {kind_of(found.st_mode)}{hint}; a file is needed")
    return target


def _exists(path: Path | str) -> UsageError:
    return UsageError(f"{path} exists; --force overwrites it")


def _check_folder(path: Path | str, folder: Path) -> None:
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "is a folder that does not exist"
        raise UsageError(f"{path}: cannot be written: {folder} {what}")


def _followed(path: Path) -> Path | int:
    """Where the last name of a path leads, link by link; ``/dev/stdout`` is not a link's target."""
    for _ in range(_MAX_LINKS):
        match = _DESCRIPTOR.fullmatch(os.path.abspath(path))
        if match is not None:
            return {"out": 1, "err": 2}.get(match["name"]) or int(match["number"])
        if not path.is_symlink():
            break
        path = path.parent / os.readlink(path)
    return path


def _is_regular_or_new(target: Path) -> bool:
    try:
        return stat.S_ISREG(os.stat(target).st_mode)
    except FileNotFoundError:
        return True


def _write_there(target: Path, data: bytes) -> None:
    """Into a pipe or a device. A pipe without a reader is refused and not waited for."""
    try:
        descriptor = os.open(target, _WRITE_THERE)
    except OSError as error:
        if error.errno == errno.ENXIO:
            raise OSError(errno.ENXIO, "no process reads it") from None
        raise
    os.set_blocking(descriptor, True)
    _write_to(descriptor, data)


def _write_to(descriptor: int, data: bytes) -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]


def _replace(target: Path, data: bytes, *, force: bool) -> None:
    """Put a finished file in the target's place, or none."""
    temporary = target.parent / f".lrkv-plan-{os.urandom(6).hex()}"  # fits beside the longest name
    old = os.stat(target) if target.exists() else None
    descriptor = os.open(temporary, _CREATE, 0o666 if old is None else 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if old is not None:
                keep_owner_and_mode(temporary, old)
            os.fsync(file.fileno())
        if force:
            os.replace(temporary, target)
        else:
            _place_new(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _place_new(temporary: Path, target: Path) -> None:
    """Rename, but never over a file that another process made meanwhile."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.replace(temporary, target)
    else:
        temporary.unlink()


def keep_owner_and_mode(path: Path, old: os.stat_result) -> None:
    """Give a new file the mode of the one that it replaces, and its owner where that may be."""
    new = os.stat(path)
    if hasattr(os, "chown") and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        for owner in ((old.st_uid, old.st_gid), (-1, old.st_gid)):
            try:
                os.chown(path, *owner)
                break
            except OSError:  # only root gives files away; the group at least, if one's own
                continue
    os.chmod(path, stat.S_IMODE(old.st_mode))
