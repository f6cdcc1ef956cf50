"""What every spec shares: frozen models, bounded numbers, sizes as people write them, sources."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lrkv_plan import units
from lrkv_plan.errors import PlanError


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
