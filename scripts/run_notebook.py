"""Run the cells of a notebook one after another, and put what they give today in their place.

``python scripts/run_notebook.py docs/config-to-frontier.ipynb`` rewrites it;
``tests/test_notebook.py`` runs the cells and compares the texts. No Jupyter is needed: the last
line of a cell is its output, as Jupyter shows it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

Output = dict[str, Any]


def run_cell(source: str, names: dict[str, Any]) -> list[Output]:
    """What a cell prints and gives, as a notebook holds it.

    Parameters
    ----------
    names : the notebook's variables; the cell adds its own.
    """
    tree = ast.parse(source)
    last = tree.body[-1] if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    if last is not None:
        tree.body.pop()
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), names)  # noqa: S102  (a cell of our own)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)  # noqa: S307
    outputs: list[Output] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        outputs.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_png_"):
            data["image/png"] = base64.b64encode(value._repr_png_()).decode()
        outputs.append(
            {"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None}
        )
    return outputs


def run_notebook(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells give today."""
    names: dict[str, Any] = {}
    count = 0
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        count += 1
        cell["execution_count"] = count
        cell["outputs"] = run_cell("".join(cell["source"]), names)
        for output in cell["outputs"]:
            if "execution_count" in output:
                output["execution_count"] = count
    return notebook


def main() -> None:
    """Rewrite each named notebook."""
    for name in sys.argv[1:]:
        path = Path(name)
        notebook = run_notebook(json.loads(path.read_text(encoding="utf-8")))
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
