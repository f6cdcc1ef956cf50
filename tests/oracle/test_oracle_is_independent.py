"""The calculators that judge the product import the standard library and nothing else."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CALCULATORS = [
    *sorted(HERE.glob("*_count.py")), HERE / "ceiling_search.py", HERE / "stage_weights.py",
]  # fmt: skip


@pytest.mark.parametrize("path", CALCULATORS, ids=lambda p: p.stem)
def test_a_calculator_imports_only_the_standard_library(path: Path) -> None:
    named: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            named.add(node.module or "")
    assert {name.split(".")[0] for name in named} <= sys.stdlib_module_names
    assert "__import__" not in path.read_text()
    assert "importlib" not in path.read_text()


def test_every_module_here_is_a_calculator_a_test_or_what_joins_them() -> None:
    others = {p.name for p in HERE.glob("*.py")} - {p.name for p in CALCULATORS}
    assert {n for n in others if not n.startswith("test_")} == {
        "comparing.py",
        "conftest.py",
        "draws.py",
    }
