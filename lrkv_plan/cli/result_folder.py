"""``--output DIR`` of commands that leave several files."""

from pathlib import Path

from lrkv_plan.errors import UsageError, shown


def result_folder(text: str) -> Path:
    """The folder that an option names, there or not.

    Raises
    ------
    UsageError
        If the name is empty, or one that no system can have.
    """
    if not text.strip():
        raise UsageError("--output: an empty name is no folder; . is the one you are in")
    is_folder(Path(text) / "samples.csv")
    return Path(text)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder. Raises ``UsageError`` for one that no system can have."""
    try:
        return path.is_dir()
    except OSError as error:
        raise UsageError(f"{shown(str(path))}: {error.strerror}") from None
