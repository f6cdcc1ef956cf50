"""The screens of ``capacity``: what they say, and that no width breaks a number or a name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.cli.app import app
from lrkv_plan.report.screen import draw
from lrkv_plan.report.screens.capacity import memory_bar
from lrkv_plan.report.tables import screen_of
from lrkv_plan.serving.budget import BudgetTerm, StageBudget, taken

LLAMA, LARGE, H100 = "llama-3.1-8b", "llama-3.1-70b", "h100-sxm"
EIGHT = {"gpu": "8xh100-sxm", "context_tokens": "32k"}
GIB = 2**30


def screen(model: Any = LARGE, *, width: int = 80, **asked: Any) -> list[str]:
    answer = lrkv_plan.capacity(model, **asked)
    return draw(screen_of(answer.table), width=width).splitlines()


def sentence(model: Any = LARGE, **asked: Any) -> str:
    return lrkv_plan.capacity(model, **asked).verdict


def test_eight_gpus_hold_forty_users() -> None:
    # 51.15 GiB x 8 / (32,768 x 320 KiB) = 40.9, and 49.86 to 51.76 are 39.9 to 41.4.
    lines = screen(**EIGHT)
    assert lines[0] == "40 users of 32k tokens fit on 8 x H100 SXM at TP 8 (39 to 41)."
    assert re.match(r"TP 8 +40 \(39-41\) .*memory$", lines[4])
    assert re.match(r"TP 4 x 2 +26 \(26-28\) .*memory$", lines[5])
    assert lines[-1].startswith("Next: lrkv-plan plan llama-3.1-70b --gpu 8xh100-sxm")


def test_formats_side_by_side_and_what_binds() -> None:
    said = sentence(**EIGHT, kv_dtype="bf16,fp8", tpot_ms=45)
    assert said == (
        "40 users of 32k tokens fit on 8 x H100 SXM at TP 8 (39 to 41); 81 with fp8 cache. "
        "Memory binds, not time: 29.4 ms (24 to 38) and 32.6 ms (27 to 42) of 45."
    )


def test_a_band_across_the_target_is_too_close_to_call() -> None:
    # 29.4 ms, 24 to 38 (0.82 to 1.29 of it).
    assert "the time is too close to call: 29.4 ms (24 to 38) of 30." in sentence(
        **EIGHT, tpot_ms=30
    )
    text = "\n".join(screen(**EIGHT, tpot_ms=30))
    assert "memory, may miss" in text
    assert "time is too close" not in sentence(**EIGHT, tpot_ms=39)


def test_two_loads_are_judged_each_by_its_own_band() -> None:
    said = sentence(**EIGHT, kv_dtype="bf16,fp8", tpot_ms=40)
    assert said.endswith(
        " Memory binds, not time: 29.4 ms (24 to 38) of 40. With fp8 cache, memory binds; the time "
        "is too close to call: 32.6 ms (27 to 42)."
    )


def test_time_binds() -> None:
    said = sentence(LLAMA, gpu=H100, tpot_ms=15)
    assert re.match(r"22 users of 8k tokens are served within 15 ms on one H100 SXM "
                    r"\(12 to 31\); 54 fit\. Time binds, not memory: 15\.0 ms", said)  # fmt: skip
    assert sentence(LLAMA, gpu=H100, tpot_ms=5) == (
        "No user of 8k tokens is served within 5 ms on one H100 SXM: alone a token takes 7.52 ms; "
        "54 fit."
    )


def test_nothing_fits_says_why_and_what_to_try_and_asks_it() -> None:
    lines = screen(gpu=H100)
    assert " ".join(lines[:3]) == (
        "Not one user of 8k tokens fits on one H100 SXM: weights and runtime leave no memory. "
        "Try --tp-size 2 (fits 1)."
    )
    assert "Next: lrkv-plan capacity llama-3.1-70b --gpu h100-sxm --tp-size 2" in lines
    assert any("= 140.86 of 79.19 GiB" in line for line in lines)


def priced(name: str, usd: float | None) -> dict[str, Any]:
    """A profile with that price of its own, or without one."""
    profile = lrkv_plan.load_gpu(name).model_dump(mode="json", exclude_none=True)
    profile.pop("hourly_price", None)
    price = {} if usd is None else {"hourly_price": {"usd": usd, "provider": "ours", "kind": "own"}}
    return {**profile, **price}


def test_fewest_gpus_first_and_a_time_target_binds() -> None:
    gpus = [priced(name, None) for name in ("h100-sxm", "b200", "l40s", "h200")]
    asked = {"context_tokens": "32k", "min_gpus": True, "sequences": 64}
    answer = lrkv_plan.capacity(LLAMA, gpu=gpus, tpot_ms=30, **asked)
    numbers = [row["n_gpus"] for row in answer.rows]
    assert numbers == sorted(numbers)
    assert [row["gpu"] for row in answer.rows] == ["b200", "h200", "h100-sxm", "l40s"]
    assert all(row["tpot_s"] <= 30e-3 and row["admitted_sequences"] >= 64 for row in answer.rows)
    assert answer.verdict == (
        "2 x B200 carry 64 users of 32k tokens within 30 ms; 3 x H200, 4 x H100 SXM at TP 1 PP 4, "
        "24 x L40S at TP 4 x 6; all just about."
    )
    # B200 26.0 ms, at worst 33.6; H200 29.4, 37.9; H100 24.9, 32.1
    assert lrkv_plan.capacity(LLAMA, gpu=gpus, tpot_ms=36, **asked).verdict.startswith(
        "2 x B200 carry 64 users of 32k tokens within 36 ms; 3 x H200 just about, 4 x H100 SXM "
    )
    held = lrkv_plan.capacity(LLAMA, gpu="l40s", **asked)
    assert held.rows[0]["n_gpus"] < numbers[-1]


def test_the_cheapest_stands_first_where_all_prices_are_known() -> None:
    asked = {"min_gpus": True, "sequences": 64, "context_tokens": "32k"}
    # 4 H100 as stages of one replica at 1 $ an hour each against 3 H200 at 9.
    cheap = lrkv_plan.capacity(LLAMA, gpu=[priced("h200", 9), priced("h100-sxm", 1)], **asked)
    assert [(row["gpu"], row["n_gpus"]) for row in cheap.rows] == [("h100-sxm", 4), ("h200", 3)]
    assert any(re.search(r"4 h100-sxm .* 4\.00 ", line)
               for line in draw(screen_of(cheap.table), width=80).splitlines())  # fmt: skip
    one = [priced("h100-sxm", 1), priced("h200", None)]
    assert [row["gpu"] for row in lrkv_plan.capacity(LLAMA, gpu=one, **asked).rows] == [
        "h200", "h100-sxm",
    ]  # fmt: skip


def test_the_longest_context_in_the_first_sentence() -> None:
    said = sentence(gpu="4xh100-sxm", max_context=True)
    assert said.startswith(
        "128k tokens, the longest that llama-3.1-70b takes, fit one user on 4 x H100 SXM at TP 4; "
        "the memory would hold 455,056 (438,160 to 463,056)"
    )
    within = sentence(gpu="4xh100-sxm", max_context=True, sequences=4)
    # 455,056 / 4 = 113,764, in pages of 16: 113,760
    assert within.startswith("113,760 (109,536 to 115,760) tokens are the longest context")
    assert "the model takes 128k tokens" in within


def test_the_memory_of_one_gpu_is_a_bar_of_its_parts() -> None:
    stage = StageBudget(terms=(
        BudgetTerm(name="memory", n_bytes=80 * GIB, provenance="driver-visible"),
        taken("outside utilisation", 8 * GIB, "setting"), taken("weights", 20 * GIB, "counted"),
        taken("non-torch", 2 * GIB, "fitted"),
    ))  # fmt: skip
    bar, legend = memory_bar("One GPU", stage, 80)
    # 56 cells: 20/80 are 14, 50/80 35, 2/80 1.4, 8/80 5.6.
    assert bar == "One GPU:  " + 14 * "▒" + 35 * "█" + "░" + 6 * "·"
    assert legend == "80.00 GiB:  ▒ weights 20.00  █ cache 50.00  ░ runtime 2.00  · unused 8.00"
    assert len(memory_bar("One GPU", stage, 40)[0]) <= 40


def test_the_terms_are_a_screen_too() -> None:
    answer = lrkv_plan.capacity(LLAMA, gpu=H100, detail=True)
    assert answer.verdict == (
        "54.85 of 79.19 GiB of one H100 SXM are left for the cache (54.23 to 55.22)."
    )
    lines = draw(screen_of(answer.table), width=80).splitlines()
    assert any(re.fullmatch(r"weights +-14\.96 +counted", line) for line in lines)
    wide = draw(screen_of(answer.table), width=160)
    assert "fitted on 11 rows: vLLM 0.19 on H100, worst unseen row 0.15 GiB" in wide


def test_the_equations_hold_the_rows_numbers() -> None:
    answer = lrkv_plan.capacity(LARGE, **EIGHT, tpot_ms=40)
    text = answer.explain(0)
    (row,) = answer.rows
    assert "79.19 memory - 6.34 outside utilisation" in text
    assert f"{row['kv_budget_bytes_per_gpu']:,} B / (32,768 tokens x 40,960 B) = 40.92" in text
    assert f"{row['n_blocks']:,} blocks of 16 tokens" in text
    assert "40.92: 40 whole sequences" in text
    assert "users: 40 x 1 = 40 (39 to 41)" in text
    (told,) = re.findall(r"attention ([\d.]+) \+ matrices ([\d.]+) \+ small kernels ([\d.]+) \+ "
                         r"all-reduce ([\d.]+) \+ engine ([\d.]+) = ([\d.]+) ms", text)  # fmt: skip
    *terms, total = map(float, told)
    assert sum(terms) == pytest.approx(total, rel=1e-3)
    assert total == pytest.approx(1e3 * row["tpot_s"], rel=1e-3)
    assert "● grouped bf16 measured" in text
    assert "weights: spec arithmetic, bf16" in text


def test_a_long_named_own_design_leaves_room_for_its_time() -> None:
    place = {"gpu": "8xh200", "tpot_ms": 50}
    (row,) = [line for line in screen("deepseek-v3", **place) if line.startswith("mla:512+64 ")]
    assert re.search(r"[0-9]+\.[0-9] \([0-9]+ to [0-9]+\) [●◐○]", row)
    assert row.endswith("memory, may miss")
    asked = screen("deepseek-v3", **place, attention=["gqa:8,head_dim=64", "gqa:8"])
    assert any(line.startswith("gqa:8,head_dim=64 ") for line in asked)


def test_what_lrkv_assumes_is_explained() -> None:
    answer = lrkv_plan.capacity(LLAMA, gpu=H100, attention="lrkv:16", tpot_ms=50)
    notes = " ".join(note.text for note in answer.notes if note.kind == "assumption")
    assert "all down-projections of a layer are fused into one matrix with the query" in notes
    assert "queries and outputs are expanded in two batched products a layer" in notes
    assert "products, batched over heads: t0 + heads x the time of one" in answer.explain(0)


CASES: list[tuple[Any, dict[str, Any]]] = [
    (LARGE, EIGHT),
    (LARGE, {**EIGHT, "kv_dtype": "bf16,fp8", "tpot_ms": 40, "gpu_hour_usd": 2.5}),
    (LARGE, {"gpu": "8xh100-sxm,4xb200,4xmi300x", "context_tokens": "32k"}),
    (LLAMA, {"gpu": "b200,h200,mi300x", "tpot_ms": 30, "min_gpus": True, "sequences": 64}),
    (LLAMA, {"gpu": H100, "attention": ["mha", "gqa:8", "lrkv:48,position=rope_expand"],
             "context_tokens": "8k,64k", "tp_size": "1,2"}),
    ([LLAMA, LARGE, "qwen3-next-80b-a3b"], {"gpu": "2xh200", "tpot_ms": 50}),
    (LARGE, {"gpu": H100}),
    (LLAMA, {"kv_memory": "20 GiB"}),
    (LLAMA, {"gpu": H100, "length_percentiles": "p50=1k,p95=4k"}),
    (LARGE, {"gpu": "4xh100-sxm,4xl4", "max_context": True, "kv_dtype": "bf16,fp8"}),
    (LLAMA, {"gpu": "h100-sxm,l4", "detail": True}),
    (LLAMA, {"gpu": H100, "tp_size": "1,3"}),
    ("gemma-4-31b", {"gpu": H100}),
    ("deepseek-v3", {"gpu": H100, "min_gpus": True, "sequences": 80, "context_tokens": "32k"}),
]  # fmt: skip
_WHOLE = re.compile(r"\(\d[\d.,]*(?: to |-)\d[\d.,]*\)|\d[\d.,]* (?:GiB|ms|users?|tokens?)(?!\w)")


def parts(text: str) -> Iterator[str]:
    yield from _WHOLE.findall(text)


@pytest.mark.parametrize(("model", "asked"), CASES, ids=lambda case: str(case)[:60])
def test_nothing_is_broken_at_any_width(model: Any, asked: dict[str, Any]) -> None:
    shown = screen_of(lrkv_plan.capacity(model, **asked).table)
    told = " ".join(shown.verdict)
    for width in (60, 80, 100, 120, 160):
        lines = draw(shown, width=width).splitlines()
        assert all(len(line) <= width for line in lines), width
        for part in parts(told):
            assert any(part in line for line in lines), (width, part)
        assert draw(shown, width=width) == re.sub(
            r"\x1b\[\d+m", "", draw(shown, width=width, color=True)
        )


@pytest.mark.parametrize(("model", "asked"), CASES, ids=lambda case: str(case)[:60])
def test_the_next_command_runs(model: Any, asked: dict[str, Any]) -> None:
    for words in screen_of(lrkv_plan.capacity(model, **asked).table).following:
        told = CliRunner().invoke(app, [*words[1:], "-q", "-f", "json"])
        assert told.exit_code == 0, told.output
