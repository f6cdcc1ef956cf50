"""Pages that the documentation site makes when it is built: commands, public names, the notebook.

mkdocs loads this file as a hook (mkdocs.yml). A command's page is its whole help and, where that
needs no file of yours and no measuring, what its example prints or draws today. A public name's
page is its docstring, at the place where it is written. At the end the built pages are searched for
anything that a browser would fetch from elsewhere; there is nothing.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.main
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app

# Examples that need something of yours, or minutes: shown, not run when the site is built.
NOT_RUN = {
    "calibrate evaluate": "a table of measured calls",
    "calibrate evaluate-layers": "a table of measured operations",
    "calibrate evaluate-steps": "a table of runs, or a benchmark's result",
    "calibrate fit": "the folder of a calibration run",
    "calibrate run": "torch and the time that it is given",
    "calibrate show": "the folder of a calibration run",
    "calibrate tensor-parallel": "torch, and a process per GPU",
    "explore": "a browser",
    "inspect": "a folder with safetensors",
    "models import": "a config.json",
    "report": "some seconds, and writes a folder",
    "validate": "torch and a profile that `calibrate run` wrote",
}
_NAMES = ("lrkv-plan", "lrkv_plan")
_MOST_LINES = 45  # of an example's output on a page


@dataclass(frozen=True)
class Command:
    """A command, such as ``calibrate run``, with the arguments of its example if it has one."""

    name: str
    summary: str
    example: tuple[str, ...]
    launcher: str = "lrkv-plan"

    @property
    def page(self) -> str:
        """Its page in the site."""
        return f"commands/{self.name.replace(' ', '-')}.md"


def commands() -> Iterator[Command]:
    """Every command, groups that answer by themselves included, in the order of ``--help``."""

    def walk(node: Any, path: tuple[str, ...]) -> Iterator[Command]:
        if path:
            summary, _, example = (node.help or "").partition("Example: ")
            words = shlex.split(" ".join(example.split()))
            start = 1 + next((i for i, word in enumerate(words) if word in _NAMES), -1)
            launcher, arguments = shlex.join(words[:start]), tuple(words[start:])
            yield Command(" ".join(path), " ".join(summary.split()), arguments, launcher)
        for name in node.list_commands(None) if hasattr(node, "list_commands") else ():
            yield from walk(node.get_command(None, name), (*path, name))

    return walk(typer.main.get_command(app), ())


def help_text(command: Command) -> str:
    """What ``--help-all`` prints."""
    return CliRunner().invoke(app, [*command.name.split(), "--help-all"]).output


def command_page(command: Command) -> tuple[str, dict[str, bytes]]:
    """The page of a command, and the pictures that it shows by name."""
    lines = [f"# {command.name}", "", command.summary, ""]
    pictures: dict[str, bytes] = {}
    if command.example:
        lines += [
            "## Example",
            "",
            "```console",
            f"$ {command.launcher} {shlex.join(command.example)}",
        ]
        if command.name in NOT_RUN:
            lines += ["```", "", f"It needs {NOT_RUN[command.name]}.", ""]
        else:
            output, pictures = run_example(command)
            shown = output.splitlines()
            if len(shown) > _MOST_LINES:
                shown = [*shown[:_MOST_LINES], f"... and {len(shown) - _MOST_LINES} lines more"]
            lines += [*shown, "```", ""]
            lines += [f"![{command.summary}]({name})\n" for name in pictures]
    lines += ["## Help", "", "```text", help_text(command).rstrip(), "```", ""]
    return "\n".join(lines), pictures


def run_example(command: Command) -> tuple[str, dict[str, bytes]]:
    """What the example prints, and the pictures that it writes, by name."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            result = CliRunner().invoke(app, list(command.example))
        finally:
            os.chdir(before)
        if result.exit_code != 0:
            raise SystemExit(f"lrkv-plan {shlex.join(command.example)}: {result.output}")
        written = {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    return result.output, written


def public_names() -> dict[str, list[str]]:
    """Where each public name of the package is written: module -> names, in the package's order."""
    homes: dict[str, list[str]] = {}
    for name in lrkv_plan.__all__:
        value = getattr(lrkv_plan, name)
        home = getattr(value, "__module__", None)
        if home is not None and hasattr(importlib.import_module(home), value.__name__):
            homes.setdefault(home, []).append(value.__name__)
    return homes


def api_page() -> str:
    """One page of docstrings for the public names."""
    lines = [
        "# Public names", "",
        "Each can be imported from `lrkv_plan`; the headings say where it is written.", "",
    ]  # fmt: skip
    for home, names in public_names().items():
        lines += [f"## {home}", ""]
        for name in names:
            lines += [f"::: {home}.{name}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


NOTEBOOK = Path("docs/config-to-frontier.ipynb")


def notebook_page(path: Path = NOTEBOOK) -> tuple[str, dict[str, bytes]]:
    """A notebook as a page: its texts, its cells with what they gave, and its pictures by name."""
    lines: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            data = output.get("data", {})
            text = "".join(output.get("text") or data.get("text/plain") or ())
            if "image/png" in data:
                name = f"config-to-frontier-{len(pictures) + 1}.png"
                pictures[name] = base64.b64decode(data["image/png"])
                lines += [f"![{text.strip('<>')}]({name})", ""]
            else:
                lines += ["```text", text.rstrip(), "```", ""]
    return "\n".join(lines), pictures


def on_config(config: Any) -> Any:
    """Put a page per command into the navigation."""
    pages = [{command.name: command.page} for command in commands()]
    for section in config["nav"]:
        if "Reference" in section:
            section["Reference"][-1] = {"Commands": ["commands/index.md", *pages]}
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the made pages to those of docs/."""
    from mkdocs.structure.files import File

    made: dict[str, str | bytes] = {"api.md": api_page()}
    rows = ["# Commands", "", "| command | what it answers |", "| --- | --- |"]
    for command in commands():
        text, pictures = command_page(command)
        made[command.page] = text
        made |= {f"commands/{name}": content for name, content in pictures.items()}
        page = command.page.removeprefix("commands/")
        rows.append(f"| [`lrkv-plan {command.name}`]({page}) | {command.summary} |")
    made["commands/index.md"] = "\n".join(rows)
    text, pictures = notebook_page()
    made |= {"config-to-frontier.md": text, **pictures}
    for name, content in made.items():
        files.append(File.generated(config, name, content=content))
    return files


_OUTSIDE = re.compile(r"\[([^\]]+)\]\((\.\./[^)\s]+)\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name files of the repository that the site does not hold, in place of a link to them."""
    return _OUTSIDE.sub(lambda link: f"{link[1]} (`{link[2].removeprefix('../')}`)", markdown)


_FETCHED = re.compile(
    r"<(?:link|script|img|iframe|source|video|audio|object|embed)\b[^>]*"
    r"(?:href|src|data)=[\"']?((?:https?:)?//[^\"'\s>]+)",
    re.IGNORECASE,
)
_FETCHED_BY_STYLE = re.compile(r"(?:url\(|@import\s*)[\"']?((?:https?:)?//[^\"')\s]+)")


def fetched_elsewhere(folder: Path) -> Mapping[str, list[str]]:
    """Addresses outside the site that its pages or styles would fetch, by file."""
    found = {}
    for path in sorted([*folder.rglob("*.html"), *folder.rglob("*.css")]):
        text = path.read_text(encoding="utf-8")
        addresses = _FETCHED_BY_STYLE.findall(text)
        if path.suffix == ".html":
            canonical = re.sub(r"<link\b[^>]*rel=[\"']?canonical[^>]*>", "", text)
            addresses += _FETCHED.findall(canonical)
        if addresses:
            found[str(path.relative_to(folder))] = addresses
    return found


def on_post_build(config: Any) -> None:
    """Fail if a page would fetch something from elsewhere."""
    found = fetched_elsewhere(Path(config["site_dir"]))
    if found:
        raise SystemExit(f"the site fetches from elsewhere: {found}")
