"""What the largest image and video of a model type are in tokens, which an engine profiles.

Defaults of the published preprocessors (transformers and vLLM's model code, 2026): 12,845,056
pixels at 28 x 28 a token, 16,777,216 at 32 x 32, or a fixed number of tokens an image.
"""

from __future__ import annotations

from typing import Any

from lrkv_plan.huggingface.fields import MAX_WIDTH, Fields

# Type -> tokens of an image, patches of a token, tokens of two frames of a video (None: a video is
# never larger than an image), the encoder's width, and the key that states it.
_QWEN2 = (16_384, 4, 16_384, 1280)
_QWEN3 = (16_384, 4, None, 1152)
_TYPES = {
    "qwen2_vl": (*_QWEN2, "embed_dim"), "qwen2_5_vl": (*_QWEN2, "hidden_size"),
    "qwen3_vl": (*_QWEN3, "hidden_size"), "qwen3_vl_moe": (*_QWEN3, "hidden_size"),
    "qwen3_5": (*_QWEN3, "hidden_size"), "qwen3_5_moe": (*_QWEN3, "hidden_size"),
    "gemma3": (256, 16, None, 1152, "hidden_size"), "gemma4": (280, 9, None, 1152, "hidden_size"),
}  # fmt: skip


def media_of(whole_file: Fields) -> dict[str, Any] | None:
    """``ModelSpec.media`` of a file with a vision part; None where it has none, or is not known."""
    known = _TYPES.get(whole_file.text("model_type") or "")
    vision = whole_file.value("vision_config")
    if known is None or not isinstance(vision, dict):
        return None
    image, patches, pair, width, key = known
    stated = vision.get(key)
    is_width = type(stated) is int and 0 < stated <= MAX_WIDTH
    return {
        "image_tokens": image, "patches_per_token": patches, "video_pair_tokens": pair,
        "encoder_dim": stated if is_width else width,
    }  # fmt: skip
