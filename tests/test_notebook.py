"""The notebook runs, in ten cells, and shows what its cells give today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.run_notebook import run_notebook

NOTEBOOK = Path(__file__).parent.parent / "docs" / "config-to-frontier.ipynb"


def texts(notebook: dict[str, Any]) -> list[list[str]]:
    """The texts of every cell's output; pictures may differ with the library that draws them."""
    return [
        "".join(output.get("text") or output["data"]["text/plain"]).split()
        for cell in notebook["cells"]
        for output in cell.get("outputs", ())
    ]


def test_its_outputs_are_those_of_today() -> None:
    shown = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    expected = texts(shown)
    assert sum(cell["cell_type"] == "code" for cell in shown["cells"]) == 10
    ran = run_notebook(shown)
    assert texts(ran) == expected
    pictures = [
        output for cell in ran["cells"] for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]  # fmt: skip
    assert len(pictures) == 2
