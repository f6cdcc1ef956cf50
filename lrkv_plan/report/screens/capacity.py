"""The screen of ``capacity``: users that fit or are served, what binds, and one GPU's memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from lrkv_plan.latency.step import step_time
from lrkv_plan.notes import Note
from lrkv_plan.report.equations import cache_equation, sequences_equation
from lrkv_plan.report.screen import (
    GLYPHS,
    Row,
    Screen,
    ScreenColumn,
    Tone,
    milliseconds,
    short,
    short_percent,
    short_tokens,
    significant,
    with_band,
    wrapped,
)
from lrkv_plan.report.screens.words import (
    brief,
    gpu_name,
    gpu_words,
    legend,
    sharing_words,
    tokens,
    users,
)
from lrkv_plan.report.tables import count
from lrkv_plan.report.time_equations import step_equations
from lrkv_plan.serving.capacity import MOST_CONTEXT_TOKENS
from lrkv_plan.serving.engine import stage_models
from lrkv_plan.serving.stages import on_gpus
from lrkv_plan.specs.design import design_label
from lrkv_plan.units import format_bytes

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel
    from lrkv_plan.report.screens.rank import Ask
    from lrkv_plan.serving.answers import Answer
    from lrkv_plan.serving.budget import StageBudget
    from lrkv_plan.serving.capacity import CapacityRow
    from lrkv_plan.serving.load import Admission, LatencyTarget
    from lrkv_plan.specs.model import ModelSpec
    from lrkv_plan.specs.population import Population

_MOST_ROWS_WITH_OTHERS = 4  # above, layouts that serve less are left to --tp-size
_MOST_COMPARED = 3  # in the verdict
_BAR = 56


@dataclass(frozen=True, kw_only=True)
class CapacityAsked:
    """What was asked: models, uneven lengths, a time target, how many users, the next question.

    ``is_longest`` asks for the longest context of ``n_sequences``.
    """

    models: Sequence[ModelSpec]
    population: Population | None = None
    target: LatencyTarget | None = None
    ask: Ask | None = None
    n_sequences: int = 1
    is_longest: bool = False

    @property
    def tpot_s(self) -> float | None:
        """The most that a token may take; None: any, or no time was asked for."""
        return None if self.target is None else self.target.tpot_s


def capacity_screen(
    answers: Sequence[Answer], asked: CapacityAsked, notes: Sequence[Note], bound: str
) -> Screen:
    """Verdict, a row per answer with what varies, and the memory of one GPU of the first.

    Parameters
    ----------
    notes : of the table; those that change what a number means are said beside the screen.
    bound : what the verdict begins with where weights are left out.
    """
    shown = _shown(answers)
    verdict = list(_verdict(answers, asked))
    return Screen(
        verdict=[_after(bound, verdict[0]), *verdict[1:]],
        columns=[one for one in _columns(shown, asked) if one is not None],
        rows=[{"answer": answer} for answer in shown] if len(shown) > 1 else
             _alone(shown),
        picture=_picture(answers),
        foot=list(_foot(answers)),
        following=list(_following(answers, asked)),
        launch=next((one.launch for one in answers if one.launch is not None), ()),
        notes=[one for one in notes if _changes_a_number(one, is_alone=len(answers) == 1)],
    )  # fmt: skip


def _after(bound: str, sentence: str) -> str:
    return bound + sentence[:1].lower() + sentence[1:] if bound else sentence


def _changes_a_number(note: Note, *, is_alone: bool) -> bool:
    """Refusals, a context too long, several domains, and hints that the verdict does not give."""
    if note.kind == "hint":
        return not is_alone
    told = ("own maximum", " domains of ")
    return note.kind == "refusal" or (
        note.kind == "limit" and any(text in note.text for text in told)
    )


def _alone(shown: Sequence[Answer]) -> list[Row]:
    """The one row, unless the sentence has said all of it."""
    (answer,) = shown
    if answer.row is None or not answer.row.max_sequences:
        return []
    return [{"answer": answer}]


def _shown(answers: Sequence[Answer]) -> list[Answer]:
    """The answers, and where they are few the layouts that serve less after them."""
    if len(answers) > _MOST_ROWS_WITH_OTHERS:
        return list(answers)
    return [*answers, *(other for answer in answers for other in answer.others[:1])]


# Words


def layout_words(answer: Answer) -> str:
    """How the GPUs are shared.

    ``TP 4 x 2`` is two replicas of four GPUs each.
    """
    parallel = answer.deployment.parallel
    replicas = _n_gpus(answer) // parallel.n_gpus
    return sharing_words(parallel) + (f" x {replicas:,}" if replicas > 1 else "")


def _n_gpus(answer: Answer) -> int:
    if answer.row is not None:
        return answer.row.n_gpus
    return answer.deployment.n_gpus or answer.deployment.parallel.n_gpus


def _gpus(answer: Answer) -> str:
    hardware, n = answer.deployment.hardware, _n_gpus(answer)
    if answer.deployment.joined:
        kinds = [gpu_words(gpu.name, gpu.title, count) for count, gpu in answer.deployment.joined]
        return " + ".join(kinds)
    if hardware is None:
        return "the stated pool" if n == 1 else f"the stated pools of {n:,} GPUs"
    return gpu_words(hardware.name, hardware.title, n)


def _where(answer: Answer) -> str:
    """The GPUs, and how they are shared where one replica takes several."""
    is_shared = answer.deployment.parallel.n_gpus > 1
    return _gpus(answer) + (f" at {layout_words(answer)}" if is_shared else "")


def _context(answer: Answer) -> int:
    return answer.deployment.settings.context_tokens


def _between(low: int, high: int, middle: int, to: str = " to ") -> str:
    return "" if low == high == middle else f" ({low:,}{to}{high:,})"


def _range(answer: Answer, to: str = " to ") -> str:
    between = answer.admitted_between if answer.is_timed else answer.held_between
    return _between(*between, answer.served, to)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def may_miss(answer: Answer, asked: CapacityAsked) -> bool:
    """Whether the band of the load's time reaches beyond the target."""
    load = answer.admitted
    return load is not None and asked.tpot_s is not None and load.tpot_high_s > asked.tpot_s


# The verdict


def _verdict(answers: Sequence[Answer], asked: CapacityAsked) -> Iterator[str]:
    first = answers[0]
    if first.row is None:
        first = next((one for one in answers if one.row is not None), first)
    if asked.is_longest:
        yield _longest(answers, asked)
        return
    if any(one.is_smallest for one in answers):
        yield _fewest(answers, asked)
        return
    if asked.population is not None and first.row is not None:
        yield _uneven(first, asked.population)
        yield from _sharing(first)
        return
    if not first.served:
        yield _none(first, asked)
        yield from _binding_stage(first)
        yield from _instead(first)
        return
    others = [one for one in answers if one is not first]
    stage = list(_binding_stage(first))
    said = f"{_fits(first, asked)}{_compared(first, others)}."
    named = first.model is not None and len({one.model and one.model.name for one in answers}) > 1
    yield f"{first.model.name}: {said}" if named and first.model else _upper(said)
    yield from _times(answers, asked)
    yield from stage
    yield from _hosted(first)
    yield from _offloaded(first)


def _binding_stage(answer: Answer) -> Iterator[str]:
    """Which stage has the smallest pool, where stages differ by what was asked."""
    row, deployment = answer.row, answer.deployment
    if row is None or row.binding_stage is None:
        return
    if not deployment.joined and deployment.parallel.pp_layers is None:
        return
    stage = row.stages[row.binding_stage]
    where = f" on {_stage_gpu(answer, stage.gpu)}" if stage.gpu else ""
    others = ", ".join(
        f"{one.max_sequences:,} in stage {one.stage + 1} ({one.n_layers})"
        for one in row.stages
        if one is not stage and one.max_sequences is not None
    )
    held = f"; {others} would" if others else ""
    yield f"Stage {stage.stage + 1} binds, {stage.n_layers} layers{where}{held}."


def _hosted(answer: Answer) -> Iterator[str]:
    """What layers take that the engine leaves to the host."""
    row = answer.row
    if row is None or row.host_bytes_per_sequence is None:
        return
    weights = "" if row.host_weight_bytes is None else f"{format_bytes(row.host_weight_bytes)} and "
    each = format_bytes(row.host_bytes_per_sequence)
    yield f"The host holds the other layers: {weights}{each} a user."


def _stage_gpu(answer: Answer, name: str) -> str:
    known: list[Any] = [gpu for _, gpu in answer.deployment.joined]
    known = known or [answer.deployment.hardware]
    found = next((gpu for gpu in known if gpu is not None and gpu.name == name), None)
    return name if found is None else gpu_name(found.name, found.title)


def _offloaded(answer: Answer) -> Iterator[str]:
    """How many contexts the host keeps besides, and how soon one is back."""
    row = answer.row
    if row is None or row.offload_sequences is None:
        return
    size = format_bytes(answer.deployment.settings.kv_offload or 0)
    back = (
        "how long one takes to come back is not known: the GPU's profile states no host_link"
        if row.offload_restore_s is None
        else f"one is back in {milliseconds(row.offload_restore_s)} ms or more"
    )
    yield f"{size} of host memory keep {row.offload_sequences:,} more, not running; {back}."


def _fits(answer: Answer, asked: CapacityAsked) -> str:
    """So many users fit, or are served in time, on these GPUs, with the range."""
    n, context = answer.served, tokens(_context(answer))
    shared = answer.deployment.settings.shared_prefix_tokens
    context += f" ({shared:,} in common)" if shared else ""
    load = answer.admitted
    if load is not None and load.binds == "time":
        limit = f"{short(1e3 * (asked.tpot_s or 0))} ms"
        held = answer.row.total_sequences if answer.row else 0
        return (
            f"{users(n)} of {context} {'is' if n == 1 else 'are'} served within {limit} on "
            f"{_where(answer)}{_range(answer)}; {held:,} fit"
        )
    return f"{users(n)} of {context} fit{'s' if n == 1 else ''} on {_where(answer)}{_range(answer)}"


def _compared(first: Answer, others: Sequence[Answer]) -> str:
    """What the others serve, each by what differs from the first."""
    if len(others) > _MOST_COMPARED:
        served = [one.served for one in others]
        return f"; {min(served):,} to {max(served):,} in the {len(others)} other rows"
    told = [f"{one.served:,} {_difference(first, one)}" for one in others if one.row is not None]
    told += [f"none {_difference(first, one)}" for one in others if one.row is None]
    return f"; {', '.join(told)}" if told else ""


def _difference(first: Answer, other: Answer, *, without: str = "") -> str:
    """What differs, in words, but contexts or GPUs where they are said elsewhere."""
    told = []
    if first.model is not None and other.model is not None and first.model.name != other.model.name:
        told.append(f"of {other.model.name}")
    if other.attention != first.attention and not told:
        told.append(f"with {other.attention}")
    if other.deployment.settings.kv_dtype != first.deployment.settings.kv_dtype:
        told.append(f"with {other.deployment.settings.kv_dtype} cache")
    if _context(other) != _context(first) and without != "context":
        told.append(f"of {tokens(_context(other))}")
    if without == "gpus":
        return " ".join(told)
    if _gpus(other) != _gpus(first):
        told.append(f"on {_where(other)}")
    elif layout_words(other) != layout_words(first) and (other.row is not None or not told):
        told.append(f"at {layout_words(other)}")
    return " ".join(told)


def _times(answers: Sequence[Answer], asked: CapacityAsked) -> Iterator[str]:
    """What binds, and the times of at most two loads with their bands."""
    timed = [one for one in answers if one.admitted is not None]
    if not timed:
        return
    shown = timed if len(timed) == 2 else timed[:1]
    times = [_banded(one.admitted) for one in shown if one.admitted is not None]
    if asked.tpot_s is None:
        yield f"A token takes {' and '.join(times)}."
        return
    limit, told = short(1e3 * asked.tpot_s), [_what_binds(one, asked) for one in shown]
    if len(set(told)) == 1:
        yield f"{_upper(told[0])}: {' and '.join(times)} of {limit}."
        return
    yield f"{_upper(told[0])}: {times[0]} of {limit}."
    yield f"{_upper(_difference(shown[0], shown[1]))}, {told[1]}: {times[1]}."


def _banded(load: Admission) -> str:
    return with_band(load.tpot_s, load.tpot_low_s, load.tpot_high_s).replace(" (", " ms (", 1)


def _what_binds(answer: Answer, asked: CapacityAsked) -> str:
    """Which of memory and time bounds a load, where its band tells."""
    if answer.admitted is not None and answer.admitted.binds == "time":
        return "time binds, not memory"
    if may_miss(answer, asked):
        return "memory binds; the time is too close to call"
    return "memory binds, not time"


def _none(answer: Answer, asked: CapacityAsked) -> str:
    """Why nobody is served."""
    context = tokens(_context(answer))
    if answer.row is None:
        return f"Refused on {_where(answer)}: {answer.refused}."
    if answer.row.max_sequences and answer.step is not None and asked.target is not None:
        limit = short(1e3 * (asked.tpot_s or 0))
        spec = asked.target.speculation
        alone = step_time(answer.step, _context(answer), 1, spec.query_tokens)
        return (
            f"No user of {context} is served within {limit} ms on {_where(answer)}: alone a token "
            f"takes {milliseconds(float(alone.step_s) / spec.accepted_tokens)} ms; "
            f"{answer.row.total_sequences:,} fit."
        )
    why = answer.row.binds
    return f"Not one user of {context} fits on {_where(answer)}: {why}."


def _instead(answer: Answer) -> Iterator[str]:
    if answer.to_try:
        told = [text.replace(" fits ", " (fits ") + ")" for text in answer.to_try]
        yield f"Try {' or '.join(told)}."


def _uneven(answer: Answer, population: Population) -> str:
    row = answer.row
    assert row is not None, "the caller looked"
    account = row.population
    assert account is not None, "lengths were given"
    return (
        f"{account.admitted_sequences:,} of {population.n_sequences:,} sequences of "
        f"{population.name} fit together on {_where(answer)}; all at their mean length "
        f"{account.equal_length_sequences:,} would."
    )


def _sharing(answer: Answer) -> Iterator[str]:
    """How many fit where common prefixes are held once, and what the cache finds again."""
    account = None if answer.row is None else answer.row.prefixes
    if account is None:
        return
    row = answer.row
    alone = None if row is None or row.population is None else row.population.allocated_bytes
    instead = "" if alone is None else f" in place of {format_bytes(alone)}"
    yield (
        f"With common prefixes held once {account.admitted_sequences:,} fit, and all take "
        f"{format_bytes(account.allocated_bytes)}{instead}."
    )
    yield (
        f"The cache finds {short_percent(account.hit_rate)} of the prompts' tokens again, "
        f"{short_percent(account.unbounded_hit_rate)} if it forgot nothing."
    )


def _fewest(answers: Sequence[Answer], asked: CapacityAsked) -> str:
    """The fewest GPUs of the first kind, and those of the others."""
    found = [one for one in answers if one.row is not None]
    within = "" if asked.tpot_s is None else f" within {short(1e3 * asked.tpot_s)} ms"
    first = found[0]
    verb = "carries" if _n_gpus(first) == 1 else "carry"
    held = f"{_where(first)} {verb} {users(asked.n_sequences)} of {tokens(_context(first))}"
    others = found[1 : 1 + _MOST_COMPARED]
    if others and all(may_miss(one, asked) for one in (first, *others)):
        also = ", ".join(_named(first, one) for one in others)
        return _upper(f"{held}{within}; {also}; all just about.")
    unsure = ", just about" if may_miss(first, asked) else ""
    also = ", ".join(
        f"{_named(first, one)}{' just about' if may_miss(one, asked) else ''}" for one in others
    )
    return _upper(f"{held}{within}{unsure}{also and f'; {also}'}.")


def _named(first: Answer, other: Answer) -> str:
    return f"{_where(other)} {_difference(first, other, without='gpus')}".strip()


def _longest(answers: Sequence[Answer], asked: CapacityAsked) -> str:
    """The longest context of the first, beside the model's own maximum, and of the others."""
    first = next(one for one in answers if one.row is not None)
    model, pool = first.model, first.pool_context_tokens or 0
    whom = users(asked.n_sequences)
    if not pool or model is None:
        return f"Not even one token of {whom} fits on {_where(first)}."
    held = (
        "any length"
        if pool >= MOST_CONTEXT_TOKENS
        else f"{pool:,}{_between(*first.context_between, pool)}"
    )
    most = model.max_context_tokens
    if most is not None and pool > most:
        said = (
            f"{tokens(most)}, the longest that {model.name} takes, fit {whom} on {_where(first)}; "
            f"the memory would hold {held}"
        )
    else:
        limit = "" if most is None else f"; the model takes {tokens(most)}"
        said = f"{held} tokens are the longest context that fits {whom} on {_where(first)}{limit}"
    others = [one for one in answers if one is not first and one.row is not None]
    told = [
        f"{f'{_context(one):,}' if one.served else 'none'} "
        f"{_difference(first, one, without='context')}"
        for one in others[:_MOST_COMPARED]
    ]
    return _upper(f"{said}{'; ' + ', '.join(told) if told else ''}.")


# The table


def _columns(shown: Sequence[Answer], asked: CapacityAsked) -> Iterator[ScreenColumn | None]:
    def varies(of: Callable[[Answer], Any]) -> bool:
        return len({of(one) for one in shown}) > 1

    is_timed = any(one.is_timed for one in shown)
    designs = varies(lambda one: one.attention)
    formats = varies(lambda one: one.deployment.settings.kv_dtype)
    kinds = varies(lambda one: one.deployment.gpu_name)
    if varies(lambda one: one.model and one.model.name):
        yield _column("model", lambda one: one.model.name if one.model else "-", is_number=False)
    if designs or len(shown) == 1:
        names = _names([one.attention for one in shown], asked)
        yield _column("design", lambda one: names[one.attention], is_number=False)
    if kinds:
        yield _column("GPUs", _kind, is_number=False)
    if varies(layout_words) or (kinds and any(_n_gpus(one) > 1 for one in shown)):
        yield _column("layout", layout_words, is_number=False)
    if formats:
        yield _column("cache", lambda one: one.deployment.settings.kv_dtype, is_number=False)
    if asked.is_longest:
        yield _column("context", lambda one: f"{_context(one):,}" if one.served else "-")
        yield _column("memory holds", _pool_context, drop=2)
    elif varies(_context):
        yield _column("context", lambda one: short_tokens(_context(one)))
    if designs or formats or len(shown) == 1:
        yield _column("KiB/token/GPU", _kib, drop=9)
    yield from _user_columns(shown, asked)
    if is_timed:
        yield _column("ms/token", _time, drop=1, tone=lambda one: _time_tone(one, asked))
        yield _column("tok/s", _rate, drop=6)
        if any(one.admitted and one.admitted.usd_per_million_tokens for one in shown):
            yield _column("$/Mtok", _usd_per_million, drop=7)
    if kinds and any(one.deployment.usd_per_gpu_hour for one in shown):
        yield _column("$/h", _usd_per_hour, drop=2)
    elif not is_timed and any(one.row and one.row.usd_per_sequence_hour for one in shown):
        yield _column("$/user/h", _usd_per_user, drop=8)
    yield _column("bound by", lambda one: _bound(one, asked), is_number=False, drop=2,
                  tone=lambda one: _bound_tone(one, asked))  # fmt: skip


def _names(labels: Sequence[str], asked: CapacityAsked) -> dict[str, str]:
    """Designs as the table names them: a model's own without its options."""
    own = {design_label(model) for model in asked.models}
    pairs = zip(labels, brief(labels), strict=True)
    return {label: name if label in own else label for label, name in pairs}


def _user_columns(shown: Sequence[Answer], asked: CapacityAsked) -> Iterator[ScreenColumn]:
    if asked.population is not None:
        yield _column("admitted", lambda one: _of_population(one, "admitted_sequences"))
        yield _column("if equal", lambda one: _of_population(one, "equal_length_sequences"), drop=5)
        if any(one.row is not None and one.row.prefixes is not None for one in shown):
            yield _column("shared", lambda one: _of_prefixes(one), drop=4)
        yield _column("page waste", _page_waste, drop=6)
        return
    yield _column("users", _served, tone=_users_tone)
    if any(one.row is not None and one.row.total_sequences != one.served for one in shown):
        yield _column("fit", lambda one: f"{one.row.total_sequences:,}" if one.row else "-", drop=3)


def _column(
    title: str,
    text: Callable[[Answer], str],
    *,
    is_number: bool = True,
    drop: int = 0,
    tone: Callable[[Answer], Tone | None] = lambda _: None,
) -> ScreenColumn:
    return ScreenColumn(
        title=title,
        text=lambda row: text(row["answer"]),
        is_number=is_number,
        drop=drop,
        tone=lambda row: tone(row["answer"]),
    )


def _served(answer: Answer) -> str:
    return "-" if answer.row is None else f"{answer.served:,}{_range(answer, '-')}"


def _kind(answer: Answer) -> str:
    if answer.deployment.joined:
        return answer.deployment.gpu_name or ""
    return f"{_n_gpus(answer):>2,} {answer.deployment.gpu_name or 'stated'}"


def _pool_context(answer: Answer) -> str:
    pool = answer.pool_context_tokens or 0
    if pool >= MOST_CONTEXT_TOKENS:
        return "any length"
    return f"{pool:,}{_between(*answer.context_between, pool, '-')}"


def _kib(answer: Answer) -> str:
    return "-" if answer.row is None else short(answer.row.bytes_per_token_per_gpu / 1024)


def _of_population(answer: Answer, key: str) -> str:
    account = answer.row.population if answer.row is not None else None
    return "-" if account is None else f"{getattr(account, key):,}"


def _of_prefixes(answer: Answer) -> str:
    account = answer.row.prefixes if answer.row is not None else None
    return "-" if account is None else f"{account.admitted_sequences:,}"


def _page_waste(answer: Answer) -> str:
    account = answer.row.population if answer.row is not None else None
    return "-" if account is None else short_percent(account.waste_share)


def _time(answer: Answer) -> str:
    load = answer.admitted
    if load is None:
        return "-"
    band = with_band(load.tpot_s, load.tpot_low_s, load.tpot_high_s)
    return f"{band} {GLYPHS[load.time_basis]}"


def _rate(answer: Answer) -> str:
    return "-" if answer.admitted is None else f"{answer.admitted.tokens_per_s:,.0f}"


def _usd_per_million(answer: Answer) -> str:
    usd = None if answer.admitted is None else answer.admitted.usd_per_million_tokens
    return "-" if usd is None else significant(usd, 2)


def _usd_per_hour(answer: Answer) -> str:
    usd = answer.deployment.usd_per_gpu_hour
    return "-" if usd is None or answer.row is None else f"{usd * _n_gpus(answer):,.2f}"


def _usd_per_user(answer: Answer) -> str:
    usd = None if answer.row is None else answer.row.usd_per_sequence_hour
    return "-" if usd is None else significant(usd, 2)


_SHORT = {
    "cache memory": "memory",
    "one sequence of this length exceeds the pool": "too long",
    "weights and runtime leave no memory": "no memory left",
    "most sequences allowed": "max seqs",
}


def _bound(answer: Answer, asked: CapacityAsked) -> str:
    if answer.row is None:
        return "refused"
    load = answer.admitted
    by = _SHORT.get(answer.row.binds, answer.row.binds)
    if answer.is_timed and (load.binds == "time" if load else answer.row.max_sequences):
        by = "time"
    return f"{by}, may miss" if may_miss(answer, asked) else by


def _users_tone(answer: Answer) -> Tone | None:
    return "good" if answer.served else "bad"


def _time_tone(answer: Answer, asked: CapacityAsked) -> Tone | None:
    load = answer.admitted
    if load is None:
        return None
    if asked.tpot_s is not None and load.tpot_s > asked.tpot_s:
        return "bad"
    return "doubtful" if load.time_basis == "assumed" else None


def _bound_tone(answer: Answer, asked: CapacityAsked) -> Tone | None:
    if answer.row is None or not answer.row.max_sequences:
        return "bad"
    return "doubtful" if may_miss(answer, asked) else None


# One GPU's memory


def _picture(answers: Sequence[Answer]) -> Callable[[int], Sequence[str]] | None:
    """The memory of one GPU of the first answer, where all are on one kind of GPU."""
    first = answers[0]
    if first.row is None or first.row.budget is None or not _is_one_budget(answers):
        return None
    stage = first.row.budget.deciding
    label = "One GPU" + (f", {_shared(first)}" if _n_gpus(first) > 1 else "")
    if first.row.binding_stage is not None and first.row.stages:
        label = f"Stage {first.row.binding_stage + 1}, {_shared(first)}"
    return lambda width: memory_bar(label, stage, width)


def _is_one_budget(answers: Sequence[Answer]) -> bool:
    """Whether all are of one model on the same GPUs in the same layout."""
    told = {(one.model and one.model.name, _gpus(one), layout_words(one)) for one in answers}
    return len(told) == 1


def _shared(answer: Answer) -> str:
    return layout_words(answer).partition(" x ")[0]


def memory_parts(stage: StageBudget) -> list[tuple[str, str, int]]:
    """Weights, cache, runtime and what is left alone, as a bar shows them: glyph, word, bytes."""
    outside = ("outside utilisation", "outside the fraction")
    weights = -stage.bytes_of("weights") - stage.bytes_of("weights on the host")
    unused = -sum(stage.bytes_of(name) for name in outside)
    cache = max(0, stage.kv_bytes)
    runtime = stage.bytes_of("memory") - weights - unused - stage.kv_bytes
    return [("▒", "weights", weights), ("█", "cache", cache), ("░", "runtime", runtime),
            ("·", "unused", unused)]  # fmt: skip


def memory_bar(label: str, stage: StageBudget, width: int) -> list[str]:
    """One GPU's memory as a bar of at most ``width`` columns, with its parts in GiB below."""
    total, parts = stage.bytes_of("memory"), memory_parts(stage)
    if stage.kv_bytes <= 0:
        told = " + ".join(f"{word} {_gib(n)}" for _, word, n in parts if word != "cache" and n)
        text = f"{label}: {told} = {_gib(total - stage.kv_bytes)} of {_gib(total)} GiB"
        return wrapped(text, width)
    head = f"{label}:  "
    cells = min(_BAR, width - len(head))
    if cells < _BAR // 2:
        return wrapped(f"{label}: {_legend(total, parts)}", width)
    sizes = _apportioned([n for _, _, n in parts], total, cells)
    drawn = "".join(glyph * size for (glyph, _, _), size in zip(parts, sizes, strict=True))
    return [head + drawn, *wrapped(_legend(total, parts), width)]


def _legend(total: int, parts: Sequence[tuple[str, str, int]]) -> str:
    told = "  ".join(f"{glyph} {word} {_gib(n)}" for glyph, word, n in parts if n)
    return f"{_gib(total)} GiB:  {told}"


def _apportioned(parts: Sequence[int], total: int, cells: int) -> list[int]:
    """Whole cells of each part, together all of them; the largest remainders are rounded up."""
    exact = [max(0, part) * cells / total for part in parts]
    sizes = [int(one) for one in exact]
    order = sorted(range(len(parts)), key=lambda i: sizes[i] - exact[i])
    for index in order[: max(0, cells - sum(sizes))]:
        sizes[index] += 1
    return sizes


def _gib(n_bytes: int) -> str:
    return f"{n_bytes / 2**30:.2f}"


# Foot and what to ask next


def _foot(answers: Sequence[Answer]) -> Iterator[str]:
    first = next((one for one in answers if one.row is not None), answers[0])
    engine = first.deployment.engine
    told = [f"{engine}'s rules"]
    if first.row is not None and first.row.budget is not None and _is_one_budget(answers):
        row = first.row
        low, high = row.kv_budget_low_bytes_per_gpu, row.kv_budget_high_bytes_per_gpu
        told = [f"Budget {_gib(low)} to {_gib(high)} GiB a GPU by {engine}'s rules"]
        measured = first.deployment.measured
        if measured is not None:
            source = measured.budget.source
            told = [f"Budget {_gib(low)} GiB a GPU, measured: {source.citation or source.url}"]
    elif first.deployment.kv_memory_bytes is not None:
        told.append("the pool as stated")
    times = legend([one.admitted.time_basis for one in _shown(answers) if one.admitted is not None])
    if times:
        told.append(f"times {times}")
    yield from _prices(answers)
    detail = first.row is not None and first.row.budget is not None and not times
    terms = "Terms: --detail  " if detail else ""
    yield f"{'; '.join(told)}.  {terms}Why: --explain"


def _prices(answers: Sequence[Answer]) -> Iterator[str]:
    """Whose prices they are where none was given; addresses wait for ``--explain``."""
    sources = dict.fromkeys(one.deployment.price_source for one in answers if one.row is not None)
    known = [source for source in sources if source not in (None, "given")]
    if len(known) == 1:
        usd = next(one.deployment.usd_per_gpu_hour for one in answers
                   if one.deployment.price_source == known[0])  # fmt: skip
        read = re.sub(r",? ?https?://\S+", "", str(known[0]))
        yield f"Price: ${usd:g} an hour, {read}."
    elif known:
        yield "Prices: those of the profiles, whose sources --explain names."


def _following(answers: Sequence[Answer], asked: CapacityAsked) -> Iterator[Sequence[str]]:
    first, ask = answers[0], asked.ask
    if ask is None or asked.population is not None:
        return
    if first.to_try and not any(one.served for one in answers):
        flag, value = first.to_try[0].split(" fits ")[0].split()
        yield ask("capacity", **{flag.removeprefix("--").replace("-", "_"): value})
        return
    parallel, model = first.deployment.parallel, first.model
    is_plain = parallel.n_gpus == parallel.tp_size and first.deployment.hardware is not None
    settings = first.deployment.settings
    on_host = (settings.n_gpu_layers, settings.cpu_offload_gb)
    is_plain = is_plain and on_host == (None, None)
    if not is_plain or len(answers) > 1 or not first.served:
        return
    if model is None or not model.attention_groups:
        return
    found = {"n_gpus": _n_gpus(first), "tp_size": parallel.tp_size} if first.is_smallest else {}
    required = ("require_sequences", "require_tokens", "require_tpot_ms", "launch")
    yield ask("plan", without=required, context_tokens=_context(first), **found)


# Equations


def capacity_equations(answer: Answer, asked: CapacityAsked) -> list[str]:
    """The budget, users and time of one answer with their numbers put in."""
    row, model = answer.row, answer.model
    if row is None or model is None:
        return [f"{answer.attention}: {answer.refused}"]
    lines = [f"{model.name}, {answer.attention}, {tokens(row.context_tokens)}, {_where(answer)}"]
    if row.budget is not None:
        lines += _budget_lines(row.budget.deciding)
    lines += _user_lines(answer, row, model)
    if (account := row.prefixes) is not None:
        found = ", ".join(
            f"{float(one.pool_share):g} pools {short_percent(one.hit_rate)}"
            for one in account.hit_rates
        )
        lines.append(f"  prompts' tokens found again in a cache of {found}")
    if answer.step is not None and answer.admitted is not None:
        drafted = 1 if asked.target is None else asked.target.speculation.query_tokens
        at = (row.context_tokens, answer.admitted.batch_size, drafted)
        lines += _time_lines(answer.step, answer.admitted, at)
    return lines


def _budget_lines(stage: StageBudget) -> Iterator[str]:
    first, *rest = stage.terms
    taken = "".join(
        f" {'-' if t.n_bytes < 0 else '+'} {_gib(abs(t.n_bytes))} {t.name}" for t in rest
    )
    yield (
        f"  budget: {_gib(first.n_bytes)} {first.name}{taken} = {_gib(stage.kv_bytes)} GiB a GPU "
        f"({_gib(stage.kv_low_bytes)} to {_gib(stage.kv_high_bytes)})"
    )
    yield from (f"    {term.name}: {term.provenance}" for term in stage.terms)


def _user_lines(answer: Answer, row: CapacityRow, model: ModelSpec) -> Iterator[str]:
    tp_size, model = row.tp_size, _on_binding_stage(answer, row, model)
    stored = f"{count(row.bytes_per_token_per_gpu)} B"
    yield f"  cache of a token: {cache_equation(model, row.kv_dtype, tp_size)}"
    held = row.kv_budget_bytes_per_gpu
    exact = float(held / (row.context_tokens * row.bytes_per_token_per_gpu))
    yield (
        f"  users of one replica: {count(held)} B / ({count(row.context_tokens)} tokens x "
        f"{stored}) = {exact:,.2f}, before blocks"
        f"{' and what is in common' if row.shared_prefix_blocks else ''}"
    )
    yield f"    {sequences_equation(row)}"
    cores = row.total_sequences // row.max_sequences if row.max_sequences else 1
    low, high = answer.held_between
    total = f"{row.total_sequences:,} ({low:,} to {high:,})"
    yield f"  users: {row.max_sequences:,} x {cores:,} = {total}"
    if row.offload_sequences is not None and row.offload_bytes_per_sequence:
        yield (
            f"  kept on the host: {answer.deployment.settings.kv_offload or 0:,} B / "
            f"{row.offload_bytes_per_sequence:,} B a context = {row.offload_sequences:,}"
        )


def _on_binding_stage(answer: Answer, row: CapacityRow, model: ModelSpec) -> ModelSpec:
    """The layers whose cache the row's bytes are of."""
    placed = on_gpus(model, answer.deployment)
    if row.binding_stage is None:
        return placed
    parallel = replace(answer.deployment.parallel, pp_layers=row.pp_layers)
    return stage_models(placed, parallel)[row.binding_stage]


def _time_lines(step: StepModel, load: Admission, at: tuple[int, int, int]) -> Iterator[str]:
    yield f"  ms/token at batch {load.batch_size:,}:"
    yield from (f"    {line}" for line in step_equations(step, load.step, *at))
    accepted = float(load.step.step_s) / load.tpot_s
    if round(accepted, 9) != 1:
        yield f"    / {short(accepted)} accepted tokens = {1e3 * load.tpot_s:.4g} ms a token"


# One GPU's budget, term by term


def budget_screen(
    answers: Sequence[Answer], rows: Sequence[Row], bound: str, notes: Sequence[Note]
) -> Screen:
    """What is left for the cache, and the terms that it is the sum of."""
    first = next(one for one in answers if one.row is not None and one.row.budget is not None)
    assert first.row is not None, "chosen so"
    assert first.row.budget is not None, "chosen so"
    stage = first.row.budget.deciding
    total = stage.bytes_of("memory")
    hardware = first.deployment.hardware
    stages = first.row.stages
    if stages and first.row.binding_stage is not None and first.deployment.joined:
        name = stages[first.row.binding_stage].gpu
        hardware = next(gpu for _, gpu in first.deployment.joined if gpu.name == name)
    whose = "one GPU" if hardware is None else gpu_words(hardware.name, hardware.title, 1)
    left = (
        f"{_gib(stage.kv_bytes)} of {_gib(total)} GiB of {whose} are left for the cache"
        if stage.kv_bytes > 0
        else f"{_gib(-stage.kv_bytes)} GiB are missing on {whose}, which has {_gib(total)}"
    )
    ends = sorted(abs(end) for end in (stage.kv_low_bytes, stage.kv_high_bytes))
    about = _about(rows)
    return Screen(
        verdict=[f"{bound}{left} ({_gib(ends[0])} to {_gib(ends[1])})."],
        columns=(
            *about,
            ScreenColumn(title="term", text=lambda row: str(row["term"]), is_number=False),
            ScreenColumn(title="GiB", text=lambda row: _gib(row["n_bytes"]), tone=_term_tone),
            ScreenColumn(title="range", text=_term_range, drop=1),
            ScreenColumn(title="is", text=_term_kind, is_number=False, drop=2),
            ScreenColumn(title="rests on", text=lambda row: str(row["provenance"]),
                         is_number=False, drop=3),
        ),
        rows=rows,
        picture=_picture(answers),
        foot=[f"{first.deployment.engine}'s rules; the cache is the sum of the terms.  "
              "Why: --explain"],
        notes=[one for one in notes if one.kind in ("refusal", "hint")],
    )  # fmt: skip


_ABOUT = (("model", "model"), ("attention", "design"), ("gpu", "GPU"), ("kv_dtype", "cache"),
          ("tp_size", "TP"), ("context_tokens", "context"), ("stage", "stage"))  # fmt: skip


def _about(rows: Sequence[Row]) -> list[ScreenColumn]:
    """Columns of what differs between the budgets."""

    def cell(key: str) -> Callable[[Row], str]:
        return lambda row: f"{row[key]:,}" if isinstance(row[key], int) else str(row[key])

    return [
        ScreenColumn(title=title, text=cell(key), is_number=isinstance(rows[0][key], int))
        for key, title in _ABOUT
        if len({row[key] for row in rows}) > 1
    ]


def _term_range(row: Row) -> str:
    low, high = row["low_bytes"], row["high_bytes"]
    return "" if low is None or low == high else f"{_gib(low)} to {_gib(high)}"


def _term_kind(row: Row) -> str:
    """What kind of figure a term is, by its provenance."""
    said = str(row["provenance"])
    for start, kind in (("assumed", "assumed"), ("fitted", "fitted"), ("driver", "read"),
                        ("measured", "measured"),
                        ("nominal", "datasheet"), ("given", "given"), ("sum", "sum"),
                        ("spec", "counted")):  # fmt: skip
        if said.startswith(start):
            return kind
    return "setting"


def _term_tone(row: Row) -> Tone | None:
    if row["term"] == "cache":
        return "good" if row["n_bytes"] > 0 else "bad"
    return "doubtful" if _term_kind(row) == "assumed" else None
