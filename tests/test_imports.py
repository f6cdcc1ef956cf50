"""Imports run one way: spec -> attention -> calculators -> report -> cli; heavy ones wait."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lrkv_plan"
MAY_IMPORT = {  # layer -> layers and heavy libraries that its files may name
    "errors": set(),
    "units": {"errors"},
    "files": {"errors"},
    "whole_files": {"errors", "files"},
    "dtypes": {"errors"},
    "specs": {"errors", "files", "units", "dtypes", "specs", "pydantic", "yaml", "numpy"},
    "attention": {"errors", "dtypes", "specs", "attention"},
    "calculators": {"errors", "units", "dtypes", "specs", "attention", "calculators", "numpy"},
    "calibration": {
        "errors",
        "files",
        "units",
        "dtypes",
        "specs",
        "attention",
        "calculators",
        "calibration",
        "numpy",
        "pydantic",
        "scipy",
        "torch",
        "whole_files",
    },
    "audit": {
        "errors",
        "files",
        "units",
        "dtypes",
        "specs",
        "attention",
        "calculators",
        "audit",
        "pydantic",
        "numpy",
    },
    "checkpoint": {
        "errors",
        "files",
        "dtypes",
        "specs",
        "attention",
        "calculators",
        "checkpoint",
        "numpy",
        "safetensors",
    },
    "engines": {
        "errors",
        "units",
        "dtypes",
        "specs",
        "attention",
        "calculators",
        "engines",
        "numpy",
    },
    "report": {
        "errors",
        "units",
        "dtypes",
        "specs",
        "calculators",
        "audit",
        "calibration",
        "checkpoint",
        "engines",
        "report",
        "rich",
        "matplotlib",
        "jinja2",
        "__init__",
        "whole_files",
    },
    "cli": {
        "errors",
        "files",
        "units",
        "dtypes",
        "specs",
        "calculators",
        "audit",
        "calibration",
        "checkpoint",
        "engines",
        "report",
        "cli",
        "typer",
        "__init__",
        "rich",
        "whole_files",
    },
    "__init__": {"errors"},
    "__main__": {"cli"},
}
WATCHED = {"pydantic", "yaml", "numpy", "rich", "typer", "torch", "pandas", "matplotlib", "scipy"}
WATCHED |= {"safetensors", "jinja2"}


def imported(path: Path) -> set[str]:
    """Layers of this package and watched libraries that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            is_root = node.module == "lrkv_plan"
            names |= {f"lrkv_plan.{a.name}" for a in node.names} if is_root else {node.module or ""}
    layers = set()
    for name in names:
        parts = name.split(".")
        if parts[0] == "lrkv_plan":
            known = len(parts) > 1 and parts[1] in MAY_IMPORT
            layers.add(parts[1] if known else "__init__")
        elif parts[0] in WATCHED:
            layers.add(parts[0])
    return layers


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_no_import_runs_back(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    extra = imported(path) - MAY_IMPORT[layer] - {"pydantic_core"}
    assert not extra, f"{layer} may not import {sorted(extra)}"


@pytest.mark.parametrize(
    ("arguments", "unwanted"),
    [
        (
            ["--help"],
            {"pydantic", "yaml", "numpy", "rich", "torch", "matplotlib", "pandas", "jinja2"},
        ),
        (
            ["rank", "lrkv-paper-2.5b", "--budget", "50%"],
            {"numpy", "torch", "matplotlib", "pandas"},
        ),
        (["rank", "lrkv-paper-2.5b", "--budget", "50%", "--format", "json"], {"numpy", "rich"}),
        (["plot", "--help"], {"numpy", "rich", "matplotlib"}),
        (["report", "--help"], {"numpy", "rich", "matplotlib", "jinja2"}),
        (["plot", "payload-vs-loss", "--format", "json"], {"numpy", "matplotlib"}),
    ],
)
def test_commands_import_only_what_they_need(arguments: list[str], unwanted: set[str]) -> None:
    script = (
        "import sys, runpy\n"
        "try: runpy.run_module('lrkv_plan', run_name='__main__', alter_sys=True)\n"
        "except SystemExit as stop: assert not stop.code, stop.code\n"
        "print(*sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    assert not unwanted & set(done.stderr.split())
