"""What the largest image and video of a model type are in tokens, which an engine profiles.

Defaults of the published preprocessors (transformers and vLLM's model code, 2026): 12,845,056
pixels at 28 x 28 a token, 16,777,216 at 32 x 32, a fixed number of tokens an image, or the largest
image as the file and its preprocessor size it.
"""

from __future__ import annotations

from collections.abc import Callable
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
_LLAMA4_TILES = 16 + 1  # max_patches of its preprocessor, and the whole image
_INTERNVL_TILES = 12  # max_dynamic_patch


def media_of(whole_file: Fields) -> dict[str, Any] | None:
    """``ModelSpec.media`` of a file with a vision part; None where it has none, or is not known."""
    name = whole_file.text("model_type") or ""
    vision = whole_file.value("vision_config")
    if not isinstance(vision, dict):
        return None
    if name in _SIZED:
        part = Fields(vision, whole_file.path, "vision_config.")
        return _SIZED[name](part, whole_file)
    known = _TYPES.get(name)
    if known is None:
        return None
    image, patches, pair, width, key = known
    return {
        "image_tokens": image, "patches_per_token": patches, "video_pair_tokens": pair,
        "encoder_dim": _stated(vision, key) or width,
    }  # fmt: skip


def _stated(vision: dict[str, Any], key: str) -> int | None:
    stated = vision.get(key)
    return stated if type(stated) is int and 0 < stated <= MAX_WIDTH else None


def _side(vision: Fields, image: int, patch: int) -> int:
    """Patches along a side of the largest image, which may be given as a list."""
    sizes = []
    for key, usual in (("image_size", image), ("patch_size", patch)):
        value = vision.value(key)
        side = value[0] if isinstance(value, list) and value else value
        sizes.append(side if type(side) is int and 0 < side <= MAX_WIDTH else usual)
    return max(1, sizes[0] // sizes[1])


def _sized(vision: Fields, tokens: int, patches: int, width: int) -> dict[str, Any]:
    return {
        "image_tokens": max(1, tokens), "patches_per_token": patches, "video_pair_tokens": None,
        "encoder_dim": _stated(vision.data, "hidden_size") or width,
    }  # fmt: skip


def _mistral3(vision: Fields, whole: Fields) -> dict[str, Any]:
    """Up to 1,540 pixels a side, s x s patches to a token: (1,540 / 28)^2 = 3,025."""
    merge = whole.integer("spatial_merge_size", most=MAX_WIDTH) or 2
    side = _side(vision, 1540, 14) // merge
    return _sized(vision, side**2, merge**2, 1024)


def _llava(vision: Fields, whole: Fields) -> dict[str, Any]:  # noqa: ARG001
    """A token of each patch: 24^2 of CLIP at 336 pixels, 64^2 of Pixtral at 1,024."""
    is_pixtral = vision.text("model_type") == "pixtral"
    side = _side(vision, 1024, 16) if is_pixtral else _side(vision, 336, 14)
    return _sized(vision, side**2, 1, 1024)


def _internvl(vision: Fields, whole: Fields) -> dict[str, Any]:
    """Tiles of 448 pixels and a thumbnail, four patches to a token: 13 x 256."""
    tiles = whole.integer("max_dynamic_patch", most=MAX_WIDTH) or _INTERNVL_TILES
    tiles += whole.flag("use_thumbnail", default=True)
    return _sized(vision, tiles * (_side(vision, 448, 14) ** 2 // 4), 4, 1024)


def _llama4(vision: Fields, whole: Fields) -> dict[str, Any]:  # noqa: ARG001
    """17 tiles of 336 pixels, four patches to a token: 17 x 144."""
    return _sized(vision, _LLAMA4_TILES * (_side(vision, 336, 14) ** 2 // 4), 4, 1408)


def _mllama(vision: Fields, whole: Fields) -> dict[str, Any]:  # noqa: ARG001
    """4 tiles of 560 pixels with a class token each: 4 x 1,601."""
    tiles = vision.integer("max_num_tiles", most=MAX_WIDTH) or 4
    return _sized(vision, tiles * (_side(vision, 560, 14) ** 2 + 1), 1, 1280)


_SIZED: dict[str, Callable[[Fields, Fields], dict[str, Any]]] = {
    "mistral3": _mistral3, "llava": _llava, "internvl": _internvl, "internvl_chat": _internvl,
    "llama4": _llama4, "mllama": _mllama,
}  # fmt: skip
