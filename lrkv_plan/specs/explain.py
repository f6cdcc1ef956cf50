"""One line from a pydantic error: the key, the value, what is allowed."""

from __future__ import annotations

import re
from typing import Any

from pydantic import BaseModel, ValidationError

from lrkv_plan.errors import did_you_mean, one_line, shown


def explain(error: ValidationError, model: type[BaseModel] | None = None) -> str:
    """``key.path: what is wrong (value)`` for the first error, and how many more there are.

    ``model`` gives the known keys for a did-you-mean at the top level.
    """
    errors = error.errors(include_url=False)
    # A list that fails inside is also reported as too short: keep the innermost places.
    outer = {e["loc"][:length] for e in errors for length in range(len(e["loc"]))}
    errors = [e for e in errors if e["loc"] not in outer]
    # An unknown key explains a missing one more often than the other way round.
    first = min(errors, key=lambda e: e["type"] != "extra_forbidden")
    where = ".".join(str(part) for part in first["loc"])
    text = _message(first, model)
    joint = (
        "" if not where else "." if first["type"] == "inner" and _INNER_KEY.match(text) else ": "
    )
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return one_line(where + joint + text) + more


_INNER_KEY = re.compile(r"[a-z0-9_.]+: ")


def _message(error: Any, model: type[BaseModel] | None) -> str:
    kind, value = error["type"], error.get("input")
    if kind == "inner":
        return str(error["ctx"]["inner"])
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        key = str(error["loc"][-1])
        known = list(model.model_fields) if model is not None and len(error["loc"]) == 1 else []
        allowed = f"; known: {', '.join(known)}" if known else ""
        return f"unknown key{did_you_mean(key, known)}{allowed}"
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    if kind == "value_error" and isinstance(value, dict | list | BaseModel):
        return message
    return f"{shown(value)}: {message}"
