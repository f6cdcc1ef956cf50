"""The screen of ``sweep``: how many points were seen, what is left of them, and the best rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.screen import (
    GLYPHS,
    Row,
    Screen,
    ScreenColumn,
    short,
    short_tokens,
    with_band,
)
from lrkv_plan.report.screens.words import a_token, counted, legend, tokens, users

if TYPE_CHECKING:
    from lrkv_plan.sweeping.evaluation import Counts, Sweep

_MOST_SHOWN = 20
_SIZES = {"tp_size": "TP", "pp_size": "PP", "dp_size": "DP", "ep_size": "EP", "dcp_size": "DCP"}


@dataclass(frozen=True, kw_only=True)
class SweepAnswer:
    """What was swept, what was counted, and the rows that are left (none where they lie on disk).

    ``texts`` are the models as they were named.
    """

    sweep: Sweep
    counts: Counts
    rows: Sequence[Row]
    n_rows: int
    inputs: Mapping[str, Any]
    texts: Sequence[str]

    @property
    def varied(self) -> frozenset[str]:
        """Keys whose values differ along the axes."""
        grid = self.sweep.grid
        sizes = {name for name in _SIZES if len({one[name] for one in grid.layouts}) > 1}
        several = {
            "model": len(grid.models) > 1,
            "gpu": len(grid.bases[0]) > 1,
            "kv_dtype": len(grid.kv_dtypes) > 1,
            "weight_dtype": len(grid.weight_dtypes) > 1,
            "context_tokens": len(grid.contexts) > 1,
        }
        return frozenset(sizes | {key for key, many in several.items() if many})


def sweep_screen(answer: SweepAnswer) -> Screen:
    """A sentence on the points and one on the best of them; the first rows that are left."""
    shown = list(answer.rows[:_MOST_SHOWN])
    found = {row["time_basis"] for row in shown} - {None}
    foot = [_counted(answer)]
    if found:
        foot.append(legend(sorted(found, key=list(GLYPHS).index)))
    return Screen(
        verdict=tuple(_verdict(answer)),
        columns=tuple(_columns(answer)),
        rows=shown,
        foot=foot,
        following=_following(answer),
        cards_below=60,
    )


def _verdict(answer: SweepAnswer) -> Iterator[str]:
    reduction, n_rows = answer.sweep.reduction, answer.n_rows
    points = counted(answer.counts.points, "point")
    goals = ", ".join(map(str, reduction.objectives))
    by = f" for each {', '.join(reduction.by)}" if reduction.by else ""
    if not n_rows:
        kept = "meets the condition" if answer.sweep.where is not None else "is left"
        yield f"None of {points} {kept}."
        return
    if reduction.kind == "top" and answer.rows:
        best = f"The best{by}" if by else "The best"
        yield f"{best} of {points} ({goals}): {said(answer.rows[0], answer.varied)}."
    elif reduction.kind == "pareto":
        stand = "one stands" if n_rows == 1 else f"{n_rows:,} stand"
        yield f"{stand[0].upper()}{stand[1:]} on the frontier{by} of {points} ({goals})."
    else:
        where = f", in {answer.inputs['out']}" if answer.inputs["out"] else ""
        yield f"{counted(n_rows, 'row')[0].upper()}{counted(n_rows, 'row')[1:]} of {points}{where}."


def said(row: Row, varied: frozenset[str]) -> str:
    """A row in words: the design, its GPUs, its load, its time and cost."""
    model = f"{row['model']}, " if "model" in varied else ""
    sizes = [f"{word} {row[key]}" for key, word in _SIZES.items() if row[key] > 1]
    layout = f" ({', '.join(sizes)})" if sizes else ""
    kinds = [f"{row['kv_dtype']} cache"] if "kv_dtype" in varied else []
    kinds += [f"{row['weight_dtype']} weights"] if "weight_dtype" in varied else []
    told = f"{model}{row['attention']} on {row['n_gpus']:,} x {row['gpu']}{layout}"
    told += "".join(f", {kind}" for kind in kinds)
    if row["tpot_s"] is None:
        return told
    time = a_token(row["tpot_s"], row["tpot_low_s"], row["tpot_high_s"])
    usd = row["usd_per_million_tokens"]
    cost = "" if usd is None else f", ${significant_usd(usd)} per million"
    load = f"{users(row['admitted_sequences'])} of {tokens(row['context_tokens'])}"
    return f"{told}: {load} at {time}{cost}"


def significant_usd(value: float) -> str:
    """A price with three digits, cents from a dollar on."""
    return f"{value:,.2f}" if value >= 1 else short(value)


def _counted(answer: SweepAnswer) -> str:
    counts = answer.counts
    told = [counted(counts.points, "point").capitalize()]
    if answer.sweep.where is not None:
        told.append(f"{counts.wanted:,} meet the condition")
    if counts.unfit:
        told.append(f"{counts.unfit:,} do not fit or are too slow")
    if counts.refused:
        told.append(f"{counts.refused:,} cannot run")
    if counts.unordered:
        keys = ", ".join(one.key for one in answer.sweep.reduction.objectives)
        told.append(f"{counts.unordered:,} have no {keys}")
    more = answer.n_rows - _MOST_SHOWN
    rest = f"; {more:,} more rows: --format csv" if more > 0 and answer.rows else ""
    return f"{', '.join(told)}{rest}."


def _columns(answer: SweepAnswer) -> Iterator[ScreenColumn]:
    varied = answer.varied
    if "model" in varied:
        yield _text("model", "model", 0)
    yield _text("design", "attention", 0)
    if "gpu" in varied:
        yield _text("GPU", "gpu", 0)
    yield ScreenColumn(title="GPUs", text=lambda row: f"{row['n_gpus']:,}", drop=2)
    for key, title in _SIZES.items():
        if key in varied:
            yield ScreenColumn(title=title, text=_written(key, str), drop=1)
    if "kv_dtype" in varied:
        yield _text("cache", "kv_dtype", 0)
    if "weight_dtype" in varied:
        yield _text("weights", "weight_dtype", 0)
    if "context_tokens" in varied:
        yield ScreenColumn(title="context", text=_written("context_tokens", short_tokens))
    yield ScreenColumn(title="users", text=_users)
    yield ScreenColumn(title="ms a token", text=_time)
    yield ScreenColumn(title="tok/s", text=_written("tokens_per_s", lambda v: f"{v:,.0f}"), drop=3)
    yield ScreenColumn(
        title="$/M", text=_written("usd_per_million_tokens", significant_usd), drop=4
    )


def _text(title: str, key: str, drop: int) -> ScreenColumn:
    return ScreenColumn(title=title, text=_written(key, str), is_number=False, drop=drop)


def _written(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row[key]
        return "-" if value is None else write(value)

    return text


def _users(row: Row) -> str:
    if row["admitted_sequences"] is not None:
        return f"{row['admitted_sequences']:,}"
    return "refused" if row["max_sequences"] is None else "does not fit"


def _time(row: Row) -> str:
    if row["tpot_s"] is None:
        return "-"
    band = with_band(row["tpot_s"], row["tpot_low_s"], row["tpot_high_s"])
    return f"{band} {GLYPHS[row['time_basis']]}"


def _following(answer: SweepAnswer) -> list[list[str]]:
    """The single command about the first row."""
    if not answer.rows or answer.rows[0]["tpot_s"] is None:
        return []
    return [command_of(answer.rows[0], answer)]


def command_of(row: Row, answer: SweepAnswer) -> list[str]:
    """``step-time`` of a row."""
    names = [model.name for model in answer.sweep.grid.models]
    per_replica = row["batch_size"]
    told = {
        "--gpu": row["gpu"], "--attention": row["attention"], "--batch-size": per_replica,
        "--context-tokens": row["context_tokens"], "--kv-dtype": row["kv_dtype"],
        **{f"--{key.replace('_', '-')}": row[key] for key in _SIZES
           if row[key] > 1 and key != "dcp_size"},
    }  # fmt: skip
    words = ["lrkv-plan", "step-time", answer.texts[names.index(row["model"])]]
    return words + [str(word) for pair in told.items() for word in pair]
