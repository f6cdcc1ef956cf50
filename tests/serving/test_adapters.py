"""Slots for adapters, each linear layer by hand."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import ArgumentError, UsageError

RANK_BYTES = 16 * 2  # of the default rank, in bf16


def slots(model: str = "llama-3.1-8b", **told: Any) -> list[tuple[int, int, int]]:
    """Bytes of the slots on each stage: least, expected, most."""
    default = {"gpu": "h100-sxm", "max_loras": 1}
    rows = lrkv_plan.capacity(model, **(default | told), detail=True).rows
    return [
        (-row["high_bytes"], -row["n_bytes"], -row["low_bytes"])
        for row in rows if row["term"] == "LoRA slots"
    ]  # fmt: skip


# Inputs and outputs of one layer: query and output, key and value, gate and up, down.
ATTENTION = 2 * (4096 + 4096) + 2 * (4096 + 1024)
BLOCK = 2 * (4096 + 14_336) + (14_336 + 4096)


def test_every_linear_layer_by_hand() -> None:
    each = 32 * (ATTENTION + BLOCK) * RANK_BYTES
    tables = 2 * (128_256 + 4096) * RANK_BYTES  # embedding and head, where the class has them
    assert slots() == [(each, each, each + tables)]
    assert each == 83_886_080
    (eight,) = slots(max_loras=8, max_lora_rank=64)
    assert eight == (32 * each, 32 * each, 32 * (each + tables))


def test_tensor_parallel_slots_by_hand() -> None:
    # Outputs of query, key, value, gate and up are dealt out, inputs of output and down.
    query = 4096 + 4096 // 4
    attention = 2 * query + 2 * (4096 + 1024 // 4)
    block = 2 * (4096 + 14_336 // 4) + (14_336 // 4 + 4096)
    (low, each, high) = slots(tp_size=4)[0]
    assert low == each == 32 * (attention + block) * RANK_BYTES
    assert high - each == 2 * (128_256 + 4096) * RANK_BYTES  # whole vocabularies on every GPU


def test_stages_have_their_own_layers() -> None:
    each = (ATTENTION + BLOCK) * RANK_BYTES
    table = (128_256 + 4096) * RANK_BYTES
    assert slots(pp_size=2, pp_layers="20,12") == [
        (20 * each, 20 * each, 20 * each + table), (12 * each, 12 * each, 12 * each + table),
    ]  # fmt: skip


def test_experts_have_a_pair_each_from_0_11_1_on() -> None:
    # qwen3-30b-a3b: d 2048, 48 layers, 32 heads of 128 and 4 of keys, 128 experts of 768.
    attention = 2 * (2048 + 4096) + 2 * (2048 + 512)
    gate_up, down = 2 * (2048 + 768), 768 + 2048
    experts = 128 * (gate_up + down) + 2048 + 128  # and the router
    (low, each, _) = slots("qwen3-30b-a3b")[0]
    assert each == 48 * (attention + experts) * RANK_BYTES
    assert each - low == 48 * 128 * 2048 * RANK_BYTES  # where gate and up are fused
    (_, before, _) = slots("qwen3-30b-a3b", engine="vllm@0.11.0")[0]
    assert before == 48 * attention * RANK_BYTES


def test_a_rank_alone_means_one_slot_and_no_slots_no_term() -> None:
    assert slots(max_loras=None, max_lora_rank=16) == slots()
    assert slots(max_loras=None) == []


def test_slots_are_told_to_the_engine() -> None:
    (row,) = lrkv_plan.capacity(
        "llama-3.1-8b", gpu="h100-sxm", max_loras=4, max_lora_rank=32, launch=True
    ).rows
    assert "--enable-lora --max-loras 4 --max-lora-rank 32" in row["launch"]


def test_what_cannot_be_honoured_is_refused() -> None:
    with pytest.raises(UsageError, match="--max-lora-rank 24: vLLM makes slots of rank 1, 8, 16"):
        slots(max_lora_rank=24)
    with pytest.raises(ArgumentError, match="the rules of sglang do not use it"):
        slots(engine="sglang")
    with pytest.raises(ArgumentError, match="states the pool"):
        lrkv_plan.capacity("llama-3.1-8b", kv_memory="10 GiB", max_loras=1)
