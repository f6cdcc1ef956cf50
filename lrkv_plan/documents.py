"""Read YAML and JSON strictly: no duplicate keys, no NaN, bounded size, depth and aliases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from lrkv_plan.errors import SpecError, shown
from lrkv_plan.files import read_regular

MAX_FILE_BYTES = 8 * 2**20
MAX_DEPTH = 64
MAX_NODES = 100_000  # a second's work
MAX_JSON_VALUES = 2_000_000  # as commas; a second's work as well
_LEAST, _MOST = 1e-100, 1e100
_MAX_BITS = 256
_MAX_DIGITS = 78  # of 2**256
# Tags that a person may write out, and what their text must be.
_KINDS = {
    f"tag:yaml.org,2002:{tag}": kind
    for tag, kind in {
        "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false",
        "null": "null", "timestamp": "a date", "map": "a mapping", "seq": "a list",
    }.items()
}  # fmt: skip

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_BaseLoader):  # type: ignore[misc]
    """Safe loader that refuses duplicate keys and keys that are not text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        pairs = node.value if isinstance(node, yaml.MappingNode) else ()  # else refused below
        for key_node, _ in pairs:
            if key_node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                is_scalar = isinstance(key_node, yaml.ScalarNode)
                what = shown(key_node.value) if is_scalar else "of several values"
                raise _problem(f"key {what} is not text", key_node.start_mark)
            if key_node.value in seen:
                raise _problem(f"key {shown(key_node.value)} appears twice", key_node.start_mark)
            seen.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """As PyYAML, whose constructors fail in many ways on text that their tag cannot be."""
        try:
            value = super().construct_object(node, deep=deep)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            kind = _KINDS.get(node.tag, node.tag)
            raise _problem(f"{shown(node.value)} is not {kind}", node.start_mark) from None
        if isinstance(value, float | int) and _is_absurd(value):
            raise _problem(_absurd(value), node.start_mark)
        return value


def _problem(text: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=mark)


def _is_absurd(value: float) -> bool:
    """Whether a number is so large or small that arithmetic with it leaves the range of floats."""
    if isinstance(value, int):
        return value.bit_length() > _MAX_BITS
    return value != 0 and math.isfinite(value) and not _LEAST <= abs(value) <= _MOST


def _absurd(value: float) -> str:
    return f"{shown(value)}: no figure of a model or a machine is of that size"


def read_text(path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> str:
    """The file's text. Raises ``SpecError`` if it is missing, no file, too large or not UTF-8."""
    try:
        return read_regular(path, max_bytes=max_bytes).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text (byte {error.start})") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ``SpecError`` naming file, line and problem."""
    return parse_yaml(read_text(path), path)


def parse_yaml(text: str, path: Path) -> dict[str, Any]:
    """The mapping in the text of a YAML file. Raises as ``read_yaml``."""
    try:
        _check_size(path, text)
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  (a safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"{path}: {where}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise SpecError(f"{path}: not valid YAML: {error}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None
    except MemoryError:
        raise SpecError(f"{path}: needs more memory than there is") from None
    mapping = _mapping(path, value)
    _refuse_non_finite(path, mapping, "")
    return mapping


def _check_size(path: Path, text: str) -> None:
    """Bound depth and the number of nodes once every alias is written out."""
    sizes: list[int] = []  # nodes so far in each open collection
    anchors: dict[str, int] = {}
    open_anchors: list[str | None] = []

    def count(nodes: int) -> None:
        if sizes:
            sizes[-1] += nodes
        if nodes > MAX_NODES or (sizes and sizes[-1] > MAX_NODES):
            raise SpecError(f"{path}: more than {MAX_NODES:,} nodes once its aliases are expanded")

    for event in yaml.parse(text, Loader=_BaseLoader):
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _KINDS:
            raise _problem(f"tag {shown(tag)}: write the value without it", event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise SpecError(f"{path}: alias *{event.anchor} refers to itself or to nothing")
            count(anchors[event.anchor])
        elif isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                anchors[event.anchor] = 1
            count(1)
        elif isinstance(event, yaml.CollectionStartEvent):
            sizes.append(1)
            open_anchors.append(event.anchor)
            if len(sizes) > MAX_DEPTH:
                raise SpecError(f"{path}: nested deeper than {MAX_DEPTH} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = sizes.pop(), open_anchors.pop()
            if anchor:
                anchors[anchor] = size
            count(size)


def read_json(
    path: Path, *, max_bytes: int = MAX_FILE_BYTES, max_values: int = MAX_JSON_VALUES
) -> dict[str, Any]:
    """The object in a JSON file. Raises ``SpecError`` naming file and problem.

    NaN and Infinity pass: real config.json files hold them in keys that no cache depends on
    (``time_step_limit: [0.0, Infinity]``), and the importer takes only whole numbers.
    """
    return json_object(path, read_text(path, max_bytes=max_bytes), max_values=max_values)


def json_object(
    path: Path, text: str, *, max_values: int = MAX_JSON_VALUES, unique_keys: bool = True
) -> dict[str, Any]:
    """The object in ``text`` of that file, as ``read_json``.

    ``max_values`` bounds its commas. Without ``unique_keys`` the last of equal keys counts, which
    takes a third of the time.
    """
    if text.count(",") > max_values:
        raise SpecError(f"{path}: holds more than {max_values:,} values")
    hook = _no_duplicates if unique_keys else None
    try:
        value = json.loads(text, object_pairs_hook=hook, parse_int=_whole)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise SpecError(f"{path}: {place}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None
    except MemoryError:
        raise SpecError(f"{path}: needs more memory than there is") from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    return _mapping(path, value)


def _whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"{shown(digits[:60])}: a whole number of {len(digits):,} digits")
    return int(digits)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"key {shown(twice)} appears twice")
    return mapping


def _mapping(path: Path, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        what = "empty" if value is None else f"a {type(value).__name__}"
        raise SpecError(f"{path}: holds {what}; a mapping of keys to values is needed")
    return value


def _refuse_non_finite(path: Path, value: Any, where: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{path}: {where}: {value} is not a finite number")
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(item, float | dict | list):
                _refuse_non_finite(path, item, f"{where}.{key}" if where else str(key))
