"""Which files does a path name? One, those of a folder, or those that a pattern matches."""

from __future__ import annotations

import glob
from itertools import islice
from pathlib import Path

from lrkv_plan.errors import SpecError
from lrkv_plan.files import names_in

MAX_FILES = 10_000
_PACKED = ("", ".gz", ".zst")
_ENDS = (*(f"{kind}{packed}" for kind in (".csv", ".jsonl") for packed in _PACKED), ".parquet")


def request_files(path: Path) -> list[Path]:
    """The files of one trace or list, in the order of their names.

    Parameters
    ----------
    path : a file; a folder, whose files are those that end in .csv or .jsonl (also .gz or .zst) or
        .parquet; or a pattern such as ``logs/*.parquet`` where no file has that very name.

    Raises
    ------
    SpecError
        If a folder or pattern names no file, or more than ``MAX_FILES``.
    """
    if path.is_dir():
        names = [
            name for name in names_in(path, "", at_most=MAX_FILES)
            if name.endswith(_ENDS) and not name.startswith("_")
        ]  # fmt: skip
        if not names:
            raise SpecError(
                f"{path}: a folder without files that end in {', '.join(_ENDS)}; name a file or a "
                f"pattern such as '{path}/*/*.parquet'"
            )
        return [path / name for name in names]
    try:
        is_pattern = glob.has_magic(str(path)) and not path.exists()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return [path]
    if not is_pattern:
        return [path]
    found = list(islice(glob.iglob(str(path), recursive=True), MAX_FILES + 1))
    if len(found) > MAX_FILES:
        raise SpecError(f"{path}: matches more than {MAX_FILES:,} files; name fewer")
    files = sorted(Path(name) for name in found if not Path(name).is_dir())
    if not files:
        raise SpecError(f"{path}: no file matches this pattern")
    return files
