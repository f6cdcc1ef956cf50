"""Several files of one result, written whole or not at all; a folder that holds nothing goes."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from lrkv_plan.errors import UsageError


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
        existing = [path.name for path in targets if path.exists()]
        if existing and not force:
            raise UsageError(f"{folder}: {', '.join(existing)} exist; --force overwrites them")
        if folders := [path.name for path in targets if path.is_dir()]:
            raise UsageError(f"{folder}: {', '.join(folders)}: is a folder; a file belongs there")
        ready: list[Path] = []
        try:
            for content in contents.values():
                ready.append(_written(folder, content))
            for temporary, target in zip(ready, targets, strict=True):
                temporary.replace(target)
        except OSError as error:
            for temporary in ready:
                temporary.unlink(missing_ok=True)
            raise UsageError(f"{folder}: cannot be written: {error.strerror}") from None
    return targets


def _written(folder: Path, content: str | bytes) -> Path:
    """A new file beside its later place, on disk; none if it cannot be written."""
    with tempfile.NamedTemporaryFile("wb", dir=folder, prefix=".new.", delete=False) as file:
        path = Path(file.name)
        try:
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
            path.chmod(0o644)
        except OSError:
            path.unlink(missing_ok=True)
            with suppress(OSError):  # what is left in the buffer
                file.close()
            raise
    return path
