"""The screen of a plan: the first answer in one line, one load per row, nothing overconfident."""

from __future__ import annotations

import re

import pytest

import lrkv_plan
from lrkv_plan.questions.result import Result
from lrkv_plan.report.screen import draw
from lrkv_plan.report.tables import screen_of

LLAMA = "llama-3.1-8b"


def shown(answer: Result, width: int = 80) -> list[str]:
    return draw(screen_of(answer.table), width=width).splitlines()


def row_of(answer: Result, design: str) -> dict[str, object]:
    return next(row for row in answer.rows if row["attention"] == design)


def test_the_first_sentence_answers() -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm", gpu_hour_usd=2.5)
    own = row_of(answer, "gqa:8")
    assert (own["total_sequences"], round(own["tokens_per_s"])) == (54, 2047)
    assert answer.verdict.startswith(
        "llama-3.1-8b keeps gqa:8 on one H100 SXM: 54 users of 8k tokens at 26.4 ms (22 to 34) "
        "a token, 2,047 tok/s, $0.34 per million tokens."
    )
    # 16 d_h... the same cache is 131,072 B: 2 x 32 x 2 x (128 + 32 r) <= 131,072 gives r = 28
    assert "rank 28; in steps of 16 rank 16, 88 users, time assumed" in answer.verdict


ROTATED = "lrkv:16,position=rope_expand"


def test_designs_that_take_the_same_are_one_row() -> None:
    # Rotated keys need no product for queries: 32 x (4.1 - 0.5) us of 28.39 ms, 0.4 %.
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm")
    times = {row["attention"]: row["tpot_s"] for row in answer.rows}
    assert 0.9955 < times[ROTATED] / times["lrkv:16"] < 0.9965
    text = draw(screen_of(answer.table), width=160)
    assert f"\n{ROTATED} is as lrkv:16, times within 1 %.\n" in text
    assert text.count("\nlrkv:16") == 2  # the row and that sentence


def test_designs_that_differ_or_were_asked_for_have_rows_of_their_own() -> None:
    # Alone it is 0.1 of 7.5 ms, 1.5 %.
    apart = lrkv_plan.plan(LLAMA, gpu="h100-sxm", batch_size=1)
    asked = lrkv_plan.plan(LLAMA, gpu="h100-sxm", attention=["lrkv:8", "lrkv:8,expansion=kernel"])
    for answer, design in ((apart, ROTATED), (asked, "lrkv:8,expansion=kernel")):
        text = draw(screen_of(answer.table), width=160)
        assert f"\n{design}  " in text
        assert f"{design} is as " not in text


def test_a_row_that_does_not_hold_the_batch_shows_no_time() -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm", batch_size=20)
    mha = row_of(answer, "mha")  # 13 fit
    assert (mha["tpot_s"], mha["time_basis"], mha["binds"]) == (None, None, "memory")
    (line,) = [line for line in shown(answer) if line.startswith("mha")]
    assert line.split() == ["mha", "512", "400", "%", "13", "-", "-", "-", "memory"]
    assert all(row["batch_size"] == 20 for row in answer.rows if row["tpot_s"])


def test_times_say_what_they_rest_on() -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm")
    bases = {row["attention"]: row["time_basis"] for row in answer.rows}
    # 18.9 of 26.4 ms are attention and 5.7 matrices, both measured on H100; 442 users of MQA cost
    # the engine 6.4 of 35.1 ms, which is fitted on whole steps of other runs.
    assert (bases["gqa:8"], bases["mqa"], bases["lrkv:16"]) == ("measured", "borrowed", "assumed")
    lines = shown(answer)
    assert next(line for line in lines if line.startswith("gqa:8")).count("●") == 1
    assert next(line for line in lines if line.startswith("mqa")).count("◐") == 1
    assert next(line for line in lines if line.startswith("lrkv:16")).count("○") == 1


def test_rows_stack() -> None:
    rows = lrkv_plan.plan(LLAMA, gpu="h100-sxm").rows
    for row in rows:
        assert (row["model"], row["gpu"], row["context_tokens"]) == (LLAMA, "h100-sxm", 8192)
        assert not [key for key, value in row.items() if isinstance(value, str) and " to " in value
                    and key != "against_own_design"]  # fmt: skip


@pytest.mark.parametrize("width", [60, 80, 100, 120, 160])
def test_no_number_is_broken_at_any_width(width: int) -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm", tpot_ms=24, gpu_hour_usd=2.5)
    lines = shown(answer, width)
    assert all(len(line) <= width for line in lines)
    text = "\n".join(lines)
    for row in answer.rows:
        if row["tpot_s"] is not None and not row["attention"].endswith("rope_expand"):
            low, high = (f"{1e3 * row[key]:.2g}" for key in ("tpot_low_s", "tpot_high_s"))
            assert re.search(rf"{1e3 * row['tpot_s']:.1f} \({low} to {high}\)", text), row


def test_explained_numbers_add_up() -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm", gpu_hour_usd=2.5)
    text = answer.explain(0)
    assert "32 layers x (key 8 x 128 x 2 B + value 8 x 128 x 2 B) = 131,072 B/token" in text
    parts = re.search(r"attention ([\d.]+) \+ matrices ([\d.]+) \+ small kernels ([\d.]+) \+ "
                      r"engine ([\d.]+) = ([\d.]+) ms", text)  # fmt: skip
    assert parts is not None
    *terms, total = map(float, parts.groups())
    assert sum(terms) == pytest.approx(total, rel=1e-3)
    each = re.findall(r"= ([\d.]+) ms  [●◐○]", text)  # of each term's own equation, in that order
    assert [float(one) for one in each] == pytest.approx(terms, rel=5e-3)
    assert "one GPU x $2.5 an hour / 3,600 s / 2,047 tok/s x 10^6 = $0.3393" in text
    assert answer.explain(answer.rows[0]) == text


def test_a_row_explains_what_it_assumes_and_no_other() -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm")
    plain, rotated = (answer.explain(row_of(answer, name)) for name in ("lrkv:16", ROTATED))
    for text in (plain, rotated):
        assert "all down-projections of a layer are fused into one matrix with the query" in text
    assert "queries and outputs are expanded in two batched products a layer" in plain
    assert "queries and outputs" not in rotated
    assert "outputs are expanded in one batched product a layer" in rotated
    assert "down-projections" not in answer.explain(0)


def test_an_unmeetable_target_is_said_and_timed_nowhere() -> None:
    answer = lrkv_plan.plan(LLAMA, gpu="h100-sxm", tpot_ms=1)
    assert "no user within 1 ms a token" in answer.verdict
    assert all(row["tpot_s"] is None and row["binds"] == "time" for row in answer.rows)


def test_the_next_command_runs() -> None:
    from shlex import split

    from typer.testing import CliRunner

    from lrkv_plan.cli.app import app

    lines = shown(lrkv_plan.plan(LLAMA, gpu="h100-sxm"))
    start = next(i for i, line in enumerate(lines) if line.startswith("Next: "))
    told = " ".join(line.removesuffix("\\") for line in lines[start:]).removeprefix("Next: ")
    done = CliRunner().invoke(app, split(told)[1:])
    assert done.exit_code == 0, done.output
