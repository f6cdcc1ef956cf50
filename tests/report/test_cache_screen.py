"""The screen of ``cache``: worked figures, several models, and what is more than rows."""

from __future__ import annotations

from pathlib import Path

import pytest

import lrkv_plan
from lrkv_plan.errors import ArgumentError, PlacementError, SpecError, UsageError
from lrkv_plan.questions.arguments import models_of
from lrkv_plan.report.screen import draw
from lrkv_plan.report.tables import screen_of
from lrkv_plan.specs.model import model_to_yaml
from tests.report.sums import evaluated

LLAMA, QWEN = "llama-3.1-8b", "qwen3-8b"
THREE = ["gqa:8", "mla:512+64", "lrkv:24"]


def lines_of(answer: lrkv_plan.Result, width: int = 80) -> list[str]:
    return draw(screen_of(answer.table), width=width).splitlines()


def test_the_verdict_is_what_a_user_costs_largest_first() -> None:
    answer = lrkv_plan.cache(LLAMA, attention=THREE, context_tokens="8k,128k")
    # 128 Ki tokens x 128 KiB = 16 GiB; LRKV 32 layers x 2 x (128 + 32 x 24) x 2 B = 112 KiB a token;
    # MLA 32 layers x 576 x 2 B = 36 KiB
    assert answer.verdict == (
        "A user with 128k tokens costs 16.0 GiB with gqa:8, 14.0 with lrkv:24, 4.50 with "
        "mla:512+64."
    )
    rows = [line.split() for line in lines_of(answer) if "GiB  " in line]
    assert rows[0][:9] == ["gqa:8", "own", "128", "100", "%", "25", "%", "1.00", "GiB"]
    assert [row[0] for row in rows] == ["gqa:8", "lrkv:24", "mla:512+64"]
    assert rows[2][1:6] == ["36", "28.1", "%", "7.03", "%"]
    assert [row[-1].count("█") for row in rows] == [16, 14, 4]


def test_several_models_are_one_row_each() -> None:
    answer = lrkv_plan.cache([LLAMA, QWEN], context_tokens="32k")
    assert answer.verdict == (
        "A user with 32k tokens costs 4.00 GiB with llama-3.1-8b, 4.50 with qwen3-8b."
    )
    assert answer.rows == lrkv_plan.cache(f"{LLAMA},{QWEN}", context_tokens="32k").rows
    assert [row["model"] for row in answer.rows] == [LLAMA, QWEN]
    # 36 layers x 2 x 8 x 128 x 2 B
    assert [row["bytes_per_token"] for row in answer.rows] == [131_072, 147_456]


def test_without_a_context_models_are_compared_at_one_that_all_have() -> None:
    answer = lrkv_plan.cache([LLAMA, "gpt2"])
    assert {row["context_tokens"] for row in answer.rows} == {1024}


def test_formats_and_sizes_are_rows_with_their_keys() -> None:
    answer = lrkv_plan.cache(LLAMA, kv_dtype="bf16,fp8", tp_size="1,2")
    told = [(row["kv_dtype"], row["tp_size"], row["cache_bytes_per_gpu"]) for row in answer.rows]
    assert told == [
        ("bf16", 1, 2**30), ("bf16", 2, 2**29), ("fp8", 1, 2**29), ("fp8", 2, 2**28),
    ]  # fmt: skip
    assert answer.inputs["kv_dtype"] == ["bf16", "fp8"]
    frame = answer.frame.set_index(["model", "kv_dtype", "tp_size", "context_tokens"])
    assert frame.index.is_unique
    assert answer.verdict == (
        "A user with 8k tokens costs 1.00 GiB with gqa:8 in bf16 at TP 1, 512 MiB with gqa:8 in "
        "bf16 at TP 2, 512 with gqa:8 in fp8 at TP 1, 256 with gqa:8 in fp8 at TP 2."
    )


def test_what_is_more_than_rows_is_said() -> None:
    def foot(model: str, **told: object) -> str:
        return " ".join(screen_of(lrkv_plan.cache(model, **told).table).foot)  # type: ignore[arg-type]

    assert "40 of 48 layers keep at most 1,024 tokens." in foot("gemma-3-12b")
    assert "layers keep" not in foot("gemma-3-12b", context_tokens=1024)
    assert "of state per user at any context" in foot("qwen3-next-80b-a3b")
    assert "8,052 B per token of sparse-index keys" in foot("deepseek-v3.2")
    assert "cross-attention over 750 encoder tokens" in foot("whisper-large-v3", encoder_tokens=750)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (LLAMA, {"attention": THREE, "tp_size": 2, "batch_size": 3}),
        ("gemma-3-12b", {"context_tokens": "8k"}),
        ("qwen3-next-80b-a3b", {"batch_size": 2}),
        ("whisper-large-v3", {}),
        ("deepseek-v3.2", {"kv_dtype": "fp8_ds_mla"}),
        (LLAMA, {"kv_dtype": "q8_0"}),
    ],
)
def test_explained_sums_give_the_rows(model: str, told: dict[str, object]) -> None:
    """Every product written out, multiplied and added again, is the row's own total."""
    answer = lrkv_plan.cache(model, **told)  # type: ignore[arg-type]
    for index, row in enumerate(answer.rows):
        held = answer.explain(index).splitlines()[1]
        sum_, total = held.strip().split(" = ")
        assert evaluated(sum_) == row["cache_bytes_per_gpu"]
        assert int(total.split(" ")[0].replace(",", "")) == row["cache_bytes_per_gpu"]
    tensors = lrkv_plan.cache(model, detail=True, **told)  # type: ignore[arg-type]
    for index, row in enumerate(tensors.rows):
        sum_ = tensors.explain(index).splitlines()[0].split(": ", 1)[1].split(" = ")[0]
        assert evaluated(sum_) == row["cache_bytes_per_gpu"]


def test_a_comma_lists_models_unless_a_file_has_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [text for text, _ in models_of(f"{LLAMA}, {QWEN}")] == [LLAMA, QWEN]
    (tmp_path / "a,b.yaml").write_text(model_to_yaml(lrkv_plan.load_model(LLAMA)))
    monkeypatch.chdir(tmp_path)
    assert [spec.name for _, spec in models_of("a,b.yaml")] == [LLAMA]


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        (f"{LLAMA},{LLAMA}", UsageError, "'llama-3.1-8b' stands twice"),
        (f"{LLAMA},,{QWEN}", UsageError, "write values with a comma between"),
        ([], UsageError, "write values with a comma between"),
        (f"{LLAMA},llama-3.1-8", SpecError, "perhaps llama-3.1-8b"),
    ],
)
def test_lists_that_mean_nothing_are_refused(
    model: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        models_of(model)  # type: ignore[arg-type]


def test_a_size_that_one_of_several_cannot_run_on_names_it() -> None:
    with pytest.raises(PlacementError, match=r"^lrkv-paper-2.5b: tp_size 4: 18 query heads"):
        lrkv_plan.cache([LLAMA, "lrkv-paper-2.5b"], tp_size=[1, 4])
    with pytest.raises(PlacementError, match=r"^tp_size 4: 18 query heads"):
        lrkv_plan.cache("lrkv-paper-2.5b", tp_size=4)


def test_formats_stand_once_each() -> None:
    with pytest.raises(ArgumentError, match="'bf16' stands twice"):
        lrkv_plan.cache(LLAMA, kv_dtype="bf16,bfloat16")
