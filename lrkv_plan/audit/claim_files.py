"""Find and read claim files, with one line for whatever is wrong in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lrkv_plan.audit.claim import Claim, ClaimFile, Explanation, Row, Tolerance
from lrkv_plan.errors import SpecError, did_you_mean, shown
from lrkv_plan.files import as_path
from lrkv_plan.specs.base import Frozen
from lrkv_plan.specs.explain import explain
from lrkv_plan.specs.loader import shipped_files, validate
from lrkv_plan.specs.strict_files import read_yaml

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
            raise SpecError(f"{where}: {key}{'.' if key else ''}{explain(error, cls)}") from None


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
