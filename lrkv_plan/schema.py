"""What every spec shares: frozen models, bounded numbers, sizes as people write them, sources, and
one line from a pydantic error.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from lrkv_plan import units
from lrkv_plan.errors import PlanError, SpecError, did_you_mean, one_line, shown


class Frozen(BaseModel):
    """A value that never changes and knows all its keys."""

    # Built on first use: a command pays only for the specs that it reads.
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        allow_inf_nan=False,
        defer_build=True,
        protected_namespaces=(),
    )


def _as_date(value: Any) -> Any:
    return dt.date.fromisoformat(value) if isinstance(value, str) else value


def _sized(parse: Callable[[str], Any]) -> BeforeValidator:
    """Accept ``80 GiB`` where a person would write it; numbers are base units already."""

    def convert(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except PlanError as error:
            problem = str(error)
        try:  # PyYAML reads 3.35e12, without a point and a sign, as text
            number = units.parse_number(value)
        except PlanError:
            raise ValueError(problem) from None
        return int(number) if number.denominator == 1 else float(number)

    return BeforeValidator(convert)


# Bounds far above anything built, low enough that products of a spec stay printable.
LayerCount = Annotated[int, Field(strict=True, ge=1, le=10_000)]
HeadCount = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Width = Annotated[int, Field(strict=True, ge=1, le=4_194_304)]
WidthOrZero = Annotated[int, Field(strict=True, ge=0, le=4_194_304)]
Vocabulary = Annotated[int, Field(strict=True, ge=1, le=100_000_000)]
TokenCount = Annotated[int, Field(strict=True, ge=1, le=10**12)]
Flag = Annotated[bool, Field(strict=True)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Remark = Annotated[str, Field(min_length=1, max_length=2_000)]
ByteCount = Annotated[int, Field(strict=True, ge=1, le=2**60), _sized(units.parse_bytes)]
BytesPerSecond = Annotated[float, Field(ge=1, le=1e18), _sized(units.parse_bytes_per_s)]
FlopsPerSecond = Annotated[float, Field(ge=1, le=1e21), _sized(units.parse_flops_per_s)]


class Source(Frozen):
    """Where figures were read: a url or a citation, and the date."""

    url: Annotated[str, Field(pattern=r"^https?://\S+$", max_length=500)] | None = None
    citation: Remark | None = None
    read_on: Annotated[dt.date, BeforeValidator(_as_date)]
    note: Remark | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Source:
        if self.url is None and self.citation is None:
            raise ValueError("source needs a url or a citation")
        return self


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


Spec = TypeVar("Spec", bound=Frozen)


def validate(cls: type[Spec], data: dict[str, Any], path: Path) -> Spec:
    """``data`` as a spec. Raises ``SpecError`` naming file, key, value and what is allowed."""
    try:
        return cls.model_validate(data)
    except ValidationError as error:
        raise SpecError(f"{path}: {explain(error, cls)}") from None
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from None
