"""What is left of many points: all of them, a frontier, the best, or what a function keeps.

A reduction of a part, and then of the parts together, is the reduction of the whole: chunks are
reduced where they are evaluated, and only what is left travels. Equals stand in the points' order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lrkv_plan.errors import ArgumentError, shown
from lrkv_plan.sweeping.where import key_of

if TYPE_CHECKING:
    import pandas

DEFAULT_FRONTIER = ("users up", "tpot_s down", "n_gpus down")
DEFAULT_BEST = ("tpot_s down",)
_TOP = re.compile(r"top:([1-9][0-9]{0,5})")


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A key that is to be as large or as small as possible."""

    key: str
    is_up: bool

    def __str__(self) -> str:
        return f"{self.key} {'up' if self.is_up else 'down'}"


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """How rows are thinned out.

    ``kind`` is all, pareto, top or callable; ``most`` rows of each group are kept of top.
    """

    kind: str = "all"
    objectives: tuple[Objective, ...] = ()
    by: tuple[str, ...] = ()
    most: int = 1
    function: Callable[[pandas.DataFrame], pandas.DataFrame] | None = None

    @property
    def told(self) -> str | None:
        """As an argument would say it; None where all rows are kept."""
        if self.kind == "top":
            return f"top:{self.most}"
        return {"all": None, "pareto": "pareto"}.get(self.kind, "a function")

    def kept(self, values_of: Callable[[str], Any], n_points: int) -> Any:
        """Places of the rows that are left, ascending.

        Parameters
        ----------
        values_of : a key's values, one for all rows or an array.
        """
        everything = np.arange(n_points)
        if self.kind in ("all", "callable"):
            return everything
        goals = np.stack([
            np.broadcast_to(np.asarray(values_of(one.key), np.float64), n_points)
            * (-1.0 if one.is_up else 1.0)
            for one in self.objectives
        ], axis=1)  # fmt: skip
        known = everything[~np.isnan(goals).any(axis=1)]  # no order among what is absent
        goals = goals[known]
        codes = _codes(values_of, self.by, known)
        if self.kind == "pareto":
            return known[_frontiers(goals, codes)]
        order = np.lexsort((*reversed(goals.T), codes))
        group = codes[order]
        starts = np.flatnonzero(np.diff(group, prepend=-1))
        sizes = np.diff(starts, append=len(group))
        within = np.arange(len(group)) - np.repeat(starts, sizes)
        return np.sort(known[order[within < self.most]])

    def of_frame(self, frame: pandas.DataFrame) -> pandas.DataFrame:
        """The rows of a frame that are left.

        Raises
        ------
        ArgumentError
            If a function returns no frame.
        """
        if self.kind == "all" or frame.empty:
            return frame
        if self.function is None:
            places = self.kept(lambda key: _plain(frame[key]), len(frame))
            return frame.iloc[places].reset_index(drop=True)
        import pandas

        found = self.function(frame)
        if not isinstance(found, pandas.DataFrame):
            raise ArgumentError("reduce", f": returned {type(found).__name__}, not a DataFrame")
        return found.reset_index(drop=True)


def best_first(reduction: Reduction, frame: pandas.DataFrame) -> pandas.DataFrame:
    """The rows that are left with the best first, group by group; equals in the points' order."""
    if not reduction.objectives or frame.empty:
        return frame
    goals = [
        frame[one.key].to_numpy() * (-1.0 if one.is_up else 1.0) for one in reduction.objectives
    ]
    groups = [_plain(frame[key]) for key in reduction.by]
    order = np.lexsort((np.arange(len(frame)), *reversed([*groups, *goals])))
    return frame.iloc[order].reset_index(drop=True)


def _plain(series: pandas.Series) -> Any:
    """A column as an array: texts as the numbers of their categories."""
    return series.cat.codes.to_numpy() if hasattr(series, "cat") else series.to_numpy()


def _codes(values_of: Callable[[str], Any], by: Sequence[str], known: Any) -> Any:
    """The number of each row's group: of those that share the values of ``by``."""
    codes = np.zeros(len(known), np.int64)
    for key in by:
        values = values_of(key)
        if np.ndim(values) and len(known):
            _, found = np.unique(np.asarray(values)[known], return_inverse=True)
            _, codes = np.unique(codes * (int(found.max()) + 1) + found, return_inverse=True)
    return codes


def _frontiers(goals: Any, codes: Any) -> Any:
    """Places of the frontier of each group, ascending."""
    if not len(goals):
        return np.arange(0)
    goals = goals[:, np.ptp(goals, axis=0) > 0]
    if goals.shape[1] <= 2:
        if goals.shape[1] < 2 or len(goals) < 4 * _SAMPLED or codes.any():
            return _in_a_plane(goals, codes)
        left = _beyond_sample(goals)
        return left[_in_a_plane(goals[left], codes[left])]
    order = np.argsort(codes, kind="stable")
    ends = np.flatnonzero(np.diff(codes[order])) + 1
    return np.sort(np.concatenate([places[frontier(goals[places])]
                                   for places in np.split(order, ends)]))  # fmt: skip


_SAMPLED = 1_024


def _beyond_sample(goals: Any) -> Any:
    """Places of the rows that no row of a sample is better than in both goals."""
    sample = goals[:: max(1, len(goals) // _SAMPLED)]
    best = sample[_in_a_plane(sample, np.zeros(len(sample), np.int64))]
    best = best[np.argsort(best[:, 0], kind="stable")]
    nearest = np.searchsorted(best[:, 0], goals[:, 0], side="left") - 1
    bound = np.concatenate([[np.inf], best[:, 1]])[nearest + 1]
    return np.flatnonzero(goals[:, 1] < bound)


def _in_a_plane(goals: Any, codes: Any) -> Any:
    """``_frontiers`` of at most two goals, all groups together, by sorting.

    Along the first goal a row stays if its second is below all before it, or if it equals the one
    that stayed last. Ranks take the place of values, so that each group starts below all others.
    """
    if goals.shape[1] == 0:
        return np.arange(len(goals))
    first, last = goals[:, 0], goals[:, -1]
    order = np.lexsort((last, first, codes))
    _, rank = np.unique(last, return_inverse=True)
    height = rank[order] - codes[order] * (int(rank.max()) + 1)
    before = np.minimum.accumulate(np.concatenate([[np.iinfo(np.int64).max], height[:-1]]))
    stays = height < before
    stood = np.maximum.accumulate(np.where(stays, np.arange(len(order)), 0))
    x = first[order]
    return np.sort(order[stays | ((height == height[stood]) & (x == x[stood]))])


def frontier(goals: Any) -> Any:
    """Places of the rows that no other is at least as good as in all goals and better in one.

    Parameters
    ----------
    goals : an array of (rows, goals); smaller is better. Equal rows all stay.

    Examples
    --------
    >>> frontier(np.array([[1.0, 3.0], [2.0, 2.0], [2.0, 3.0], [3.0, 1.0]])).tolist()
    [0, 1, 3]
    """
    if not len(goals):
        return np.arange(0)
    spread = np.where(np.ptp(goals, axis=0) > 0, np.ptp(goals, axis=0), 1.0)
    left = np.argsort(((goals - goals.min(axis=0)) / spread).sum(axis=1), kind="stable")
    columns = [np.ascontiguousarray(goal) for goal in goals[left].T]
    at = 0
    while at < len(left):
        ones = [column[at] for column in columns]
        stays = np.logical_and.reduce([c == one for c, one in zip(columns, ones, strict=True)])
        for column, one in zip(columns, ones, strict=True):
            stays |= column < one
        at = int(np.count_nonzero(stays[:at])) + 1
        if not stays.all():
            left, columns = left[stays], [column[stays] for column in columns]
    return np.sort(left)


def reduction(
    reduce: Any, objectives: Any, by: Any, keys: set[str], numbers: set[str]
) -> Reduction:
    """Read how rows are to be thinned out.

    Parameters
    ----------
    reduce : None, ``pareto``, ``min``, ``top:20`` or a function of a frame that gives a frame.
    objectives : ``"users up, tpot_s down"`` or a list of such; those of a frontier, or the order
        of the best: the first decides, the next where it is equal.
    by : keys; each combination of their values is reduced for itself.

    Raises
    ------
    ArgumentError
        If one names nothing, or is not used.
    """
    groups = tuple(key_of(name, keys, "by")[0] for name in _listed("by", by))
    if reduce is None or callable(reduce):
        unused = [n for n, value in (("objectives", objectives), ("by", by)) if value is not None]
        if unused:
            raise ArgumentError(unused, ": are of --reduce pareto, min or top:N")
        return Reduction() if reduce is None else Reduction(kind="callable", function=reduce)
    text = str(reduce).strip()
    top = _TOP.fullmatch(text)
    if text not in ("pareto", "min") and top is None:
        raise ArgumentError("reduce", f" {shown(reduce)}: one of pareto, min, top:20")
    default = DEFAULT_FRONTIER if text == "pareto" else DEFAULT_BEST
    told = _listed("objectives", objectives) or default
    goals = tuple(_objective(one, keys, numbers) for one in told)
    if len({one.key for one in goals}) < len(goals):
        raise ArgumentError("objectives", f" {shown(objectives)}: names a key twice")
    kind = "pareto" if text == "pareto" else "top"
    return Reduction(kind=kind, objectives=goals, by=groups, most=int(top[1]) if top else 1)


def _objective(text: str, keys: set[str], numbers: set[str]) -> Objective:
    name, _, way = text.replace(":", " ").strip().partition(" ")
    key, _ = key_of(name, keys, "objectives")
    if way.strip() not in ("up", "down") or key not in numbers:
        raise ArgumentError(
            "objectives", f" {shown(text)}: write a number's key and up or down, 'users up'"
        )
    return Objective(key=key, is_up=way.strip() == "up")


def _listed(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    several = value.split(",") if isinstance(value, str) else value
    if not isinstance(several, list | tuple) or not all(isinstance(one, str) for one in several):
        raise ArgumentError(name, f" {shown(value)}: must be text, or a list of texts")
    found = [one.strip() for one in several]
    if not found or "" in found:
        raise ArgumentError(name, f" {shown(value)}: is empty")
    return found


def as_told(reduction: Reduction) -> Mapping[str, Any]:
    """A reduction as inputs record it."""
    return {
        "reduce": reduction.told,
        "objectives": [str(one) for one in reduction.objectives],
        "by": list(reduction.by),
    }
