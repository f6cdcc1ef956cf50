"""Files: opened only where regular and bounded, written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lrkv_plan.errors import PlanError, SpecError, UsageError, shown

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


def start_of_regular(path: Path, n_bytes: int, *, error: type[PlanError] = SpecError) -> bytes:
    """The file's first ``n_bytes``, however large it is. Raises as ``open_regular``."""
    with _reasons(path, error), open_regular(path, max_bytes=sys.maxsize, error=error) as file:
        return file.read(n_bytes) or b""


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
    data = _encoded(content)
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


def _encoded(content: str | bytes) -> bytes:
    return content if isinstance(content, bytes) else content.encode("utf-8", "backslashreplace")


def _replace(target: Path, data: bytes, *, force: bool) -> None:
    """Put a finished file in the target's place, or none."""
    temporary = _beside(target, data)
    try:
        if force:
            os.replace(temporary, target)
        else:
            _place_new(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _beside(target: Path, data: bytes) -> Path:
    """A finished file that may take the target's place, on the disk; none if that fails."""
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
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


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


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """The folder, made if missing; if what follows fails and leaves it empty, it goes again.

    Raises
    ------
    UsageError
        If it cannot be made.
    """
    try:
        missing = [place for place in (folder, *folder.parents) if not place.exists()]
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{folder}: cannot be made: {reason}") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


def write_together(
    folder: Path, contents: Mapping[str, str | bytes], *, force: bool = False
) -> list[Path]:
    """Write files by name: first all of them beside their places, synced, then into place.

    Raises
    ------
    UsageError
        If one exists and ``force`` is not given, or one cannot be written; then all earlier files
        are as they were.
    """
    with made(folder):
        targets = [folder / name for name in contents]
        if not force:
            refuse_existing(folder, list(contents))
        places = [_regular_target(path) for path in targets]
        ready: list[Path] = []
        try:
            for place, content in zip(places, contents.values(), strict=True):
                ready.append(_beside(place, _encoded(content)))
            for temporary, place in zip(ready, places, strict=True):
                os.replace(temporary, place)
        except OSError as error:
            for temporary in ready:
                temporary.unlink(missing_ok=True)
            raise UsageError(f"{folder}: cannot be written: {error.strerror or error}") from None
    return targets


def refuse_existing(folder: Path, names: Iterable[str]) -> None:
    """Raise ``UsageError`` where one of the names is taken in the folder, be it by a dead link."""
    existing = [name for name in names if os.path.lexists(folder / name)]
    if existing:
        raise UsageError(f"{folder}: {', '.join(existing)} exist; --force overwrites them")


def _regular_target(path: Path) -> Path:
    target = check_target(path, force=True)
    if isinstance(target, int) or not _is_regular_or_new(target):
        raise UsageError(f"{path}: is a pipe, a device or a descriptor; a file belongs there")
    return target
