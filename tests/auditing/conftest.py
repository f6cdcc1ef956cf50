"""One claim from its facts, audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from lrkv_plan.auditing.claim import ClaimFile
from lrkv_plan.auditing.evaluate import AuditRow, audit_claim

SOURCE = {"citation": "made up for a test", "read_on": "2026-11-30"}
Audited = Callable[..., AuditRow]


def audited_claim(
    computes: str, printed: str, inputs: dict[str, Any] | None = None, **more: Any
) -> AuditRow:
    tables = more.pop("tables", {})
    facts = {
        "id": "a",
        "says": "a value",
        "place": "here",
        "computes": computes,
        "printed": printed,
    }
    document = {
        "title": "test", "source": SOURCE, "tables": tables,
        "claims": [{**facts, "inputs": inputs or {}, **more}],
    }  # fmt: skip
    file = ClaimFile.model_validate(document)
    return audit_claim(file.claims[0], file, "test")


@pytest.fixture
def audited() -> Audited:
    """Audit one claim: quantity, print, inputs and any other key of a claim."""
    return audited_claim
