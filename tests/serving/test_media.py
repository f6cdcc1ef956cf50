"""What vLLM's start-up takes for a vision encoder, and the limits that change it."""

from __future__ import annotations

from typing import Any

import pytest

import lrkv_plan
from lrkv_plan.errors import UsageError
from lrkv_plan.serving.engine import engine_named
from lrkv_plan.serving.media import limits_of, profiled_items
from lrkv_plan.specs.model import Media
from lrkv_plan.units import GIB

QWEN = {
    "model_type": "qwen2_5_vl", "hidden_size": 2048, "num_hidden_layers": 36,
    "num_attention_heads": 16, "num_key_value_heads": 2, "intermediate_size": 11008,
    "vocab_size": 151936, "max_position_embeddings": 128000, "use_sliding_window": False,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "vision_config": {"depth": 32, "hidden_size": 1280},
}  # fmt: skip


def left_gib(**told: Any) -> float:
    """Cache memory of that model on an A100 of 40 GB, vLLM 0.10.2, weights as printed."""
    answer = lrkv_plan.capacity(
        QWEN, gpu="a100-sxm-40gb", engine="vllm@0.10.2", weights="6.99 GiB", detail=True, **told,
        context_tokens=128_000,
    )  # fmt: skip
    return sum(row["n_bytes"] for row in answer.rows if row["term"] != "cache") / GIB


def test_longest_video_and_images_only_as_printed() -> None:
    assert left_gib() == pytest.approx(5.26, abs=0.4)
    assert left_gib(limit_mm_per_prompt="video=0") == pytest.approx(25.05, abs=0.2)
    without = left_gib(limit_mm_per_prompt='{"image": 0, "video": 0}')
    assert without > 26


@pytest.mark.parametrize(
    ("version", "context", "tokens"),
    [
        ("vllm@0.10.2", 128_000, 7 * 16_384),  # 8 pairs would be 131,072
        ("vllm@0.10.2", 32_768, 16_384),  # two pairs fill the prompt, one is below it
        ("vllm@0.12.0", 1_000_000, 16 * 16_384),  # 32 frames
        ("vllm@0.20.0", 1_000_000, 7 * 16_384),  # 14 frames
    ],
)
def test_frames_stay_below_the_context(version: str, context: int, tokens: int) -> None:
    media = Media(
        image_tokens=16_384, patches_per_token=4, video_pair_tokens=16_384, encoder_dim=1280
    )
    found = profiled_items(
        media, engine_named(version), context_tokens=context, batched_tokens=8192,
        max_sequences=256, limits={},
    )  # fmt: skip
    assert found is not None
    assert found.tokens == tokens


def test_small_images_are_profiled_as_many_as_a_step_takes() -> None:
    media = Media(image_tokens=256, patches_per_token=16, encoder_dim=1152)
    told = {"context_tokens": 8192, "batched_tokens": 8192, "max_sequences": 256}
    many = profiled_items(media, engine_named("vllm"), limits={}, **told)
    few = profiled_items(media, engine_named("vllm"), limits={}, **{**told, "max_sequences": 4})
    assert many is not None
    assert few is not None
    assert (many.count, few.count) == (32, 4)
    assert many.n_bytes == 32 * 4096 * 53_000 * 1152 // 1280


@pytest.mark.parametrize(
    "text", ["image", "image=x", "{", "[1]", '{"image": -1}', "smell=1", "image=1;video=0"]
)
def test_limits_that_are_none_are_told(text: str) -> None:
    with pytest.raises(UsageError, match="write image=1,video=0"):
        limits_of(text)


def test_limits_are_refused_by_engines_without_a_profile() -> None:
    with pytest.raises(UsageError, match="the rules of sglang do not use it"):
        lrkv_plan.capacity(
            "llama-3.1-8b", gpu="h100-sxm", engine="sglang", limit_mm_per_prompt="image=1"
        )
