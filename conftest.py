"""Which files doctests are looked for in: without torch, not those that need it."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

from lrkv_plan.errors import CalibrationError

HERE = Path(__file__).parent


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out modules that cannot be imported without torch; test modules say so themselves."""
    path = collection_path.relative_to(HERE)
    if find_spec("torch") is not None or path.suffix != ".py":
        return None
    if path.name.startswith(("test_", "conftest", "__main__")):
        return None
    try:
        importlib.import_module(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
    except CalibrationError:
        return True
    except ModuleNotFoundError as error:
        return True if error.name == "torch" else None
    return None
