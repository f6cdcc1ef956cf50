"""Screens of times: the answer first, nothing broken, a close call called one, and its reasons."""

from __future__ import annotations

import csv
import io
import re
import shlex
from collections.abc import Iterator
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
        "mla:512+64 is faster than gqa:8 from 19,953 tokens on (13,604 to 29,742), for one "
        "sequence on one H200. Before: gqa:8 by at most 0.23 ms. At 128k tokens: mla:512+64 by "
        "2.3 ms, 24 %."
    )


def test_the_bar_leans_to_the_faster_design() -> None:
    lines = draw(screen_of(table_of(shlex.split(SHOWN[0])))).splitlines()
    assert "  1,024     5.74 ●          5.95 ●           ▒▒ │" in lines
    assert "131,072     9.69 ●          7.37 ●              │ ████████████████████████" in lines
    (crossing,) = [line for line in lines if line.endswith("crossing, 13,604 to 29,742")]
    assert crossing.startswith(" 19,953 ")


def test_a_change_that_may_never_come_leaves_room_for_the_bars() -> None:
    line = "crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention lrkv:16"
    lines = draw(screen_of(table_of(shlex.split(line))), width=80).splitlines()
    assert any(line.endswith("│ crossing, 4,670 to never") for line in lines)
    assert any(line.endswith(24 * "█") for line in lines)


def test_an_assumption_that_decides_is_said_with_the_other_case() -> None:
    # Two products a layer of 4.1 us each, 32 layers: 0.27 ms, more than either lead around 18k.
    said = verdict("crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention lrkv:16")
    assert said.startswith("lrkv:16 is faster than gqa:8 from 17,709 tokens on (4,670 at the ")
    assert said.endswith(
        " Assumed, and it decides: lrkv:16 expands heads in batched products beside its kernel, "
        "0.27 ms of a step; lrkv:16,expansion=kernel is the other case."
    )
    # One user: MQA's 6.60 ms are below what LRKV's step is without its products.
    far = "step-time llama-3.1-8b --gpu h100-sxm --attention mqa --attention lrkv:16"
    assert "Assumed" not in verdict(far)


def test_bands_that_overlap_everywhere_are_too_close_to_call() -> None:
    name = "lrkv:16,expansion=kernel"
    line = f"crossover llama-3.1-8b --gpu h200 --attention gqa:8 --attention {name}"
    said = verdict(line)
    assert said.startswith(f"gqa:8 and {name} are too close to call up to 128k tokens, for one seq")
    assert "8.20 against 9.69 ms" in said
    assert said.endswith(f"{name}'s kernel is assumed (○).")
    (row,) = table_of(shlex.split(line)).rows
    assert (row["too_close"], row["attention_basis"]) == (True, "assumed")


def test_no_change_says_by_how_much_at_least() -> None:
    said = verdict("crossover llama-3.1-8b --gpu h200 --attention mha --attention mqa")
    assert said.startswith("Always mqa: faster than mha from 1 token to 128k tokens, for one seq")
    assert " By at least 0.56 ms. " in said


def test_a_rank_is_where_it_changes_and_the_next_command_takes_it() -> None:
    screen = screen_of(table_of(shlex.split(SHOWN[4])))
    assert screen.verdict[0].startswith("gqa:8 is faster than lrkv:RANK from rank 26 on (14 to 31)")
    assert "lrkv:26" in screen.following[0]


def test_a_step_says_its_time_and_what_each_part_rests_on() -> None:
    assert verdict(SHOWN[9]) == (
        "7.52 ms (6.2 to 9.7) a token for one user of 8k tokens with gqa:8 on one H100 SXM."
    )
    lines = draw(screen_of(table_of(shlex.split(SHOWN[9])))).splitlines()
    # The engine's 0.77 ms, fitted on whole steps of other GPUs too, are just over a tenth of 7.52.
    assert "gqa:8   7.52 (6.2 to 9.7) ◐     0.89 ●   5.53 ●  1.10 ◐" in lines


def test_all_parts_of_a_long_named_design_fit_eighty_columns() -> None:
    lines = draw(screen_of(table_of(shlex.split(SHOWN[11]))), width=80).splitlines()
    (row,) = [line for line in lines if line.startswith("mla:512+64 ")]
    assert "mla:512+64,query_latent_dim=1536" in " ".join(lines[:2])
    total, *parts = (float(one) for one in re.findall(r"[0-9]+\.[0-9]{2}(?= [●◐○(])", row))
    assert len(parts) == 4
    assert sum(parts) == pytest.approx(total, abs=0.02)


def test_several_designs_are_ranked_or_too_close() -> None:
    far = "step-time llama-3.1-8b --gpu h200 --attention mha --attention mqa --batch-size 64"
    assert verdict(far).startswith("mqa is fastest: ")
    near = "step-time llama-3.1-8b --gpu h200 --attention gqa:8 --attention lrkv:16"
    assert verdict(near) == (
        "Too close to call for one user of 8k tokens on one H200: gqa:8 6.08 ms (5.0 to 7.8) a "
        "token, lrkv:16 6.18 ms (5.1 to 8.1), within their kernels' bands."
    )


def test_a_lower_bound_says_so() -> None:
    part = load_model("llama-3.1-8b").model_copy(update={"uncounted_parts": ("a vision tower",)})
    assert lrkv_plan.step_time(part, gpu="h200").verdict.startswith("At least ")
    stated = lrkv_plan.step_time(part, gpu="h200", weights="16 GiB").verdict
    assert re.match(r"[0-9.]+ ms ", stated)


def test_a_step_is_explained_by_a_sum_with_its_numbers_put_in() -> None:
    answer = lrkv_plan.step_time("llama-3.1-8b", gpu="h100-sxm")
    lines = answer.explain(0).splitlines()
    assert lines[0].startswith(
        "gqa:8: attention 0.8883 + matrices 5.533 + small kernels 0.3285 + engine 0.7739 = 7.524 "
        "ms (6.17 to 9.71, nine of ten measured steps)"
    )
    # 8,192 tokens of 4,096 B a layer and one written: 33,558,528 B at 3.19 of 3.35 TB/s
    assert "32 layers x (17.2 us + 33,558,528 B / 3.19 TB/s + 8 x 12 ns) = 0.888 ms" in lines[1]
    assert "= 5.53 ms  ● measured, bf16 of vllm on h100-sxm" in lines[2]
    # 2 B x 4,096 x 6,144 and the token's 20,480 B at 0.889 x 3.35 TB/s; 2 x 4,096 x 6,144 FLOP at
    # 1,075 TFLOP/s; 4,096 steps of 75 ps
    assert lines[3].strip() == (
        "hidden (bf16) 4,096 x 6,144: 32 x (3.81 us + root of 16.9 us, 46.8 ns, 309 ns) = 0.663 ms"
    )
    # t0 + width (a + b): 1.707 us + 4,096 x 159.5 ps a norm
    assert "small kernels: 64 norm x 2.36 us + 32 rotary x 2.65 us" in lines[8]
    # 32 layers of attention and four matrices, and the vocabulary: 161 launches
    assert "843 us a step + 1 x 12.8 us a sequence - 161 x 509 ns a launch" in lines[9]


NUMBER = r"[0-9][0-9,]*(?:\.[0-9]+)?"


@pytest.mark.parametrize(
    "line",
    [
        "step-time llama-3.1-8b --gpu h100-sxm --attention lrkv:16",
        "step-time deepseek-v3 --gpu h200 --tp-size 8",  # its launches overlap by more than it adds
        "step-time deepseek-v3 --gpu h200 --dp-size 8 --ep-size 8 --batch-size 64",
        "step-time deepseek-v3.2 --gpu mi300x --tp-size 8 --engine vllm@0.8",
        "step-time gemma-3-12b --gpu l40s --tp-size 2 --query-tokens 2 --weight-dtype fp8",
        "step-time qwen3-30b-a3b --gpu b200 --pp-size 2 --batch-size 32 --engine sglang",
        "step-time qwen3-next-80b-a3b --gpu h200 --batch-size 16",  # recurrent layers
    ],
)  # fmt: skip
def test_every_sum_of_an_explanation_adds_up(line: str) -> None:
    """The terms to the step; what stands in brackets, times its count, to its own total."""
    table = table_of(shlex.split(line))
    assert table.explain is not None
    total, *terms = table.explain(table.rows[0])
    summed_up, _, step = total.partition(": ")[2].partition(" = ")
    told = re.findall(rf"([+-]?) ?([a-z][a-z -]*) ({NUMBER})", summed_up)
    signed = [(-1 if sign == "-" else 1) * number(value) for sign, _, value in told]
    assert sum(signed) == pytest.approx(number(step.partition(" ms ")[0]), rel=1e-3)
    own = {name: value for (_, name, _), value in zip(told, signed, strict=True)}
    summed: dict[str, float] = {}
    for text in terms:
        name = re.split("[:,]", text.strip())[0].replace(" over heads", "")
        if found := re.search(rf"= (-?{NUMBER}) ms", text) if name in own else None:
            summed[name] = summed.get(name, 0) + number(found[1])
    assert summed == pytest.approx(own, rel=6e-3)
    added_up = [(text, *pair) for text in terms for pair in (*_brackets(text), *_rows(text))]
    assert len(added_up) >= 6  # matrices, small kernels, engine
    for text, found, result in added_up:
        # of three digits each; the engine's is a difference
        assert found == pytest.approx(result, rel=0.02, abs=0.005), text


def _brackets(text: str) -> Iterator[tuple[float, float]]:
    """(n x (t0 + root of a, b, c + k x each), total) of a line, in ms."""
    found = re.search(
        rf"({NUMBER}) x \(({NUMBER} [munp]?s) \+ (?:root of ([^+)]*))?(?: ?\+ )?"
        rf"(?:({NUMBER}) x ({NUMBER} [munp]?s))?\) = ({NUMBER}) ms",
        text,
    )
    if found:
        n, fixed, roots, k, each, total = found.groups()
        root = sum(seconds(one) ** 2 for one in (roots or "").split(", ") if one) ** 0.5
        more = number(k) * seconds(each) if k else 0.0
        yield 1e3 * number(n) * (seconds(fixed) + root + more), number(total)


def _rows(text: str) -> Iterator[tuple[float, float]]:
    """(sum of n x time, total) of small kernels and of what the engine adds, in ms."""
    if not text.strip().startswith(("small kernels", "engine")):
        return
    left, _, right = text.rpartition(" = ")
    rows = rf"([+-]?) ?(?:({NUMBER})(?: [a-z ]+)? x )?({NUMBER} [munp]?s)\b"
    found = re.findall(rows, left.partition(": ")[2])
    signed = (
        (-1 if sign == "-" else 1, number(n or "1"), seconds(each)) for sign, n, each in found
    )
    yield 1e3 * sum(sign * n * each for sign, n, each in signed), float(right.partition(" ms")[0])


def number(text: str) -> float:
    return float(text.replace(",", ""))


def seconds(text: str) -> float:
    value, unit = text.split()
    return number(value) * {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "ps": 1e-12}[unit]


def test_a_roofline_names_what_binds() -> None:
    assert verdict(SHOWN[14]) == (
        "mla:512+64,query_latent_dim=1536 is bound by compute on one H200: 242 FLOP/B, above the "
        "206 of bf16 (absorbed)."
    )
    (line, *_) = lrkv_plan.roofline("deepseek-v3", gpu="h200").explain(0).splitlines()
    assert "B = 241.7 FLOP/B; ridge 989.4 TFLOP/s / 4.80 TB/s = 206.1 FLOP/B" in line


def made_up(
    *crossings: tuple[int, int, int | None, int | None], between_s: float = 1e-3, last: int = 0
) -> CrossoverAnswer:
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
        Lead(low=low, high=high, faster=faster, least_s=0.0, most_s=most_s)
        for low, high, faster, most_s in (
            (1, 1023, 0, 1e-3),
            (1024, 65_535, 1, between_s),
            (65_536, 131_072, last, 1e-3),
        )
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
        "mla:512+64 by 2.3 ms, 24 %.",
    )


def test_changes_between_which_both_take_the_same_are_one() -> None:
    # 20 us of the 5.74 ms that gqa:8 takes at 1,024 tokens: 0.35 %.
    changes = ((1024, 1, 900, 1200), (65_536, 1, 60_000, None))
    verdict = crossover_screen(made_up(*changes, between_s=20e-6, last=1), None, ()).verdict
    assert verdict == (
        "mla:512+64 is faster than gqa:8 from 65,536 tokens on (60,000 at the earliest, or never), "
        "for one sequence on one H200.",
        "From 1,024 tokens to there they take the same within 0.3 %. Before: gqa:8 by at most "
        "1.0 ms. At 128k tokens: mla:512+64 by 2.3 ms, 24 %.",
    )
    # 40 us are 0.7 %: worth a word.
    verdict = crossover_screen(made_up(*changes, between_s=40e-6, last=1), None, ()).verdict
    assert verdict[0].startswith("gqa:8 first, ")


def test_a_change_that_the_bands_allow_never_to_come_says_so() -> None:
    said = crossover_screen(made_up((65_536, 1, 1, None)), None, ()).verdict[0]
    assert "from 65,536 tokens on (or never), for one" in said
