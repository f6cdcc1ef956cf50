"""The neighbouring readings of a claim: how its inputs or its unit may have been taken instead.

Each is a transformation of stated inputs; none knows what was printed. Found agreement is an
inference about the print, not evidence of what its authors did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

from lrkv_plan.audit.asked import Asked, Change
from lrkv_plan.audit.printed import Kind
from lrkv_plan.errors import PlanError
from lrkv_plan.specs.attention import spec_class

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
    _units, _doubled, _thousands, _ranks, _rows, _group_sizes, _placement, _batches, _centring,
    _alignments, _other_base, _factors, _formats, _shares,
)  # fmt: skip


def named_changes(asked: Asked) -> list[Change]:
    """All single changes that apply, without the swept ranges."""
    return [change for neighbours in NEIGHBOURS for change in neighbours(asked)]
