"""Encoders beside the language model of a config.json: their parameters, projector included.

One function per family, from the modelling code of Hugging Face transformers; each closes to the
last parameter on a published total. h is the encoder's width, i its feed-forward's, D the model's.
What a file leaves out is taken from the published checkpoints of its type, and said.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lrkv_plan.huggingface.fields import MAX_LAYERS, MAX_WIDTH, Fields

VISION = "vision encoder and projector"


class _Shape:
    """Reads the shape of one encoder and remembers what the file left out."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.taken: list[str] = []

    def of(self, key: str, published: int, *, most: int = MAX_WIDTH) -> int:
        stated = self.fields.integer(key, most=most)
        if stated is None:
            self.taken.append(f"{key} {published:,}")
        return published if stated is None else stated

    def layers(self, key: str, published: int) -> int:
        return self.of(key, published, most=MAX_LAYERS)


def _attention(h: int) -> int:
    """Four square matrices with a bias each."""
    return 4 * h * h + 4 * h


def _mlp(h: int, i: int) -> int:
    """Two matrices with a bias each."""
    return 2 * h * i + i + h


def _layer_norm_block(h: int, i: int) -> int:
    """Attention and feed-forward with biases, and two norms with biases."""
    return _attention(h) + _mlp(h, i) + 4 * h


def _merger(h: int, width: int) -> int:
    """Four patches to one row: two matrices with biases, without the norm before them."""
    return 16 * h * h + 4 * h + 4 * h * width + width


def _made(shape: _Shape, key: str, width: int) -> int:
    """The width of the rows that the merger makes: stated, else the language model's."""
    return shape.fields.integer(key, most=MAX_WIDTH) or width


def _gemma3(shape: _Shape, width: int) -> int:
    """SigLIP and a projector h D with its norm."""
    h, i, n = shape.of("hidden_size", 1152), shape.of("intermediate_size", 4304), 27
    n = shape.layers("num_hidden_layers", n)
    patch, image = shape.of("patch_size", 14), shape.of("image_size", 896)
    embedding = 3 * patch**2 * h + h + (image // patch) ** 2 * h
    pooled = shape.fields.flag("vision_use_head") * (h + _attention(h) + 2 * h + _mlp(h, i))
    return embedding + n * _layer_norm_block(h, i) + 2 * h + pooled + h * width + h


def _gemma4(shape: _Shape, width: int) -> int:
    """Gated blocks with four norms and norms of query and key, positions along both axes."""
    h, i = shape.of("hidden_size", 1152), shape.of("intermediate_size", 4304)
    n, patch = shape.layers("num_hidden_layers", 27), shape.of("patch_size", 16)
    head_dim, positions = shape.of("head_dim", 72), shape.of("position_embedding_size", 10_240)
    layer = 4 * h * h + 2 * head_dim + 3 * h * i + 4 * h
    return 3 * patch**2 * h + 2 * positions * h + n * layer + h * width


def _mistral3(shape: _Shape, width: int) -> int:
    """Pixtral without biases; norm, merging of four patches and two matrices project it."""
    h, i = shape.of("hidden_size", 1024), shape.of("intermediate_size", 4096)
    n, patch = shape.layers("num_hidden_layers", 24), shape.of("patch_size", 14)
    encoder = 3 * patch**2 * h + h + n * (2 * h + 4 * h * h + 3 * h * i)
    return encoder + h + 4 * h * h + h * width + width * width


def _qwen2_vl(shape: _Shape, width: int) -> int:
    h, n = shape.of("embed_dim", 1280), shape.layers("depth", 32)
    i = shape.of("mlp_ratio", 4) * h
    patches = 3 * 2 * shape.of("patch_size", 14) ** 2 * h
    merger = 2 * h + _merger(h, _made(shape, "hidden_size", width))
    return patches + n * _layer_norm_block(h, i) + merger


def _qwen2_5_vl(shape: _Shape, width: int) -> int:
    h, n = shape.of("hidden_size", 1280), shape.layers("depth", 32)
    i = shape.of("intermediate_size", 3420)
    patches = 3 * 2 * shape.of("patch_size", 14) ** 2 * h
    block = 3 * h * i + 2 * i + h
    merger = h + _merger(h, _made(shape, "out_hidden_size", width))
    return patches + n * (_attention(h) + block + 2 * h) + merger


def _qwen3_5(shape: _Shape, width: int) -> int:
    h, n = shape.of("hidden_size", 1152), shape.layers("depth", 27)
    i, positions = shape.of("intermediate_size", 4304), shape.of("num_position_embeddings", 2304)
    embedding = 3 * 2 * shape.of("patch_size", 16) ** 2 * h + h + positions * h
    merger = 2 * h + _merger(h, _made(shape, "out_hidden_size", width))
    return embedding + n * _layer_norm_block(h, i) + merger


def _qwen3_vl(shape: _Shape, width: int) -> int:
    """As Qwen3.5, and one merger for each layer whose output joins the language model's."""
    h = shape.of("hidden_size", 1152)
    listed = shape.fields.items("deepstack_visual_indexes")
    if listed is None:
        shape.taken.append("deepstack_visual_indexes of 3 layers")
    joined = 3 if listed is None else len(listed)
    merger = 8 * h + _merger(h, _made(shape, "out_hidden_size", width))
    return _qwen3_5(shape, width) + joined * merger


def _llama4(shape: _Shape, width: int) -> int:
    """A class token, norms before and after, an adapter of two matrices and a projector."""
    h, i = shape.of("hidden_size", 1408), shape.of("intermediate_size", 5632)
    n, patch = shape.layers("num_hidden_layers", 34), shape.of("patch_size", 14)
    image, made = shape.of("image_size", 336), shape.of("projector_output_dim", 4096)
    read, joined = shape.of("projector_input_dim", 4096), shape.of("vision_output_dim", 4096)
    embedding = 3 * patch**2 * h + h + ((image // patch) ** 2 + 1) * h
    adapter = i * read + made * made + joined * width
    return embedding + n * _layer_norm_block(h, i) + 4 * h + adapter


def _internvl(shape: _Shape, width: int) -> int:
    """InternViT: a class token, layer scales; four patches to one row by a norm, two matrices."""
    h, i = shape.of("hidden_size", 1024), shape.of("intermediate_size", 4096)
    n, patch = shape.layers("num_hidden_layers", 24), shape.of("patch_size", 14)
    image = shape.of("image_size", 448)
    embedding = 3 * patch**2 * h + h + h + ((image // patch) ** 2 + 1) * h
    layers = n * (_layer_norm_block(h, i) + 2 * h)
    return embedding + layers + 8 * h + 4 * h * width + width + width * width + width


def _mllama(shape: _Shape, width: int) -> int:
    """Positions and three embeddings of tiles with gates; the last layers have two gates each.

    The outputs of some layers stand beside the last one's: the projector reads 6 h.
    """
    h, i = shape.of("hidden_size", 1280), shape.of("intermediate_size", 5120)
    n, last = shape.layers("num_hidden_layers", 32), shape.layers("num_global_layers", 8)
    rows = _mllama_rows(shape)
    tiles, ratios = shape.of("max_num_tiles", 4), 9  # aspect ratios of up to 4 tiles, and none
    read = shape.of("vision_output_dim", 7680)
    positions = rows * h + 1 + ratios * tiles * rows * h + 2 * (ratios * tiles * h + 1)
    embedding = 3 * shape.of("patch_size", 14) ** 2 * h + h + positions + 4 * h
    layer = _layer_norm_block(h, i) - 4 * h  # its attention has no biases
    return embedding + (n + last) * layer + 2 * last + read * width + width


def _mllama_rows(shape: _Shape) -> int:
    """Rows of one tile: its patches and a class token."""
    image, patch = shape.of("image_size", 560), shape.of("patch_size", 14)
    return (image // patch) ** 2 + 1


def image_tokens(config: Fields) -> int | None:
    """Rows that cross-attention keeps of one image: all its tiles. Only Mllama attends so."""
    part = config.data.get("vision_config")
    if config.text("model_type") != "mllama" or not isinstance(part, dict):
        return None
    shape = _Shape(Fields(part, config.path, "vision_config."))
    rows, tiles = _mllama_rows(shape), shape.of("max_num_tiles", 4)
    config.assume(f"cross-attention keeps {tiles} tiles of {rows:,} rows: one image a sequence")
    return tiles * rows


_RULES: dict[str, Callable[[_Shape, int], int]] = {
    "gemma3": _gemma3, "gemma4": _gemma4, "mistral3": _mistral3, "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl, "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_5, "qwen3_5_moe": _qwen3_5, "llama4": _llama4, "internvl_chat": _internvl,
    "mllama": _mllama,
}  # fmt: skip
# Widths that a type's published encoders have; another width is another encoder.
_PUBLISHED_WIDTHS = {"gemma3": 1152, "gemma4": 1152, "llama4": 1408, "internvl_chat": 1024}


def encoders_of(
    config: Fields, towers: tuple[str, ...], width: int
) -> tuple[tuple[dict[str, Any], ...], tuple[str, ...]]:
    """(``ModelSpec.encoders``, names of those that nobody here can count).

    Parameters
    ----------
    towers : encoders that the file names.
    width : model width of the language model. [scalars]
    """
    name = config.text("model_type") or ""
    rule = _RULES.get(name)
    part = config.data.get("vision_config")
    if VISION not in towers or rule is None or not isinstance(part, dict):
        return (), towers
    shape = _Shape(Fields(part, config.path, "vision_config."))
    published = _PUBLISHED_WIDTHS.get(name)
    n_params = rule(shape, width)
    if shape.taken and published and part.get("hidden_size", published) != published:
        return (), towers
    if shape.taken:
        config.assume(
            f"vision encoder: {', '.join(dict.fromkeys(shape.taken))} as published checkpoints of "
            f"{name} have, which the file does not state"
        )
    counted = ({"name": VISION, "n_params": n_params},)
    return counted, tuple(tower for tower in towers if tower != VISION)
