"""Run the commands that README.md and docs/ show, and put today's output in their place.

``python scripts/refresh_examples.py README.md docs/*.md`` rewrites blocks that begin with
``$ lrkv-plan``; tests/test_readme.py compares them.
"""

import re
import shlex
import sys
from pathlib import Path

from typer.testing import CliRunner

from lrkv_plan.cli.app import app

BLOCK = re.compile(r"(```console\n\$ lrkv-plan ([^\n]+)\n)(.*?)```", re.DOTALL)


def refreshed(text: str) -> str:
    """The text with the output of every shown command as it is today."""

    def run(block: re.Match[str]) -> str:
        result = CliRunner().invoke(app, shlex.split(block[2]))
        return f"{block[1]}{result.output}```"

    return BLOCK.sub(run, text)


def main() -> None:
    """Rewrite each named file."""
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(refreshed(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
