"""What does reading Parquet or zstd need? pyarrow, of the extra ``trace``, imported only then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lrkv_plan.errors import SpecError


def pyarrow_for(path: Path, what: str) -> Any:
    """The package ``pyarrow``.

    Raises
    ------
    SpecError
        If it cannot be imported, naming the file that needs it and how to install it.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise SpecError(
            f"{path}: {what} is read with pyarrow ({error})",
            advice=["pip install 'lrkv-plan[trace]'"],
        ) from None
    return pyarrow
