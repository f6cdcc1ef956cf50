"""Pairs of step models for a crossover map: one pair per rank, or one for every batch size."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from lrkv_plan.calculators.step_model import step_model
from lrkv_plan.calculators.step_time import StepModel
from lrkv_plan.engines.comparing import at_rank, check_most, ranks_of
from lrkv_plan.errors import UsageError
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.model import ModelSpec

_BATCH_STEPS_PER_DOUBLING = 16


def map_columns(
    model: ModelSpec,
    texts: tuple[str, str],
    hardware: HardwareProfile,
    *,
    over: str,
    at_most: int | None = None,
    kv_dtype: str = "bf16",
    weight_dtype: str | None = None,
    weight_bytes: int | None = None,
    tp_size: int = 1,
    relatives: Sequence[HardwareProfile] = (),
) -> list[tuple[int, tuple[StepModel, StepModel]]]:
    """(value, both designs there) for each column of a map.

    Parameters
    ----------
    texts : two designs; along the rank, ``lrkv:RANK`` takes each column's rank.
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

    @cache
    def built(text: str) -> StepModel:
        return step_model(
            swap_attention(model, text), hardware, kv_dtype=kv_dtype, weight_dtype=weight_dtype,
            weight_bytes=weight_bytes, tp_size=tp_size, relatives=relatives,
        )  # fmt: skip

    if over == "rank":
        ranks = ranks_of(model, texts, at_most)
        return [(r, (built(at_rank(texts[0], r)), built(at_rank(texts[1], r)))) for r in ranks]
    pair = (built(texts[0]), built(texts[1]))
    return [(batch, pair) for batch in geometric(at_most or 256)]


def column_labels(texts: Sequence[str], over: str) -> tuple[str, str]:
    """The two designs' names; along the rank the number gives way to ``r``."""
    one, other = (
        at_rank(text, -1).replace(":-1", ":r", 1) if over == "rank" else text for text in texts
    )
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
