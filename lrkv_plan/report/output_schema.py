"""JSON Schemas (draft 2020-12) of what commands write with ``--format json``."""

from __future__ import annotations

import copy
import dataclasses
import types
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from lrkv_plan.errors import UsageError, did_you_mean, shown
from lrkv_plan.notes import Note
from lrkv_plan.report.key_meanings import meaning
from lrkv_plan.report.output_keys import ANSWERS, Answer, Dumped, Many
from lrkv_plan.report.tables import SCHEMA_VERSION

Schema: TypeAlias = "dict[str, Any]"

_SIMPLE: dict[Any, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", Fraction: "number",
    None: "null", type(None): "null",
}  # fmt: skip


def output_schema(command: str) -> Schema:
    """Make the JSON Schema of a command's JSON.

    Parameters
    ----------
    command : its words, such as ``capacity`` or ``calibrate fit``.

    Raises
    ------
    UsageError
        If no command of that name writes JSON rows.

    Examples
    --------
    >>> schema = output_schema("shard")
    >>> schema["properties"]["schema_version"]
    {'const': 2}
    """
    words = " ".join(command.split())
    if words not in ANSWERS:
        raise UsageError(
            f"command {shown(words)}: writes no JSON rows{did_you_mean(words, ANSWERS)}; "
            f"known: {', '.join(ANSWERS)}"
        )
    return _Builder(ANSWERS[words]()).document(words)


class _Builder:
    """One command's schema; specs and dataclasses inside it are defined once, under ``$defs``."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.definitions: dict[str, Schema] = {}

    def document(self, command: str) -> Schema:
        """The envelope of ``report.tables.to_json`` around the command's inputs and rows."""
        rows = self._alternatives([self._row(row) for row in self.answer.rows])
        parts: dict[str, Schema] = {
            "schema_version": {"const": SCHEMA_VERSION},
            "tool_version": {"type": "string"},
            "inputs": self._alternatives([self.of(one) for one in self.answer.inputs]),
            "rows": {"type": "array", "items": rows},
            **{
                key: {
                    "type": "array",
                    "items": self._alternatives(
                        [self._row(one) for one in (row if isinstance(row, tuple) else (row,))]
                    ),
                }
                for key, row in self.answer.also.items()
            },
            "notes": {"type": "array", "items": self.of(Note)},
            "remarks": {
                "type": "array",
                "items": {"type": "string"},
                "description": "the notes as people read them",
            },
        }
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"lrkv-plan {command} --format json",
            **_object(parts),
            "$defs": dict(sorted(self.definitions.items())),
        }

    def of(self, kind: Any) -> Schema:
        """The schema of an annotation, a shape, a dumped spec, or a tuple of alternatives."""
        if isinstance(kind, dict):
            return self._shape(kind)
        if isinstance(kind, Dumped):
            return self._dumped(kind)
        if isinstance(kind, Many):
            return {"type": "array", "items": self.of(kind.one)}
        if isinstance(kind, tuple):
            return self._alternatives([self.of(one) for one in kind])
        if kind in _SIMPLE:
            return {"type": _SIMPLE[kind]}
        if dataclasses.is_dataclass(kind):
            return self._dataclass(kind)
        return self._generic(kind)

    def _generic(self, kind: Any) -> Schema:
        origin, parts = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(parts)}
        if origin in (Union, types.UnionType):
            return self._alternatives([self.of(one) for one in parts])
        if origin in (list, tuple):
            return {"type": "array", "items": self.of(parts[0])}
        raise TypeError(f"no JSON type for {kind!r}")

    def _alternatives(self, found: list[Schema]) -> Schema:
        distinct = [one for index, one in enumerate(found) if one not in found[:index]]
        if len(distinct) == 1:
            return distinct[0]
        if all(one.keys() == {"type"} for one in distinct):
            names = [one["type"] for one in distinct]
            if "number" in names and "integer" in names:  # a number may be whole
                names.remove("integer")
            return {"type": names[0] if len(names) == 1 else names}
        return {"anyOf": distinct}

    def _dataclass(self, cls: Any) -> Schema:
        """A reference to the definition of a dataclass that JSON holds as an object."""
        if cls.__name__ not in self.definitions:
            hints = get_type_hints(cls)
            self.definitions[cls.__name__] = self._shape(
                {spec.name: hints[spec.name] for spec in dataclasses.fields(cls)}
            )
        return {"$ref": f"#/$defs/{cls.__name__}"}

    def _shape(self, shape: Mapping[str, Any]) -> Schema:
        return _object({key: self._described(key, kind) for key, kind in shape.items()})

    def _described(self, key: str, kind: Any) -> Schema:
        text = self.answer.says.get(key) or meaning(key)
        return self.of(kind) | ({"description": text} if text else {})

    def _row(self, row: Any) -> Schema:
        """A row: as a shape, and each exact ratio also as text."""
        if not isinstance(row, dict):
            return self.of(row)
        found = self._shape(row)
        for key, kind in row.items():
            if "ratio" not in key or (kind is not Fraction and Fraction not in get_args(kind)):
                continue
            exact = f"{key}_exact"
            text = f"{key} as a fraction"
            found["properties"][exact] = {"type": "string", "description": text}
            if kind is Fraction:
                found["required"].append(exact)
        return found

    def _dumped(self, dumped: Dumped) -> Schema:
        """A reference to the definition of a pydantic spec as it is written."""
        name = dumped.spec.__name__
        if name not in self.definitions:
            for one, schema in _spec_definitions(dumped.spec).items():
                _mend(schema, keeps_none=dumped.keeps_none)
                self.definitions[one] = schema
            for key, kind in dumped.plus.items():
                self.definitions[name]["properties"][key] = self._described(key, kind)
                self.definitions[name]["required"].append(key)
            required = self.definitions[name].get("required", [])
            required[:] = [key for key in required if key not in dumped.may_lack]
        return {"$ref": f"#/$defs/{name}"}


def _object(properties: Mapping[str, Schema]) -> Schema:
    """An object with exactly these keys."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _spec_definitions(spec: Any) -> dict[str, Schema]:
    """Name to schema of a pydantic spec and all that it refers to; any family for attention."""
    schema = copy.deepcopy(spec.model_json_schema())
    found: dict[str, Schema] = {**schema.pop("$defs", {}), spec.__name__: schema}
    if "AttentionSpec" in found:
        from lrkv_plan.attention.registry import all_families

        families = dict.fromkeys(family.spec_class for family in all_families())
        for cls in families:
            inner = copy.deepcopy(cls.model_json_schema())
            found |= inner.pop("$defs", {})
            found[cls.__name__] = inner
        found["AttentionSpec"] = {
            "anyOf": [{"$ref": f"#/$defs/{cls.__name__}"} for cls in families]
        }
    return found


def _mend(schema: Schema, *, keeps_none: bool) -> None:
    """Turn the schema of what a spec reads into that of what is written, in place.

    Defaults are written out, so a key is missing only where its value is None and those are left
    out. Bounds are of no use to a reader, and titles repeat the keys.
    """
    if "properties" in schema:
        keys = schema["properties"]
        can_be_none = {key for key, kind in keys.items() if {"type": "null"} in _options(kind)}
        schema["required"] = [key for key in keys if keeps_none or key not in can_be_none]
        if not keeps_none:
            for key in can_be_none:
                keys[key] = _without_null(keys[key])
    _prune(schema)


def _options(kind: Schema) -> list[Schema]:
    options: list[Schema] = kind.get("anyOf", [])
    return options


def _without_null(kind: Schema) -> Schema:
    rest = [one for one in _options(kind) if one != {"type": "null"}]
    others = {key: value for key, value in kind.items() if key != "anyOf"}
    return {**others, **rest[0]} if len(rest) == 1 else {**others, "anyOf": rest}


_OF_READING = (
    "title", "default", "discriminator", "minLength", "maxLength", "minItems", "maxItems",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "pattern", "minProperties",
)  # fmt: skip


def _prune(schema: Any) -> None:
    """Drop what only a reader of spec files needs."""
    if isinstance(schema, list):
        for one in schema:
            _prune(one)
        return
    if not isinstance(schema, dict):
        return
    for word in _OF_READING:
        schema.pop(word, None)
    if isinstance(schema.get("description"), str):
        schema["description"] = " ".join(schema["description"].split())
    for key, value in schema.items():
        if key == "properties":
            for inner in value.values():
                _prune(inner)
        else:
            _prune(value)
