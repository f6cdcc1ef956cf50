"""What every spec shares: frozen models, bounded numbers, sizes as people write them, sources, and
one line from a pydantic error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

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


Url = Annotated[str, Field(pattern=r"^https?://\S+$", max_length=500)]
ReadOn = Annotated[dt.date, BeforeValidator(_as_date)]
NO_SOURCE = "none given"  # said wherever a source would stand


class Source(Frozen):
    """Where figures were read: a url or a citation, and the date."""

    url: Url | None = None
    citation: Remark | None = None
    read_on: ReadOn
    note: Remark | None = None

    @model_validator(mode="after")
    def _has_a_place(self) -> Source:
        if self.url is None and self.citation is None:
            raise ValueError("source needs a url or a citation")
        return self


@dataclass(frozen=True)
class Problem:
    """What is wrong with one key of a file; ``where`` is its path, empty for the whole file."""

    where: str
    kind: Literal["unknown", "wrong", "missing", "not filled in"]
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def explain(
    error: ValidationError, model: type[BaseModel] | None = None, *, inside: str = ""
) -> str:
    """``key.path: what is wrong (value)``, for all errors in one line.

    ``model`` gives the known keys for a did-you-mean at the top level; ``inside`` is the key under
    which the model stands.
    """
    found = problems(error, model)
    if inside:
        found = [replace(one, where=f"{inside}.{one.where}".rstrip(".")) for one in found]
    return one_line(_in_one_line(found))


def problems(error: ValidationError, model: type[BaseModel] | None = None) -> list[Problem]:
    """What is wrong with each key, unknown ones first: they explain missing ones."""
    errors = error.errors(include_url=False)
    # A list that fails inside is also reported as too short: keep the innermost places.
    outer = {e["loc"][:length] for e in errors for length in range(len(e["loc"]))}
    errors = [e for e in errors if e["loc"] not in outer]
    errors.sort(key=lambda e: e["type"] != "extra_forbidden")
    known = list(model.model_fields) if model is not None else []
    return [
        problem
        for one in errors
        for problem in _problems_of(one, known, lists_known=len(errors) == 1)
    ]


_MOST = 450  # characters of all problems together: the rest are counted


def _problems_of(error: Any, known: list[str], *, lists_known: bool) -> Iterator[Problem]:
    kind, value = error["type"], error.get("input")
    where = ".".join(str(part) for part in error["loc"])
    if kind == "inner":
        for one in error["ctx"].get("each", ()):
            inner = f"{where}.{one.where}" if one.where else where
            yield Problem(inner, one.kind, one.text)
    elif kind == "missing":
        yield Problem(where, "missing", "is missing")
    elif kind == "extra_forbidden":
        key = str(error["loc"][-1])
        here = known if len(error["loc"]) == 1 else []
        allowed = f"; known: {', '.join(here)}" if here and lists_known else ""
        yield Problem(where, "unknown", f"unknown key{did_you_mean(key, here)}{allowed}")
    else:
        message = str(error["msg"]).removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        if kind == "value_error" and isinstance(value, dict | list | BaseModel):
            yield Problem(where, "wrong", message)
        elif value is None and kind.endswith("_type"):
            yield Problem(where, "wrong", "has no value")
        else:
            yield Problem(where, "wrong", f"{shown(value)}: {message}")


def _in_one_line(found: Sequence[Problem]) -> str:
    """One problem as it is; several counted, those that miss a value by name alone."""
    if len(found) == 1:
        return str(found[0])
    only = {one.kind for one in found}
    verdict = "wrong: "
    parts = [str(one) for one in found if one.kind in ("unknown", "wrong")]
    for kind in ("missing", "not filled in"):
        names = [one.where for one in found if one.kind == kind]
        if names and only == {kind}:
            verdict, parts = f"{kind}: ", names
        elif names:
            parts += [f"{kind}: {names[0]}", *names[1:]]
    text, n_told = "", 0
    for part in parts:
        if n_told and len(text) + len(part) > _MOST:
            break
        is_name = n_told and part.replace(".", "").isidentifier()
        text += ("" if not n_told else ", " if is_name else "; ") + part
        n_told += 1
    more = f"; and {len(found) - n_told:,} more" if n_told < len(found) else ""
    return f"{len(found):,} keys are {verdict}{text}{more}"


PLACEHOLDER = "FILL_IN"


def unfilled(value: Any, where: str = "") -> Iterator[str]:
    """Paths of the values in a file that still hold a template's placeholder."""
    if isinstance(value, str) and PLACEHOLDER in value:
        yield where
    elif isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from unfilled(item, f"{where}.{key}" if where else str(key))


Spec = TypeVar("Spec", bound=Frozen)


def validate(cls: type[Spec], data: dict[str, Any], path: Path) -> Spec:
    """``data`` as a spec. Raises ``SpecError`` naming the file and what is wrong with each key."""
    blank = dict.fromkeys(unfilled(data))
    found: list[Problem] = []
    try:
        spec = cls.model_validate(data)
    except ValidationError as error:
        found = problems(error, cls)
    except SpecError as error:
        if not blank:
            raise SpecError(f"{path}: {error}") from None
    if not found and not blank:
        return spec
    unknown = {one.where for one in found if one.kind == "unknown"}
    left = [where for where in blank if where not in unknown]
    told = [one for one in found if not any(_is_of(one, where) for where in left)]
    told += [Problem(where, "not filled in", "is not filled in") for where in left]
    raise SpecError(f"{path}: {_in_one_line(told)}")


def _is_of(problem: Problem, blank: str) -> bool:
    """Whether a problem is that of an unfilled key, or of what holds it."""
    return problem.kind == "wrong" and f"{blank}.".startswith(f"{problem.where}.")
