"""Claims: printed figures with their inputs, the files that hold them, and their JSON schema."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator
from pydantic.json_schema import models_json_schema
from typing_extensions import Self

from lrkv_plan.auditing.quantities import QUANTITIES
from lrkv_plan.documents import read_yaml
from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.files import as_path
from lrkv_plan.loader import shipped_files
from lrkv_plan.schema import Frozen, Name, Remark, explain, validate
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


CLAIM_FOLDER = "claims"
_PARTS: dict[str, type[Frozen]] = {
    "row": Row, "tolerance": Tolerance, "explanation": Explanation, "": Claim,
}  # fmt: skip


def read_claims(path: Path) -> ClaimFile:
    """The claims in a file. Raises ``SpecError`` naming file, claim, key and what is allowed."""
    data = read_yaml(path)
    claims = data.get("claims")
    for number, item in enumerate(claims if isinstance(claims, list) else []):
        if isinstance(item, dict):
            _check(item, f"{path}: claims.{number}{_named(item)}")
    return validate(ClaimFile, data, path)


def _check(item: dict[str, Any], where: str) -> None:
    """Each claim and its parts on their own first: the message then knows their keys."""
    for key, cls in _PARTS.items():
        value = item.get(key) if key else item
        if not isinstance(value, dict):
            continue
        try:
            cls.model_validate(value)
        except ValidationError as error:
            raise SpecError(f"{where}: {explain(error, cls, inside=key)}") from None


def _named(item: dict[str, Any]) -> str:
    name = item.get("id")
    return f" ({name[:60]})" if isinstance(name, str) else ""


def claim_files(argument: str | None) -> list[Path]:
    """Files that the argument names: a path, a shipped name or alias; all shipped without one.

    Raises
    ------
    SpecError
        If it is neither a file nor a known name.
    """
    shipped = shipped_files(CLAIM_FOLDER)
    if argument is None:
        return shipped
    path = as_path(argument)
    if path.suffix in (".yaml", ".yml", ".json") or "/" in argument:
        return [path]
    names: dict[str, list[Path]] = {}
    for file in shipped:
        for name in (file.stem, *read_claims(file).aliases):
            names.setdefault(name, []).append(file)
    wanted = argument.lower()
    if wanted not in names:
        raise SpecError(
            f"claims {shown(argument)} are neither a YAML file nor a shipped name"
            f"{did_you_mean(argument, names)}; known: {', '.join(sorted(names))}"
        )
    return names[wanted]


_TEMPLATE = "#/$defs/{model}"


def claim_schema() -> dict[str, Any]:
    """JSON Schema 2020-12 of a claim file; ``inputs`` are checked by what ``computes`` says.

    Cells of a table may stand in for inputs, so no input is required here; the audit names those
    that are missing.
    """
    classes = list(dict.fromkeys(q.inputs for q in QUANTITIES.values()))
    models_wanted: tuple[type[BaseModel], ...] = (ClaimFile, *classes)
    named: list[tuple[type[BaseModel], Literal["validation"]]] = [
        (cls, "validation") for cls in models_wanted
    ]
    keys, definitions = models_json_schema(named, ref_template=_TEMPLATE)
    models: dict[str, Any] = definitions["$defs"]
    references = {cls: keys[cls, "validation"]["$ref"] for cls in classes}
    for reference in references.values():
        models[reference.rsplit("/", 1)[1]].pop("required", None)
    claim = models["Claim"]
    claim["properties"]["computes"] = {
        "enum": sorted(QUANTITIES),
        "description": "; ".join(f"{name}: {q.equation}" for name, q in sorted(QUANTITIES.items())),
    }
    claim["allOf"] = [
        {
            "if": {"properties": {"computes": {"const": name}}},
            "then": {"properties": {"inputs": {"$ref": references[q.inputs]}}},
        }
        for name, q in sorted(QUANTITIES.items())
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Claims for lrkv-plan audit",
        **keys[ClaimFile, "validation"],
        "$defs": models,
    }
