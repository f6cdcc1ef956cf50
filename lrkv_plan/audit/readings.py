"""Search the neighbouring readings of a claim for those that reproduce its print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from typing import Any

from lrkv_plan.audit.asked import Asked, Change
from lrkv_plan.audit.changes import argument_of, named_changes, swept_layers, swept_ranks
from lrkv_plan.audit.printed import Agreement, Number
from lrkv_plan.errors import PlanError, SpecError, did_you_mean, shown

CUT = "cut, not rounded"
UNROUNDED = "inputs before rounding"
MAX_TRIED = 3_000
_MAX_ROUNDED_INPUTS = 10


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Changes that together give ``value``; inference, however well it fits.

    ``swept`` where a rank was tried at every integer: such a reading may agree by chance.
    """

    names: tuple[str, ...]
    value: Fraction
    swept: bool = False

    @property
    def text(self) -> str:
        """``36 layers + rank 64``."""
        return " + ".join(self.names)


@dataclass(frozen=True, kw_only=True)
class Search:
    """What was found, how many readings were tried, and whether the list was cut short.

    ``nearest`` is the closest integer rank where ranks were swept, none reproduced the print and
    no named reading did. ``chance_hits`` is how many ranks of other rows would agree if their
    values lay evenly.
    """

    readings: tuple[Reading, ...]
    tried: int
    complete: bool
    nearest: Reading | None = None
    chance_hits: float | None = None


def search(asked: Asked) -> Search:
    """Single changes, every integer rank and layer count, pairs, and other rows at every rank.

    Digits cut off are accepted for named changes, with ``CUT`` among the names; a swept rank has
    to print by rounding, since 129 ranks at two roundings agree with much by chance. A pair is
    not tried where one of its changes alone reproduces the print.
    """
    found = list(_unchanged(asked))
    alone: set[str] = set()
    nearest, elsewhere = _stated_rank(asked), list[Fraction]()
    tried, complete = 0, True
    for changes in _candidates(asked):
        if len(changes) > 1 and alone & {change.name for change in changes}:
            continue
        if tried >= MAX_TRIED:
            complete = False
            break
        value = asked.tried(changes)
        tried += 1
        if value is None:
            continue
        reading = _reading(asked, changes, value)
        if reading is not None:
            found.append(reading)
            alone |= {changes[0].name} if len(changes) == 1 else set()
        elif len(changes) == 1 and changes[0].about == "rank":
            nearest = _nearer(asked, nearest, Reading(names=(changes[0].name,), value=value))
        if len(changes) > 1 and changes[-1].swept:
            elsewhere.append(value)
    one_rank = any(len(r.names) == 1 and r.names[0].startswith("rank ") for r in found)
    return Search(
        readings=tuple(sorted(found, key=_simplest_first)),
        tried=tried,
        complete=complete,
        nearest=None if one_rank or any(not r.swept for r in found) else nearest,
        chance_hits=_chance_hits(asked, elsewhere),
    )


def _chance_hits(asked: Asked, values: Sequence[Fraction]) -> float | None:
    """n values spread evenly over their range hit a window of one last digit so often."""
    spread = max(values) - min(values) if values else Fraction(0)
    return float(len(values) * 2 * asked.printed.half_unit / spread) if spread else None


def _stated_rank(asked: Asked) -> Reading | None:
    """The claim's own rank, where ranks can be swept around it."""
    rank = argument_of(asked, "rank")
    if rank is None or next(swept_ranks(asked), None) is None:
        return None
    return Reading(names=(f"rank {rank}",), value=asked.value())


def _nearer(asked: Asked, one: Reading | None, other: Reading) -> Reading | None:
    """The reading whose value is nearer to the print; None where ranks were not swept."""
    return one and min(one, other, key=lambda r: abs(r.value - asked.printed.low))


def _simplest_first(reading: Reading) -> tuple[bool, int]:
    return CUT in reading.names, len(reading.names)


def _reading(asked: Asked, changes: Sequence[Change], value: Fraction) -> Reading | None:
    agreement = asked.agreement(value)
    swept = any(change.swept for change in changes)
    if agreement is Agreement.NONE or (swept and agreement is Agreement.TRUNCATED):
        return None
    cut = (CUT,) if agreement is Agreement.TRUNCATED else ()
    return Reading(names=(*(change.name for change in changes), *cut), value=value, swept=swept)


def _candidates(asked: Asked) -> Iterator[tuple[Change, ...]]:
    named, ranks = named_changes(asked), list(swept_ranks(asked))
    yield from ((change,) for change in (*named, *ranks, *swept_layers(asked)))
    yield from (pair for pair in combinations(named, 2) if _combine(asked, *pair))
    rows = [change for change in named if change.row is not None]
    yield from (pair for pair in product(rows, ranks) if _combine(asked, *pair))


def _combine(asked: Asked, one: Change, other: Change) -> bool:
    """Different subjects; a change worked out from this row's cells does not fit another row."""
    if one.about == other.about or one.fields.keys() & other.fields.keys():
        return False
    supplied = {key for cells in asked.rows.values() for key in cells} - {"attention"}
    moves_row = one.row is not None or other.row is not None
    return not (moves_row and supplied & {*one.fields, *other.fields})


def _unchanged(asked: Asked) -> Iterator[Reading]:
    value = asked.value()
    if asked.agreement(value) is Agreement.TRUNCATED:
        yield Reading(names=(CUT,), value=value)
    bounds = _before_rounding(asked)
    if bounds is not None and asked.printed.overlaps(*bounds):
        nearest = min(max(asked.printed.low, bounds[0]), bounds[1])
        yield Reading(names=(UNROUNDED,), value=nearest)


def _before_rounding(asked: Asked) -> tuple[Fraction, Fraction] | None:
    """Smallest and largest value that the inputs allow before they were rounded to print.

    Every monotone quantity takes them at corners: each input half a unit up or down.
    """
    if not asked.quantity.monotone or asked.claim.comparison != "equal":
        return None
    inputs = asked.inputs
    stated = {key: getattr(inputs, key) for key in type(inputs).model_fields}
    places = list(_rounded_places(stated))
    if not places or len(places) > _MAX_ROUNDED_INPUTS:
        return None
    values = []
    for signs in product((-1, 1), repeat=len(places)):
        moved = dict(stated)
        for (key, index, number), sign in zip(places, signs, strict=True):
            shifted = Number(number.value + sign * number.half_unit)
            whole = moved[key]
            moved[key] = (
                shifted if index is None else (*whole[:index], shifted, *whole[index + 1 :])
            )
        try:
            values.append(asked.quantity(asked.quantity.inputs.model_validate(moved)))
        except PlanError:
            return None
    return min(values), max(values)


def _rounded_places(stated: dict[str, Any]) -> Iterator[tuple[str, int | None, Number]]:
    for key, value in stated.items():
        if isinstance(value, Number):
            if value.half_unit:
                yield key, None, value
        elif isinstance(value, tuple):
            for index, item in enumerate(value):
                if isinstance(item, Number) and item.half_unit:
                    yield key, index, item


def explained_by(asked: Asked, names: Sequence[str]) -> Reading | None:
    """The reading that ``names`` describe, if it reproduces the print.

    Raises
    ------
    SpecError
        If a name is no reading of this claim.
    """
    if list(names) == [UNROUNDED]:
        return next((r for r in _unchanged(asked) if r.names == (UNROUNDED,)), None)
    swept = (*swept_ranks(asked), *swept_layers(asked))
    known = {change.name: change for change in (*swept, *named_changes(asked))}
    changes = [_known(known, name) for name in names if name != CUT]
    value = asked.tried(changes)
    agreement = Agreement.NONE if value is None else asked.agreement(value)
    wanted = Agreement.TRUNCATED if CUT in names else Agreement.ROUNDED
    if value is None or agreement is not wanted:
        return None
    return Reading(names=tuple(names), value=value, swept=any(c.swept for c in changes))


def _known(known: dict[str, Change], name: str) -> Change:
    if name not in known:
        allowed = ", ".join(n for n, change in known.items() if not change.swept)
        raise SpecError(
            f"explanation.reading: {shown(name)} is no reading of this claim"
            f"{did_you_mean(name, [*known, CUT, UNROUNDED])}; it has: {allowed}"
        )
    return known[name]


def no_rank_prints(asked: Asked) -> bool:
    """Whether ranks can be swept and none of them prints as claimed, rounded or cut."""
    ranks = [*swept_ranks(asked), *(c for c in named_changes(asked) if c.about == "rank")]
    values = [asked.tried([change]) for change in ranks] + [asked.value()]
    swept = any(change.swept for change in ranks)
    return swept and not any(
        value is not None and asked.agreement(value) is not Agreement.NONE for value in values
    )
