"""Read YAML and JSON strictly: no duplicate keys, no NaN, bounded size, depth and aliases."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import yaml

from lrkv_plan.errors import SpecError, shown

MAX_FILE_BYTES = 8 * 2**20
MAX_DEPTH = 64
MAX_NODES = 200_000

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _StrictLoader(_BaseLoader):  # type: ignore[misc]
    """Safe loader that refuses duplicate keys and keys that are not text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                raise _problem(f"key {shown(key_node.value)} is not text", key_node)
            if key_node.value in seen:
                raise _problem(f"key {key_node.value!r} appears twice", key_node)
            seen.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _problem(text: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=text, problem_mark=node.start_mark)


def read_text(path: Path) -> str:
    """The file's text. Raises ``SpecError`` if it is missing, too large or not UTF-8."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise SpecError(f"{path}: larger than {MAX_FILE_BYTES // 2**20} MiB; not a spec file")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise SpecError(f"{path}: cannot be read: {error.strerror or error}") from None


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ``SpecError`` naming file, line and problem."""
    text = read_text(path)
    try:
        _check_size(path, text)
        value = yaml.load(text, Loader=_StrictLoader)  # noqa: S506  (a safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SpecError(f"{path}: {where}{error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise SpecError(f"{path}: not valid YAML: {error}") from None
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


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises ``SpecError`` naming file and problem.

    NaN and Infinity pass: real config.json files hold them in keys that no cache depends on
    (``time_step_limit: [0.0, Infinity]``), and the importer takes only whole numbers.
    """
    text = read_text(path)
    try:
        value = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise SpecError(f"{path}: {place}: not valid JSON: {error.msg}") from None
    except RecursionError:
        raise SpecError(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise SpecError(f"{path}: {error}") from None
    return _mapping(path, value)


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
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
