"""The screen of ``crossover``: where the faster design changes, by how much it leads around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.latency.basis import attention_basis
from lrkv_plan.latency.crossover import SIZES, lead_range, leads_without_products
from lrkv_plan.latency.evidence import STRONGEST_FIRST, evidence
from lrkv_plan.latency.sensitivity import of_two_designs
from lrkv_plan.notes import Note, limit
from lrkv_plan.report.screen import (
    GLYPHS,
    WIDTH,
    Basis,
    Row,
    Screen,
    ScreenColumn,
    milliseconds,
    short,
    short_percent,
    significant,
)
from lrkv_plan.report.screens.words import (
    WHY,
    brief,
    counted,
    deciding_products,
    gpu_name,
    listed,
    replica_words,
    tokens,
)
from lrkv_plan.report.time_equations import step_equations

if TYPE_CHECKING:
    from lrkv_plan.latency.crossover import Comparison, Crossing, PairAt
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

Ask: TypeAlias = Callable[..., Sequence[str]]
_BAR = 24  # cells of the longest bar, where both sides fit beside the times


@dataclass(frozen=True, kw_only=True)
class CrossoverAnswer:
    """What was asked of two designs on one GPU, and what came out."""

    model: ModelSpec
    gpu: HardwareProfile
    inputs: Mapping[str, Any]
    labels: Sequence[str]
    found: Comparison

    @property
    def over(self) -> str:
        """The variable."""
        return str(self.inputs["over"])

    def amount(self, value: int) -> str:
        """A value of the variable in a sentence: 14,874 tokens, rank 8."""
        if self.over == "rank":
            return f"rank {value:,}"
        plural = "" if value == 1 else "s"
        return f"{value:,} {_UNITS[self.over]}{plural}"

    @property
    def end(self) -> str:
        """The largest value looked at."""
        high = self.found.crossover.high
        return tokens(high) if self.over == "context_tokens" else self.amount(high)

    @property
    def load(self) -> str:
        """What stays the same, in words."""
        told, over = self.inputs, self.over
        several = counted(int(told["batch_size"]), "sequence")
        if over == "context_tokens":
            load = f"for {several}"
        elif over == "batch_size":
            load = f"with {tokens(int(told['context_tokens']))} each"
        else:
            load = f"for {several} of {tokens(int(told['context_tokens']))}"
        query = int(told["query_tokens"])
        if over != "query_tokens" and query > 1:
            load += f", {query:,} tokens a step,"
        gpu = self.gpu.name, self.gpu.title
        where = gpu_name(*gpu) if over in SIZES else replica_words(*gpu, told)
        others = [f"{word} {told[key]}" for word, key in _WORDS.items() if over in SIZES
                  and key != over and int(told.get(key) or 1) > 1]  # fmt: skip
        return f"{load} on {where}{' with ' * bool(others)}{listed(others) if others else ''}"


_UNITS = {
    "context_tokens": "token", "batch_size": "sequence", "query_tokens": "query token",
    "tp_size": "GPU", "dp_size": "attention rank", "ep_size": "expert-parallel GPU",
}  # fmt: skip
_WORDS = {"TP": "tp_size", "PP": "pp_size", "DP": "dp_size", "EP": "ep_size"}
_TITLES = {
    "context_tokens": "context", "batch_size": "sequences", "query_tokens": "query tokens",
    "tp_size": "GPUs", "dp_size": "DP", "ep_size": "EP", "rank": "rank",
}  # fmt: skip


def crossover_screen(answer: CrossoverAnswer, ask: Ask | None, notes: Sequence[Note]) -> Screen:
    """Verdict, both times along the variable with the lead as a bar, and the kernels' evidence."""
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=[{"point": point} for point in answer.found.points],
        columns=_columns(answer),
        foot=tuple(_foot(answer)),
        following=() if ask is None else (_next(answer, ask),),
        notes=(*notes, *_unbounded(answer)),
    )


def _unbounded(answer: CrossoverAnswer) -> Iterator[Note]:
    if answer.over == "batch_size":
        yield limit("whether so many sequences fit is not looked at: capacity says it")


def _verdict(answer: CrossoverAnswer) -> Iterator[str]:
    crossover = answer.found.crossover
    if not crossover.decided:
        yield from _too_close(answer)
        return
    if not crossover.crossings:
        yield from _all_along(answer)
    elif len(crossover.crossings) == 1:
        yield from _one_change(answer, crossover.crossings[0])
    elif (tie := _tie(answer)) is not None:
        yield from _change_after_a_tie(answer, tie)
    else:
        yield from _several_changes(answer)
    yield from _deciding_assumption(answer)


def _deciding_assumption(answer: CrossoverAnswer) -> Iterator[str]:
    """What is said where the faster design would be another if its kernel expanded heads."""
    for index, label in enumerate(answer.labels):
        points = answer.found.points
        option = points[-1].models[index].work.in_kernel_option
        if option is not None and any(_turns_without_products(one, index) for one in points):
            most = max(float(point.steps[index].products_s) for point in points)
            yield deciding_products(label, option, most)


def _turns_without_products(point: PairAt, index: int) -> bool:
    """Whether the design leads there only without its products over heads."""
    return leads_without_products(point.steps[index], point.steps[1 - index])


def _too_close(answer: CrossoverAnswer) -> Iterator[str]:
    """Nowhere does one lead with the bands against it; both numbers where the lead is largest."""
    first, second = answer.labels
    most = max(answer.found.points, key=lambda one: abs(one.lead_s))
    if most.lead_s == 0:
        yield f"{first} and {second} take the same time up to {answer.end}, {answer.load}."
        return
    leader, other = (1, 0) if most.lead_s > 0 else (0, 1)
    times = [milliseconds(float(step.step_s)) for step in most.steps]
    yield f"{first} and {second} are too close to call up to {answer.end}, {answer.load}."
    yield (
        f"At most {answer.labels[leader]} leads by {_share(most)}, at "
        f"{answer.amount(most.place)}: {times[leader]} against {times[other]} ms. "
        f"{_allowed(answer, most)}{_doubt(answer)}"
    )


def _allowed(answer: CrossoverAnswer, point: PairAt) -> str:
    """What the bands of both kernels allow there."""
    low, high = lead_range(*point.steps)
    first, second = answer.labels
    return f"The bands allow {first} by {_ms(-low)} to {second} by {_ms(high)}."


def _doubt(answer: CrossoverAnswer) -> str:
    bases = zip(answer.labels, _bases(answer), strict=True)
    assumed = list(dict.fromkeys(name for name, basis in bases if basis == "assumed"))
    if not assumed:
        return ""
    whose = f"{assumed[0]}'s kernel is" if len(assumed) == 1 else "Both kernels are"
    return f" {whose} assumed ({GLYPHS['assumed']})."


def _all_along(answer: CrossoverAnswer) -> Iterator[str]:
    crossover = answer.found.crossover
    (lead,) = answer.found.leads
    faster, slower = answer.labels[lead.faster], answer.labels[1 - lead.faster]
    span = f"from {answer.amount(crossover.low)} to {answer.end}"
    yield f"Always {faster}: faster than {slower} {span}, {answer.load}."
    doubtful = "".join(_undecided(answer))
    yield f"By at least {_ms(lead.least_s)}. {_at_end(answer)}{doubtful}"


def _undecided(answer: CrossoverAnswer) -> Iterator[str]:
    """Where the bands allow the other design to lead."""
    crossover = answer.found.crossover
    first, last = crossover.decided[0], crossover.decided[-1]
    if first.low > crossover.low:
        yield f" Too close to call below {answer.amount(first.low)}."
    if last.high < crossover.high:
        yield f" Too close to call from {answer.amount(last.high + 1)} on."


def _one_change(answer: CrossoverAnswer, crossing: Crossing) -> Iterator[str]:
    after = answer.labels[crossing.faster_after]
    before = answer.labels[crossing.faster_before]
    yield (
        f"{after} is faster than {before} from {answer.amount(crossing.at)} on "
        f"({_range(crossing, answer.found.crossover.low)}), {answer.load}."
    )
    leads = [one for one in answer.found.leads if one.high < crossing.at]
    earlier = f"Before: {before} by at most {_ms(leads[0].most_s)}. " if leads else ""
    yield f"{earlier}{_at_end(answer)}"


TIE = 0.005  # leads of at most that share of a step are no reason to change


def _tie(answer: CrossoverAnswer) -> float | None:
    """The largest lead between the first and the last change, as a share of a step, if it is a tie.

    None where a lead there is worth a word, or where the design that leads first leads last too.
    """
    crossings, leads = answer.found.crossover.crossings, answer.found.leads
    if len(leads) != len(crossings) + 1 or leads[0].faster == leads[-1].faster:
        return None
    (there,) = [point for point in answer.found.points if point.place == crossings[0].at]
    step_s = min(float(step.step_s) for step in there.steps)
    most = max(lead.most_s for lead in leads[1:-1]) / step_s
    return most if most <= TIE else None


def _change_after_a_tie(answer: CrossoverAnswer, tie: float) -> Iterator[str]:
    """The last change, and from where on both take about the same."""
    first, last = answer.found.crossover.crossings[0], answer.found.crossover.crossings[-1]
    lead, after = answer.found.leads[0], answer.labels[last.faster_after]
    before = answer.labels[lead.faster]
    yield (
        f"{after} is faster than {before} from {answer.amount(last.at)} on "
        f"({_range(last, answer.found.crossover.low)}), {answer.load}."
    )
    yield (
        f"From {answer.amount(first.at)} to there they take the same within "
        f"{short(100 * tie, 1)} %. Before: {before} by at most {_ms(lead.most_s)}. "
        f"{_at_end(answer)}"
    )


def _several_changes(answer: CrossoverAnswer) -> Iterator[str]:
    crossover = answer.found.crossover
    names = answer.labels
    changes = listed(
        [
            f"{names[c.faster_after]} from {answer.amount(c.at)} on ({_range(c, crossover.low)})"
            for c in crossover.crossings
        ],
        "then",
    )
    start = "" if crossover.faster_first is None else f"{names[crossover.faster_first]} first, "
    yield f"{start}{changes}, {answer.load}."
    leads = [f"{names[lead.faster]} {_ms(lead.most_s)}" for lead in answer.found.leads]
    yield f"By at most, in turn: {listed(leads)}. {_at_end(answer)}"


def _range(crossing: Crossing, low: int) -> str:
    """The band of a change; where the bands allow that it never comes, so it says."""
    early, late = crossing.earliest, crossing.latest
    if early is None:
        return "perhaps never"
    if late is None:
        return "or never" if early == low else f"{early:,} at the earliest, or never"
    if early == late:
        return "bands included"
    return f"{early:,} to {late:,}"


def _at_end(answer: CrossoverAnswer) -> str:
    point = answer.found.points[-1]
    if point.lead_s == 0:
        return f"At {answer.end}: equal."
    faster = answer.labels[int(point.lead_s > 0)]
    return f"At {answer.end}: {faster} by {_ms(abs(point.lead_s))}, {_share(point)}."


def _share(point: PairAt) -> str:
    """The lead as a share of the slower time."""
    slower = max(float(step.step_s) for step in point.steps)
    return f"{short(100 * abs(point.lead_s) / slower, 2)} %"


def _ms(seconds: float) -> str:
    return f"{significant(1e3 * seconds, 2)} ms"


def _columns(answer: CrossoverAnswer) -> tuple[ScreenColumn, ...]:
    def place(row: Row) -> str:
        return f"{row['point'].place:,}"

    def time(index: int) -> Callable[[Row], str]:
        def text(row: Row) -> str:
            point = row["point"]
            glyph = GLYPHS[attention_basis(point.models[index])]
            return f"{milliseconds(float(point.steps[index].step_s))} {glyph}"

        return text

    left, right = (f"{_brief(answer, i)} leads" for i in (0, 1))
    scale = _scale(answer, left, right)

    def drawn(row: Row) -> str:
        return _two_sided(answer, row["point"], scale)

    width = scale.left
    return (
        ScreenColumn(title=_TITLES[answer.over], text=place),
        *(ScreenColumn(title=f"{_brief(answer, i)}, ms", text=time(i)) for i in (0, 1)),
        ScreenColumn(
            title=f"{left:>{width}} │ {right}", text=drawn, is_number=False, drop=1, in_cards=False
        ),
    )


@dataclass(frozen=True, kw_only=True)
class _Scale:
    """Cells on the left of the middle, and cells per second."""

    left: int
    cells_per_s: float

    def cells(self, lead_s: float) -> int:
        """Cells of a bar; a lead that is there shows at least one."""
        return max(1, round(self.cells_per_s * lead_s)) if lead_s > 0 else 0


def _scale(answer: CrossoverAnswer, left: str, right: str) -> _Scale:
    """Both sides to one scale, the longest bar as long as the column's width allows."""
    leads = [point.lead_s for point in answer.found.points]
    least, most = min(0.0, *leads), max(0.0, *leads)
    longest = max(-least, most)
    titles = (_TITLES[answer.over], *(f"{_brief(answer, i)}, ms  " for i in (0, 1)))
    room = WIDTH - sum(map(len, titles)) - len("   │ ")
    low = answer.found.crossover.low
    marks = (_mark(one, low) for one in answer.found.crossover.crossings)
    least_right = max(map(len, (right, *marks)))
    scale = _Scale(left=len(left), cells_per_s=0.0)
    for longest_cells in range(_BAR, _BAR // 4, -1):
        per_s = longest_cells / longest if longest else 0.0
        width = max(len(left), round(-least * per_s))
        scale = _Scale(left=width, cells_per_s=per_s)
        if width + max(least_right, round(most * per_s)) <= room:
            break
    return scale


def _two_sided(answer: CrossoverAnswer, point: PairAt, scale: _Scale) -> str:
    width = scale.left
    crossings = {one.at: one for one in answer.found.crossover.crossings}
    if point.place in crossings:
        mark = _mark(crossings[point.place], answer.found.crossover.low)
        return f"{'':>{width}} │ {mark}"
    left = "▒" * scale.cells(-point.lead_s)
    return f"{left:>{width}} │ {'█' * scale.cells(point.lead_s)}"


def _mark(crossing: Crossing, low: int) -> str:
    """A change in the column of bars, which has room for few words."""
    early, late = crossing.earliest, crossing.latest
    if early is not None and early != low and late is None:
        return f"crossing, {early:,} to never"
    return f"crossing, {_range(crossing, low)}"


def _brief(answer: CrossoverAnswer, index: int) -> str:
    """The design without its options, where that still tells the two apart."""
    return brief(answer.labels)[index]


def _bases(answer: CrossoverAnswer) -> tuple[Basis, Basis]:
    """The weakest evidence of each design's attention among the shown points."""
    first, second = (
        max((attention_basis(point.models[index]) for point in answer.found.points),
            key=STRONGEST_FIRST.index)
        for index in (0, 1)
    )  # fmt: skip
    return first, second


def _foot(answer: CrossoverAnswer) -> Iterator[str]:
    bases = _bases(answer)
    errors = [_error(answer, index) for index in (0, 1)]
    if bases == ("measured", "measured") and None not in errors:
        told = f"{GLYPHS['measured']} both attention kernels measured on this GPU (errors "
        told += f"{100 * (errors[0] or 0):.1f} and {100 * (errors[1] or 0):.1f} %)."
    else:
        each = (
            f"{GLYPHS[bases[index]]} {answer.labels[index]}: {_rests_on(answer, index)}"
            for index in (0, 1)
        )
        told = f"Attention kernels: {'; '.join(dict.fromkeys(each))}."
    yield f"{firm_words(answer)} {told} {WHY}"


def firm_words(answer: CrossoverAnswer) -> str:
    """In how many draws the faster design stays ahead at the end of the range."""
    last = answer.found.points[-1]
    firm = of_two_designs(last.models, last.steps)
    label = brief(answer.labels)[firm.winner]
    at = "at the end" if answer.over == "rank" else f"at {answer.end}"
    share = short_percent(firm.share)
    return f"{label} stays ahead {at} in {share} of {firm.n_draws:,} draws of the kernels' bands."


def _rests_on(answer: CrossoverAnswer, index: int) -> str:
    basis, error = _bases(answer)[index], _error(answer, index)
    if basis == "measured":
        return "measured on this GPU" + ("" if error is None else f" (error {100 * error:.1f} %)")
    kernels = answer.found.points[-1].models[index].kernels
    is_lent = any(kernel.basis == "generation" for kernel in kernels)
    return {
        "borrowed": "of a GPU of its generation" if is_lent else "measured for another shape",
        "datasheet": "typical shares of the datasheet",
        "assumed": "assumed",
    }[basis]


def _error(answer: CrossoverAnswer, index: int) -> float | None:
    """The largest held-out median error of the design's measured kernels."""
    kernels = answer.found.points[-1].models[index].kernels
    found = [k.held_out_median_error for k in kernels if evidence(k.basis) == "measured"]
    return max((one for one in found if one is not None), default=None)


def _next(answer: CrossoverAnswer, ask: Ask) -> Sequence[str]:
    """The same pair along the batch, or where that was asked along the context."""
    over = "batch_size" if answer.over == "context_tokens" else "context_tokens"
    changes = answer.found.crossover.crossings
    rank = changes[0].at if changes else answer.found.crossover.high
    designs = [label.replace("RANK", str(rank)) for label in answer.labels]
    asked = {} if over == "context_tokens" else {"over": over}
    return ask("crossover", *designs, without=("at_most", "over", over), **asked)


def crossover_equations(answer: CrossoverAnswer, at: int | None) -> list[str]:
    """Both steps as sums at a change; None where there is none: at the largest value."""
    place = answer.found.crossover.high if at is None else at
    point = next(one for one in answer.found.points if one.place == place)
    told = {**answer.inputs, answer.over: place}
    load = (told["context_tokens"], told["batch_size"], told["query_tokens"])
    lines = []
    for label, model, step in zip(answer.labels, point.models, point.steps, strict=True):
        total, *terms = step_equations(model, step, *load)
        lines += [f"{label} at {answer.amount(place)}: {total}", *(f"  {term}" for term in terms)]
    return lines
