"""Names that can be written on a command line, and a word on each, read without a specification.

A TAB and a bare call import no specification: a name is that of a file, and the word beside it is
read from the file's lines.
"""

import os
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
_MODELS, _GPUS = "model_specs", "hardware_profiles"
_ENGINES = _PACKAGE / "serving" / "engines"
_FAMILIES = _PACKAGE / "attention" / "families"
_READ_BYTES = 64 * 1024  # of a file; the shipped ones are smaller


def model_names() -> list[str]:
    """Names of the shipped models."""
    return sorted(_shipped(_MODELS))


def gpu_names() -> list[str]:
    """Names of the shipped hardware profiles."""
    return sorted(_shipped(_GPUS))


def _shipped(folder: str) -> dict[str, Path]:
    """Name to file, as the loader finds it: the package's copy, then the checkout."""
    found: dict[str, Path] = {}
    for place in (_PACKAGE / folder, _PACKAGE.parent / folder):
        for name in _files_in(place, ".yaml"):
            found.setdefault(name.removesuffix(".yaml"), place / name)
    return found


def _files_in(place: Path, suffix: str) -> list[str]:
    try:
        return [name for name in os.listdir(place) if name.endswith(suffix)]
    except OSError:
        return []
