"""A claim bound to its quantity, inputs and print, and its value under changed readings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from lrkv_plan.audit.claim import Claim, ClaimFile
from lrkv_plan.audit.printed import Agreement, Kind, Printed, parse_printed
from lrkv_plan.audit.quantities import Quantity, quantity_named
from lrkv_plan.errors import PlanError, SpecError, did_you_mean, shown
from lrkv_plan.specs.base import Frozen
from lrkv_plan.specs.explain import explain

LARGEST = 10**100  # far beyond any print, and still a float


@dataclass(frozen=True, kw_only=True)
class Change:
    """One systematic way to read a claim differently.

    ``about`` is its subject: two changes of one subject never combine. ``fields`` replace inputs,
    ``row`` takes another row of the claim's table, ``factor`` and ``complement`` act on the value.
    ``swept`` marks one member of a whole range, such as every integer rank.
    """

    name: str
    about: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    row: str | None = None
    factor: Fraction = Fraction(1)
    complement: bool = False
    swept: bool = False


@dataclass(frozen=True)
class Asked:
    """What a claim asks."""

    claim: Claim
    quantity: Quantity
    printed: Printed
    rows: Mapping[str, Mapping[str, Any]]  # rows of the claim's table, cells the quantity knows

    @cached_property
    def inputs(self) -> Frozen:
        """The stated inputs. Raises ``SpecError`` naming the key."""
        cls = self.quantity.inputs
        try:
            return cls.model_validate(self._fields(()))
        except ValidationError as error:
            raise SpecError(f"inputs: {explain(error, cls)}") from None

    def _fields(self, changes: Sequence[Change]) -> dict[str, Any]:
        row = self.claim.row.name if self.claim.row else None
        for change in changes:
            row = change.row or row
        fields = {**self.rows.get(row or "", {}), **self.claim.inputs}
        for change in changes:
            fields |= change.fields
        return fields

    def value(self, changes: Sequence[Change] = ()) -> Fraction:
        """The exact value, in base units. Raises ``PlanError`` where a reading has none."""
        if not changes:
            return self._bounded(self.quantity(self.inputs))
        try:
            inputs = self.quantity.inputs.model_validate(self._fields(changes))
        except ValidationError as error:
            raise SpecError(explain(error)) from None
        value = self._bounded(self.quantity(inputs))
        for change in changes:
            value = (1 - value if change.complement else value) * change.factor
        return value

    def _bounded(self, value: Fraction) -> Fraction:
        if abs(value) > LARGEST:
            raise SpecError(f"{self.quantity.name} exceeds 10**100")
        return value

    def tried(self, changes: Sequence[Change]) -> Fraction | None:
        """The value of a reading, or None where it makes no sense."""
        try:
            return self.value(changes)
        except PlanError:
            return None

    def agreement(self, value: Fraction) -> Agreement:
        """Whether the value prints as claimed."""
        return self.printed.agreement(value, self.claim.comparison)


def asked(claim: Claim, file: ClaimFile) -> Asked:
    """Bind a claim. Raises ``SpecError`` for an unknown quantity, unit, table or row."""
    quantity = quantity_named(claim.computes)
    printed = parse_printed(claim.printed, quantity.kind, claim.unit)
    if claim.tolerance is not None:
        printed = _widened(printed, claim.tolerance.within)
    known = quantity.inputs.model_fields
    table = _table(claim, file)
    rows = {
        name: {key: value for key, value in cells.items() if key in known}
        for name, cells in table.items()
    }
    return Asked(claim, quantity, printed, rows)


def _table(claim: Claim, file: ClaimFile) -> Mapping[str, Mapping[str, Any]]:
    if claim.row is None:
        return {}
    table, name = claim.row.table, claim.row.name
    if table not in file.tables:
        hint = did_you_mean(table, file.tables)
        raise SpecError(f"row.table: the file has no table {shown(table)}{hint}")
    if name not in file.tables[table]:
        hint = did_you_mean(name, file.tables[table])
        raise SpecError(f"row.name: table {table!r} has no row {shown(name)}{hint}")
    return file.tables[table]


def _widened(printed: Printed, within: str) -> Printed:
    """The print with a stated tolerance: a share of it, or an amount in its own unit."""
    if within.strip().endswith("%") and printed.unit != "%":
        share = parse_printed(within, Kind.RATIO).low
        return replace(printed, half_unit=abs(printed.high) * share)
    return replace(printed, half_unit=parse_printed(within, printed.kind, printed.unit or None).low)
