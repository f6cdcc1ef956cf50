"""Find the language model inside a config.json, and name the parts around it."""

from __future__ import annotations

from typing import Any

from lrkv_plan.errors import SpecError
from lrkv_plan.specs.huggingface.fields import Fields

LAYER_KEYS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
HIDDEN_KEYS = ("hidden_size", "n_embd", "d_model", "n_embed")

_NESTS = ("text_config", "llm_config", "language_config")
_OUTER = ("thinker_config",)
# Stated once for the whole checkpoint, beside the nested text part.
_CARRIED = (
    "quantization_config", "tie_word_embeddings", "torch_dtype", "dtype", "architectures",
    "is_encoder_decoder",
)  # fmt: skip
_TOWERS = {
    "vision_config": "vision encoder and projector",
    "vision_tower": "vision encoder and projector",
    "vision_model": "vision encoder and projector",
    "vit_config": "vision encoder and projector",
    "visual": "vision encoder and projector",
    "visual_config": "vision encoder and projector",
    "mm_vision_tower": "vision encoder and projector",
    "audio_config": "audio encoder and projector",
    "speech_config": "speech encoder and projector",
    "talker_config": "speech generator",
    "code2wav_config": "waveform generator",
}


def language_part(config: Fields) -> tuple[Fields, tuple[str, ...]]:
    """The mapping that describes the language model, and the uncounted parts around it.

    Raises
    ------
    SpecError
        If the file describes no model in a known spelling.
    """
    towers = _towers(config)
    for key in _OUTER:
        outer = config.part(key)
        if outer is not None:
            towers |= _towers(outer)
            config = _inside(config, outer)
    for key in _NESTS:
        nested = config.part(key)
        if nested is not None and (nested.has(*LAYER_KEYS) or not config.has(*LAYER_KEYS)):
            config = _inside(config, nested)
            break
    if not config.has(*LAYER_KEYS, *HIDDEN_KEYS):
        looked_for = ", ".join([*LAYER_KEYS, *HIDDEN_KEYS, *_NESTS])
        raise SpecError(
            f"{config.path}: not a config.json of a language model: none of {looked_for} is there"
        )
    return config, tuple(towers)


def _towers(config: Fields) -> dict[str, Any]:
    return {name: key for key, name in _TOWERS.items() if config.has(key)}


def _inside(config: Fields, nested: Fields) -> Fields:
    carried = {key: config.data[key] for key in _CARRIED if config.has(key)}
    if not nested.has("model_type") and config.has("model_type"):
        carried["model_type"] = config.data["model_type"]
    stated = {key: value for key, value in nested.data.items() if value is not None}
    # A null in the nested part counts as stated only where nothing is carried.
    return Fields(
        {**nested.data, **carried, **stated},
        config.path,
        nested.prefix,
        config.remarks,
        config.read,
    )
