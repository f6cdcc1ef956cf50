"""A claim as data: what is computed from which inputs, what was printed, and where."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self

from lrkv_plan.specs.base import Frozen, Name, Remark
from lrkv_plan.specs.model import Sources

Identifier = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=80)]


def _quoted(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise ValueError("write the print in quotes, so that its digits are kept: '48.50 %'")
    return value


PrintedText = Annotated[str, BeforeValidator(_quoted), Field(min_length=1, max_length=80)]
Fields = Annotated[dict[str, Any], Field(max_length=40)]
Table = Annotated[dict[str, Fields], Field(min_length=1, max_length=64)]


class Explanation(Frozen):
    """Why a print differs, in a form that the audit checks.

    ``reading`` names changes that together must reproduce the print; ``none_of`` a subject of
    which no value does (``rank``: no integer rank). ``reason`` is for people.
    """

    reading: Annotated[tuple[Name, ...], Field(min_length=1, max_length=3)] | None = None
    none_of: Literal["rank"] | None = None
    reason: Remark

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.reading is None) == (self.none_of is None):
            raise ValueError("give a reading or none_of, one of the two: the audit checks it")
        return self


class Tolerance(Frozen):
    """A stated tolerance in place of the print's own precision, and why."""

    within: PrintedText
    reason: Remark


class Row(Frozen):
    """A row of one of the file's tables, whose cells stand in for inputs."""

    table: Name
    name: Name


class Claim(Frozen):
    """One printed value.

    ``says`` names what is printed; ``place`` where. ``missing`` names inputs that the document
    does not give, in place of ``inputs``. ``comparison`` at_most: what is computed bounds the
    print from above.
    """

    id: Identifier
    says: Name
    place: Name
    computes: Name
    row: Row | None = None
    inputs: Fields = Field(default_factory=dict)
    missing: Remark | None = None
    printed: PrintedText
    unit: Annotated[str, Field(min_length=1, max_length=10)] | None = None
    comparison: Literal["equal", "at_most"] = "equal"
    tolerance: Tolerance | None = None
    explanation: Explanation | None = None
    note: Remark | None = None

    @model_validator(mode="after")
    def _inputs_or_missing(self) -> Self:
        if self.missing is not None and (self.inputs or self.row):
            raise ValueError("missing and inputs exclude each other")
        if self.missing is not None and self.explanation is not None:
            raise ValueError("missing and explanation exclude each other")
        return self


class ClaimFile(Frozen):
    """The claims of one document. ``tables`` hold rows of inputs: other rows are tried too."""

    title: Name
    aliases: tuple[Identifier, ...] = ()
    source: Sources
    tables: dict[str, Table] = Field(default_factory=dict)
    claims: Annotated[tuple[Claim, ...], Field(min_length=1, max_length=10_000)]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        seen: set[str] = set()
        for claim in self.claims:
            if claim.id in seen:
                raise ValueError(f"claim id {claim.id!r} appears twice")
            seen.add(claim.id)
        return self
