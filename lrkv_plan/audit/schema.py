"""The JSON schema of claim files, for editors that complete and check YAML."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from lrkv_plan.audit.claim import ClaimFile
from lrkv_plan.audit.quantities import QUANTITIES

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
