"""Pipeline stages of stated layers, on GPUs of several kinds, and over several domains."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import ArgumentError, PlacementError, PlanError, UsageError
from lrkv_plan.serving.engine import stage_models
from lrkv_plan.serving.engines.llama_cpp import split_layers
from lrkv_plan.specs.deployment import Parallelism

LLAMA = "llama-3.1-8b"
MIXED = "1xrtx-5090+1xrtx-4090"
LAYER, TABLE, NORM = 218_112_000, 128_256 * 4096, 4096  # parameters
ROW = 2 * 8 * 128 * 2  # bytes of a token in a layer


def asked(gpu: str = MIXED, **told: Any) -> dict[str, Any]:
    (row,) = lrkv_plan.capacity(LLAMA, gpu=gpu, **{"engine": "ideal", **told}).rows
    return dict(row)


def visible(gpu: str) -> int:
    found = lrkv_plan.load_gpu(gpu).mem_visible_bytes
    assert found is not None
    return found


def test_each_stage_lies_on_its_own_gpu_by_hand() -> None:
    row = asked(pp_layers="20,12")
    # The first stage has the embedding, the last one the head and the final norm.
    left = (
        visible("rtx-5090") - 2 * (20 * LAYER + TABLE),
        visible("rtx-4090") - 2 * (12 * LAYER + TABLE + NORM),
    )
    fit = [left[0] // (20 * ROW * 8192), left[1] // (12 * ROW * 8192)]
    assert [stage["kv_budget_bytes_per_gpu"] for stage in row["stages"]] == list(left)
    assert [stage["max_sequences"] for stage in row["stages"]] == fit == [35, 47]
    assert [(stage["gpu"], stage["n_layers"]) for stage in row["stages"]] == [
        ("rtx-5090", 20), ("rtx-4090", 12),
    ]  # fmt: skip
    assert (row["max_sequences"], row["binding_stage"], row["pp_layers"]) == (35, 0, [20, 12])
    assert row["kv_budget_bytes_per_gpu"] == left[0]
    assert (row["gpu"], row["n_gpus"], row["pp_size"]) == ("1xrtx-5090+1xrtx-4090", 2, 2)


def test_the_other_stage_binds_where_it_has_more_layers() -> None:
    row = asked(pp_layers=[12, 20])
    assert row["binding_stage"] == 1
    assert row["max_sequences"] == row["stages"][1]["max_sequences"] < asked()["max_sequences"]
    verdict = lrkv_plan.capacity(LLAMA, gpu=MIXED, pp_layers="12,20").verdict
    assert "Stage 2 binds, 20 layers on RTX 4090" in verdict


def test_the_equations_are_the_binding_stages() -> None:
    found = lrkv_plan.capacity(LLAMA, gpu=MIXED, pp_layers="12,20", engine="ideal")
    assert "20 layers x (key 8 x 128 x 2 B + value 8 x 128 x 2 B) = 81,920 B/token" in (
        found.explain(0)
    )


def test_without_layers_stages_are_even_and_of_an_engine_with_a_rule_of_its_own_not() -> None:
    assert [stage["n_layers"] for stage in asked()["stages"]] == [16, 16]
    assert asked()["pp_layers"] is None
    row = asked(engine="llama_cpp")
    assert row["pp_layers"] == [19, 13]  # of 33 with the output: 31.36 of 55.0 GiB are 18.8


def test_llama_cpp_splits_by_memory_with_the_output_as_one_more_layer() -> None:
    # Layers 0 to 32 of 33, the output last, at i / 33: those below one half are 0 to 16.
    assert split_layers(32, (1, 1)) == (17, 15)
    assert split_layers(4, (3, 1)) == (4, 0)  # 0, 1/5, 2/5, 3/5 are below 3/4, the output is not


def test_stages_of_one_kind_take_stated_layers_too() -> None:
    row = asked("2xrtx-4090", pp_layers="14,18")
    assert [stage["gpu"] for stage in row["stages"]] == ["rtx-4090", "rtx-4090"]
    assert row["binding_stage"] == 1
    even = asked("2xrtx-4090", pp_layers="16,16")
    assert even["max_sequences"] == asked("2xrtx-4090", pp_size=2)["max_sequences"]


def test_a_tensor_parallel_stage_takes_several_gpus_of_one_kind() -> None:
    row = asked("2xrtx-5090+2xrtx-4090", tp_size=2, pp_layers="20,12")
    assert (row["n_gpus"], row["pp_size"], row["tp_size"]) == (4, 2, 2)
    alone = asked(pp_layers="20,12")
    assert row["max_sequences"] > 2 * alone["max_sequences"]  # half the weights on each


def test_state_slots_are_those_of_the_stage_with_the_fewest() -> None:
    found = lrkv_plan.capacity(
        "qwen3-next-80b-a3b", gpu="1xh200+1xh100-sxm", engine="sglang", weight_dtype="fp8",
        context_tokens=8192, pp_layers="28,20", detail=True,
    ).rows  # fmt: skip
    slots = {row["provenance"].split(" slots")[0] for row in found if row["term"] == "state slots"}
    assert len(slots) == 1  # both stages hold as many


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"pp_layers": "20,20"}, "add up to 40, but the model has 32 layers"),
        ({"pp_layers": "20,12,0"}, "whole number"),
        ({"pp_layers": "20,6,6"}, "2 stages of --tp-size 1, not 3"),
        ({"pp_layers": "20,12", "pp_size": 3}, "2 stages, but pp_size is 3"),
        ({"tp_size": 2}, "no whole stages of --tp-size 2"),
        ({"dp_size": 2, "pp_size": 2}, "leave --dp-size out"),
        ({"pp_layers": "20,12", "weights": "5 GiB"}, "leave it out to have each stage counted"),
        ({"tpot_ms": 30}, "times of stages that differ"),
        ({"n_gpus": 2}, "says how many already"),
        ({"gpu": "1xh100-sxm+1xmi300x", "engine": "vllm"}, "GPUs of one vendor"),
        ({"min_gpus": True}, "searches for their number"),
        ({"gpu": "1xrtx-5090+"}, "write GPUs with a plus between"),
        ({"gpu": "rtx-4090", "engine": "lmdeploy", "pp_layers": "20,12"}, "lmdeploy"),
        ({"gpu": "2xrtx-4090", "engine": "mlx", "pp_layers": "20,12"}, "deals layers out evenly"),
        ({"gpu": "2xrtx-4090", "pp_layers": "20,12", "tpot_ms": 30}, "times of stages that differ"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        asked(**told)
    assert isinstance(caught.value, PlacementError | UsageError)


def test_only_capacity_joins_gpus() -> None:
    for question in (lrkv_plan.plan, lrkv_plan.step_time):
        with pytest.raises(ArgumentError, match="a plus joins GPUs of one deployment"):
            question(LLAMA, gpu=MIXED)


def test_a_comma_lists_alternatives_and_a_plus_joins() -> None:
    rows = lrkv_plan.capacity(LLAMA, gpu=f"{MIXED},h100-sxm", engine="ideal").rows
    assert {row["gpu"] for row in rows} == {MIXED, "h100-sxm"}


def test_the_longest_context_is_the_smallest_stages() -> None:
    found = lrkv_plan.capacity(
        LLAMA, gpu="1xh100-sxm+1xmi300x", pp_layers="12,20", engine="llama_cpp", max_context=True
    )
    (row,) = found.rows
    assert row["pool_context_tokens"] == min(
        stage["kv_budget_bytes_per_gpu"] // (stage["n_layers"] * ROW * 256) * 256
        for stage in row["stages"]
    )  # in cells of 256 tokens


def test_cross_attention_stays_with_the_layer_that_it_shares() -> None:
    whisper = lrkv_plan.load_model("whisper-large-v3")
    halves = stage_models(whisper, Parallelism(pp_size=2))
    assert [[group.count for group in half.layers] for half in halves] == [[16, 16], [16, 16]]


def test_the_price_is_that_of_all_gpus() -> None:
    found = lrkv_plan.capacity(LLAMA, gpu="1xh100-sxm+1xh200", engine="ideal")
    prices = [lrkv_plan.load_gpu(one).hourly_price for one in ("h100-sxm", "h200")]
    both = sum(price.usd for price in prices if price is not None)
    (row,) = found.rows
    assert row["usd_per_sequence_hour"] * row["total_sequences"] == pytest.approx(both)


def test_every_engine_is_told_its_layers_in_its_own_words() -> None:
    def words(engine: str) -> str:
        told = asked("2xh100-sxm", engine=engine, pp_layers="20,12", launch=True)
        return str(told["launch"])

    assert words("vllm").startswith("env VLLM_PP_LAYER_PARTITION=20,12 vllm serve")
    assert words("sglang").startswith("env SGLANG_PP_LAYER_PARTITION=20,12 python")
    # Ratios over 33 places: the output is the last GPU's.
    assert "--split-mode layer --tensor-split 20,13" in words("llama_cpp")
    with pytest.raises(UsageError, match="no words for --pp-layers"):
        words("tensorrt_llm")


def test_a_layout_beyond_one_domain_says_so() -> None:
    def said(**told: Any) -> list[str]:
        notes = lrkv_plan.capacity(LLAMA, gpu="h100-sxm", **told).notes
        return [str(note) for note in notes if " domains of " in str(note)]

    (wide,) = said(tp_size=16)
    assert "--tp-size 16 takes 2 domains of 8 h100-sxm" in wide
    assert "ConnectX-7" in wide
    (deep,) = said(tp_size=8, pp_size=2)
    assert "a replica of 16 GPUs takes 2 domains" in deep
    assert said(tp_size=8) == []
    assert said(tp_size=4, pp_size=2) == []
