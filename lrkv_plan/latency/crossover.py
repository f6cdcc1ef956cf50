"""Where the faster of two designs changes along one variable, exactly, and why."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

from lrkv_plan.attention.spec import divisors_of
from lrkv_plan.errors import PlacementError, UsageError, did_you_mean
from lrkv_plan.latency.kernel import CHARGES_WORK_UNITS
from lrkv_plan.latency.step import StepModel, StepTime, loads, step_model, step_time
from lrkv_plan.memory.exact import one_count
from lrkv_plan.specs.deployment import EngineName, Parallelism
from lrkv_plan.specs.design import NamedDesign, design_text, layers_of, sizes_of, with_size
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

if TYPE_CHECKING:
    from lrkv_plan.latency.kernel import KernelModel
    from lrkv_plan.latency.work import AttentionWork
    from lrkv_plan.memory.exact import IntArray

SCAN_CHUNK = 65_536  # values that a scan evaluates at a time: a few MB of arrays

# (first, second) times of one evaluation; arrays over the variable. [s]
Pair = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """At ``at`` and from there on the other design is faster (or as fast).

    ``earliest`` and ``latest`` are the same change with the constants' bands against and for the
    design that becomes faster; None where the bands allow that it never happens.
    """

    at: int
    faster_before: int  # 0 the first design, 1 the second
    faster_after: int
    earliest: int | None
    latest: int | None


@dataclass(frozen=True, kw_only=True)
class Decided:
    """From ``low`` to ``high`` that design leads even with both bands against it."""

    low: int
    high: int
    faster: int


@dataclass(frozen=True, kw_only=True)
class Crossover:
    """All changes of rank from ``low`` to ``high``; ``faster_first`` is None where they tie.

    Outside ``decided`` the bands allow either design to lead.
    """

    low: int
    high: int
    faster_first: int | None
    crossings: tuple[Crossing, ...]
    decided: tuple[Decided, ...] = ()


def context_breakpoints(
    models: Iterable[StepModel], batch_size: int, query_tokens: int
) -> set[int]:
    """Contexts around which a step time is not linear. [tokens]

    Full windows and selections; each layer's ridge, where traffic takes as long as arithmetic; and
    where its kernel's bound of short calls meets either side of the ridge.
    """
    places: set[int] = set()
    for model in models:
        batch = int(loads(model, batch_size, query_tokens).rank_batch)
        for layer, kernel in zip(model.work.attention, model.kernels, strict=True):
            places |= _bends(replace(layer, window_tokens=None), kernel, 0, batch, query_tokens)
            if (full := layer.window_tokens) is not None:
                # Beyond it only the keys of an index grow.
                places |= {full} | _bends(layer, kernel, full, batch, query_tokens)
            places |= _idle_rows(layer, kernel, batch)
    return places


@dataclass(frozen=True)
class _Line:
    """intercept + slope T, in seconds of one call at context T."""

    intercept: float
    slope: float

    def __add__(self, other: _Line) -> _Line:
        return _Line(self.intercept + other.intercept, self.slope + other.slope)

    def times(self, factor: float) -> _Line:
        return _Line(self.intercept * factor, self.slope * factor)


def _bends(
    layer: AttentionWork, kernel: KernelModel, start: int, batch: int, query: int
) -> set[int]:
    """Contexts from ``start`` on at which two of the lines of a kernel's time cross."""

    def line(amount: Callable[[Any], Any]) -> _Line:
        first, last = float(amount(start)), float(amount(start + _SPAN))
        slope = (last - first) / _SPAN
        return _Line(first - slope * start, slope)

    constants_of = kernel.constants_of or kernel.kernel
    moved = line(lambda t: layer.n_bytes(t, batch, query))
    worked = line(lambda t: layer.n_flops(t, batch, query)).times(1 / kernel.flops_per_s)
    units = line(lambda t: layer.n_units(t, batch, constants_of))
    memory = moved.times(1 / kernel.bytes_per_s)
    pairs = [(memory, worked)]
    if kernel.short is not None:
        short = kernel.short
        few = _Line(short.t0_s, 0.0) + moved.times(1 / short.bytes_per_s) + worked
        few += units.times(short.work_unit_s)
        charged = kernel.work_unit_s if kernel.form in CHARGES_WORK_UNITS else 0.0
        call = _Line(kernel.t0_s, 0.0) + units.times(charged)
        pairs += [(call + memory, few), (call + worked, few)]
    crossings = (
        (other.intercept - one.intercept) / (one.slope - other.slope)
        for one, other in pairs
        if one.slope != other.slope
    )
    return {int(place) for place in crossings if start < place < MOST_CONTEXT}


_SPAN = 2**20  # tokens between the two points of a line: slopes lose no digits
MOST_CONTEXT = 2**53  # beyond any context; whole numbers in a float up to there
MOST_IDLE_ROWS = 1024


def _idle_rows(layer: AttentionWork, kernel: KernelModel, batch: int) -> set[int]:
    """Rows too few to fill a GPU, where a kernel rebuilds them one by one: no lines at all there.

    Up to ``MOST_IDLE_ROWS``; measured kernels fill a GPU with a row or two.
    """
    units = float(layer.n_units(1, batch, kernel.constants_of or kernel.kernel))
    if kernel.form != "no_split" or layer.n_units(2, batch, kernel.constants_of) == units:
        return set()
    return set(range(1, min(int(kernel.full_work_units / units) + 1, MOST_IDLE_ROWS) + 1))


def sign_changes(
    times: Pair, low: int, high: int, breakpoints: Iterable[int]
) -> tuple[int | None, list[tuple[int, int]]]:
    """Changes of the faster design on [low, high], for times linear between breakpoints.

    Returns
    -------
    The design faster at ``low`` (None for a tie there), and (place, design faster from there on).

    Raises
    ------
    UsageError
        If ``low`` exceeds ``high``.
    """
    if low > high:
        raise UsageError(f"from {low} to {high}: the range is empty")
    ordered = _bracketed(low, high, breakpoints)
    faster = [_faster(times, place) for place in ordered]
    changes: list[tuple[int, int]] = []
    current = faster[0]
    for left, right, after in zip(ordered[:-1], ordered[1:], faster[1:], strict=True):
        if after is None or after == current:
            continue
        if current is None:
            current = after
            continue
        changes.append((_bisect(times, left, right, after), after))
        current = after
    return faster[0], changes


def _bracketed(low: int, high: int, breakpoints: Iterable[int]) -> list[int]:
    """The ends and the neighbours of each break, which bracket one that is not whole."""
    places = {low, high}
    for point in breakpoints:
        places |= {p for p in (point - 1, point, point + 1, point + 2) if low <= p <= high}
    return sorted(places)


def _bisect(times: Pair, left: int, right: int, after: int) -> int:
    """The first whole number in (left, right] at which ``after`` is strictly faster."""
    while right - left > 1:
        middle = (left + right) // 2
        if _faster(times, middle) == after:
            right = middle
        else:
            left = middle
    return right


def _faster(times: Pair, place: int) -> int | None:
    first, second = times(place)
    if first == second:
        return None
    return 0 if first < second else 1


def scan(times: Pair, values: IntArray) -> tuple[int | None, list[tuple[int, int]]]:
    """The same as ``sign_changes`` by evaluating every value; for any shape of times.

    ``SCAN_CHUNK`` values are evaluated at a time, so that memory stays bounded.
    """
    changes: list[tuple[int, int]] = []
    current: int | None = None
    start: int | None = None
    for index, faster in _edges(times, values):
        if index == 0:
            start = current = faster
        elif faster is not None and faster != current:
            if current is not None:
                changes.append((int(values[index]), faster))
            current = faster
    return start, changes


def _edges(times: Pair, values: IntArray) -> Iterator[tuple[int, int | None]]:
    """Index 0, every index where the faster design changes, and the first of each chunk."""
    import numpy as np

    for begin in range(0, values.size, SCAN_CHUNK):
        chunk = values[begin : begin + SCAN_CHUNK]
        first, second = times(chunk)
        signs = np.sign(np.asarray(first) - np.asarray(second)) + np.zeros(chunk.shape)
        for index in (0, *(np.flatnonzero(np.diff(signs)) + 1).tolist()):
            yield begin + index, None if signs[index] == 0 else int(signs[index] > 0)


def context_crossover(
    models: tuple[StepModel, StepModel],
    *,
    low: int = 1,
    high: int,
    batch_size: int = 1,
    query_tokens: int = 1,
) -> Crossover:
    """Where the ranking of two designs changes along the cached tokens.

    Parameters
    ----------
    models : two designs on the same GPUs.
    low, high : contexts to look between, both included. [tokens]

    Notes
    -----
    Steps are compared by the sum of their parts (``StepTime.step_s``). A crossing's band repeats
    the search with one design's attention at the low end of its band and the other's at the high
    end; errors that both share cancel in truth and widen the band here.
    """

    def at(place: Any) -> tuple[StepTime, StepTime]:
        one, other = (step_time(m, place, batch_size, query_tokens) for m in models)
        return one, other

    breaks = context_breakpoints(models, batch_size, query_tokens)
    return _with_bands(at, low, high, lambda times: sign_changes(times, low, high, breaks))


def scanned_crossover(
    steps_at: Callable[[Any], tuple[StepTime, StepTime]], values: IntArray
) -> Crossover:
    """The same along any variable, by evaluating each of ``values`` (ascending)."""
    return _with_bands(steps_at, int(values[0]), int(values[-1]), lambda times: scan(times, values))


def _with_bands(
    steps_at: Callable[[Any], tuple[StepTime, StepTime]],
    low: int,
    high: int,
    search: Callable[[Pair], tuple[int | None, list[tuple[int, int]]]],
) -> Crossover:
    start, changes = search(lambda place: _step_seconds(steps_at(place)))
    favoured = [
        search(lambda place, better=better: _leaning(steps_at(place), better))  # type: ignore[misc]
        for better in (0, 1)
    ]
    crossings = []
    for index, (place, after) in enumerate(changes):
        early = _same_change(favoured[after], after, index, low)
        late = _same_change(favoured[1 - after], after, index, None)
        crossings.append(
            Crossing(
                at=place, faster_before=1 - after, faster_after=after, earliest=early, latest=late
            )
        )
    return Crossover(
        low=low, high=high, faster_first=start, crossings=tuple(crossings),
        decided=tuple(_decided(favoured, low, high)),
    )  # fmt: skip


_Search = tuple["int | None", "list[tuple[int, int]]"]


def _decided(favoured: Sequence[_Search], low: int, high: int) -> Iterator[Decided]:
    """Where both searches, one in favour of each design, find the same leader."""
    edges = sorted({low, *(place for _, changes in favoured for place, _ in changes)})
    open_since: tuple[int, int] | None = None
    for edge in edges:
        leaders = {_leader_at(search, edge) for search in favoured}
        leader = leaders.pop() if len(leaders) == 1 else None
        if open_since is not None and leader != open_since[1]:
            yield Decided(low=open_since[0], high=edge - 1, faster=open_since[1])
            open_since = None
        if leader is not None and open_since is None:
            open_since = (edge, leader)
    if open_since is not None:
        yield Decided(low=open_since[0], high=high, faster=open_since[1])


def _leader_at(search: _Search, place: int) -> int | None:
    start, changes = search
    return ([start] + [faster for at, faster in changes if at <= place])[-1]


def _step_seconds(steps: tuple[StepTime, StepTime]) -> tuple[Any, Any]:
    return steps[0].step_s, steps[1].step_s


def surely_faster(first: StepTime, second: StepTime) -> int | None:
    """The design (0 or 1) that is faster even with both attentions' bands against it, or None."""
    leaders = {_faster(lambda _, b=b: _leaning((first, second), b), 0) for b in (0, 1)}  # type: ignore[misc]
    return leaders.pop() if len(leaders) == 1 else None


def lead_range(first: StepTime, second: StepTime) -> tuple[float, float]:
    """Least and most by which the second is faster, with the bands against and for it. [s]"""
    against, favoured = (_leaning((first, second), better) for better in (0, 1))
    return float(against[0] - against[1]), float(favoured[0] - favoured[1])


def leads_without_products(step: StepTime, other: StepTime) -> bool:
    """Whether a design leads only without its products over heads."""
    lead_s = float(other.step_s) - float(step.step_s)
    return lead_s <= 0 < lead_s + float(step.products_s)


def _leaning(steps: tuple[StepTime, StepTime], better: int) -> tuple[Any, Any]:
    """Step times with design ``better``'s attention at its best and the other's at its worst."""
    first, second = (
        step.step_s
        - step.attention_s
        + (step.attention_low_s if index == better else step.attention_high_s)
        for index, step in enumerate(steps)
    )
    return first, second


def _same_change(
    found: tuple[int | None, list[tuple[int, int]]], after: int, index: int, at_start: int | None
) -> int | None:
    """The matching change of a leaning search, or ``at_start`` if ``after`` leads all along."""
    start, changes = found
    matching = [place for place, faster in changes if faster == after]
    if start == after and not matching:
        return at_start
    return matching[min(index // 2, len(matching) - 1)] if matching else None


def describe(crossover: Crossover, labels: Sequence[str], what: str) -> str:
    """The answer in words: always, never, or where it changes."""
    if not crossover.crossings:
        if crossover.faster_first is None:
            return f"never: {labels[0]} and {labels[1]} are equally fast"
        leader = labels[crossover.faster_first]
        return f"always {leader}, from {crossover.low:,} to {_place(crossover.high, what)}"
    places = (f"{labels[c.faster_after]} from {_place(c.at, what)}" for c in crossover.crossings)
    first = crossover.faster_first
    start = f"{labels[first]} first, " if first is not None else ""
    return start + ", then ".join(places)


def _place(value: int, what: str) -> str:
    """A rank is a place, everything else an amount: rank 5, but 5 context tokens."""
    return f"rank {value:,}" if what == "rank" else f"{value:,} {what}"


SIZES = ("tp_size", "dp_size", "ep_size")
VARIABLES = ("context_tokens", "batch_size", "rank", "query_tokens", *SIZES)
_DEFAULT_MOST = {"batch_size": 4096, "query_tokens": 64, **dict.fromkeys(SIZES, 64)}
# Beyond what any engine decodes together or speculates on; every value up to it is evaluated.
MOST_SCANNED = 2**20
MOST_RANKS = 1024  # each rank is a design of its own


@dataclass(frozen=True, kw_only=True)
class Lead:
    """From ``low`` to ``high`` that design leads, by ``least_s`` to ``most_s``. [s]"""

    low: int
    high: int
    faster: int
    least_s: float
    most_s: float


@dataclass(frozen=True, kw_only=True)
class PairAt:
    """Both designs' models and steps at one value of the variable."""

    place: int
    models: tuple[StepModel, StepModel]
    steps: tuple[StepTime, StepTime]

    @property
    def lead_s(self) -> float:
        """By how much the second design is faster; negative where the first is. [s]"""
        return float(self.steps[0].step_s - self.steps[1].step_s)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The crossover, both designs' steps on either side of each change, and what they rest on.

    ``leads`` has one entry per stretch without a change, ``points`` a few values from end to end
    with each change among them.
    """

    crossover: Crossover
    sides: tuple[dict[str, Any], ...]
    rests_on: tuple[str, ...]
    leads: tuple[Lead, ...]
    points: tuple[PairAt, ...]


def compare(
    designs: Sequence[NamedDesign],
    hardware: HardwareProfile,
    *,
    over: str,
    point: dict[str, int],
    at_most: int | None = None,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    weight_bytes: int | None = None,
    engine: EngineName | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> Comparison:
    """Where the faster of two designs changes along one variable.

    Parameters
    ----------
    designs : two designs of one backbone, with their names.
    over : one of ``VARIABLES``.
    point : the other variables' values: context_tokens, batch_size, query_tokens, tp_size; other
        sizes of ``Parallelism`` are 1 where they are left out.
    at_most : the variable's largest value; by default the model's longest context (at least
        131,072), 4,096 sequences, 64 query tokens, 64 GPUs, or a head's width. At most
        ``MOST_SCANNED`` sequences or query tokens and ``MOST_RANKS`` ranks.
    engine : whose kernels and step constants apply; vLLM's newest when None.

    Raises
    ------
    UsageError
        If the variable is unknown, along the rank no design is an LRKV one, or the largest value
        is beyond what is looked at.
    SpecError, PlacementError
        As ``step_model``.
    """
    if over not in VARIABLES:
        hint = did_you_mean(over, VARIABLES)
        raise UsageError(f"variable {over!r} is unknown{hint}; known: {', '.join(VARIABLES)}")
    check_most(over, at_most)
    pair = [design for _, design in designs]

    @cache
    def built(index: int, rank: int | None, parallel: Parallelism) -> StepModel:
        return step_model(
            at_rank(pair[index], rank), hardware, kv_dtype=kv_dtype, weight_dtype=weight_dtype,
            weight_bytes=weight_bytes, parallel=parallel, engine=engine, relatives=relatives,
        )  # fmt: skip

    def models_at(**changed: int) -> tuple[StepModel, StepModel]:
        told = {**point, **changed}
        parallel = _layout(told)
        return built(0, told.get("rank"), parallel), built(1, told.get("rank"), parallel)

    def steps_at(value: int) -> tuple[StepTime, StepTime]:
        told = {**point, over: value}
        at = told["context_tokens"], told["batch_size"], told["query_tokens"]
        one, other = (step_time(model, *at) for model in models_at(**{over: value}))
        return one, other

    def name_at(index: int, value: int) -> str:
        return names_at(designs, value if over == "rank" else None)[index]

    def pair_at(value: int) -> PairAt:
        return PairAt(place=value, models=models_at(**{over: value}), steps=steps_at(value))

    values: Sequence[int] | IntArray
    if over in SCANNED:
        steps = models_at()
        crossover = _along(over, steps, point, at_most or _most(pair[0], over))
        values = range(crossover.low, crossover.high + 1)
        leads = _leads(
            crossover, _lead_along(over, steps, point), _turns(over, crossover, steps, point)
        )
    else:
        if over == "rank":
            values = ranks_of(pair, at_most)
        else:
            values = _sizes(pair[0], over, models_at, at_most)
        crossover = _each_of(values, steps_at)
        leads = _leads(crossover, lambda value: pair_at(int(value)).lead_s, values)
    shown = places_to_show(crossover, values, 1024 if over == "context_tokens" else 0)
    lowest = models_at(**({} if over in SCANNED else {over: crossover.low}))
    notes = (note for model in lowest for note in model.remarks)
    return Comparison(
        crossover=crossover,
        sides=tuple(_sides(crossover, name_at, steps_at)),
        rests_on=tuple(dict.fromkeys(notes)),
        leads=tuple(leads),
        points=tuple(map(pair_at, shown)),
    )


# Variables along which a step's models stay the same.
SCANNED = ("context_tokens", "batch_size", "query_tokens")
MOST_SHOWN = 8
_NEAR = 1.5  # a value that close to a change says nothing beside it


def places_to_show(crossover: Crossover, values: Sequence[int], start: int = 0) -> list[int]:
    """A few of the values: both ends, powers of two or of four, and every change.

    Parameters
    ----------
    values : what was looked at, ascending.
    start : least value worth showing, where nothing changes below it.

    Examples
    --------
    >>> both = Crossover(low=1, high=4096, faster_first=None, crossings=())
    >>> places_to_show(both, range(1, 4097))
    [1, 4, 16, 64, 256, 1024, 4096]
    """
    changes = [crossing.at for crossing in crossover.crossings]
    first = start if start * 4 <= crossover.high and min(changes, default=start) >= start else 0
    if len(values) <= MOST_SHOWN:
        inner = [value for value in values if value >= first]
    else:
        inner = _powers(max(first, crossover.low), crossover.high, values)
    far = [v for v in inner if not any(c / _NEAR < v < c * _NEAR for c in changes)]
    ends = [crossover.high] if first else [crossover.low, crossover.high]
    return sorted({*far, *changes, *ends})


def _powers(low: int, high: int, values: Sequence[int]) -> list[int]:
    """Powers of two among the values, from the highest down; of four or more where too many."""
    found: list[int] = []
    for step in (1, 2, 3, 4, 6, 8):
        powers = (2**k for k in range(high.bit_length() - 1, -1, -step))
        found = [power for power in powers if low <= power <= high and power in values]
        if len(found) <= MOST_SHOWN:
            break
    return found


def _turns(
    over: str, crossover: Crossover, models: tuple[StepModel, StepModel], point: dict[str, int]
) -> Sequence[int] | IntArray:
    """Values among which the lead is least and most: where times bend, or every one."""
    if over != "context_tokens":
        import numpy as np

        return np.arange(crossover.low, crossover.high + 1)
    low, high = crossover.low, crossover.high
    changes = (place for c in crossover.crossings for place in (c.at - 1, c.at))
    breaks = context_breakpoints(models, point["batch_size"], point["query_tokens"])
    return sorted({*_bracketed(low, high, breaks),
                   *(place for place in changes if place >= low)})  # fmt: skip


def _lead_along(
    over: str, models: tuple[StepModel, StepModel], point: dict[str, int]
) -> Callable[[Any], Any]:
    def lead(value: Any) -> Any:
        told: dict[str, Any] = {**point, over: value}
        one, other = (
            step_time(m, told["context_tokens"], told["batch_size"], told["query_tokens"]).step_s
            for m in models
        )
        return one - other

    return lead


def _leads(
    crossover: Crossover, lead_s: Callable[[Any], Any], places: Sequence[int] | IntArray
) -> Iterator[Lead]:
    """Least and most lead on every stretch between changes, taken at ``places`` (ascending)."""
    changes = crossover.crossings
    starts = [(crossover.low, crossover.faster_first), *((c.at, c.faster_after) for c in changes)]
    ends = [*(c.at - 1 for c in changes), crossover.high]
    for (low, faster), high in zip(starts, ends, strict=True):
        found = list(_values(lead_s, places, low, high))
        if faster is None and any(found):  # equal at first only
            faster = int(max(found) > 0)
        if faster is not None and found:
            sides = [one if faster else -one for one in found]
            yield Lead(low=low, high=high, faster=faster, least_s=min(sides), most_s=max(sides))


def _values(
    lead_s: Callable[[Any], Any], places: Sequence[int] | IntArray, low: int, high: int
) -> Iterator[float]:
    """The lead at the places from low to high; of an array, only the extremes of each chunk."""
    if isinstance(places, list):
        yield from (float(lead_s(place)) for place in places if low <= place <= high)
        return
    import numpy as np

    chosen = np.asarray(places)
    chosen = chosen[(chosen >= low) & (chosen <= high)]
    for begin in range(0, chosen.size, SCAN_CHUNK):
        chunk = np.asarray(lead_s(chosen[begin : begin + SCAN_CHUNK]))
        yield from (float(chunk.min()), float(chunk.max()))


def check_most(over: str, at_most: int | None) -> None:
    """Refuse a largest value that no engine reaches (``UsageError``)."""
    if at_most is None:
        return
    most = one_count("at_most", at_most)
    if over in ("batch_size", "query_tokens") and most > MOST_SCANNED:
        what = "sequences are decoded together" if over == "batch_size" else "tokens are speculated"
        raise UsageError(
            f"at_most {most}: along {over} at most {MOST_SCANNED:,} are looked at; no engine is "
            f"known in which more {what}"
        )


def _most(model: ModelSpec, over: str) -> int:
    if over == "context_tokens":
        return max(131_072, model.max_context_tokens or 0)
    return _DEFAULT_MOST[over]


def _along(
    over: str, pair: tuple[StepModel, StepModel], point: dict[str, int], most: int
) -> Crossover:
    if over == "context_tokens":
        return context_crossover(
            pair, high=most, batch_size=point["batch_size"], query_tokens=point["query_tokens"]
        )
    import numpy as np

    def at(values: Any) -> tuple[StepTime, StepTime]:
        told: dict[str, Any] = {**point, over: values}
        one, other = (
            step_time(m, told["context_tokens"], told["batch_size"], told["query_tokens"])
            for m in pair
        )
        return one, other

    return scanned_crossover(at, np.arange(1, most + 1))


def _each_of(values: list[int], steps_at: Any) -> Crossover:
    """A scan over few values whose step models differ."""
    import numpy as np

    steps = {value: steps_at(value) for value in values}

    def at(places: Any) -> tuple[StepTime, StepTime]:
        chosen = [steps[int(place)] for place in np.atleast_1d(places)]
        one, other = (_stacked([pair[i] for pair in chosen]) for i in (0, 1))
        return one, other

    return scanned_crossover(at, np.array(values))


def _stacked(steps: list[StepTime]) -> StepTime:
    """Steps of several models as one with arrays."""
    import numpy as np

    columns: dict[str, Any] = {
        name: np.array([getattr(step, name) for step in steps])
        for name in steps[0].__dataclass_fields__
    }
    return StepTime(**columns)


def at_rank(design: ModelSpec, rank: int | None) -> ModelSpec:
    """The design with another rank; one without a rank stays."""
    return with_size(design, rank) if rank is not None and _has_rank(design) else design


def _has_rank(design: ModelSpec) -> bool:
    """Whether what can be varied of that design is a rank."""
    return layers_of(design)[0].size_name == "rank"


def names_at(designs: Sequence[NamedDesign], rank: int | str | None) -> list[str]:
    """Names of designs at a rank, or with a word for it; those without a rank keep theirs."""
    return [
        name if rank is None or not _has_rank(one) else design_text(one, rank)
        for name, one in designs
    ]


def ranks_of(designs: Sequence[ModelSpec], at_most: int | None) -> list[int]:
    """Ranks from 0 to the narrowest head; one of the designs must have one."""
    varied = [design for design in designs if _has_rank(design)]
    if not varied:
        raise UsageError("along the rank one design must be lrkv:RANK")
    widest = min(sizes_of(design)[-1] for design in varied)
    most = min(widest, at_most or widest)
    if most > MOST_RANKS:
        raise UsageError(
            f"{most:,} ranks: at most {MOST_RANKS:,} are looked at one by one; give a smaller "
            "--at-most"
        )
    every = [set(sizes_of(design)) for design in varied]
    return [rank for rank in range(0, most + 1) if all(rank in ranks for ranks in every)]


def _layout(told: Mapping[str, int]) -> Parallelism:
    sizes: dict[str, Any] = {one.name: told[one.name] for one in fields(Parallelism)
                             if one.name in told}  # fmt: skip
    return Parallelism(**sizes)


def _sizes(
    model: ModelSpec,
    over: str,
    models_at: Callable[..., tuple[StepModel, StepModel]],
    at_most: int | None,
) -> list[int]:
    """Sizes of one kind of parallelism that both designs can run.

    Raises
    ------
    UsageError
        If experts are to be dealt out and the model has none.
    PlacementError
        If none can run; the message is that of the first.
    """
    if over == "ep_size" and not model.has_experts:
        raise UsageError(f"{model.name} has no experts to deal out; vary dp_size or tp_size")
    most = at_most or _DEFAULT_MOST[over]
    heads = math.gcd(*(layer.n_heads for layer in layers_of(model)))
    powers = [2**k for k in range(most.bit_length())]
    sizes, refused = [], None
    for size in divisors_of(heads or 1) if over == "tp_size" else powers:
        if size > most:
            break
        try:
            models_at(**{over: size})
        except PlacementError as error:
            refused = refused or error
            continue
        sizes.append(size)
    if not sizes and refused is not None:
        raise refused
    return sizes


def _sides(
    crossover: Crossover, name_at: Callable[[int, int], str], steps_at: Any
) -> list[dict[str, Any]]:
    places = [crossover.low]
    for crossing in crossover.crossings:
        places += [max(crossover.low, crossing.at - 1), crossing.at]
    rows = []
    for place in dict.fromkeys([*places, crossover.high]):
        try:
            steps = steps_at(place)
        except PlacementError:
            continue  # one GPU fewer than a crossing along a size need not be runnable
        for index, step in enumerate(steps):
            rows.append(
                {
                    "place": place,
                    "design": name_at(index, place),
                    "step_s": float(step.step_s),
                    "low_s": float(step.low_s),
                    "high_s": float(step.high_s),
                    "attention_s": float(step.attention_s),
                    "bound": "memory" if step.is_attention_memory_bound else "compute",
                }
            )
    return rows


_BATCH_STEPS_PER_DOUBLING = 16


def map_columns(
    designs: Sequence[NamedDesign],
    hardware: HardwareProfile,
    *,
    over: str,
    at_most: int | None = None,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    weight_bytes: int | None = None,
    tp_size: int = 1,
    engine: EngineName | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> list[tuple[int, tuple[StepModel, StepModel]]]:
    """(value, both designs there) for each column of a map.

    Parameters
    ----------
    designs : two designs of one backbone; along the rank, LRKV takes each column's rank.
    over : rank (every whole rank up to a head's width) or batch_size (geometric, 1 to ``at_most``).

    Raises
    ------
    UsageError
        If ``over`` is neither, along the rank no design is an LRKV one, or ``at_most`` is beyond
        what is looked at.
    SpecError, PlacementError
        As ``step_model``.
    """
    if over not in ("rank", "batch_size"):
        raise UsageError(f"a crossover map is over rank or batch_size, not {over!r}")

    check_most(over, at_most)

    pair = [design for _, design in designs]

    def built(design: ModelSpec) -> StepModel:
        return step_model(
            design, hardware, kv_dtype=kv_dtype, weight_dtype=weight_dtype,
            weight_bytes=weight_bytes, tp_size=tp_size, engine=engine, relatives=relatives,
        )  # fmt: skip

    if over == "rank":
        fixed = [None if _has_rank(design) else built(design) for design in pair]

        def at(index: int, rank: int) -> StepModel:
            return fixed[index] or built(at_rank(pair[index], rank))

        return [(rank, (at(0, rank), at(1, rank))) for rank in ranks_of(pair, at_most)]
    steps = built(pair[0]), built(pair[1])
    return [(batch, steps) for batch in geometric(at_most or 256)]


def column_labels(designs: Sequence[NamedDesign], over: str) -> tuple[str, str]:
    """The two designs' names; along the rank the number gives way to ``r``."""
    one, other = names_at(designs, "r" if over == "rank" else None)
    return one, other


def geometric(most: int, per_doubling: int = _BATCH_STEPS_PER_DOUBLING) -> list[int]:
    """Whole numbers from 1 to ``most``, at most ``per_doubling`` in each doubling.

    Examples
    --------
    >>> geometric(20, per_doubling=4)
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 13, 16, 19, 20]
    """
    steps = per_doubling * most.bit_length()
    values = {round(2 ** (k / per_doubling)) for k in range(steps)}
    return sorted({v for v in values if v < most} | {1, most})
