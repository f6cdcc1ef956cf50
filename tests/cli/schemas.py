"""JSON of commands against their schemas."""

from __future__ import annotations

from functools import cache
from typing import Any

import jsonschema

from lrkv_plan.report.output_schema import output_schema


@cache
def _validator(command: str) -> Any:
    schema = output_schema(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def fault(command: str, document: dict[str, Any]) -> str | None:
    """Where the command's schema refuses the document, and why; None where it does not."""
    error = jsonschema.exceptions.best_match(_validator(command).iter_errors(document))
    return None if error is None else f"{error.json_path}: {error.message}"
