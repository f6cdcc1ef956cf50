"""The screen of ``capacity --from-log``: what the engine printed beside what is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.notes import Note
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, Tone, significant
from lrkv_plan.report.screens.words import WHY, gpu_words

if TYPE_CHECKING:
    from lrkv_plan.serving.log_check import LogCheck, LogRow
    from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class LogAsked:
    """The log, its run that is compared, and how model and GPU were named."""

    model: ModelSpec
    path: str
    first_line: int
    n_runs: int
    check: LogCheck
    argument: Any
    gpu: Any


def log_screen(asked: LogAsked, notes: Sequence[Note]) -> Screen:
    """Verdict, a row per printed line, what it rests on, and the next question."""
    return Screen(
        verdict=list(_verdict(asked.check)),
        columns=(
            ScreenColumn(title="log says", text=lambda row: _of(row).term, is_number=False),
            ScreenColumn(title="printed", text=lambda row: written(_of(row), _of(row).printed)),
            ScreenColumn(title="predicted", text=lambda row: written(_of(row), _of(row).predicted)),
            ScreenColumn(title="range", text=lambda row: _range(_of(row)), drop=1),
            ScreenColumn(title="", text=lambda row: _judged(_of(row)), is_number=False,
                         tone=lambda row: _tone(_of(row))),
            ScreenColumn(title="line", text=lambda row: f"{_of(row).line:,}", drop=2),
        ),
        rows=[{"row": row} for row in asked.check.rows],
        foot=list(_foot(asked)),
        following=list(_following(asked)),
        notes=[one for one in notes if _is_own(one)],
    )  # fmt: skip


def _of(row: Row) -> LogRow:
    found: LogRow = row["row"]
    return found


def _is_own(note: Note) -> bool:
    """Notes on how the log was read; those of the budget wait for ``--explain``."""
    return note.text.startswith(("the log", "the last of", "wrote "))


def written(row: LogRow, value: Fraction) -> str:
    """A figure of a row as people read it.

    Memory has the log's own two decimals of a GiB.
    """
    if row.unit == "bytes":
        return f"{float(value) / 2**30:,.2f} GiB"
    if row.unit == "x":
        return f"{float(value):,.2f}"
    return f"{int(value):,}"


def _bare(row: LogRow, value: Fraction) -> str:
    return written(row, value).removesuffix(" GiB")


def _range(row: LogRow) -> str:
    low, high = _bare(row, row.predicted_low), _bare(row, row.predicted_high)
    return "" if low == high else f"{low} to {high}"


def _judged(row: LogRow) -> str:
    if row.is_inside:
        return "inside"
    more = "more" if row.difference > 0 else "less"
    return f"{written(row, abs(row.difference))} {more}"


def _tone(row: LogRow) -> Tone | None:
    return "good" if row.is_inside else "bad"


def _engine_words(check: LogCheck) -> str:
    return str(check.deployment.engine).replace("@", " ")


def _verdict(check: LogCheck) -> Iterator[str]:
    first = check.row("cache") or check.row("tokens") or check.rows[0]
    what = {"cache": " for the cache", "tokens": " tokens of cache", "blocks": " blocks"}
    between = _range(first)
    predicted = f"{_bare(first, first.predicted)}{f' ({between})' if between else ''}"
    judged = "inside" if first.is_inside else f"{_judged(first)} than that"
    yield (
        f"{_engine_words(check)} printed {written(first, first.printed)}"
        f"{what.get(first.term, f' of {first.term}')}; predicted {predicted}: {judged}."
    )
    worst = check.differs_most
    if worst is None:
        yield "Every printed line is inside its range."
        return
    share = abs(worst.difference) / worst.predicted if worst.predicted else Fraction(0)
    percent = f", {significant(100 * share, 2)} %" if share else ""
    if worst.term == "cache" and len([row for row in check.rows if row.unit == "bytes"]) > 1:
        more = "less" if check.unprinted > 0 else "more"
        yield (
            f"What differs most is not in the log: terms that it does not print take "
            f"{written(worst, abs(check.unprinted))} {more} than predicted."
        )
        return
    yield (
        f"What differs most: {worst.term}, {written(worst, worst.printed)} printed and "
        f"{written(worst, worst.predicted)} predicted{percent}."
    )


def _foot(asked: LogAsked) -> Iterator[str]:
    check, deployment = asked.check, asked.check.deployment
    held = any(row.provenance == "the printed memory" for row in check.rows)
    of_memory = "; blocks, tokens and concurrency follow from the printed memory" if held else ""
    gpu = deployment.hardware
    on = "" if gpu is None else f" on {gpu_words(gpu.name, gpu.title, deployment.parallel.n_gpus)}"
    yield f"{asked.model.name}{on} by {deployment.engine}'s rules{of_memory}.  {WHY}"


def _following(asked: LogAsked) -> Iterator[Sequence[str]]:
    """Name the GPU where the budget could not be checked; else use what was measured."""
    model = asked.argument if isinstance(asked.argument, str) else asked.model.name
    words = ["lrkv-plan", "capacity", model, "--from-log", asked.path]
    if asked.check.budget is None:
        if asked.check.deployment.hardware is None and asked.check.row("tokens"):
            yield [*words, "--gpu", "GPU"]
        return
    if isinstance(asked.gpu, str) and len(asked.check.budget.stages) == 1:
        yield [*words, "--gpu", asked.gpu, "--write-budget", "budget.yaml"]


def log_equations(asked: LogAsked, row: LogRow) -> list[str]:
    """One row's figures with what they rest on, exact."""
    settings, parallel = asked.check.deployment.settings, asked.check.deployment.parallel
    low, high = (written(row, end) for end in (row.predicted_low, row.predicted_high))
    return [
        f"{asked.model.name}, {_engine_words(asked.check)}, {settings.context_tokens:,} tokens, "
        f"{settings.kv_dtype} cache, TP {parallel.tp_size}",
        f"  {row.term}: line {row.line:,} printed {written(row, row.printed)}; predicted "
        f"{written(row, row.predicted)} ({low} to {high})",
        f"    {row.provenance}",
    ]
