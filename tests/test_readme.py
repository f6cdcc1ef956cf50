"""README and docs/ are true: shown output is today's, sessions run, links lead somewhere."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lrkv_plan.cli.app import app
from lrkv_plan.loader import HARDWARE_FOLDER, MODEL_FOLDER, shipped_files

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
SHOWN = re.compile(r"```console\n\$ lrkv-plan ([^\n]+)\n(.*?)```", re.DOTALL)
# A block may stand on two pages; it is run once.
BLOCKS = sorted({block for text in TEXTS.values() for block in SHOWN.findall(text)})


@pytest.mark.parametrize(("command", "shown"), BLOCKS, ids=[command for command, _ in BLOCKS])
def test_shown_output_is_what_the_command_prints(command: str, shown: str) -> None:
    assert CliRunner().invoke(app, shlex.split(command)).output == shown


def test_the_readme_answers_six_questions() -> None:
    shown = [command.split()[0] for command, _ in SHOWN.findall(TEXTS[ROOT / "README.md"])]
    assert shown == ["plan", "rank", "capacity", "best", "crossover", "audit"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_sessions_run(page: Path) -> None:
    session = doctest.DocTestParser().get_doctest(TEXTS[page], {}, page.name, str(page), 0)
    assert session.examples or page.name not in ("README.md", "python.md")
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(session)
    assert runner.summarize(verbose=False).failed == 0


def test_counts_of_shipped_files_are_right() -> None:
    text = TEXTS[ROOT / "docs" / "memory.md"]
    assert f"lists {len(shipped_files(MODEL_FOLDER))})" in text
    assert f"lists {len(shipped_files(HARDWARE_FOLDER))} accelerators" in text


def anchors(page: Path) -> set[str]:
    """What a link into a page may name after #."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_of_this_repository(page: Path) -> None:
    for address in re.findall(r"\]\(([^)\s]*)\)", TEXTS[page]):
        if address.startswith(("https://", "http://")):
            continue
        name, _, anchor = address.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), f"{page.name} links to {address}"
        assert not anchor or anchor in anchors(target), f"{page.name}: no heading {address}"


def test_every_page_of_docs_is_in_the_navigation() -> None:
    listed = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    made = {"api.md", "config-to-frontier.md"}
    assert set(listed) - made == {page.name for page in (ROOT / "docs").glob("*.md")}


def test_the_map_of_the_house_names_every_package_and_file() -> None:
    text = TEXTS[ROOT / "CONTRIBUTING.md"]
    rows = text.partition("## The map of the house")[2].partition("| beside it |")[0]
    named = re.findall(r"`([\w.]+)/?`", "".join(re.findall(r"^\| ([^|]+)\|", rows, re.MULTILINE)))
    there = {path.name for path in (ROOT / "lrkv_plan").iterdir() if path.name != "__pycache__"}
    # an installed copy also holds the folders of YAML files
    assert set(named) - {"lrkv_plan"} == there - {"model_specs", "hardware_profiles", "claims"}
