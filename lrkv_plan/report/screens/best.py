"""The screen of ``best``: the cheapest way, how firm it is, runners-up, what rules others out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.screen import GLYPHS, Row, Screen, ScreenColumn, short_percent, with_band
from lrkv_plan.report.screens.sweep import significant_usd
from lrkv_plan.report.screens.words import (
    WHY,
    a_token,
    brief,
    counted,
    gpu_words,
    legend,
    sharing_words,
    tokens,
    users,
)

if TYPE_CHECKING:
    from lrkv_plan.latency.sensitivity import Sensitivity
    from lrkv_plan.serving.cheapest import Way, Wish
    from lrkv_plan.serving.deployment import Deployment
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

_MOST_SHOWN, _MOST_REASONS = 12, 3
_FIRM_SHARE = 0.9  # of draws, from which on a winner needs no second name


@dataclass(frozen=True, kw_only=True)
class Answered:
    """One GPU and design: the cheapest way, or what rules it out."""

    attention: str
    hardware: HardwareProfile
    base: Deployment
    way: Way | None
    refused: str | None = None


@dataclass(frozen=True, kw_only=True)
class BestAnswer:
    """All GPUs and designs, the cheapest first; ``smaller`` is what 8 bits would cost."""

    model: ModelSpec
    wish: Wish
    context_tokens: int
    answers: Sequence[Answered]
    firmness: Sensitivity | None
    smaller: Way | None
    launch: Sequence[str]
    asking: Callable[..., list[str]]

    @property
    def has_several_designs(self) -> bool:
        """Whether designs are compared."""
        return len({one.attention for one in self.answers}) > 1


def best_screen(answer: BestAnswer) -> Screen:
    """The winner in a sentence, what it rests on, and a row per GPU and design."""
    rows = [{"one": one} for one in answer.answers if one.way is not None]
    held = [one.way for one in answer.answers if one.way is not None and one.way.load is not None]
    used = sorted({w.load.time_basis for w in held if w.load is not None}, key=list(GLYPHS).index)
    foot = [legend(used)] if used else []
    foot += _left_out(answer, len(rows))
    source = answer.answers[0].base.price_source
    foot.append(f"Prices an hour: {source}. {WHY}" if source else WHY)
    return Screen(
        verdict=tuple(_verdict(answer)),
        columns=tuple(_columns(answer)),
        rows=rows[:_MOST_SHOWN],
        foot=foot,
        launch=tuple(answer.launch),
        following=(_next(answer),),
        cards_below=56,
    )


def _left_out(answer: BestAnswer, n_rows: int) -> list[str]:
    """What rules the others out: a reason for each, or of many the first."""
    told = [f"{one.hardware.name} {one.refused}" for one in answer.answers if one.way is None]
    more = n_rows - _MOST_SHOWN
    found = [f"{more} more rows: --format csv."] if more > 0 else []
    if told:
        several = len(told) - _MOST_REASONS
        rest = f"; and {several} more" if several > 0 else ""
        found.append(f"Ruled out: {'; '.join(told[:_MOST_REASONS])}{rest}.")
    return found


def _next(answer: BestAnswer) -> list[str]:
    winner = answer.answers[0]
    assert winner.way is not None, "the first one serves"
    parallel = winner.way.deployment.parallel
    sizes = {
        name: size for name in ("tp_size", "pp_size", "dp_size", "ep_size")
        if (size := getattr(parallel, name)) > 1
    }  # fmt: skip
    load = winner.way.load
    told: dict[str, Any] = {"gpu": winner.hardware.name, "kv_dtype": winner.way.row.kv_dtype}
    if load is None:
        return answer.asking(
            "capacity", without=("families",), **told, **sizes, n_gpus=winner.way.n_gpus
        )
    return answer.asking("step_time", winner.attention, **told, **sizes, batch_size=load.batch_size)


def _verdict(answer: BestAnswer) -> Iterator[str]:
    winner, wish = answer.answers[0], answer.wish
    way = winner.way
    assert way is not None, "the first one serves"
    load, usd = way.load, way.usd_per_hour
    target = wish.target
    within = "" if target is None or target.tpot_s is None else (
        f" within {target.tpot_s * 1e3:g} ms a token"
    )  # fmt: skip
    asked = f"{users(wish.n_sequences)} of {tokens(answer.context_tokens)}{within}"
    first = "The cheapest way for" if usd is not None else "The fewest GPUs for"
    cost = "" if usd is None else f", ${usd:,.2f} an hour"
    yield f"{first} {asked}: {said(winner, answer)}{cost}."
    if load is not None:
        tail = "" if load.usd_per_million_tokens is None else (
            f", ${significant_usd(load.usd_per_million_tokens)} per million"
        )  # fmt: skip
        yield (
            f"{load.batch_size:,} on each replica take "
            f"{a_token(load.tpot_s, load.tpot_low_s, load.tpot_high_s)}, "
            f"{load.tokens_per_s:,.0f} tok/s{tail}."
        )
    yield from _firm(answer)
    smaller = answer.smaller
    if smaller is not None:
        kinds = f"{smaller.row.kv_dtype} cache"
        if smaller.deployment.weight_dtype:
            kinds += f" and {smaller.deployment.weight_dtype} weights"
        price = "" if smaller.usd_per_hour is None else f", ${smaller.usd_per_hour:,.2f} an hour"
        yield f"With {kinds}: {smaller.n_gpus:,} GPUs{price}."


def said(one: Answered, answer: BestAnswer) -> str:
    """A way in words: GPUs, replicas, layout, design."""
    way = one.way
    assert way is not None, "it serves"
    parallel, n = way.deployment.parallel, way.deployment.n_replicas
    gpus = gpu_words(one.hardware.name, one.hardware.title, way.n_gpus)
    layout = sharing_words(parallel)
    replicas = f" ({counted(n, 'replica')} of {layout})" if way.n_gpus > 1 else ""
    design = f" with {one.attention}" if answer.has_several_designs else ""
    return f"{gpus}{replicas}{design}"


def _firm(answer: BestAnswer) -> Iterator[str]:
    firm = answer.firmness
    if firm is None:
        return
    found = [one for one in answer.answers if one.way is not None]
    share = short_percent(firm.share)
    second = max(
        (place for place in range(len(firm.shares)) if place != firm.winner),
        key=lambda place: firm.shares[place],
    )
    told = f"It stays the cheapest in {share} of {firm.n_draws:,} draws of what is uncertain"
    if firm.share >= _FIRM_SHARE or not firm.shares[second]:
        yield f"{told}."
        return
    other = short_percent(firm.shares[second])
    yield f"{told}; {said(found[second], answer)} in {other}."


def _columns(answer: BestAnswer) -> Iterator[ScreenColumn]:
    def of(write: Any, absent: str = "-") -> Any:
        return lambda row: absent if row["one"].way is None else write(row["one"].way)

    def timed(write: Any) -> Any:
        return of(lambda way: "-" if way.load is None else write(way.load))

    yield ScreenColumn(title="GPU", text=lambda row: row["one"].hardware.name, is_number=False)
    if answer.has_several_designs:
        labels = list(dict.fromkeys(one.attention for one in answer.answers))
        shown = dict(zip(labels, brief(labels), strict=True))
        yield ScreenColumn(
            title="design", text=lambda row: shown[row["one"].attention], is_number=False
        )
    yield ScreenColumn(title="GPUs", text=of(lambda way: f"{way.n_gpus:,}"))
    yield ScreenColumn(title="replica", text=_layout, is_number=False)
    if (
        len({(w.row.kv_dtype, w.deployment.weight_dtype) for o in answer.answers if (w := o.way)})
        > 1
    ):
        yield ScreenColumn(title="formats", text=of(_formats), is_number=False, drop=2)
    yield ScreenColumn(
        title="$/hour",
        text=of(lambda way: "-" if way.usd_per_hour is None else f"{way.usd_per_hour:,.2f}"),
    )
    if any(one.way is not None and one.way.load is not None for one in answer.answers):
        yield ScreenColumn(
            title="ms a token",
            text=timed(lambda load: f"{with_band(load.tpot_s, load.tpot_low_s, load.tpot_high_s)} "
                                    f"{GLYPHS[load.time_basis]}"),
        )  # fmt: skip
    if answer.firmness is not None:
        yield ScreenColumn(title="ahead in", text=_ahead(answer), drop=1)


def _layout(row: Row) -> str:
    one = row["one"]
    return sharing_words(one.way.deployment.parallel)


def _formats(way: Way) -> str:
    weights = way.deployment.weight_dtype
    return f"{way.row.kv_dtype} cache" + (f", {weights}" if weights else "")


def _ahead(answer: BestAnswer) -> Any:
    firm = answer.firmness
    assert firm is not None, "asked only where it is known"
    found = [one for one in answer.answers if one.way is not None]

    def text(row: Row) -> str:
        place = next((n for n, one in enumerate(found) if one is row["one"]), None)
        if place is None or place >= len(firm.shares):
            return "-"
        return short_percent(firm.shares[place])

    return text
