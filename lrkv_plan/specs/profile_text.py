"""Fitted entries as YAML text inside a hardware profile, with everything else in it untouched."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from lrkv_plan.errors import SpecError
from lrkv_plan.specs.base import Source

_KEY = re.compile(r"^[A-Za-z_]")
_WIDTH = 98


def with_source(text: str, source: Source) -> str:
    """The profile's text with one more source after those that it has.

    Raises
    ------
    SpecError
        If its sources are no list.

    Examples
    --------
    >>> import datetime as dt
    >>> one = Source(citation="a run", read_on=dt.date(2026, 11, 30))
    >>> print(with_source("source:\\n  - {citation: a, read_on: 2026-11-29}\\n", one), end="")
    source:
      - {citation: a, read_on: 2026-11-29}
      - citation: "a run"
        read_on: 2026-11-30
    """
    lines = text.splitlines()
    start, end = _block(lines, "source")
    if start == len(lines):
        lines, end = [*lines, "source:"], end + 1
    elif not any(line.lstrip().startswith("- ") for line in lines[start + 1 : end]):
        raise SpecError("source: must be a list, one source an item, to take one more")
    stated = source.model_dump(exclude_none=True)
    item = [f"{key}: {_scalar(value)}" for key, value in stated.items()]
    added = [("  - " if index == 0 else "    ") + line for index, line in enumerate(item)]
    return "\n".join([*lines[:end], *added, *lines[end:]]) + "\n"


def _block(lines: list[str], key: str) -> tuple[int, int]:
    """Where a top-level key stands and where the next one does; the end twice if it is absent."""
    n = len(lines)
    start = next((i for i, line in enumerate(lines) if line.startswith(f"{key}:")), n)
    return start, next((i for i in range(start + 1, n) if _KEY.match(lines[i])), n)


def with_block(text: str, key: str, entries: Sequence[BaseModel], comment: str) -> str:
    """The profile's text with a list of ``entries`` under ``key``, replaced or appended.

    Examples
    --------
    >>> with_block("name: toy  # kept\\nkernels:\\n  - {old: 1}\\n", "kernels", [], "")
    'name: toy  # kept\\n'
    """
    lines = text.splitlines()
    start, end = _block(lines, key)
    before, after = lines[:start], lines[end:]
    block = [f"{key}:  # {comment}" if comment else f"{key}:"] if entries else []
    for entry in entries:
        block += _entry_lines(entry)
    return "\n".join([*before, *block, *after]) + "\n"


def _entry_lines(entry: BaseModel) -> list[str]:
    """One entry as a flow mapping, wrapped."""
    data = entry.model_dump(exclude_none=True)
    defaults = type(entry).model_fields
    shown = [f"{k}: {_scalar(v)}" for k, v in _ordered(data) if v != defaults[k].default]
    lines, current = [], "  - {"
    for number, part in enumerate(shown):
        piece = part + ("}" if number == len(shown) - 1 else ",")
        joiner = "" if current.endswith("{") else " "
        if len(current) + len(piece) + 1 > _WIDTH and current.strip():
            lines.append(current)
            current, joiner = "     ", " "
        current += joiner + piece
    return [*lines, current]


_FIRST = (
    "kernel", "n_gpus", "kv_dtype", "backend", "backend_version", "preferred", "regime",
    "query_heads_per_kv_head", "head_dims", "form", "t0_s", "beta", "phi", "link_efficiency",
    "two_shot_s", "work_unit_s", "full_work_units",
)  # fmt: skip


def _ordered(data: dict[str, Any]) -> list[tuple[str, Any]]:
    names = [n for n in _FIRST if n in data] + [n for n in data if n not in _FIRST]
    return [(n, data[n]) for n in names]


def _scalar(value: Any) -> str:
    """A value as YAML reads it back; floats with a point and a signed exponent."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.4g}" if 1e-3 <= abs(value) < 1e5 else f"{value:.3e}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_scalar(v) for v in value) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[a-z][A-Za-z0-9_/.-]*", value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)
