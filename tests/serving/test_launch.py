"""``--launch``: each engine's own command line, and what it has no words for."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import UsageError
from lrkv_plan.serving.engine import built_in_engines

LLAMA = "llama-3.1-8b"
SERVERS = {
    "vllm", "vllm_v0", "vllm_ascend", "sglang", "tensorrt_llm", "llama_cpp", "ik_llama_cpp",
}  # fmt: skip


def launch(**told: Any) -> list[str]:
    asked = {"gpu": "h100-sxm", "context_tokens": "8k", "launch": True, **told}
    (row,) = lrkv_plan.capacity(LLAMA, **asked).rows
    return shlex.split(row["launch"])


def test_every_server_has_a_command_line() -> None:
    records = built_in_engines()
    assert {name for name, record in records.items() if record.launch is not None} == SERVERS


def test_vllm_is_told_the_answered_layout() -> None:
    (row,) = lrkv_plan.capacity(LLAMA, gpu="4xh100-sxm", tp_size=4, launch=True).rows
    assert row["launch"] == (
        "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 4 --max-model-len 8192 "
        f"--max-num-seqs {row['max_sequences']} --max-num-batched-tokens 8192 "
        "--kv-cache-dtype auto --gpu-memory-utilization 0.92"
    )


def test_vllms_options_by_name() -> None:
    words = launch(
        kv_dtype="fp8", weight_dtype="fp8", utilisation=0.85, page_tokens=32, prefix_cache=True,
        max_batched_tokens=4096,
    )  # fmt: skip
    for option in (
        "--kv-cache-dtype fp8", "--quantization fp8", "--gpu-memory-utilization 0.85",
        "--block-size 32", "--enable-prefix-caching", "--max-num-batched-tokens 4096",
    ):  # fmt: skip
        assert option in " ".join(words)
    stated = launch(kv_memory="40 GiB", gpu=None)
    assert stated[-2:] == ["--kv-cache-memory-bytes", str(40 * 2**30)]


def test_experts_are_shared_over_all_gpus_or_none() -> None:
    told = {"gpu": "8xh200", "tp_size": 2, "dp_size": 4, "launch": True, "context_tokens": "8k"}
    (row,) = lrkv_plan.capacity("qwen3-30b-a3b", ep_size=8, **told).rows
    assert "--data-parallel-size 4 --enable-expert-parallel" in row["launch"]
    with pytest.raises(UsageError, match="no words for --ep-size 2"):
        lrkv_plan.capacity("qwen3-30b-a3b", ep_size=2, **told)


def test_vllms_older_engine_is_asked_for() -> None:
    assert launch(engine="vllm@0.6.3")[:2] == ["vllm", "serve"]
    assert launch(engine="vllm_v0@0.9.1")[:3] == ["env", "VLLM_USE_V1=0", "vllm"]
    with pytest.raises(UsageError, match=r"known from 0\.6 on"):
        launch(engine="vllm@0.4.1")


def test_sglang() -> None:
    words = launch(engine="sglang", kv_dtype="fp8")
    assert words[:5] == [
        "python", "-m", "sglang.launch_server", "--model-path", "meta-llama/Llama-3.1-8B",
    ]  # fmt: skip
    told = dict(zip(words[5::2], words[6::2], strict=True))
    assert told["--kv-cache-dtype"] == "fp8_e4m3"
    assert told["--context-length"] == "8192"
    assert told["--mem-fraction-static"] == "0.88"


def test_tensorrt_llm() -> None:
    words = launch(engine="tensorrt_llm", kv_dtype="fp8")
    assert words[:2] == ["trtllm-serve", "meta-llama/Llama-3.1-8B"]
    told = dict(zip(words[2::2], words[3::2], strict=True))
    assert told["--max_seq_len"] == "8192"
    assert told["--kv_cache_dtype"] == "fp8"
    assert told["--kv_cache_free_gpu_memory_fraction"] == "0.9"


def test_llama_cpp_asks_for_the_cells_of_all_sequences() -> None:
    words = launch(engine="llama_cpp", gpu="rtx-4090", kv_dtype="q8_0")
    told = dict(zip(words[1::2], words[2::2], strict=True))
    assert int(told["--ctx-size"]) == 8192 * int(told["--parallel"])
    assert told["--cache-type-k"] == told["--cache-type-v"] == "q8_0"


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ({"engine": "ideal"}, "ideal is a rule, not a server"),
        ({"engine": "paged"}, "paged is a rule, not a server"),
        ({"draft_layers": 1}, "no words for --draft-layers"),
        ({"kv_dtype": "q8_0"}, "no words for --kv-dtype q8_0: it takes bf16, fp16, fp8"),
        ({"weight_dtype": "int4"}, "no words for --weight-dtype int4"),
        ({"engine": "vllm@0.9.1", "kv_memory": "9 GiB"}, "--kv-cache-memory-bytes came with 0.11"),
        ({"engine": "sglang", "kv_memory": "9 GiB"}, "no words for --kv-memory"),
        ({"engine": "tensorrt_llm", "page_tokens": 64}, "no words for --page-tokens"),
        ({"engine": "tensorrt_llm", "dp_size": 2}, "no words for --dp-size"),
        ({"engine": "tensorrt_llm@1.0", "kv_dtype": "fp8"}, "before 1.2 a YAML file states it"),
        ({"engine": "llama_cpp", "kv_memory": "9 GiB"}, "asks for cells, not for bytes"),
        ({"attention": "mqa"}, "attention: engines serve the checkpoint's own design"),
    ],
)
def test_what_an_engine_cannot_say_is_an_error(told: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        launch(**told)
    assert message in str(caught.value)


def test_nothing_that_does_not_fit_is_launched() -> None:
    (row,) = lrkv_plan.capacity("llama-3.1-70b", gpu="l40s", launch=True).rows
    assert row["max_sequences"] == 0
    assert row["launch"] is None


def test_a_plan_launches_its_own_design() -> None:
    rows = lrkv_plan.plan(LLAMA, gpu="2xh100-sxm", launch=True, batch_size=16).rows
    assert "--tensor-parallel-size" in rows[0]["launch"]
    assert "--max-num-seqs 16" in rows[0]["launch"]
    assert {row["launch"] for row in rows[1:]} == {None}
