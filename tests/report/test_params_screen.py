"""Screens of ``params`` and ``shard``: totals, widths, what is repeated, and their sums."""

from __future__ import annotations

import re

import pytest

import lrkv_plan
from lrkv_plan.report.screen import draw
from lrkv_plan.report.tables import explained, screen_of
from tests.report.sums import evaluated

LLAMA, PAPER = "llama-3.1-8b", "lrkv-paper-2.5b"


def test_the_total_comes_first_and_then_the_width_that_restores_it() -> None:
    answer = lrkv_plan.params(LLAMA, attention=["gqa:8", "mha"], match_params=True)
    # MHA adds 32 x 2 x 4,096 x 3,072 = 805,306,368; a unit of width is 32 x 3 x 4,096 = 393,216,
    # so 2,048 units less
    assert screen_of(answer.table).verdict == (
        "llama-3.1-8b has 8.03B parameters with gqa:8, 8.84B with mha.",
        "The model's own count needs a feed-forward width of 12,288 (-2,048) with mha.",
    )
    assert "round(-805,306,368 / 393,216) = -2,048; left over +0" in answer.explain(1)


def test_what_is_not_stated_or_not_counted_is_said() -> None:
    paper = screen_of(lrkv_plan.params(PAPER, attention="lrkv:55").table).verdict
    assert paper[0] == "Keys and values take 97.3M with lrkv:55, 50.9 % of MHA's."
    assert paper[1].startswith("The whole model is unknown: feed_forward, vocab_size")
    vision = screen_of(lrkv_plan.params("gemma-3-12b").table)
    # 11,766,034,176 of the language model and 421,290,864 of the vision encoder and projector
    assert vision.verdict[0] == "gemma-3-12b has 12.2B parameters with gqa:8."
    assert not any(line.startswith("Not counted") for line in vision.foot)


def test_several_models_are_one_row_each_with_their_own_notes() -> None:
    answer = lrkv_plan.params([LLAMA, "deepseek-v3"])
    assert answer.verdict == "Parameters: 8.03B with llama-3.1-8b, 671B with deepseek-v3."
    assert [row["model"] for row in answer.rows] == [LLAMA, "deepseek-v3"]
    assert {note.subject for note in answer.notes} == {LLAMA, "deepseek-v3"}
    assert [model["name"] for model in answer.inputs["model"]] == [LLAMA, "deepseek-v3"]


@pytest.mark.parametrize(
    "model",
    [LLAMA, "deepseek-v3", "gpt-oss-20b", "whisper-large-v3", "gpt2", "qwen3-next-80b-a3b",
     "nemotron-h-56b", "gemma-3-1b", "llama-4-scout", "phi-2"],
)  # fmt: skip
def test_explained_sums_give_the_counts(model: str) -> None:
    answer = lrkv_plan.params(model)
    (row,) = answer.rows
    keys = {
        "K/V": "kv_params", "attention": "attention_params", "feed-forward": "feed_forward_params",
        "embeddings": "embedding_params", "norms": "norm_params", "parameters": "model_params",
        "recurrent": "recurrent_params", "encoders": "encoder_params",
    }  # fmt: skip
    checked = 0
    for line in answer.explain(0).splitlines():
        found = re.fullmatch(r"  (\S+): (.*) = ([0-9,]+)", line)
        if found and found[1] in keys:
            assert evaluated(found[2]) == row[keys[found[1]]] == int(found[3].replace(",", ""))
            checked += 1
    assert checked >= 5


def test_lines_that_designs_share_stand_under_each() -> None:
    answer = lrkv_plan.params(LLAMA, attention=["gqa:8", "mha"])
    told = explained(answer.table)
    assert sum(line.startswith("  embeddings: 2 x 128,256 x 4,096") for line in told) == 2


def test_contexts_of_one_design_share_their_equation() -> None:
    told = explained(lrkv_plan.cache(LLAMA, context_tokens="8k,16k").table)
    assert sum("= 131,072 B/token" in line for line in told) == 1
    assert sum("of MHA" in line for line in told) == 1
    assert sum("tokens x 4,096 B" in line for line in told) == 2


def test_a_placement_says_what_it_repeats() -> None:
    answer = lrkv_plan.shard("llama-2-7b", attention=["mha", "lrkv:54"], tp_size="4,5")
    # of 4 GPUs' 4 x 2 x (128 + 8 x 54) scalars a layer, 3 x 2 x 128 repeat the shared rows:
    # 768 / 4,480 = 17.1 %
    assert screen_of(answer.table).verdict == (
        "mha repeats nothing at TP 4; cannot run at TP 5.",
        "lrkv:54 repeats shared_key and shared_value: 17.1 % of all GPUs' cache at TP 4; cannot "
        "run at TP 5.",
    )
    assert "4 x 71,680 = 286,720 B on all GPUs" in answer.explain(2)
    notes = [str(note) for note in screen_of(answer.table).notes]
    assert all("cannot be dealt out evenly" in note for note in notes)
    assert len(notes) == 2
    assert {row["kv_dtype"] for row in answer.rows} == {"bf16"}


def test_a_refused_size_keeps_its_row() -> None:
    text = draw(screen_of(lrkv_plan.shard(PAPER, tp_size="2,4").table))
    assert re.search(r"mha +4  refused +-", text)
