"""Which uncertain constants change the winner: one at a time, and all together in seeded draws.

A constant is a factor on what it scales, with a band that holds it nine times in ten. A draw takes
its logarithm from a normal distribution, whose halves reach the band's ends at its 5th and 95th
percentiles: z standard normal, factor = high^(z / 1.645) above, low^(-z / 1.645) below.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import UsageError

if TYPE_CHECKING:
    from lrkv_plan.latency.step import StepModel, StepTime

Z90 = 1.6448536269514722  # the normal distribution's 95th percentile
DEFAULT_DRAWS = 1_000
MOST_DRAWS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Constant:
    """A factor around 1 with its band; both ends 1 where nothing is uncertain."""

    name: str
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class OneChanged:
    """What is the cheapest with one constant at an end of its band, all others at 1.

    Costs are those of the cheapest then; ``low_winner`` and ``high_winner`` are places of options.
    """

    name: str
    low: float
    high: float
    low_cost: float
    high_cost: float
    low_winner: int
    high_winner: int


@dataclass(frozen=True, kw_only=True)
class Sensitivity:
    """How firmly an option is ahead.

    ``shares`` are the draws that each option wins; ``one_at_a_time`` stands with what changes
    the winner first, then the largest change of its cost.
    """

    winner: int
    shares: tuple[float, ...]
    n_draws: int
    seed: int
    one_at_a_time: tuple[OneChanged, ...]

    @property
    def share(self) -> float:
        """The draws in which the winner stays ahead."""
        return self.shares[self.winner]


def factors_drawn(constants: Sequence[Constant], n_draws: int, seed: int) -> dict[str, Any]:
    """Seeded draws of each constant, arrays of factors by name.

    Raises
    ------
    UsageError
        If there are no draws, or too many.
    """
    import numpy as np

    if not 1 <= n_draws <= MOST_DRAWS:
        raise UsageError(f"draws {n_draws}: from 1 to {MOST_DRAWS:,}")
    random = np.random.default_rng(seed)
    found = {}
    for one in constants:
        z = random.standard_normal(n_draws) / Z90
        ends = np.where(z > 0, np.log(one.high), -np.log(one.low))
        found[one.name] = np.exp(z * ends)
    return found


def sensitivity(
    constants: Sequence[Constant],
    costs_of: Callable[[Mapping[str, Any]], Any],
    *,
    n_draws: int = DEFAULT_DRAWS,
    seed: int = 0,
) -> Sensitivity:
    """Find how firmly the cheapest option is ahead.

    Parameters
    ----------
    costs_of : factors by name, numbers or arrays of draws -> an array of (options, draws); the
        lowest cost wins, the first of equals.

    Examples
    --------
    Two times of 10 and 11 whose only uncertain part, of 5, may be 0.5 to 2 times as long:

    >>> import numpy as np
    >>> def costs(f): return np.stack([5 + 5 * f["a"], 11 + 0 * f["a"]])
    >>> found = sensitivity([Constant(name="a", low=0.5, high=2.0)], costs)
    >>> found.winner, found.one_at_a_time[0].high_winner, 0.5 < found.share < 0.8
    (0, 1, True)
    """
    import numpy as np

    def at(**changed: float) -> Any:
        told = {one.name: np.array([changed.get(one.name, 1.0)]) for one in constants}
        return np.asarray(costs_of(told), float)[:, 0]

    middle = at()
    winner = int(np.argmin(middle))
    drawn = np.asarray(costs_of(factors_drawn(constants, n_draws, seed)), float)
    wins = np.bincount(np.argmin(drawn, axis=0), minlength=len(middle)) / n_draws
    rows = []
    for one in constants:
        low, high = at(**{one.name: one.low}), at(**{one.name: one.high})
        rows.append(OneChanged(
            name=one.name, low=one.low, high=one.high, low_cost=float(low.min()),
            high_cost=float(high.min()), low_winner=int(np.argmin(low)),
            high_winner=int(np.argmin(high)),
        ))  # fmt: skip
    rows.sort(key=lambda row: (
        winner in (row.low_winner, row.high_winner) and row.low_winner == row.high_winner,
        -abs(row.high_cost - row.low_cost),
    ))  # fmt: skip
    return Sensitivity(
        winner=winner, shares=tuple(map(float, wins)), n_draws=n_draws, seed=seed,
        one_at_a_time=tuple(rows),
    )  # fmt: skip


def of_two_designs(
    models: Sequence[StepModel],
    steps: Sequence[StepTime],
    *,
    n_draws: int = DEFAULT_DRAWS,
    seed: int = 0,
) -> Sensitivity:
    """How firmly the faster of two designs is ahead at one point.

    What is uncertain are the attention kernels' constants; designs with the same kernels share
    them. All else of the steps is the same constants at other shapes, whose errors the designs
    share.

    Notes
    -----
    A design's time is step + attention (factor - 1), with factors from its attention's band.
    """
    import numpy as np

    names = [_kernels(model) for model in models]
    constants: dict[str, Constant] = {}
    for name, step in zip(names, steps, strict=True):
        seconds = float(step.attention_s) or 1.0
        low, high = float(step.attention_low_s) / seconds, float(step.attention_high_s) / seconds
        known = constants.get(name, Constant(name=name, low=1.0, high=1.0))
        constants[name] = Constant(
            name=name, low=min(known.low, low or 1.0), high=max(known.high, high or 1.0)
        )

    def times(factors: Mapping[str, Any]) -> Any:
        return np.stack([
            float(step.step_s) + float(step.attention_s) * (factors[name] - 1)
            for name, step in zip(names, steps, strict=True)
        ])  # fmt: skip

    return sensitivity(list(constants.values()), times, n_draws=n_draws, seed=seed)


def _kernels(model: StepModel) -> str:
    kernels = dict.fromkeys(f"{one.kernel} {one.kv_dtype}" for one in model.kernels)
    return f"attention kernels {', '.join(kernels)}"
