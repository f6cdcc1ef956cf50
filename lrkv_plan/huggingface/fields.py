"""Typed reading of one config.json mapping, and the language model inside it.

A value is checked where it is taken. Null counts as absent, as in the code that reads these files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lrkv_plan.errors import SpecError, shown

# The bounds of ``specs.base``: checked before any list is built from a number.
MAX_LAYERS = 10_000
MAX_HEADS = 65_536
MAX_WIDTH = 4_194_304
MAX_VOCABULARY = 100_000_000
MAX_TOKENS = 10**12
MAX_EXPERTS = 1_000_000


class Fields:
    """A mapping of a config.json, its place in the file, and the assumptions made so far.

    ``read`` holds the full names of the keys that were taken, here and in the parts of the file.
    """

    def __init__(
        self,
        data: dict[str, Any],
        path: Path,
        prefix: str = "",
        remarks: list[str] | None = None,
        read: set[str] | None = None,
    ) -> None:
        self.data = data
        self.path = path
        self.prefix = prefix
        self.remarks: list[str] = [] if remarks is None else remarks
        self.read: set[str] = set() if read is None else read

    def assume(self, text: str) -> None:
        """Record a sentence for ``ModelSpec.remarks``, once."""
        if text not in self.remarks:
            self.remarks.append(text)

    def error(self, key: str, problem: str) -> SpecError:
        """``path: key: value: problem``, to be raised."""
        value = f"{shown(self.data[key])}: " if key in self.data else ""
        return SpecError(f"{self.path}: {self.prefix}{key}: {value}{problem}")

    def missing(self, *keys: str) -> SpecError:
        """``path: key (or other spellings): is missing or null``, to be raised."""
        others = f" (or {', '.join(keys[1:])})" if len(keys) > 1 else ""
        return SpecError(f"{self.path}: {self.prefix}{keys[0]}{others}: is missing or null")

    def has(self, *keys: str) -> bool:
        """Whether any of the keys holds something other than null."""
        values = [self.value(key) for key in keys]  # each counts as read
        return any(value is not None for value in values)

    def value(self, key: str) -> Any:
        """What stands under a key, unchecked; None if absent."""
        self.read.add(self.prefix + key)
        return self.data.get(key)

    def settle(self, *keys: str) -> None:
        """Count keys as read that what was read already makes moot."""
        self.read.update(self.prefix + key for key in keys)

    def integer(self, *keys: str, most: int, least: int = 1) -> int | None:
        """The whole number under one of several spellings, or None if all are absent.

        Raises
        ------
        SpecError
            If it is no whole number from ``least`` to ``most``, or two spellings disagree.
        """
        found = [key for key in keys if self.has(key)]
        for key in found:
            value = self.data[key]
            if not is_whole(value) or not least <= value <= most:
                raise self.error(key, f"must be a whole number from {least} to {most:,}")
        values = {self.data[key] for key in found}
        if len(values) > 1:
            raise self.error(found[0], f"{found[1]} says {self.data[found[1]]}; they must agree")
        return self.data[found[0]] if found else None

    def needed(self, *keys: str, most: int, least: int = 1) -> int:
        """Like ``integer``, but an absent value is an error that names every spelling."""
        value = self.integer(*keys, most=most, least=least)
        if value is None:
            raise self.missing(*keys)
        return value

    def number(self, key: str) -> float | None:
        """A positive number up to the largest width, whole or not."""
        value = self.value(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, "must be a number")
        if not 0 < value <= MAX_WIDTH:
            raise self.error(key, f"must be above 0 and at most {MAX_WIDTH:,}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; ``default`` if absent."""
        value = self.value(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, "must be true or false")
        return value

    def text(self, *keys: str) -> str | None:
        """The text under the first spelling that is present."""
        for key in keys:
            value = self.value(key)
            if value is not None:
                if not isinstance(value, str):
                    raise self.error(key, "must be text")
                return value
        return None

    def items(self, key: str, length: int | None = None) -> list[Any] | None:
        """The list under a key; with ``length`` it must have as many entries."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, list):
            raise self.error(key, "must be a list")
        if length is not None and len(value) != length:
            raise self.error(key, f"has {len(value)} entries for {length} layers")
        return value

    def choices(self, key: str, allowed: dict[Any, str], length: int) -> list[str] | None:
        """One entry per layer, each translated by ``allowed``."""
        values = self.items(key, length)
        if values is None:
            return None
        for index, value in enumerate(values):
            if isinstance(value, bool) or not isinstance(value, str | int) or value not in allowed:
                known = ", ".join(map(repr, allowed))
                place = f"{self.path}: {self.prefix}{key}[{index}]"
                raise SpecError(f"{place}: {shown(value)}: must be one of {known}")
        return [allowed[value] for value in values]

    def indices(self, key: str, n_layers: int, first: int = 0) -> set[int] | None:
        """Layer numbers under a key, counted from ``first`` in the file and from 0 here."""
        values = self.items(key)
        if values is None:
            return None
        last = n_layers - 1 + first
        for value in values:
            if not is_whole(value) or not first <= value <= last:
                raise self.error(key, f"layers are numbered from {first} to {last}")
        return {value - first for value in values}

    def part(self, key: str) -> Fields | None:
        """The mapping under a key; its assumptions are recorded here too."""
        value = self.value(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "must be a mapping")
        return Fields(value, self.path, f"{self.prefix}{key}.", self.remarks, self.read)


def is_whole(value: Any) -> bool:
    """Whether a JSON value is a whole number; true and false are not."""
    return isinstance(value, int) and not isinstance(value, bool)


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


# Mappings that describe nothing of the language model.
NOT_LANGUAGE = (*_TOWERS, "quantization_config", "compression_config", "id2label", "label2id")


def language_part(config: Fields) -> tuple[Fields, tuple[str, ...]]:
    """The mapping that describes the language model, and the uncounted parts around it.

    Raises
    ------
    SpecError
        If the file describes no model in a known spelling.
    """
    outermost, towers = config, _towers(config)
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
    if config is not outermost:
        towers |= _others(outermost, towers)
    return config, tuple(towers)


def _towers(config: Fields) -> dict[str, Any]:
    return {name: key for key, name in _TOWERS.items() if config.has(key)}


def _others(outermost: Fields, towers: dict[str, Any]) -> dict[str, Any]:
    """What stands around a nested language model under no known name.

    Mappings that have layers or a width of their own; else, where nothing is named at all, whatever
    the outer type adds.
    """
    known = (*_TOWERS, *_NESTS, *_OUTER)
    found = {
        f"part described by {key[:48]!r}": key
        for key, value in outermost.data.items()
        if key not in known and isinstance(value, dict)
        and any(isinstance(value.get(one), int) for one in (*LAYER_KEYS, *HIDDEN_KEYS))
    }  # fmt: skip
    if towers or found:
        return found
    name = outermost.data.get("model_type")
    return {f"what {str(name)[:48]!r} adds to its language model": None}


def _inside(config: Fields, nested: Fields) -> Fields:
    carried = {key: config.data[key] for key in _CARRIED if config.has(key)}
    if not nested.has("model_type") and config.has("model_type"):
        carried["model_type"] = config.data["model_type"]
    stated = {key: value for key, value in nested.data.items() if value is not None}
    tied = "tie_word_embeddings"
    if stated.get(tied, carried.get(tied)) != carried.get(tied, stated.get(tied)):
        nested.assume(f"{tied}: the file says two things; the language model's own counts")
    # A null in the nested part counts as stated only where nothing is carried.
    return Fields(
        {**nested.data, **carried, **stated},
        config.path,
        nested.prefix,
        config.remarks,
        config.read,
    )
