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
AUDIO = "audio encoder and projector"


class _Shape:
    """Reads the shape of one encoder, and of the file around it; remembers what was left out."""

    def __init__(self, fields: Fields, outer: Fields) -> None:
        self.fields = fields
        self.outer = outer
        self.taken: list[str] = []

    def of(self, key: str, published: int, *others: str, most: int = MAX_WIDTH) -> int:
        """A width, stated under one of several keys; sides of a square may be a list."""
        stated = None
        for one in (key, *others):
            value = self.fields.value(one)
            side = value[0] if isinstance(value, list) and value else value
            if side is not None:
                stated = Fields({one: side}, self.fields.path, self.fields.prefix).needed(
                    one, most=most
                )
                break
        if stated is None:
            self.taken.append(f"{key} {published:,}")
        return published if stated is None else stated

    def layers(self, key: str, published: int, *others: str) -> int:
        return self.of(key, published, *others, most=MAX_LAYERS)


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
    pooled = shape.fields.flag("vision_use_head") * _pooling_head(h, i)
    return embedding + n * _layer_norm_block(h, i) + 2 * h + pooled + h * width + h


def _gemma4(shape: _Shape, width: int) -> int:
    """Gated blocks with four norms and norms of query and key, positions along both axes."""
    h, i = shape.of("hidden_size", 1152), shape.of("intermediate_size", 4304)
    n, patch = shape.layers("num_hidden_layers", 27), shape.of("patch_size", 16)
    head_dim, positions = shape.of("head_dim", 72), shape.of("position_embedding_size", 10_240)
    layer = 4 * h * h + 2 * head_dim + 3 * h * i + 4 * h
    return 3 * patch**2 * h + 2 * positions * h + n * layer + h * width


def _pixtral(shape: _Shape, patch: int) -> int:
    """Pixtral without biases and with one norm before its layers."""
    h, i = shape.of("hidden_size", 1024), shape.of("intermediate_size", 4096)
    n, patch = shape.layers("num_hidden_layers", 24), shape.of("patch_size", patch)
    return 3 * patch**2 * h + h + n * (2 * h + 4 * h * h + 3 * h * i)


def _mistral3(shape: _Shape, width: int) -> int:
    """A norm, merging of four patches and two matrices project Pixtral's output."""
    h = shape.of("hidden_size", 1024)
    return _pixtral(shape, 14) + h + 4 * h * h + h * width + width * width


def _clip(shape: _Shape) -> int:
    """A class token, norms before and after the layers."""
    h, i = shape.of("hidden_size", 1024), shape.of("intermediate_size", 4096)
    n, patch = shape.layers("num_hidden_layers", 24), shape.of("patch_size", 14)
    places = (shape.of("image_size", 336) // patch) ** 2 + 1
    return h + 3 * patch**2 * h + places * h + 4 * h + n * _layer_norm_block(h, i)


def _siglip(shape: _Shape, *, has_head: bool = True) -> int:
    """A norm behind the layers and a head that pools them, unless the file has none."""
    h, i = shape.of("hidden_size", 1152), shape.of("intermediate_size", 4304)
    n, patch = shape.layers("num_hidden_layers", 27), shape.of("patch_size", 14)
    places = (shape.of("image_size", 384) // patch) ** 2
    pooled = shape.fields.flag("vision_use_head", default=has_head) * _pooling_head(h, i)
    return 3 * patch**2 * h + h + places * h + n * _layer_norm_block(h, i) + 2 * h + pooled


def _pooling_head(h: int, i: int) -> int:
    """A query of its own, attention, a norm and a feed-forward."""
    return h + _attention(h) + 2 * h + _mlp(h, i)


def _tower(shape: _Shape) -> int | None:
    """The encoder that the part's own type names; None where nobody here can count it."""
    name = shape.fields.text("model_type")
    if name == "pixtral":
        return _pixtral(shape, 16)
    if name == "clip_vision_model":
        return _clip(shape)
    return _siglip(shape) if name == "siglip_vision_model" else None


def _llava(shape: _Shape, width: int) -> int | None:
    """Two matrices, the first from as many layers as are read."""
    tower, read = _tower(shape), shape.outer.value("vision_feature_layer")
    h = shape.of("hidden_size", 1024) * (len(read) if isinstance(read, list) else 1)
    bias = shape.outer.flag("multimodal_projector_bias", default=True)
    joined = h * width + width * width + 2 * width * bias
    return None if tower is None else tower + joined


def _llava_next(shape: _Shape, width: int) -> int | None:
    """As LLaVA, and a learned end of a line of patches."""
    found = _llava(shape, width)
    return None if found is None else found + width


def _paligemma(shape: _Shape, width: int) -> int | None:
    tower, h = _tower(shape), shape.of("hidden_size", 1152)
    return None if tower is None else tower + h * width + width


def _idefics3(shape: _Shape, width: int) -> int:
    """SigLIP without a head; s x s patches to one row."""
    scale = shape.outer.integer("scale_factor", most=MAX_WIDTH) or 2
    tower = _siglip(shape, has_head=False)
    return tower + shape.of("hidden_size", 1152) * scale**2 * width


def _cohere2(shape: _Shape, width: int) -> int | None:
    """s x s patches to a gated row of half that width, and to the model's."""
    tower = _tower(shape)
    scale = shape.outer.integer("downsample_factor", most=MAX_WIDTH) or 2
    inner = shape.outer.integer("alignment_intermediate_size", most=MAX_WIDTH) or 36_864
    read = shape.of("hidden_size", 1152) * scale**2
    return None if tower is None else tower + read * inner + inner + inner // 2 * width + width


def _glm4v(shape: _Shape, width: int) -> int:
    """Gated blocks without biases; a convolution of 2 x 2 patches and a gated merger."""
    h, n = shape.of("hidden_size", 1536), shape.layers("depth", 24)
    i, made = shape.of("intermediate_size", 13_696), _made(shape, "out_hidden_size", width)
    patch, image = shape.of("patch_size", 14), shape.of("image_size", 336)
    embedding = 6 * patch**2 * h + h + (image // patch) ** 2 * h + 2 * h
    bias = 3 * h * shape.fields.flag("attention_bias")
    layers = n * (2 * h + 4 * h * h + bias + 3 * h * made)
    return embedding + layers + 4 * h * made + made + made**2 + 2 * made + 3 * made * i


def _moonvit(shape: _Shape, width: int) -> int:
    """Learned positions of a grid; four patches to one row by a norm and two matrices."""
    h = shape.of("hidden_size", 1152, "vt_hidden_size")
    i = shape.of("intermediate_size", 4304, "vt_intermediate_size")
    n = shape.layers("num_hidden_layers", 27, "vt_num_hidden_layers")
    rows = shape.of("pos_emb_height", 64, "init_pos_emb_height")
    columns = shape.of("pos_emb_width", 64, "init_pos_emb_width")
    embedding = 3 * shape.of("patch_size", 14) ** 2 * h + h + rows * columns * h
    return embedding + n * _layer_norm_block(h, i) + 4 * h + _merger(h, width)


def _qwen2_audio(shape: _Shape, width: int) -> int:
    """Whisper's encoder and a matrix with its bias."""
    h, i = shape.of("d_model", 1280), shape.of("encoder_ffn_dim", 5120)
    n, bins = shape.layers("encoder_layers", 32), shape.of("num_mel_bins", 128)
    places = shape.of("max_source_positions", 1500)
    ends = 3 * bins * h + 3 * h * h + 2 * h + places * h + 2 * h
    return ends + n * (_layer_norm_block(h, i) - h) + h * width + width


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


def _internvl_hf(shape: _Shape, width: int) -> int:
    """The same in transformers' words: queries, keys and values may have no biases."""
    h, n = shape.of("hidden_size", 1024), shape.layers("num_hidden_layers", 24)
    without = 0 if shape.fields.flag("attention_bias") else 3 * h
    normed = 0 if shape.fields.flag("use_mean_pooling", default=True) else 2 * h
    return _internvl(shape, width) - n * without + normed


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
    shape = _Shape(Fields(part, config.path, "vision_config."), config)
    rows, tiles = _mllama_rows(shape), shape.of("max_num_tiles", 4)
    config.assume(f"cross-attention keeps {tiles} tiles of {rows:,} rows: one image a sequence")
    return tiles * rows


_Rule = Callable[[_Shape, int], int | None]
_RULES: dict[str, _Rule] = {
    "gemma3": _gemma3, "gemma4": _gemma4, "mistral3": _mistral3, "qwen2_vl": _qwen2_vl,
    "qwen2_5_vl": _qwen2_5_vl, "qwen3_vl": _qwen3_vl, "qwen3_vl_moe": _qwen3_vl,
    "qwen3_5": _qwen3_5, "qwen3_5_moe": _qwen3_5, "llama4": _llama4, "internvl_chat": _internvl,
    "internvl": _internvl_hf, "mllama": _mllama, "llava": _llava, "llava_next": _llava_next,
    "llava_next_video": _llava_next, "llava_onevision": _llava_next, "paligemma": _paligemma,
    "idefics3": _idefics3, "smolvlm": _idefics3, "cohere2_vision": _cohere2, "glm4v": _glm4v,
    "glm46v": _glm4v, "glm4v_moe": _glm4v, "kimi_k25": _moonvit, "kimi_vl": _moonvit,
    "shieldgemma2": _gemma3,
}  # fmt: skip
_AUDIO_RULES: dict[str, _Rule] = {"qwen2_audio": _qwen2_audio}
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
    counted = []
    for tower, key, rules in (
        (VISION, "vision_config", _RULES), (AUDIO, "audio_config", _AUDIO_RULES)
    ):  # fmt: skip
        part, rule = config.data.get(key), rules.get(name)
        if tower not in towers or rule is None or not isinstance(part, dict):
            continue
        n_params = _counted(config, part, key, rule, width)
        if n_params is not None:
            counted.append({"name": tower, "n_params": n_params})
    found = [one["name"] for one in counted]
    return tuple(counted), tuple(tower for tower in towers if tower not in found)


def _counted(config: Fields, part: dict[str, Any], key: str, rule: _Rule, width: int) -> int | None:
    """Parameters of one encoder with its projector; None where too little is stated."""
    name = config.text("model_type") or ""
    shape = _Shape(Fields(part, config.path, f"{key}."), config)
    n_params = rule(shape, width)
    published = _PUBLISHED_WIDTHS.get(name)
    if shape.taken and published and part.get("hidden_size", published) != published:
        return None
    if shape.taken and n_params is not None:
        config.assume(
            f"{key}: {', '.join(dict.fromkeys(shape.taken))} as published checkpoints of {name} "
            "have, which the file does not state"
        )
    return n_params
