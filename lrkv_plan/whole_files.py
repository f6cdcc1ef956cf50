"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from lrkv_plan.errors import UsageError


def write_whole(path: Path, content: str | bytes, *, force: bool = False) -> None:
    """Write through a temporary file in the same folder, synced, then renamed.

    Raises
    ------
    UsageError
        If the file exists and ``force`` is not given, or the folder cannot be written.
    """
    if path.exists() and not force:
        raise UsageError(f"{path} exists; --force overwrites it")
    temporary: Path | None = None
    try:
        with tempfile.NamedTemporaryFile(
            "wb", dir=path.parent, prefix=f".{path.name}.", delete=False
        ) as file:
            temporary = Path(file.name)
            file.write(content if isinstance(content, bytes) else content.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise UsageError(f"{path}: cannot be written: {error.strerror}") from None
