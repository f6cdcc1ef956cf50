"""Audit claims: compute, compare, look for readings, and check what is said to explain them."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from lrkv_plan.auditing.claim import Claim, ClaimFile, Explanation, Tolerance, read_claims
from lrkv_plan.auditing.printed import Agreement
from lrkv_plan.auditing.quantities import quantity_named
from lrkv_plan.auditing.readings import Asked, Reading, asked, explained_by, no_rank_prints, search
from lrkv_plan.errors import PlanError, SpecError


class Verdict(enum.Enum):
    """How a claim came out."""

    MATCH = "match"
    EXPLAINED = "explained"  # differs, for a recorded reason that holds
    MISMATCH = "mismatch"
    NOT_COMPUTABLE = "not_computable"


@dataclass(frozen=True, kw_only=True)
class AuditRow:
    """One claim's result; ``computed`` in base units, ``computed_text`` in the printed one."""

    claim: str
    says: str
    file: str
    document: str
    place: str
    quantity: str
    equation: str
    printed: str
    comparison: str
    verdict: Verdict
    computed: Fraction | None = None
    computed_text: str | None = None
    readings: tuple[Reading, ...] = ()
    reading_texts: tuple[str, ...] = ()  # each reading's value in the printed unit
    nearest: Reading | None = None
    nearest_text: str | None = None
    tried: int = 0
    search_complete: bool = True
    chance_hits: float | None = None
    explanation: str | None = None
    missing: str | None = None
    tolerance: str | None = None
    note: str | None = None


def audit_file(path: Path) -> list[AuditRow]:
    """Every claim of a file. Raises ``SpecError`` naming file, claim and key."""
    file = read_claims(path)
    rows = []
    for claim in file.claims:
        try:
            rows.append(audit_claim(claim, file, path.stem))
        except PlanError as error:
            raise SpecError(f"{path}: {claim.id}: {error}") from None
    return rows


def audit_claim(claim: Claim, file: ClaimFile, file_name: str) -> AuditRow:
    """One claim's result.

    A recorded explanation is checked: the reading that it names must reproduce the print, or the
    sweep that it calls empty must be empty. Otherwise the claim stays a mismatch.

    Raises
    ------
    PlanError
        If the quantity, an input, the print or a reading's name cannot be understood.
    """
    question = asked(claim, file)
    if claim.missing is not None:
        return _row(question, file, file_name, Verdict.NOT_COMPUTABLE)
    value = question.value()
    if question.agreement(value) is Agreement.ROUNDED:
        stale = claim.explanation is not None
        note = "matches: its recorded explanation is not needed" if stale else claim.note
        return _row(question, file, file_name, Verdict.MATCH, value, note=note)
    found = search(question)
    readings = list(found.readings)
    holds, named = _holds(question, claim.explanation)
    if named is not None:  # the recorded reading leads
        readings = [named, *(r for r in readings if set(r.names) != set(named.names))]
    return _row(
        question,
        file,
        file_name,
        Verdict.EXPLAINED if holds else Verdict.MISMATCH,
        value,
        readings=tuple(readings),
        reading_texts=tuple(question.printed.in_unit(r.value) for r in readings),
        nearest=found.nearest,
        nearest_text=found.nearest and question.printed.in_unit(found.nearest.value),
        tried=found.tried,
        search_complete=found.complete,
        chance_hits=found.chance_hits,
        explanation=_said(claim.explanation, holds),
    )


def _holds(question: Asked, explanation: Explanation | None) -> tuple[bool, Reading | None]:
    if explanation is None:
        return False, None
    if explanation.reading is not None:
        reading = explained_by(question, explanation.reading)
        return reading is not None, reading
    return no_rank_prints(question), None


def _said(explanation: Explanation | None, holds: bool) -> str | None:
    if explanation is None:
        return None
    return explanation.reason if holds else f"does not hold: {explanation.reason}"


def _stated(tolerance: Tolerance | None) -> str | None:
    return None if tolerance is None else f"{tolerance.within}: {tolerance.reason}"


def _row(
    question: Asked,
    file: ClaimFile,
    file_name: str,
    verdict: Verdict,
    value: Fraction | None = None,
    **found: object,
) -> AuditRow:
    claim = question.claim
    facts: dict[str, object] = {"note": claim.note, **found}
    return AuditRow(
        claim=claim.id,
        says=claim.says,
        file=file_name,
        document=file.title,
        place=claim.place,
        quantity=claim.computes,
        equation=quantity_named(claim.computes).equation,
        printed=question.printed.text,
        comparison=claim.comparison,
        verdict=verdict,
        computed=value,
        computed_text=None if value is None else question.printed.in_unit(value),
        missing=claim.missing,
        tolerance=_stated(claim.tolerance),
        **facts,  # type: ignore[arg-type]
    )
