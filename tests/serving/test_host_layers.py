"""llama.cpp's layers on the host, the embedding that is always there, and a tier of host memory."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import PlacementError, PlanError, UsageError

LLAMA = "llama-3.1-8b"
LAYER, TABLE, NORM = 218_112_000, 128_256 * 4096, 4096  # parameters
ROW = 2 * 8 * 128 * 2  # bytes of a token in a layer


def asked(model: str = LLAMA, **told: Any) -> dict[str, Any]:
    default = {"gpu": "rtx-4090", "engine": "llama_cpp", "kv_dtype": "fp16"}
    (row,) = lrkv_plan.capacity(model, **(default | told)).rows
    return dict(row)


def weights(model: str = LLAMA, **told: Any) -> int:
    default = {"gpu": "rtx-4090", "engine": "llama_cpp", "kv_dtype": "fp16"}
    rows = lrkv_plan.capacity(model, **(default | told), detail=True).rows
    (term,) = [row["n_bytes"] for row in rows if row["term"] == "weights"]
    return -int(term)


def test_token_embeddings_are_the_hosts() -> None:
    assert weights() == 2 * (32 * LAYER + TABLE + NORM)  # the head's table alone
    # A table that is both stays on the host and its copy, the head, is on the GPU.
    tied = lrkv_plan.load_model("llama-3.2-1b")
    assert tied.tied_embeddings
    assert weights("llama-3.2-1b") == 2 * 1_235_814_400  # as many bytes as the checkpoint's
    assert weights(weights="9 GiB") == 9 * 2**30  # as known


def test_weights_are_as_llama_cpp_prints_them() -> None:
    # Q4_K_M of Llama-3.1-8B, 33 of 33 layers: "CUDA0 model buffer size = 4403.49 MiB", beside
    # 281.81 MiB on the CPU. Its 65 norms of 4,096 have 4 bytes there, 2 here.
    found = weights(gpu="rtx-3090", weight_dtype="q4_k_m") + 65 * 4096 * 2
    assert f"{found / 2**20:.2f}" == "4403.49"


def test_where_there_is_no_other_memory_embeddings_count() -> None:
    assert weights(gpu="apple-m4-max") == 2 * (32 * LAYER + 2 * TABLE + NORM)


def test_the_output_and_the_last_layers_are_on_the_gpu() -> None:
    row = asked(n_gpu_layers=20)  # the output and layers 13 to 31
    assert weights(n_gpu_layers=20) == 2 * (19 * LAYER + TABLE + NORM)
    assert row["bytes_per_token_per_gpu"] == 19 * ROW
    assert row["host_weight_bytes"] == 2 * 13 * LAYER
    assert row["host_bytes_per_sequence"] == 13 * ROW * 8192
    whole = asked()
    assert row["max_sequences"] > whole["max_sequences"]
    assert whole["host_weight_bytes"] is whole["host_bytes_per_sequence"] is None
    for all_of_them in (33, 999):
        assert asked(n_gpu_layers=all_of_them) == {**whole, "try": whole["try"]}


def test_layers_on_the_gpus_are_split_over_them() -> None:
    row = asked(gpu="2xrtx-4090", pp_size=2, n_gpu_layers=21, pp_layers="12,8")
    assert [stage["n_layers"] for stage in row["stages"]] == [12, 8]
    with pytest.raises(PlacementError, match="the model has 20 layers"):
        asked(gpu="2xrtx-4090", n_gpu_layers=21, pp_layers="20,12")


def test_what_the_engine_is_told() -> None:
    told = asked(n_gpu_layers=20, kv_offload="8 GiB", launch=True)["launch"]
    assert "--n-gpu-layers 20" in told
    assert "--cache-ram 8192" in told
    assert "--n-gpu-layers 999" in asked(launch=True)["launch"]


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"n_gpu_layers": 1}, "from 2 to 33"),
        ({"n_gpu_layers": 20, "engine": "vllm"}, "the rules of vllm do not use it"),
        ({"n_gpu_layers": 20, "tpot_ms": 30}, "layers on the host are not predicted"),
        ({"kv_offload": "8 GiB", "engine": "exllama"}, "the rules of exllama do not use it"),
    ],
)
def test_what_cannot_be_answered_is_refused(told: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        asked(**told)


def test_weights_that_vllm_leaves_on_the_host() -> None:
    told = {"engine": "vllm", "kv_dtype": "bf16"}
    plain, less, least = (
        asked(**told, **more)["kv_budget_bytes_per_gpu"]
        for more in ({}, {"cpu_offload_gb": 4.5}, {"cpu_offload_gb": 100})
    )
    assert less - plain == 4.5 * 2**30
    assert least - plain == 2 * (32 * LAYER + NORM)  # embedding and head stay
    launched = asked(**told, cpu_offload_gb=4.5, launch=True)["launch"]
    assert "--cpu-offload-gb 4.5" in launched
    with pytest.raises(UsageError, match="layers on the host are not predicted"):
        asked(**told, cpu_offload_gb=1, tpot_ms=30)
    with pytest.raises(PlanError, match="the rules of sglang do not use it"):
        asked(engine="sglang", cpu_offload_gb=1)


def test_contexts_that_the_host_keeps_by_hand() -> None:
    row = asked(engine="vllm", kv_dtype="bf16", kv_offload="64 GiB", weight_dtype="fp8")
    each = 32 * ROW * 8192  # 1 GiB
    assert row["offload_bytes_per_sequence"] == each == 2**30
    assert row["offload_sequences"] == 64
    assert row["offload_restore_s"] == each / 32e9  # PCIe 4.0 x16
    assert asked(engine="vllm", weight_dtype="fp8", kv_dtype="bf16")["offload_sequences"] is None


def test_every_gpu_of_a_replica_copies_its_own_part() -> None:
    row = asked(gpu="4xh100-sxm", engine="vllm", kv_dtype="bf16", tp_size=2, kv_offload="64 GiB")
    assert row["offload_bytes_per_sequence"] == 2**30
    assert row["offload_sequences"] == 2 * 64  # two replicas
    assert row["offload_restore_s"] == 2**29 / 64e9
    latent = asked("deepseek-v3", gpu="8xh200", engine="vllm", tp_size=8, kv_dtype="bf16",
                   weight_dtype="fp8", kv_offload="64 GiB")  # fmt: skip
    assert latent["offload_bytes_per_sequence"] == 8 * 61 * 576 * 2 * 8192  # a copy on each


def test_tokens_that_the_host_keeps() -> None:
    # LMCache/LMCache#2901: 50 GiB hold 409,600 tokens at TP 1, and twice that in all at TP 2.
    row = asked(engine="vllm", gpu="h100-sxm", kv_dtype="bf16", kv_offload="50 GiB")
    assert row["offload_tokens"] == 409_600
    row = asked("gemma-3-12b", engine="vllm", gpu="h100-sxm", kv_dtype="bf16", kv_offload="50 GiB")
    assert row["offload_tokens"] is None  # windows do not grow


def test_an_unknown_link_is_said_not_guessed() -> None:
    found = lrkv_plan.capacity(LLAMA, gpu="b200", kv_offload="64 GiB")
    (row,) = found.rows
    assert (row["offload_sequences"], row["offload_restore_s"]) == (64, None)
    assert "is not known: the GPU's profile states no host_link" in " ".join(found.verdict.split())


def test_sglang_is_told_each_ranks_part() -> None:
    told = asked(engine="sglang", gpu="2xh100-sxm", tp_size=2, kv_dtype="bf16", launch=True,
                 kv_offload="200 GB")["launch"]  # fmt: skip
    assert "--enable-hierarchical-cache --hicache-size 100" in told
    assert (
        "--kv-offloading-size 64"
        in asked(engine="vllm", gpu="h100-sxm", kv_dtype="bf16", kv_offload="64 GiB", launch=True)[
            "launch"
        ]
    )
    with pytest.raises(UsageError, match=r"came with 0\.12"):
        asked(engine="vllm@0.11", gpu="h100-sxm", kv_dtype="bf16", kv_offload="64 GiB", launch=True)
