"""Imports run one way, from the ground up; heavy libraries are imported by those who need them."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "lrkv_plan"
# From the ground up: a file may import what stands before its own layer, and its own layer.
LAYERS = (
    "errors", "progress", "units", "words", "notes", "files", "documents", "formats", "schema", "attention",
    "specs", "huggingface", "gguf", "loader", "memory", "latency", "serving", "sweeping", "auditing",
    "checkpoint", "calibration", "report", "questions", "pages", "cli",
)  # fmt: skip
# Libraries that take time to import, and the layers that may name them.
HEAVY = {
    "pydantic": {"schema", "attention", "specs", "huggingface", "auditing", "calibration"},
    "yaml": {"documents", "specs"},
    "numpy": {
        "specs", "memory", "latency", "serving", "sweeping", "auditing", "checkpoint",
        "calibration",
    },
    "scipy": {"calibration"},
    "torch": {"calibration"},
    "pandas": {"specs", "sweeping", "calibration", "report", "questions"},
    "pyarrow": {"specs", "sweeping"},
    "dask": {"sweeping"},
    "distributed": {"sweeping"},
    "matplotlib": {"report"},
    "jinja2": {"report"},
    "rich": {"report", "cli"},
    "typer": {"cli"},
    "safetensors": set(),
}  # fmt: skip
ENTRANCES = {"__init__", "__main__"}  # they name what they load on first use


def imported(path: Path) -> Iterator[str]:
    """Dotted names that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from names if node.module == "lrkv_plan" else [node.module or ""]


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_import_runs_back(path: Path) -> None:
    layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if layer in ENTRANCES:
        return
    for name in imported(path):
        root, *inner = name.split(".")
        if root == "lrkv_plan" and inner and inner[0] in LAYERS:
            assert LAYERS.index(inner[0]) <= LAYERS.index(layer), f"{layer} imports {name}"
        assert root not in HEAVY or layer in HEAVY[root], f"{layer} imports {name}"


# What answers questions; a page, a picture and its series are made of answers alone.
CALCULATORS = {"memory", "latency", "serving", "auditing", "checkpoint", "calibration"}
OF_ANSWERS = [
    path for path in FILES
    if path.relative_to(PACKAGE).parts[0] == "pages" or path.parent.name == "series"
    or path in (PACKAGE / "report" / "explorer.py", PACKAGE / "report" / "document.py")
]  # fmt: skip
# The centred ceiling of an effective rank, a claim's equation that no question answers.
NOT_YET = {("published.py", "auditing")}


@pytest.mark.parametrize("path", OF_ANSWERS, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_what_pages_and_pictures_show_comes_from_public_calls(path: Path) -> None:
    tree = ast.parse(path.read_text())
    for_types = {
        inner for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }  # fmt: skip
    used = {
        node.module.split(".")[1] for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node not in for_types
        and (node.module or "").startswith("lrkv_plan.")
    }  # fmt: skip
    found = {(path.name, layer) for layer in used & CALCULATORS}
    assert found <= NOT_YET


def test_files_import_each_other_in_no_circle() -> None:
    """Imports at the top of files, which run when a file is loaded."""
    tops: dict[str, set[str]] = {}
    for path in FILES:
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found = set()
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lrkv_plan."):
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= {node.module or "", *inner}
        tops[name] = found
    left = dict(tops)
    while ready := [name for name, needs in left.items() if not needs & (left.keys() - {name})]:
        for name in ready:
            del left[name]
    assert not left, f"a circle among {sorted(left)}"


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
        (["schema", "plan"], {"numpy", "rich", "torch", "matplotlib", "pandas"}),
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
