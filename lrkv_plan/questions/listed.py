"""Which values does one argument list: a comma between them, or a list?"""

from __future__ import annotations

import os
from typing import Any

from lrkv_plan import words
from lrkv_plan.errors import ArgumentError, UsageError, shown
from lrkv_plan.files import as_path
from lrkv_plan.formats import storage_format


def listed(name: str, value: Any) -> list[Any]:
    """The values of one argument: those of a list, or of text with commas.

    A comma in the name of a model or GPU lists several, unless a file of that name exists.

    Raises
    ------
    UsageError
        If one cannot be read, is empty or stands twice, or a number may be meant in two ways.
    """
    if value is None:
        return [None]
    if name == "context_tokens":
        return words.token_counts(name, value)
    if name in ("tp_size", "batch_size"):
        return words.counts(name, value)
    if isinstance(value, list | tuple):
        found = list(value)
    elif isinstance(value, str) and "," in value and not os.path.lexists(as_path(value)):
        found = [part.strip() for part in value.split(",")]
    else:
        found = [value]
    if not 1 <= len(found) <= words.MAX_VALUES or (len(found) > 1 and "" in found):
        raise _refusal(name, f" {shown(value)}: write values with a comma between, a,b")
    if name == "kv_dtype":
        found = [storage_format(one).name for one in words.texts(name, found)]
    for one in found:
        if isinstance(one, str) and found.count(one) > 1:
            raise _refusal(name, f" {shown(value)}: {shown(one)} stands twice")
    return found


def _refusal(name: str, problem: str) -> UsageError:
    """The error; a model is what a question is about, and has no flag."""
    return UsageError(name + problem) if name == "model" else ArgumentError(name, problem)
