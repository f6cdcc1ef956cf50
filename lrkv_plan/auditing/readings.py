"""Readings of a printed claim: other inputs, units and roundings that print the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product
from typing import Any, get_args

from pydantic import ValidationError

from lrkv_plan.attention.registry import spec_class
from lrkv_plan.auditing.claim import Claim, ClaimFile
from lrkv_plan.auditing.printed import Agreement, Kind, Number, Printed, parse_printed
from lrkv_plan.auditing.quantities import Quantity, quantity_named
from lrkv_plan.errors import PlanError, SpecError, did_you_mean, shown
from lrkv_plan.schema import Frozen, explain

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


MAX_SWEPT_RANK = 1_024
ALIGNMENTS = (8, 16, 32, 64)
_PREFIXES = ("K", "M", "G", "T", "P")
_KILO = Fraction(1000, 1024)


def argument_of(asked: Asked, wanted: str) -> int | None:
    """The design's first argument where the family calls it ``wanted``; else None."""
    family, _, rest = str(getattr(asked.inputs, "attention", None) or "").partition(":")
    try:
        matches = spec_class(family.lower()).text_argument == wanted
    except PlanError:
        return None
    head = rest.partition(",")[0].strip()
    return int(head) if matches and head.isascii() and head.isdecimal() else None


def _with_argument(asked: Asked, value: int, option: str = "") -> dict[str, str]:
    text: str = getattr(asked.inputs, "attention", "")
    family, _, rest = text.partition(":")
    options = "".join(f",{part}" for part in rest.split(",")[1:])
    return {"attention": f"{family}:{value}{options}{option}"}


def _ranks(asked: Asked) -> Iterator[Change]:
    rank = argument_of(asked, "rank")
    if rank is None:
        return
    if rank != 64:
        yield Change(name="rank 64", about="rank", fields=_with_argument(asked, 64))
    for width in sorted({-(-rank // a) * a for a in ALIGNMENTS} - {rank, 64}):
        fields = _with_argument(asked, width)
        yield Change(name=f"rank {rank} stored at {width}", about="rank", fields=fields)


def swept_ranks(asked: Asked) -> Iterator[Change]:
    """Every integer rank up to the head width, where that is at most ``MAX_SWEPT_RANK``."""
    if not _is_one_number(asked):
        return
    rank, top = argument_of(asked, "rank"), getattr(asked.inputs, "head_dim", None)
    if rank is None or top is None or top > MAX_SWEPT_RANK:
        return
    for value in range(top + 1):
        if value not in (rank, 64):
            fields = _with_argument(asked, value)
            yield Change(name=f"rank {value}", about="rank", fields=fields, swept=True)


def _doubled(asked: Asked) -> Iterator[Change]:
    """Twice and half the layers and the context."""
    for key, noun in (("n_layers", "layers"), ("context_tokens", "tokens")):
        count = getattr(asked.inputs, key, None)
        cancels = key == "n_layers" and asked.quantity.kind is Kind.RATIO
        if isinstance(count, int) and not cancels:
            yield Change(name=f"{2 * count:,} {noun}", about=key, fields={key: 2 * count})
            if count % 2 == 0:
                yield Change(name=f"{count // 2:,} {noun}", about=key, fields={key: count // 2})


def _thousands(asked: Asked) -> Iterator[Change]:
    """A context of 128,000 tokens for 131,072, or the other way round; a unit, like KB and KiB."""
    tokens = getattr(asked.inputs, "context_tokens", None)
    if not isinstance(tokens, int):
        return
    for stated, meant in ((1000, 1024), (1024, 1000)):
        if tokens % stated == 0:
            other = tokens // stated * meant
            fields = {"context_tokens": other}
            yield Change(name=f"{other:,} tokens", about="unit", fields=fields)
            return


def swept_layers(asked: Asked) -> Iterator[Change]:
    """The two layer counts between which the print lies, since bytes and weights grow in steps."""
    layers = getattr(asked.inputs, "n_layers", None)
    if layers is None or asked.quantity.kind is Kind.RATIO or not _is_one_number(asked):
        return
    value = asked.value()
    between = asked.printed.low * layers / value if value else Fraction(0)
    for count in (between // 1, between // 1 + 1):
        if count >= 1 and count not in (layers, 2 * layers, Fraction(layers, 2)):
            name, fields = f"{count:,} layers", {"n_layers": int(count)}
            yield Change(name=name, about="n_layers", fields=fields, swept=True)


def _is_one_number(asked: Asked) -> bool:
    """Not a printed range or a stated tolerance, which many counts meet."""
    return asked.printed.low == asked.printed.high and asked.claim.tolerance is None


def _group_sizes(asked: Asked) -> Iterator[Change]:
    """Groups of G heads where G groups were stated."""
    groups, heads = argument_of(asked, "n_kv_heads"), getattr(asked.inputs, "n_heads", None)
    if groups and heads and heads % groups == 0 and heads // groups != groups:
        fields = _with_argument(asked, heads // groups)
        yield Change(name=f"{groups} as group size", about="groups", fields=fields)


def _cached_forms(asked: Asked) -> Iterator[Change]:
    """The other rows that engines keep of the same design, where its family knows several.

    Of bytes alone: a printed share compares designs, not what an engine keeps of one.
    """
    if asked.quantity.kind is not Kind.BYTES:
        return
    text = str(getattr(asked.inputs, "attention", None) or "")
    try:
        form = spec_class(text.partition(":")[0].lower()).model_fields.get("cached_form")
    except PlanError:
        return
    if form is None or "cached_form" in text:
        return
    for one in get_args(form.annotation):
        if one != form.default:
            fields = {"attention": f"{text},cached_form={one}"}
            yield Change(name=f"cached_form={one}", about="cached_form", fields=fields)


def _placement(asked: Asked) -> Iterator[Change]:
    gpus = getattr(asked.inputs, "tp_size", 1)
    if gpus > 1:
        yield Change(name="not sharded", about="placement", fields={"tp_size": 1})
        for name, factor in ((f"over all {gpus} GPUs", gpus), (f"on one of {gpus} GPUs", 1)):
            share = Fraction(factor) if factor > 1 else Fraction(1, gpus)
            yield Change(name=name, about="placement", factor=share)


def _batches(asked: Asked) -> Iterator[Change]:
    gpus, tokens = getattr(asked.inputs, "n_gpus", 1), getattr(asked.inputs, "batch_tokens", None)
    if tokens is not None and gpus > 1:
        fields = {"batch_tokens": tokens * gpus}
        yield Change(name=f"batch on each of {gpus} GPUs", about="batch_tokens", fields=fields)


def _rows(asked: Asked) -> Iterator[Change]:
    own = asked.claim.row.name if asked.claim.row else None
    for name, cells in asked.rows.items():
        if name != own and cells:
            yield Change(name=f"row {name}", about="row", row=name)


def _formats(asked: Asked) -> Iterator[Change]:
    stated = getattr(asked.inputs, "kv_dtype", None)
    if asked.quantity.kind is Kind.BYTES:
        for name in ("fp32", "bf16", "fp8"):
            if name != stated:
                yield Change(name=f"{name} scalars", about="kv_dtype", fields={"kv_dtype": name})


def _units(asked: Asked) -> Iterator[Change]:
    """Powers of 1,024 counted as powers of 1,000, or the other way round for binary units."""
    unit = asked.printed.unit.upper()
    if asked.quantity.kind is not Kind.BYTES or unit[:1] not in _PREFIXES:
        return
    power = _PREFIXES.index(unit[0]) + 1
    binary = "I" in unit
    for step in range(1, power + 1):
        prefix = _PREFIXES[step - 1]
        factor = (1 / _KILO if binary else _KILO) ** step
        if step == power:
            pair = (f"{prefix}B", f"{prefix}iB") if binary else (f"{prefix}iB", f"{prefix}B")
            name = f"{pair[0]} printed as {pair[1]}"
        elif binary:
            name = f"{prefix}B of {1000**step:,} counted as {1024**step:,}"
        else:
            name = f"{prefix}B of {1024**step:,} counted as {1000**step:,}"
        yield Change(name=name, about="unit", factor=factor)


def _factors(asked: Asked) -> Iterator[Change]:
    if asked.quantity.inputs.model_fields.keys() & {"centred", "budget", "rank"}:
        return
    yield Change(name="times 2", about="factor", factor=Fraction(2))
    yield Change(name="half", about="factor", factor=Fraction(1, 2))


def _shares(asked: Asked) -> Iterator[Change]:
    if asked.quantity.kind is Kind.RATIO and asked.printed.unit == "%":
        yield Change(name="one minus the share", about="complement", complement=True)


def _other_base(asked: Asked) -> Iterator[Change]:
    if asked.quantity.name.startswith("relative_"):
        value, base = asked.inputs.value.value, asked.inputs.reference.value  # type: ignore[attr-defined]
        if value:
            yield Change(name="over the other value", about="base", factor=base / value)


def _centring(asked: Asked) -> Iterator[Change]:
    centred = getattr(asked.inputs, "centred", None)
    if centred is not None:
        name = "uncentred" if centred else "centred"
        yield Change(name=name, about="centring", fields={"centred": not centred})


def _alignments(asked: Asked) -> Iterator[Change]:
    stated: Any = getattr(asked.inputs, "alignment", None)
    if stated is not None:
        for width in (1, *ALIGNMENTS):
            if width != stated:
                name = f"alignment {width}"
                yield Change(name=name, about="alignment", fields={"alignment": width})


NEIGHBOURS: tuple[Callable[[Asked], Iterator[Change]], ...] = (
    _units, _doubled, _thousands, _ranks, _rows, _group_sizes, _cached_forms, _placement, _batches,
    _centring, _alignments, _other_base, _factors, _formats, _shares,
)  # fmt: skip


def named_changes(asked: Asked) -> list[Change]:
    """All single changes that apply, without the swept ranges."""
    return [change for neighbours in NEIGHBOURS for change in neighbours(asked)]


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
