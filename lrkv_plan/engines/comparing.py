"""Two designs of one model along one variable: where the ranking changes, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from lrkv_plan.calculators.arguments import one_count
from lrkv_plan.calculators.crossover import Crossover, context_crossover, scanned_crossover
from lrkv_plan.calculators.step_model import step_model
from lrkv_plan.calculators.step_time import StepModel, StepTime, step_time
from lrkv_plan.errors import PlacementError, UsageError, did_you_mean
from lrkv_plan.specs.attention import spec_class
from lrkv_plan.specs.attention_families import divisors_of
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

VARIABLES = ("context_tokens", "batch_size", "rank", "query_tokens", "tp_size")
_DEFAULT_MOST = {"batch_size": 4096, "query_tokens": 64, "tp_size": 64}
# Beyond what any engine decodes together or speculates on; every value up to it is evaluated.
MOST_SCANNED = 2**20
MOST_RANKS = 1024  # each rank is a design of its own


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The crossover, both designs' steps on either side of each change, and what they rest on."""

    crossover: Crossover
    sides: tuple[dict[str, Any], ...]
    rests_on: tuple[str, ...]


def compare(
    model: ModelSpec,
    texts: tuple[str, str],
    hardware: HardwareProfile,
    *,
    over: str,
    point: dict[str, int],
    at_most: int | None = None,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    weight_bytes: int | None = None,
    relatives: Sequence[HardwareProfile] = (),
) -> Comparison:
    """Where the faster of two designs changes along one variable.

    Parameters
    ----------
    over : context_tokens, batch_size, rank, query_tokens or tp_size.
    point : the other variables' values: context_tokens, batch_size, query_tokens, tp_size.
    at_most : the variable's largest value; by default the model's longest context (at least
        131,072), 4,096 sequences, 64 query tokens, 64 GPUs, or a head's width. At most
        ``MOST_SCANNED`` sequences or query tokens and ``MOST_RANKS`` ranks.

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

    @cache
    def built(text: str, tp_size: int) -> StepModel:
        return step_model(
            swap_attention(model, text), hardware, kv_dtype=kv_dtype, weight_dtype=weight_dtype,
            weight_bytes=weight_bytes, tp_size=tp_size, relatives=relatives,
        )  # fmt: skip

    def steps_at(value: int) -> tuple[StepTime, StepTime]:
        told = {**point, over: value}
        one, other = (
            step_time(
                built(at_rank(text, value) if over == "rank" else text, told["tp_size"]),
                told["context_tokens"], told["batch_size"], told["query_tokens"],
            )
            for text in texts
        )  # fmt: skip
        return one, other

    if over in ("context_tokens", "batch_size", "query_tokens"):
        pair = tuple(built(text, point["tp_size"]) for text in texts)
        crossover = _along(over, (pair[0], pair[1]), point, at_most or _most(model, over))
    else:
        ranks = over == "rank"
        values = ranks_of(model, texts, at_most) if ranks else _sizes(model, built, texts, at_most)
        crossover = _each_of(values, steps_at)
    ends = [text if over != "rank" else at_rank(text, crossover.low) for text in texts]
    notes = (note for text in ends for note in built(text, point["tp_size"]).remarks)
    return Comparison(
        crossover=crossover,
        sides=tuple(_sides(crossover, texts, steps_at, over_rank=over == "rank")),
        rests_on=tuple(dict.fromkeys(notes)),
    )


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


def at_rank(text: str, rank: int | str) -> str:
    """``lrkv:N,...`` with another rank, or a word for it; designs without a rank stay."""
    if not _has_rank(text):
        return text
    head, comma, options = text.partition(",")
    return f"{head.partition(':')[0]}:{rank}{comma}{options}"


def _has_rank(text: str) -> bool:
    """Whether the number after the colon of that design is a rank."""
    return spec_class(text.partition(":")[0].partition(",")[0].lower()).text_argument == "rank"


def ranks_of(model: ModelSpec, texts: tuple[str, str], at_most: int | None) -> list[int]:
    """Ranks from 0 to the narrowest head; one of the designs must have one."""
    if not any(_has_rank(text) for text in texts):
        raise UsageError("along the rank one design must be lrkv:RANK")
    backbones = [g.attention.backbone() for g in model.attention_groups if g.attention]
    widest = min(min(b.head_dim, b.v_head_dim) for b in backbones)
    most = min(widest, at_most or widest)
    if most > MOST_RANKS:
        raise UsageError(
            f"{most:,} ranks: at most {MOST_RANKS:,} are looked at one by one; give a smaller "
            "--at-most"
        )
    return list(range(0, most + 1))


def _sizes(model: ModelSpec, built: Any, texts: tuple[str, str], at_most: int | None) -> list[int]:
    """Tensor-parallel sizes that both designs can run: query heads are dealt out evenly."""
    heads = math.gcd(*(g.attention.n_heads for g in model.attention_groups if g.attention))
    sizes = []
    for size in divisors_of(heads or 1):
        if size > (at_most or _DEFAULT_MOST["tp_size"]):
            break
        try:
            for text in texts:
                built(text, size)
        except PlacementError:
            continue
        sizes.append(size)
    return sizes


def _sides(
    crossover: Crossover, texts: tuple[str, str], steps_at: Any, *, over_rank: bool
) -> list[dict[str, Any]]:
    places = [crossover.low]
    for crossing in crossover.crossings:
        places += [max(crossover.low, crossing.at - 1), crossing.at]
    rows = []
    for place in dict.fromkeys([*places, crossover.high]):
        try:
            steps = steps_at(place)
        except PlacementError:
            continue  # one GPU fewer than a crossing along tp_size need not be runnable
        for text, step in zip(texts, steps, strict=True):
            rows.append(
                {
                    "place": place,
                    "design": at_rank(text, place) if over_rank else text,
                    "step_s": float(step.step_s),
                    "low_s": float(step.low_s),
                    "high_s": float(step.high_s),
                    "attention_s": float(step.attention_s),
                    "bound": "memory" if step.is_attention_memory_bound else "compute",
                }
            )
    return rows
