"""What a page says first: how many users fit, and which of two designs is faster at a batch.

``report.js`` puts the same phrases together at every point of the sliders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lrkv_plan.report.explorer import GridDesign, SliderGrid

PHRASES: Mapping[str, str] = {
    "no_user": "no user of {context} fits",
    "one_user": "one user of {context} fits",
    "users": "{n} users of {context} fit",
    "held": "{where}: {own_users} with {own}.",
    "held_both": "{where}: {own_users} with {own}, {n} with {other}.",
    "time": "{step} ms ({band}) {mark} with {name}",
    "alone": "At batch {batch} a step takes {one}.",
    "faster": "At batch {batch} a step takes {one} and {two}: {name} is faster.",
    "close": "At batch {batch} a step takes {one} and {two}: too close to call.",
    "only": "At batch {batch} a step takes {one}; {name} does not hold that batch.",
    "not": "Batch {batch} does not fit.",
    "neither": "Batch {batch} fits with neither {own} nor {other}.",
    "refused": "No step time: {reason}",
    "unknown": "{where}: how many users fit is not known.",
}


def verdict(grid: SliderGrid, at: Sequence[int], chosen: str) -> tuple[str, str]:
    """The two sentences at those axis indices for the designs of a set."""
    n = grid.compared[chosen]
    own, other = grid.designs[0], None if n is None else grid.designs[n]
    return _users(grid, own, other, at), _times(grid, own, other, at)


def _users(grid: SliderGrid, own: GridDesign, other: GridDesign | None, at: Sequence[int]) -> str:
    held = own.measure("total_sequences")
    if held.refused is not None or (
        other is not None and other.measure("total_sequences").refused is not None
    ):
        return PHRASES["unknown"].format(where=grid.where)
    n = held.values[held.place(at)]
    phrase = PHRASES[{0: "no_user", 1: "one_user"}.get(n, "users")]
    told = {
        "where": grid.where,
        "own": _text(own, "attention", at),
        "own_users": phrase.format(
            n=_text(own, "total_sequences", at), context=grid.axes[1].texts[at[1]]
        ),
    }
    if other is None:
        return PHRASES["held"].format(**told)
    return PHRASES["held_both"].format(
        **told, n=_text(other, "total_sequences", at), other=_text(other, "attention", at)
    )


def _times(grid: SliderGrid, own: GridDesign, other: GridDesign | None, at: Sequence[int]) -> str:
    both = [own] if other is None else [other, own]
    batch = grid.axes[2].texts[at[2]]
    for one in both:
        for key in ("step_s", "batch_fits"):
            if (reason := one.measure(key).refused) is not None:
                return PHRASES["refused"].format(reason=reason)
    fitting = [one for one in both if _value(one, "batch_fits", at)]
    timed = [_time(one, at) for one in fitting]
    if not fitting and other is None:
        return PHRASES["not"].format(batch=batch)
    if not fitting:
        names = {"own": _text(own, "attention", at), "other": _text(both[0], "attention", at)}
        return PHRASES["neither"].format(batch=batch, **names)
    if len(both) == 1:
        return PHRASES["alone"].format(batch=batch, one=timed[0])
    if len(fitting) == 1:
        (absent,) = (one for one in both if one not in fitting)
        name = _text(absent, "attention", at)
        return PHRASES["only"].format(batch=batch, one=timed[0], name=name)
    told = {"batch": batch, "one": timed[0], "two": timed[1]}
    for one, against in (both, both[::-1]):
        if _value(one, "high_s", at) < _value(against, "low_s", at):
            return PHRASES["faster"].format(**told, name=_text(one, "attention", at))
    return PHRASES["close"].format(**told)


def _time(design: GridDesign, at: Sequence[int]) -> str:
    return PHRASES["time"].format(
        step=_text(design, "step_s", at), band=_text(design, "step_band", at),
        mark=_text(design, "time_basis", at), name=_text(design, "attention", at),
    )  # fmt: skip


def _text(design: GridDesign, key: str, at: Sequence[int]) -> str:
    measure = design.measure(key)
    return measure.texts[measure.place(at)]


def _value(design: GridDesign, key: str, at: Sequence[int]) -> float:
    measure = design.measure(key)
    value: float = measure.values[measure.place(at)]
    return value
