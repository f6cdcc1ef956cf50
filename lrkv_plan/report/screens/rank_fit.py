"""The screen of ``rank --fit-sequences``: the largest rank with which so many users fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.report.equations import cache_equation, sequences_equation
from lrkv_plan.report.screen import (
    Row,
    Screen,
    ScreenColumn,
    per_token,
    short_bytes,
    short_percent,
    short_tokens,
)
from lrkv_plan.report.screens.words import gpu_words, users
from lrkv_plan.report.tables import count
from lrkv_plan.specs.design import design_label, swap_attention

if TYPE_CHECKING:
    from lrkv_plan.serving.capacity import RankFit, SequenceFit
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class RankFitAnswer:
    """What was asked of one model on its GPUs and what came out."""

    model: ModelSpec
    fit: RankFit
    gpu_title: str | None

    @property
    def place(self) -> str:
        """The GPUs in words."""
        row = self.fit.largest.row
        if row.gpu is None:
            return "in the stated cache memory"
        return f"on {gpu_words(row.gpu, self.gpu_title, row.n_gpus)}"

    @property
    def shown(self) -> Sequence[SequenceFit]:
        """Designs of the table, each once."""
        fit = self.fit
        every = (fit.largest, fit.aligned, fit.following, fit.grouped, fit.latent)
        return list({one.text: one for one in every if one is not None}.values())


def rank_fit_screen(answer: RankFitAnswer, ask: Ask | None) -> Screen:
    """Verdict with the rank's range, and one row per design."""
    fit, row = answer.fit, answer.fit.largest.row
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=[{"fit": one} for one in answer.shown],
        columns=tuple(_columns(answer)),
        foot=(
            f"{row.engine}'s rules, {row.kv_dtype}; rows stored at multiples of {fit.alignment} "
            "ranks. Bytes exact, the budget a prediction. Why: --explain",
        ),
        following=() if ask is None else (
            ask("capacity", design_label(answer.model), fit.largest.text),
        ),
    )  # fmt: skip


def _verdict(answer: RankFitAnswer) -> Iterator[str]:
    fit = answer.fit
    best, aligned = fit.largest, fit.aligned
    ends = _range(fit.value_range)
    n, tokens = fit.n_sequences, short_tokens(best.row.context_tokens)
    wanted = f"{users(n)} of {tokens} tokens {'fits' if n == 1 else 'fit'}"
    yield (
        f"Rank {best.value}{ends} is the largest with which {wanted} {answer.place}"
        + ("." if aligned.value == best.value else f"; {aligned.value} as a multiple of "
           f"{fit.alignment}.")
    )  # fmt: skip
    after = (
        "it is as wide as a head" if fit.following is None
        else f"rank {fit.following.value} holds {fit.following.row.total_sequences:,}"
    )  # fmt: skip
    yield f"It holds {best.row.total_sequences:,}; {after}."


def _range(ends: tuple[int | None, int] | None) -> str:
    if ends is None or ends[0] == ends[1]:
        return ""
    return f" ({'none' if ends[0] is None else ends[0]} to {ends[1]})"


def _columns(answer: RankFitAnswer) -> Iterator[ScreenColumn]:
    def of(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            value = getattr(row["fit"].row, key)
            return "-" if value is None else write(value)

        return text

    def tone(row: Row) -> Any:
        return "bad" if row["fit"].row.total_sequences < answer.fit.n_sequences else None

    gpu = "/GPU" if answer.fit.largest.row.n_gpus > 1 else ""
    unit, write = per_token(one.row.bytes_per_token_per_gpu for one in answer.shown)
    yield ScreenColumn(title="design", text=lambda row: str(row["fit"].text), is_number=False)
    yield ScreenColumn(title="users", text=of("total_sequences", count), tone=tone)
    yield ScreenColumn(title=f"{unit}/token{gpu}", text=of("bytes_per_token_per_gpu", write))
    yield ScreenColumn(title="of MHA", text=of("ratio_to_mha", short_percent), drop=1)
    yield ScreenColumn(
        title=f"budget{gpu}", text=of("kv_budget_bytes_per_gpu", short_bytes), drop=2
    )
    yield ScreenColumn(title="unused", text=of("waste_share", short_percent), drop=3)


def rank_fit_equations(answer: RankFitAnswer) -> list[str]:
    """Bytes per token of every shown design as stored, and the users that its budget holds."""
    lines = []
    for fit in answer.shown:
        row = fit.row
        design = swap_attention(answer.model, fit.text)
        design = design.with_attention(
            tuple(g.attention.aligned(answer.fit.alignment)
                  for g in design.attention_groups if g.attention is not None)
        )  # fmt: skip
        lines += [
            f"{fit.text}: {cache_equation(design, row.kv_dtype, row.tp_size)}, as stored",
            f"  {sequences_equation(row)}, {count(row.total_sequences)} on all GPUs",
        ]
    return lines
