"""The screen of ``step-time``: how long a token takes with each design, and what of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.latency.basis import (
    PARTS_OF_SCREENS,
    basis_by_part,
    basis_by_term,
    time_basis,
)
from lrkv_plan.latency.crossover import leads_without_products, surely_faster
from lrkv_plan.memory.weights import uncounted_weights
from lrkv_plan.notes import Note
from lrkv_plan.report.screen import GLYPHS, Row, Screen, ScreenColumn, short, with_band
from lrkv_plan.report.screens.words import (
    WHY,
    a_token,
    brief,
    deciding_products,
    legend,
    listed,
    replica_words,
    tokens,
    users,
)
from lrkv_plan.report.time_equations import step_equations

if TYPE_CHECKING:
    from lrkv_plan.attention.spec import AttentionSpec
    from lrkv_plan.latency.step import StepModel, StepTime
    from lrkv_plan.specs.deployment import Parallelism
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class StepsAnswer:
    """What was asked of one model on one GPU, and (design, its model, its step) of each.

    ``asked`` are the designs that were given, none where the model's own was meant.
    """

    model: ModelSpec
    gpu: HardwareProfile
    inputs: Mapping[str, Any]
    steps: Sequence[tuple[str, StepModel, StepTime]]
    asked: Sequence[str | AttentionSpec] = ()

    def load(self, design: str = "") -> str:
        """Users and their context, the design and the GPUs."""
        told = self.inputs
        query = int(told["query_tokens"])
        several = f", {query:,} tokens of each in a step," if query > 1 else ""
        where = replica_words(self.gpu.name, self.gpu.title, told)
        return (
            f"for {users(int(told['batch_size']))} of {tokens(int(told['context_tokens']))}"
            f"{several}{design and f' with {design}'} on {where}"
        )

    def time(self, step: StepTime) -> str:
        """A step's time with its band, as a sentence says it."""
        words = a_token(float(step.step_s), float(step.low_s), float(step.high_s))
        if self.inputs["query_tokens"] != 1:
            words = words.replace("a token", "a step")
        return f"at least {words}" if self.is_lower_bound else words

    @property
    def parallel(self) -> Parallelism:
        """The layout of the replica."""
        return self.steps[0][1].work.parallel

    @property
    def is_lower_bound(self) -> bool:
        """Whether weights that are read are not counted."""
        return self.inputs["weight_bytes_per_gpu"] is None and bool(uncounted_weights(self.model))


def steps_screen(answer: StepsAnswer, ask: Ask | None, notes: Sequence[Note]) -> Screen:
    """Verdict, one row per design with the parts of its step, and what the times rest on."""
    bases = [time_basis(step, time) for _, step, time in answer.steps]
    terms = [basis_by_part(step, time) for _, step, time in answer.steps]
    shown = [*bases, *(basis for parts in terms for basis, _ in parts.values())]
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=[
            {"design": label, "time": time, "basis": basis, "parts": parts}
            for label, (_, _, time), basis, parts in zip(
                brief([label for label, _, _ in answer.steps]),
                answer.steps,
                bases,
                terms,
                strict=True,
            )
        ],
        columns=_columns(answer),
        foot=(
            f"Parts are summed; rest is {_rest(answer)}. A glyph is the weakest evidence among "
            f"terms over a tenth: {legend(shown)}. {WHY}",
        ),
        following=() if ask is None else (_next(answer, ask),),
        notes=notes,
    )


def _rest(answer: StepsAnswer) -> str:
    """The terms that are together in the last column."""
    found = dict.fromkeys(
        term for _, model, time in answer.steps for term, _, _ in basis_by_term(model, time)
        if PARTS_OF_SCREENS[term] == "rest"
    )  # fmt: skip
    return listed(list(found))


def _verdict(answer: StepsAnswer) -> Iterator[str]:
    if len(answer.steps) == 1:
        ((label, _, time),) = answer.steps
        said = f"{answer.time(time)} {answer.load(label)}."
        yield said[:1].upper() + said[1:]
        return
    ranked = sorted(answer.steps, key=lambda one: float(one[2].step_s))
    best_name, _, best = ranked[0]
    close = [one for one in ranked[1:] if surely_faster(best, one[2]) is None]
    slower = [one for one in ranked[1:] if one not in close]
    if close:
        others = listed([f"{name} {_ms(time)}" for name, _, time in close])
        yield (
            f"Too close to call {answer.load()}: {best_name} {answer.time(best)}, {others}, within "
            "their kernels' bands."
        )
    else:
        yield f"{best_name} is fastest: {answer.time(best)} {answer.load()}."
    if slower:
        longer = [f"{name} takes {_longer(best, time)}" for name, _, time in slower]
        yield f"{listed(longer)}."
    yield from _deciding_assumptions(answer)


def _deciding_assumptions(answer: StepsAnswer) -> Iterator[str]:
    """What is said where a design would pass another if its kernel expanded heads itself."""
    for label, model, step in answer.steps:
        option = model.work.in_kernel_option
        passed = [
            one for _, _, one in answer.steps
            if surely_faster(one, step) == 0 and leads_without_products(step, one)
        ]  # fmt: skip
        if option is not None and passed:
            yield deciding_products(label, option, float(step.products_s))


def _ms(time: StepTime) -> str:
    middle, _, band = with_band(*_seconds(time)).partition(" ")
    return f"{middle} ms {band}"


def _seconds(time: StepTime) -> tuple[float, float, float]:
    return float(time.step_s), float(time.low_s), float(time.high_s)


def _longer(best: StepTime, other: StepTime) -> str:
    """How much longer, from twice on as a factor."""
    times = float(other.step_s) / float(best.step_s)
    return (
        f"{short(times, 2)} times as long"
        if times >= 2
        else f"{short(100 * (times - 1), 2)} % longer"
    )


def _columns(answer: StepsAnswer) -> tuple[ScreenColumn, ...]:
    def total(row: Row) -> str:
        return f"{with_band(*_seconds(row['time']))} {GLYPHS[row['basis']]}"

    def part(term: str) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            basis, seconds = row["parts"][term]
            return f"{1e3 * seconds:,.2f} {GLYPHS[basis]}"

        return text

    several = answer.inputs["tp_size"] > 1
    unit = "ms/token" if answer.inputs["query_tokens"] == 1 else "ms/step"
    return (
        ScreenColumn(title="design", text=lambda row: str(row["design"]), is_number=False),
        ScreenColumn(
            title=unit,
            text=total,
            tone=lambda row: "doubtful" if row["basis"] == "assumed" else None,
        ),
        ScreenColumn(title="attention", text=part("attention"), drop=1),
        ScreenColumn(title="weights", text=part("weights"), drop=2),
        *((ScreenColumn(title="all-reduce", text=part("all-reduce"), drop=3),) if several else ()),
        ScreenColumn(title="rest", text=part("rest"), drop=4),
    )


def _next(answer: StepsAnswer, ask: Ask) -> Sequence[str]:
    """Where two of the designs change places; for one, what bounds it."""
    if len(answer.asked) > 1:
        return ask("crossover", *answer.asked[:2], without=("context_tokens",))
    attends = any(group.attention is not None for group in answer.model.layers)
    has_peaks = {"bf16", "fp32"} <= set(answer.gpu.peak_flops_per_s)
    return ask("roofline" if attends and has_peaks else "cache", *answer.asked)


def design_step_equations(answer: StepsAnswer, label: str) -> list[str]:
    """One design's step as a sum with its numbers put in."""
    told = answer.inputs
    load = (told["context_tokens"], told["batch_size"], told["query_tokens"])
    model, step = next((one, time) for name, one, time in answer.steps if name == label)
    total, *terms = step_equations(model, step, *load)
    return [f"{label}: {total}", *(f"  {term}" for term in terms)]
