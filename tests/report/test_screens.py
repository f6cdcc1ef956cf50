"""Every command's screen at five widths: nothing is broken, the first line answers."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

from lrkv_plan.cli import options
from lrkv_plan.cli.app import app
from lrkv_plan.report.screen import Row, Screen, draw, printable
from lrkv_plan.report.tables import Table, explained, screen_of
from tests.checkpoint.synthetic import llama_folder, planted

pytestmark = pytest.mark.slow

# {checkpoint} is a folder of two small layers.
SHOWN = (
    "cache llama-3.1-8b",
    "cache llama-3.1-8b --context-tokens 8k,128k --attention gqa:8 --attention mla:512+64"
    " --attention lrkv:24",
    "cache llama-3.1-8b,qwen3-8b,gemma-3-12b --context-tokens 32k --attention gqa:8"
    " --attention lrkv:24,groups=2,position=rope_expand",
    "cache llama-3.1-8b --kv-dtype bf16,fp8 --tp-size 1,2 --batch-size 64",
    "cache gemma-3-12b --context-tokens 8k,32k,128k --detail",
    "cache whisper-large-v3 --encoder-tokens 750",
    "cache deepseek-v3.2 --detail --tp-size 2",
    "cache qwen3-next-80b-a3b",
    "params llama-3.1-8b --attention gqa:8 --attention mha --attention lrkv:24 --match-params",
    "params llama-3.1-8b,deepseek-v3,gemma-3-12b",
    "params lrkv-paper-2.5b --attention lrkv:55",
    "shard llama-2-7b --attention mha --attention mla:512+64 --attention lrkv:54 --tp-size 4,5",
    "shard lrkv-paper-2.5b --kv-dtype q8_0",
    "rank lrkv-paper-2.5b --budget 50%",
    "rank llama-3.1-8b --budget 50%",
    "rank llama-3.1-70b --fit-sequences 40 --gpu h100-sxm --tp-size 8",
    "rank llama-2-7b --fit-sequences 4 --kv-memory 12GiB --align 1",
    "audit",
    "audit mla",
    "audit lrkv --verdict match",
    "inspect {checkpoint} --layers 0",
    "inspect {checkpoint} --budget 50% --fit-ranks none",
    "models",
    "hardware",
    "crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention mla:512+64",
    "crossover gemma-3-12b --gpu mi300x --attention gqa:8 --attention lrkv:16,groups=2"
    " --over batch_size",
    "step-time llama-3.1-8b --gpu h100-sxm --attention gqa:8 --attention lrkv:16 --tp-size 2",
    "roofline deepseek-v3 --gpu h200",
    "best llama-3.1-70b --users 64 --context-tokens 32k --tpot-ms 30 --gpu h200,b200,mi300x,l40s",
    "best deepseek-v3 --users 80 --gpu h100-sxm,h200 --families",
    "sweep llama-3.1-8b,qwen3-8b --gpus h100-sxm,mi300x --designs own;lrkv:16..32:16 --tp-size 1,3"
    " --context-tokens 8k,32k --batch-size 1,64,full --kv-dtype bf16,fp8",
    "sweep llama-3.1-8b --gpus h200 --reduce min",
)
WIDTHS = (60, 80, 100, 120, 160)
UNITS = {"B", "KiB", "MiB", "GiB", "TiB", "ms", "s", "%", "tokens", "users", "layers", "GPUs"}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    query = rng.standard_normal((4, 8, 32))
    layer = query, planted(rng, 2, 8, 32, 2), planted(rng, 2, 8, 32, 2)
    return llama_folder(tmp_path_factory.mktemp("screens") / "toy", {0: layer, 1: layer})


def table_of(words: list[str]) -> Table:
    """The table that a command line would write."""
    written: list[Table] = []
    with mock.patch.object(options, "write_table", lambda table, **_: written.append(table)):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return written[0]


@pytest.fixture(scope="module", params=SHOWN)
def table(request: pytest.FixtureRequest, checkpoint: Path) -> Table:
    return table_of(shlex.split(request.param.format(checkpoint=checkpoint)))


def is_one_word(line: str) -> bool:
    return " " not in line.strip().removesuffix(" \\")


def cells_of(screen: Screen, row: Row) -> Iterator[tuple[str, str]]:
    """(title, text) of the cells that are never left out."""
    for column in screen.columns:
        text = printable(column.text(row)).strip()
        if column.drop == 0 and text not in ("", "-"):
            yield column.title, text


def test_the_command_has_a_screen_and_an_explanation(table: Table) -> None:
    assert table.screen is not None
    assert table.explain is not None
    assert explained(table)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_screen(table: Table, width: int) -> None:
    for line in draw(screen_of(table), width=width).splitlines():
        assert len(line) <= width or is_one_word(line), line


@pytest.mark.parametrize("width", WIDTHS)
def test_every_cell_that_stays_stands_whole(table: Table, width: int) -> None:
    screen = screen_of(table)
    lines = draw(screen, width=width).splitlines()
    rules = [i for i, line in enumerate(lines) if line and set(line) == {"─"}]
    if not rules:
        cards = "\n".join(lines).split("\n\n")[1:]
        assert len(cards) == len(screen.rows) + bool(screen.foot or screen.following)
        for card, row in zip(cards, screen.rows, strict=False):
            (_, name), *others = cells_of(screen, row)
            assert card.startswith(f"{name}\n")
            for title, text in others:
                pair = f"{title} {text}".strip()
                assert pair in (card if len(pair) <= width - 2 else " ".join(card.split()))
        return
    body = lines[rules[0] + 1 : rules[1]]
    assert len(body) == len(screen.rows)
    for line, row in zip(body, screen.rows, strict=True):
        shown = [cell.strip() for cell in re.split(" {2,}", line.strip())]
        for _, text in cells_of(screen, row):
            assert text in shown


@pytest.mark.parametrize("width", WIDTHS)
def test_sentences_keep_their_words_and_numbers_their_units(table: Table, width: int) -> None:
    screen = screen_of(table)
    lines = draw(screen, width=width).splitlines()
    told = [*screen.verdict, *screen.foot]
    every = " ".join(" ".join(lines).split())
    for paragraph in told:
        assert " ".join(printable(paragraph).split()) in every
    for line, following in itertools.pairwise(lines):
        last, first = line.split(" ")[-1], following.split(" ")[0].rstrip(".,;:)")
        assert not (re.fullmatch(r"[0-9][0-9.,]*", last) and first in UNITS), (line, following)


def test_the_first_line_answers(table: Table) -> None:
    verdict = screen_of(table).verdict
    assert verdict[0] != table.title
    assert re.search(r"[0-9]", verdict[0])
    assert verdict[0].endswith((".", "?"))


def test_colour_changes_no_character(table: Table) -> None:
    screen = screen_of(table)
    assert re.sub(r"\x1b\[\d+m", "", draw(screen, color=True)) == draw(screen)


def test_the_next_command_runs(table: Table) -> None:
    for words in screen_of(table).following:
        assert words[0] == "lrkv-plan"
        table_of(list(words[1:]))
