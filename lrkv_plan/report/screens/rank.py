"""The screen of ``rank``: the largest rank in a budget, the aligned one, and what else fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.notes import limit
from lrkv_plan.report.equations import cache_equation
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, bar, short, short_percent
from lrkv_plan.report.tables import count
from lrkv_plan.specs.budget import parse_budget
from lrkv_plan.specs.design import design_label

if TYPE_CHECKING:
    from lrkv_plan.memory.largest import Fit, OwnReading, RankCeiling
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]
_BAR = 16


@dataclass(frozen=True, kw_only=True)
class RankAnswer:
    """What was asked of one model and what came out; ``own`` is the budget's other reading."""

    model: ModelSpec
    inputs: Mapping[str, Any]
    ceiling: RankCeiling
    own: OwnReading | None

    @property
    def budget(self) -> str:
        """The budget in words: half of MHA's cache."""
        return budget_words(str(self.inputs["budget"]))

    @property
    def each(self) -> str:
        """The unit of bytes per token."""
        return "B/token" if self.inputs["tp_size"] == 1 else "B/token/GPU"


_PARTS = {Fraction(1, 2): "half", Fraction(1, 3): "a third", Fraction(1, 4): "a quarter"}


def budget_words(text: str) -> str:
    """A budget as a sentence says it.

    Examples
    --------
    >>> [budget_words(text) for text in ("50%", "30% of own", "gqa:6", "96 KiB/token")]
    ["half of MHA's cache", '30% of its own cache', "gqa:6's cache", '96 KiB/token']
    """
    budget = parse_budget(text)
    if budget.design is not None:
        return f"{budget.design}'s cache"
    share = budget.share_of_own if budget.share_of_mha is None else budget.share_of_mha
    if share is None:
        return budget.text
    written = budget.text.lower().removesuffix("of own").removesuffix("of mha").strip()
    whose = "MHA's" if budget.share_of_own is None else "its own"
    return f"{_PARTS.get(share, written)} of {whose} cache"


def rank_screen(answer: RankAnswer, ask: Ask | None) -> Screen:
    """Verdict, the other reading of a share, and one row per design that fits the budget."""
    ceiling, model = answer.ceiling, answer.model
    best = ceiling.largest
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=list(_rows(answer)),
        columns=_columns(answer),
        foot=(
            f"{_sum(answer)} Exact.",
            f"work: decode arithmetic at {answer.inputs['context_tokens']:,} tokens, against MHA. "
            "Why: --explain",
        ),
        following=() if ask is None else (
            ask("cache", design_label(model), best.text),
        ),
        notes=list(_notes(answer)),
    )  # fmt: skip


def _verdict(answer: RankAnswer) -> Iterator[str]:
    ceiling = answer.ceiling
    aligned = (
        "" if ceiling.aligned.value == ceiling.largest.value
        else f"; {ceiling.aligned.value} as a multiple of {ceiling.alignment}"
    )  # fmt: skip
    yield f"Rank {ceiling.largest.value} is the largest in {answer.budget}{aligned}."
    if answer.own is not None:
        yield from _other_reading(answer, answer.own)
    elif ceiling.next_rank_shortfall_bytes is None:
        yield "It is as wide as a head; the budget would allow more."
    else:
        yield (
            f"The next rank needs {count(ceiling.next_rank_shortfall_bytes)} B per token more than "
            f"the {count(ceiling.budget_bytes_per_token_per_gpu)} B there are."
        )


def _other_reading(answer: RankAnswer, own: OwnReading) -> Iterator[str]:
    times = own.budget_share_of_own
    times_words = {2: "twice", 1: "just"}.get(int(times)) if times in (1, 2) else None
    yield (
        f"But that is {times_words or f'{short(times)} times'} what this model caches now "
        f"({design_label(answer.model)})."
    )
    held = f"holds rank {own.largest.value}" if own.largest else "holds not even rank 0"
    words = budget_words(own.text)
    yield f"{words[:1].upper()}{words[1:]} {held}: --budget '{own.text}'"


def _sum(answer: RankAnswer) -> str:
    """Both sides of the ceiling in bytes."""
    ceiling = answer.ceiling
    held = f"{count(ceiling.largest.bytes_per_token_per_gpu)} B at rank {ceiling.largest.value}"
    budget = f"{count(ceiling.budget_bytes_per_token_per_gpu)} B"
    if ceiling.next_rank_shortfall_bytes is None:
        return f"{held} <= {budget}."
    beyond = ceiling.budget_bytes_per_token_per_gpu + ceiling.next_rank_shortfall_bytes
    return f"{held} <= {budget} < {count(beyond)} B at the next rank."


def _rows(answer: RankAnswer) -> Iterator[Row]:
    ceiling = answer.ceiling
    seen = set()
    for fit in (ceiling.largest, ceiling.aligned, ceiling.grouped, ceiling.latent):
        if fit is not None and fit.text not in seen:
            seen.add(fit.text)
            yield {"design": fit.text, "fit": fit}
    if ceiling.padded.bytes_per_token_per_gpu != ceiling.largest.bytes_per_token_per_gpu:
        stored = -(-ceiling.largest.value // ceiling.alignment) * ceiling.alignment
        yield {"design": f"{ceiling.largest.text} stored as {stored}", "fit": ceiling.padded}


def _columns(answer: RankAnswer) -> tuple[ScreenColumn, ...]:
    def of(key: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            value = getattr(row["fit"], key)
            return "-" if value is None else write(value)

        return text

    def drawn(row: Row) -> str:
        return _bar(row["fit"], answer.ceiling)

    def tone(row: Row) -> Any:
        return "bad" if row["fit"].spare_bytes_per_token_per_gpu < 0 else None

    return (
        ScreenColumn(title="design", text=lambda row: str(row["design"]), is_number=False),
        ScreenColumn(title=answer.each, text=of("bytes_per_token_per_gpu", count), tone=tone),
        ScreenColumn(title="of MHA", text=of("ratio_to_mha", short_percent), drop=1),
        ScreenColumn(title="budget ┃", text=drawn, is_number=False, drop=4),
        ScreenColumn(title="K/V weights", text=of("kv_params_ratio", short_percent), drop=2),
        ScreenColumn(title="work", text=of("arithmetic_ratio", lambda x: f"{short(x)}x"), drop=3),
    )


def _bar(fit: Fit, ceiling: RankCeiling) -> str:
    """Bytes against the budget; what is beyond it stands behind a mark."""
    budget = ceiling.budget_bytes_per_token_per_gpu
    longest = max(budget, ceiling.padded.bytes_per_token_per_gpu)
    drawn = bar(fit.bytes_per_token_per_gpu, longest, _BAR)
    mark = round(_BAR * float(budget) / float(longest))
    if fit.bytes_per_token_per_gpu <= budget or not 0 < mark < len(drawn):
        return drawn
    return f"{drawn[:mark]}┃{drawn[mark + 1 :]}"


def _notes(answer: RankAnswer) -> Iterator[Any]:
    ceiling = answer.ceiling
    if answer.inputs["position"] == "rope_rank":
        yield limit("rope_rank is exact only if the trained basis spans whole rotary planes")
    if ceiling.padded.spare_bytes_per_token_per_gpu < 0:
        yield limit(
            f"a kernel that stores rank {ceiling.largest.value} at a multiple of "
            f"{ceiling.alignment} exceeds the budget; rank {ceiling.aligned.value} does not"
        )


def rank_equations(answer: RankAnswer) -> list[str]:
    """Bytes of every shown design with its numbers put in, and the inequality of the ceiling."""
    ceiling, inputs = answer.ceiling, answer.inputs
    fits = (ceiling.largest, ceiling.aligned, ceiling.padded, ceiling.grouped, ceiling.latent)
    equations = {
        fit.text: cache_equation(fit.model, inputs["kv_dtype"], inputs["tp_size"])
        for fit in fits if fit is not None
    }  # fmt: skip
    return [
        f"largest rank: {_sum(answer)}",
        *(f"{text}: {equation}" for text, equation in equations.items()),
    ]
