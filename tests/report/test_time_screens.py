"""Screens of times: the answer first, nothing broken, a close call called one, and its reasons."""

from __future__ import annotations

import csv
import io
import re
import shlex
from dataclasses import replace
from unittest import mock

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli import options
from lrkv_plan.cli.app import app
from lrkv_plan.latency.crossover import Crossing, Lead, compare
from lrkv_plan.loader import load_hardware, load_model
from lrkv_plan.report.screen import draw
from lrkv_plan.report.screens.crossover import CrossoverAnswer, crossover_screen
from lrkv_plan.report.tables import Format, Table, render, screen_of
from lrkv_plan.specs.design import typed_designs

PAIR = "--attention gqa:8 --attention mla:512+64"
SHOWN = (
    f"crossover llama-3.1-8b --gpu h200 {PAIR}",
    f"crossover llama-3.1-8b --gpu h200 {PAIR} --over batch_size",
    f"crossover llama-3.1-8b --gpu h200 {PAIR} --over tp_size --batch-size 16",
    f"crossover llama-3.1-8b --gpu l40s {PAIR} --over query_tokens",
    "crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention lrkv:16 --over rank"
    " --batch-size 32",
    "crossover gemma-3-12b --gpu mi300x --attention gqa:8"
    " --attention lrkv:16,position=rope_expand --tp-size 2",
    "crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention gqa:8",
    "crossover llama-3.1-8b --gpu h200 --attention lrkv:16,position=rope_expand"
    " --attention lrkv:16,groups=2 --query-tokens 4",
    "crossover llama-2-7b --gpu h200 --attention mha --attention mqa --at-most 2",
    "step-time llama-3.1-8b --gpu h100-sxm",
    f"step-time llama-3.1-8b --gpu h100-sxm {PAIR} --attention lrkv:16 --batch-size 32"
    " --tp-size 2 --query-tokens 2",
    "step-time deepseek-v3 --gpu h200 --tp-size 8",
    "step-time gemma-4-31b --gpu h200",
    "roofline gemma-4-31b --gpu h200",
    "roofline deepseek-v3 --gpu h200",
    "roofline lrkv-paper-2.5b --gpu h100-sxm --attention lrkv:55",
    "roofline llama-3.1-8b --gpu h100-sxm --attention lrkv:55"
    " --attention lrkv:55,position=rope_expand --query-tokens 4",
)
WIDTHS = (60, 80, 100, 120, 160)
UNITS = "B|KiB|MiB|GiB|ms|s|%|tokens?|users?|sequences?|GPUs?|FLOP/B"


def table_of(words: list[str]) -> Table:
    """The table that a command line would write."""
    written: list[Table] = []
    with mock.patch.object(options, "write_table", lambda table, **_: written.append(table)):
        done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    return written[0]


@pytest.fixture(scope="module", params=SHOWN)
def table(request: pytest.FixtureRequest) -> Table:
    return table_of(shlex.split(request.param))


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_screen_and_no_number_loses_its_unit(
    table: Table, width: int
) -> None:
    text = draw(screen_of(table), width=width)
    for line in text.splitlines():
        assert len(line) <= width or " " not in line.strip().removesuffix(" \\"), line
    assert not re.search(rf"[0-9]\n *(?:{UNITS})(?![A-Za-z])", text)
    assert "Why:\n" not in text


@pytest.mark.parametrize("width", [60, 80])
def test_every_cell_that_stays_stands_whole(table: Table, width: int) -> None:
    screen = screen_of(table)
    text = draw(screen, width=width)
    for row in screen.rows:
        for column in screen.columns:
            assert column.drop or column.text(row).strip() in text


def test_the_next_command_runs(table: Table) -> None:
    (following,) = screen_of(table).following
    assert following[0] == "lrkv-plan"
    table_of(list(following[1:]))


def test_rows_tell_what_they_are_of(table: Table) -> None:
    """So that the CSV of several commands stacks."""
    (first, *_) = csv.DictReader(io.StringIO(render(table, Format.CSV)))
    assert {"model", "gpu", "context_tokens", "batch_size", "tp_size", "kv_dtype"} <= set(first)
    varied = first.get("variable")
    assert [first[key] for key in ("model", "gpu", "kv_dtype") if not first[key]] == []
    assert varied in (None, "rank") or first[varied] == ""


def test_every_row_explains_itself_with_its_sum(table: Table) -> None:
    assert table.explain is not None
    for row in table.rows:
        lines = "\n".join(table.explain(row))
        assert re.search(" (B|FLOP) / ", lines)
        assert "=" in lines


def verdict(line: str) -> str:
    return " ".join(screen_of(table_of(shlex.split(line))).verdict)


def test_a_crossing_is_said_with_its_range_and_both_leads() -> None:
    assert verdict(SHOWN[0]) == (
        "mla:512+64 is faster than gqa:8 from 14,874 tokens on (9,187 to 23,886), for one sequence "
        "on one H200. Before: gqa:8 by at most 0.31 ms. At 128k tokens: mla:512+64 by 2.4 ms, 27 %."
    )


def test_the_bar_leans_to_the_faster_design() -> None:
    lines = draw(screen_of(table_of(shlex.split(SHOWN[0])))).splitlines()
    assert "  1,024     5.08 ●          5.37 ●          ▒▒▒ │" in lines
    assert "131,072     8.90 ●          6.48 ●              │ ████████████████████████" in lines
    (crossing,) = [line for line in lines if line.endswith("crossing, 9,187 to 23,886")]
    assert crossing.startswith(" 14,874 ")


def test_bands_that_overlap_everywhere_are_too_close_to_call() -> None:
    line = "crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention lrkv:16"
    said = verdict(line)
    assert said.startswith("gqa:8 and lrkv:16 are too close to call up to 128k tokens, for one seq")
    assert "7.42 against 8.90 ms" in said
    assert said.endswith("lrkv:16's kernel is assumed (○).")
    (row,) = table_of(shlex.split(line)).rows
    assert (row["too_close"], row["attention_basis"]) == (True, "assumed")


def test_no_change_says_by_how_much_at_least() -> None:
    said = verdict("crossover llama-3.1-8b --gpu h200 --attention mha --attention mqa")
    assert said.startswith("Always mqa: faster than mha from 1 token to 128k tokens, for one seq")
    assert " By at least 0.53 ms. " in said


def test_a_rank_is_where_it_changes_and_the_next_command_takes_it() -> None:
    screen = screen_of(table_of(shlex.split(SHOWN[4])))
    assert screen.verdict[0].startswith("gqa:8 is faster than lrkv:RANK from rank 27 on (15 to 32)")
    assert "lrkv:27" in screen.following[0]


def test_a_step_says_its_time_and_what_each_part_rests_on() -> None:
    assert verdict(SHOWN[9]) == (
        "7.00 ms (5.9 to 9.5) a token for one user of 8k tokens with gqa:8 on one H100 SXM."
    )
    lines = draw(screen_of(table_of(shlex.split(SHOWN[9])))).splitlines()
    # 0.84 of 7.00 ms is more than a tenth, and assumed
    assert "gqa:8   7.00 (5.9 to 9.5) ○     0.89 ●   5.27 ◐  0.84 ○" in lines


def test_several_designs_are_ranked_or_too_close() -> None:
    far = "step-time llama-3.1-8b --gpu h200 --attention mha --attention mqa --batch-size 64"
    assert verdict(far).startswith("mqa is fastest: ")
    near = "step-time llama-3.1-8b --gpu h200 --attention gqa:8 --attention lrkv:16"
    assert verdict(near) == (
        "Too close to call for one user of 8k tokens on one H200: lrkv:16 5.17 ms (4.2 to 7.5) a "
        "token, gqa:8 5.29 ms (4.3 to 7.4), within their kernels' bands."
    )


def test_a_lower_bound_says_so() -> None:
    assert verdict("step-time gemma-4-31b --gpu h200").startswith("At least ")
    stated = "step-time gemma-4-31b --gpu h200 --weights '58 GiB'"
    assert re.match(r"[0-9.]+ ms ", verdict(stated))


def test_a_step_is_explained_by_a_sum_with_its_numbers_put_in() -> None:
    answer = lrkv_plan.step_time("llama-3.1-8b", gpu="h100-sxm")
    lines = answer.explain(0).splitlines()
    assert lines[0].startswith(
        "gqa:8: attention 0.8883 + weights 5.271 + everything else 0.8400 = 7.000 ms (5.87 to 9.47"
    )
    # 8,192 tokens of 4,096 B a layer and one written: 33,558,528 B at 3.19 of 3.35 TB/s
    assert "32 layers x (17.2 us + 33,558,528 B / 3.19 TB/s + 8 x 12 ns) = 0.888 ms" in lines[1]
    assert "weights: 15,009,857,536 B / (0.85 x 3.35 TB/s) = 5.27 ms" in lines[2]
    assert "32 layers x 20 us + 200 us = 0.840 ms" in lines[3]


def test_a_roofline_names_what_binds() -> None:
    assert verdict(SHOWN[14]) == (
        "mla:512+64,query_latent_dim=1536 is bound by compute on one H200: 242 FLOP/B, above the "
        "206 of bf16 (absorbed)."
    )
    (line, *_) = lrkv_plan.roofline("deepseek-v3", gpu="h200").explain(0).splitlines()
    assert "B = 241.7 FLOP/B; ridge 989.4 TFLOP/s / 4.80 TB/s = 206.1 FLOP/B" in line


def made_up(*crossings: tuple[int, int, int | None, int | None]) -> CrossoverAnswer:
    """Real steps with changes (place, design from there on, earliest, latest) put among them."""
    model, gpu = load_model("llama-3.1-8b"), load_hardware("h200")
    point = {"context_tokens": 8192, "batch_size": 1, "query_tokens": 1, "tp_size": 1}
    pair = typed_designs(model, ("gqa:8", "mla:512+64"))
    found = compare(pair, gpu, over="context_tokens", point=point)
    changes = tuple(
        Crossing(at=at, faster_before=1 - after, faster_after=after, earliest=early, latest=late)
        for at, after, early, late in crossings
    )
    leads = tuple(
        Lead(low=low, high=high, faster=faster, least_s=0.0, most_s=1e-3)
        for low, high, faster in ((1, 1023, 0), (1024, 65_535, 1), (65_536, 131_072, 0))
    )
    told = replace(found, crossover=replace(found.crossover, crossings=changes), leads=leads)
    inputs = {"over": "context_tokens", **point}
    return CrossoverAnswer(
        model=model, gpu=gpu, inputs=inputs, labels=("gqa:8", "mla:512+64"), found=told
    )


def test_several_changes_are_said_in_turn() -> None:
    answer = made_up((1024, 1, 900, 1200), (65_536, 0, 60_000, None))
    verdict = crossover_screen(answer, None, ()).verdict
    assert verdict == (
        "gqa:8 first, mla:512+64 from 1,024 tokens on (900 to 1,200) then gqa:8 from 65,536 tokens "
        "on (60,000 at the earliest, or never), for one sequence on one H200.",
        "By at most, in turn: gqa:8 1.0 ms, mla:512+64 1.0 ms and gqa:8 1.0 ms. At 128k tokens: "
        "mla:512+64 by 2.4 ms, 27 %.",
    )


def test_a_change_that_the_bands_allow_never_to_come_says_so() -> None:
    said = crossover_screen(made_up((65_536, 1, 1, None)), None, ()).verdict[0]
    assert "from 65,536 tokens on (or never), for one" in said
