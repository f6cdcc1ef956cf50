"""Writes how many comparisons were made to the file that ORACLE_COUNTS names."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.oracle.comparing import COMPARED


@pytest.fixture(scope="session", autouse=True)
def counts() -> Iterator[None]:
    yield
    path = os.environ.get("ORACLE_COUNTS")
    if path:
        with open(path, "a") as out:
            out.writelines(f"{name}: {n}\n" for name, n in sorted(COMPARED.items()))
