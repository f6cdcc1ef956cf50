"""Keys of a config.json that nothing read: a note for a known type, an error for an unknown one.

A type whose code was never read here may cache by a key of its own (``layer_group_size``,
``block_types``): such a key must not be passed over. So ``key_lists`` names the keys that are
known to leave the cache alone, and every other key counts as one that could change it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.specs.huggingface.encoder_decoder import is_encoder_decoder
from lrkv_plan.specs.huggingface.fields import Fields, is_whole
from lrkv_plan.specs.huggingface.key_lists import (
    DECIDING_KEYS,
    DETAILS,
    NEITHER,
    NEITHER_PATTERNS,
    WEIGHTS_ONLY,
    WEIGHTS_ONLY_PATTERNS,
)
from lrkv_plan.specs.huggingface.model_types import MODEL_TYPES, is_known

# Parts that are read for one purpose and describe nothing else of the language model.
_OPAQUE = ("quantization_config", "sparse_attention_config", "vision_config", "audio_config")
_MOST_NAMES = 8
_MOST_NAME_CHARS = 48
_MOST_KEYS = 100_000  # more keys than this are not a configuration

# An unread flag of these names that says false turns its feature off.
_SWITCHES = re.compile(r"(?:use|enable|add|with|has|is|do)_\w+|(?:\w+_)?bias|mamba_enabled|yoco")


def check_unread(config: Fields, fields: Fields) -> None:
    """Note the keys that nothing read; for an unknown model type, refuse those that could matter.

    Raises
    ------
    SpecError
        If the model type is not known here and a key could change what its layers cache.
    """
    unread = list(_unread(config, fields.prefix))
    name = fields.text("model_type")
    if is_known(name) or is_encoder_decoder(fields):
        noted = [key for key in unread if not _moves_nothing(key)]
        if noted:
            fields.assume(f"keys of the file that nothing here reads: {_names(noted)}")
        return
    deciding = [key for key in unread if not (_is_neither(key) or _is_weights_only(key))]
    if deciding:
        raise SpecError(_refusal(fields, name, deciding))


def _refusal(fields: Fields, name: str | None, keys: list[str]) -> str:
    one = len(keys) == 1
    type_is = "is missing" if name is None else f"{shown(name)}: is not known here"
    return (
        f"{fields.path}: {fields.prefix}model_type: {type_is}, and {_names(keys)} "
        f"{'is a key that' if one else 'are keys that'} could change what its layers cache"
        f"{did_you_mean(name or '', MODEL_TYPES)}; write the model as a YAML file instead "
        "(`lrkv-plan models show llama-3.1-8b` prints one to start from)"
    )


def _names(keys: list[str]) -> str:
    """A bounded list of key names, those that are known to decide the cache first."""
    ordered = sorted(keys, key=lambda key: _last(key) not in DECIDING_KEYS)
    cut = [_name(key) for key in ordered[:_MOST_NAMES]]
    more = len(keys) - len(cut)
    return ", ".join(cut) + (f" and {more:,} more" if more else "")


def _name(key: str) -> str:
    short = key if len(key) <= _MOST_NAME_CHARS else key[: _MOST_NAME_CHARS - 3] + "..."
    return short if short.isprintable() else shown(short)


def _unread(config: Fields, prefix: str) -> Iterator[str]:
    """Full names of the keys with a value that nothing took, in the order of the file.

    Parts that were read are entered; around a nested language model only the keys count that
    decide the cache, since the others describe its encoders.
    """
    stack: list[tuple[str, dict[str, Any]]] = [("", config.data)]
    seen = 0
    while stack:
        place, part = stack.pop()
        for key, value in part.items():
            seen += 1
            if seen > _MOST_KEYS:
                raise SpecError(f"{config.path}: has more than {_MOST_KEYS:,} keys")
            name = place + key
            if name in config.read:
                if isinstance(value, dict) and _is_entered(name, prefix):
                    stack.append((f"{name}.", value))
            elif not _is_off(key, value) and (name.startswith(prefix) or key in DECIDING_KEYS):
                yield name


def _is_entered(name: str, prefix: str) -> bool:
    """Whether a part that was read can hold keys of the language model."""
    inside = f"{name}.".startswith(prefix) or prefix.startswith(f"{name}.")
    return inside and _last(name) not in _OPAQUE


def _is_off(key: str, value: Any) -> bool:
    """Null and empty values state nothing; false turns a switch off, 0 a count of weights."""
    if value is False:
        return _SWITCHES.fullmatch(key[:200]) is not None
    if is_whole(value) and value == 0:
        return _is_weights_only(key)
    return value is None or (isinstance(value, str | list | dict) and not value)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_neither(name: str) -> bool:
    key = _last(name)
    if key in DECIDING_KEYS:
        return False
    return key in NEITHER or NEITHER_PATTERNS.fullmatch(key[:200]) is not None


def _moves_nothing(name: str) -> bool:
    """Whether a key of a known type changes neither cache nor weights of the model itself."""
    return _is_neither(name) or _last(name) in DETAILS or _last(name).startswith("mtp_")


def _is_weights_only(name: str) -> bool:
    key = _last(name)
    if key in DECIDING_KEYS:
        return False
    return key in WEIGHTS_ONLY or WEIGHTS_ONLY_PATTERNS.fullmatch(key[:200]) is not None
