"""Spend a byte budget on ranks of many tensors, where each byte lowers the loss most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

Place = tuple[int, str]  # layer, "key" or "value"


@dataclass(frozen=True, kw_only=True)
class RankChoices:
    """One tensor's ranks with what each adds to the cache and leaves of the energy."""

    ranks: Sequence[int]
    bytes_per_token: Sequence[Fraction]  # above rank 0
    losses: Sequence[float]  # non-increasing


def greedy_ranks(choices: Mapping[Place, RankChoices], spare: Fraction) -> dict[Place, int]:
    """Ranks that lower the summed loss most within ``spare`` bytes per token.

    Notes
    -----
    Steps along each tensor's lower convex hull of (bytes, loss), steepest first; what is left over
    is spent on single moves, best loss per byte first. Exact where every hull step fits to the end
    of the budget; otherwise short of the optimum by less than one step.

    Examples
    --------
    >>> steep = RankChoices(ranks=(0, 1, 2), bytes_per_token=(0, 4, 8), losses=(0.9, 0.2, 0.1))
    >>> flat = RankChoices(ranks=(0, 1, 2), bytes_per_token=(0, 4, 8), losses=(0.5, 0.3, 0.0))
    >>> greedy_ranks({(0, "key"): steep, (0, "value"): flat}, Fraction(12))
    {(0, 'key'): 1, (0, 'value'): 2}
    """
    at = dict.fromkeys(choices, 0)
    steps = [
        (slope, place, start, end)
        for place, choice in choices.items()
        for slope, start, end in _hull_steps(choice)
    ]
    for _, place, start, end in sorted(steps, key=lambda item: -item[0]):
        price = choices[place].bytes_per_token[end] - choices[place].bytes_per_token[start]
        if at[place] == start and price <= spare:
            at[place], spare = end, spare - price
    while True:
        moves = [
            (gain / float(price), place, end, price)
            for place, choice in choices.items()
            for end in range(at[place] + 1, len(choice.ranks))
            if (price := choice.bytes_per_token[end] - choice.bytes_per_token[at[place]]) <= spare
            and (gain := choice.losses[at[place]] - choice.losses[end]) > 0
        ]
        if not moves:
            return {place: choices[place].ranks[index] for place, index in at.items()}
        _, place, end, price = max(moves, key=lambda move: move[0])
        at[place], spare = end, spare - price


def _hull_steps(choice: RankChoices) -> list[tuple[float, int, int]]:
    """(loss per byte, from, to) along the lower convex hull; slopes fall from step to step."""
    steps, start, last = [], 0, len(choice.ranks) - 1
    while start < last:
        slope, end = max(
            (
                (choice.losses[start] - choice.losses[end])
                / float(choice.bytes_per_token[end] - choice.bytes_per_token[start]),
                -end,
            )
            for end in range(start + 1, last + 1)
        )
        if slope <= 0:
            break
        steps.append((slope, start, -end))
        start = -end
    return steps
