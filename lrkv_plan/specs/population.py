"""What is kept of any number of requests? How often each pair of prompt and output occurs, and the
first requests in order of arrival.

What a pool takes and wastes depends on how often each length occurs; what it admits, on the first
arrivals too. Both are exact. Where the pairs are too many to keep, only the split of a length into
prompt and output is rounded, never the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from lrkv_plan.errors import SpecError
from lrkv_plan.units import INT64_MAX

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]

FIRST_KEPT = 2**20  # in order; one pool admits so many only where they hold a few tokens each
MAX_PAIRS = 2**20  # before outputs are rounded
MAX_LENGTHS = 2**24  # distinct ones, 256 MiB
_SORTED_AT_ONCE = 2**20
_OUTPUT_BITS = 30  # MAX_TOKENS is below 2**30, so a length and an output fit one int64
_OUTPUT = 2**_OUTPUT_BITS - 1


@dataclass(frozen=True, eq=False)
class LengthCounts:
    """Sequences by length: distinct lengths ascending, how often each occurs, the first arrivals.

    ``first`` are the lengths of the first sequences in order of arrival, of all where there are no
    more of them. [tokens]
    """

    tokens: IntArray
    counts: IntArray
    first: IntArray

    @classmethod
    def of(cls, lengths: IntArray) -> LengthCounts:
        """Of sequences in order of arrival; all of them are kept in order.

        Examples
        --------
        >>> import numpy as np
        >>> counted = LengthCounts.of(np.array([5, 7, 5]))
        >>> counted.tokens.tolist(), counted.counts.tolist(), counted.first.tolist()
        ([5, 7], [2, 1], [5, 7, 5])
        """
        import numpy as np

        tokens, counts = np.unique(lengths, return_counts=True)
        return cls(tokens, counts.astype(np.int64), lengths)

    @property
    def n_sequences(self) -> int:
        """How many sequences there are."""
        return int(self.counts.sum())

    @property
    def max_tokens(self) -> int:
        """The longest. [tokens]"""
        return int(self.tokens[-1])

    def n_longer_than(self, tokens: int) -> int:
        """Sequences of more tokens."""
        return int(self.counts[self.tokens > tokens].sum())

    @cached_property
    def first_places(self) -> IntArray:
        """Where each of ``first`` stands among ``tokens``."""
        import numpy as np

        return np.searchsorted(self.tokens, self.first)


@dataclass(frozen=True, eq=False)
class Pairs:
    """Distinct pairs of prompt and output, and how often each occurs. [tokens]

    Ascending by length (prompt and output together), then output. Outputs are counted down to a
    multiple of ``output_step``, prompts take the rest: lengths are exact.
    """

    prompt_tokens: IntArray
    output_tokens: IntArray
    counts: IntArray
    output_step: int = 1


@dataclass(frozen=True, eq=False)
class Population:
    """Sequences: how often each pair of prompt and output occurs, and the first to arrive. [tokens]

    ``first_prompt_tokens`` and ``first_output_tokens`` are exact, in order of arrival, of at most
    ``FIRST_KEPT`` sequences.
    """

    name: str
    first_prompt_tokens: IntArray
    first_output_tokens: IntArray
    pairs: Pairs
    remarks: tuple[str, ...] = ()

    @cached_property
    def lengths(self) -> LengthCounts:
        """Tokens that each sequence holds when it ends: prompt and output. [tokens]"""
        import numpy as np

        totals = self.pairs.prompt_tokens + self.pairs.output_tokens
        starts = _starts(totals)
        return LengthCounts(
            totals[starts],
            np.add.reduceat(self.pairs.counts, starts),
            self.first_prompt_tokens + self.first_output_tokens,
        )

    @property
    def n_sequences(self) -> int:
        """How many sequences there are."""
        return int(self.pairs.counts.sum())


class Gathering:
    """A population in the making, chunk by chunk, in memory that does not grow with the requests.

    ``add`` takes chunks in file order, ``population`` ends it; ``where`` is named in errors.
    """

    def __init__(self, where: str) -> None:
        self.where = where
        self.n_rows = self.n_empty = self.n_without_output = 0
        self.is_in_order = True
        self._last_arrival: Any = None
        self._pairs = _PairCounts(where)
        self._first = _First()

    def add(self, prompt: IntArray, output: IntArray, arrival: Any = None) -> None:
        """Count requests. Without ``arrival`` they arrive as they stand.

        Raises
        ------
        SpecError
            If there are more than ``MAX_LENGTHS`` distinct lengths.
        """
        self.n_rows += int(prompt.size)
        if arrival is not None and arrival.size:
            self._look_at_order(arrival)
        holds = (prompt > 0) | (output > 0)
        n_empty = int(holds.size - holds.sum())
        if n_empty:
            self.n_empty += n_empty
            prompt, output = prompt[holds], output[holds]
            arrival = None if arrival is None else arrival[holds]
        self.n_without_output += int((output == 0).sum())
        self._pairs.add(prompt + output, output)
        self._first.add(prompt, output, arrival)

    def _look_at_order(self, arrival: Any) -> None:
        before = self._last_arrival
        if (arrival[1:] < arrival[:-1]).any() or (before is not None and arrival[0] < before):
            self.is_in_order = False
        self._last_arrival = arrival[-1]

    def population(
        self, name: str, before: tuple[str, ...] = (), after: tuple[str, ...] = ()
    ) -> Population:
        """What was gathered, with remarks on what was left out or rounded between the given ones.

        Raises
        ------
        SpecError
            If no sequence holds a token.
        """
        if self.n_empty == self.n_rows:
            raise SpecError(
                f"{self.where}: all {self.n_empty:,} sequences hold 0 tokens; at least one must "
                "hold a token; check which column was read"
            )
        remarks = list(before)
        if self.n_empty:
            remarks.append(f"dropped {self.n_empty:,} of {self.n_rows:,} rows that hold no token")
        pairs = self._pairs.finished()
        prompt, output = self._first.finished()
        if pairs.output_step > 1:
            remarks.append(
                f"over {MAX_PAIRS:,} distinct pairs of prompt and output: outputs are counted in "
                f"steps of {pairs.output_step:,} tokens, up to {pairs.output_step - 1:,} too short "
                "and prompts as much too long; lengths, and all that is counted here, are exact"
            )
        return Population(name, prompt, output, pairs, (*remarks, *after))


class _PairCounts:
    """Counts by (length, output), one int64 a pair, coarsened where there are too many."""

    def __init__(self, where: str) -> None:
        import numpy as np

        self.where = where
        self.keys = self.counts = np.empty(0, np.int64)
        self.output_step = 1
        self._waiting: list[IntArray] = []
        self._n_waiting = 0

    def add(self, lengths: IntArray, output: IntArray) -> None:
        self._waiting.append(lengths << _OUTPUT_BITS | output)
        self._n_waiting += int(lengths.size)
        # Waiting for as many as are kept makes merging linear in the requests.
        if self._n_waiting >= max(_SORTED_AT_ONCE, self.keys.size):
            self._merge()

    def _merge(self) -> None:
        import numpy as np

        fresh = np.concatenate(self._waiting)
        self._waiting, self._n_waiting = [], 0
        fresh &= ~(self.output_step - 1)
        fresh.sort()
        starts = _starts(fresh)
        counts = np.diff(np.append(starts, fresh.size))
        keys = np.concatenate([self.keys, fresh[starts]])
        order = np.argsort(keys, kind="stable")  # two sorted runs: merged in linear time
        self._keep(keys[order], np.concatenate([self.counts, counts])[order])
        while self.keys.size > MAX_PAIRS and (self.keys & _OUTPUT).any():
            self.output_step *= 2
            self._keep(self.keys & ~(self.output_step - 1), self.counts)
        if self.keys.size > MAX_LENGTHS:
            raise SpecError(
                f"{self.where}: over {MAX_LENGTHS:,} distinct lengths, up to "
                f"{int(self.keys[-1]) >> _OUTPUT_BITS:,} tokens; lengths of requests repeat, so "
                "was the right column read?"
            )

    def _keep(self, keys: IntArray, counts: IntArray) -> None:
        import numpy as np

        starts = _starts(keys)
        self.keys = keys[starts]
        self.counts = np.add.reduceat(counts, starts) if starts.size else counts

    def finished(self) -> Pairs:
        if self._waiting:
            self._merge()
        output = self.keys & _OUTPUT
        return Pairs((self.keys >> _OUTPUT_BITS) - output, output, self.counts, self.output_step)


class _First:
    """The first ``FIRST_KEPT`` requests by arrival; those of one time in file order."""

    def __init__(self) -> None:
        self._parts: list[tuple[IntArray, IntArray, Any]] = []
        self._n_parts = 0
        self._latest: Any = None  # of those kept, once there are enough

    def add(self, prompt: IntArray, output: IntArray, arrival: Any) -> None:
        if self._latest is not None:
            # One that arrives with the latest kept stands behind it in the file.
            earlier = slice(0) if arrival is None else arrival < self._latest
            prompt, output = prompt[earlier], output[earlier]
            arrival = None if arrival is None else arrival[earlier]
        if not prompt.size:
            return
        self._parts.append((prompt, output, arrival))
        self._n_parts += int(prompt.size)
        if self._n_parts >= 2 * FIRST_KEPT:
            self._trim()

    def _trim(self) -> None:
        prompt, output, arrival = self._joined()
        if arrival is not None and (arrival[1:] < arrival[:-1]).any():
            import numpy as np

            order = np.argsort(arrival, kind="stable")
            prompt, output, arrival = prompt[order], output[order], arrival[order]
        kept = prompt[:FIRST_KEPT].copy(), output[:FIRST_KEPT].copy()
        arrival = None if arrival is None else arrival[:FIRST_KEPT].copy()
        if prompt.size >= FIRST_KEPT:
            self._latest = INT64_MAX if arrival is None else arrival[-1]
        self._parts, self._n_parts = [(*kept, arrival)], int(kept[0].size)

    def _joined(self) -> tuple[IntArray, IntArray, Any]:
        import numpy as np

        prompt, output, arrival = zip(*self._parts, strict=True)
        times = None if arrival[0] is None else np.concatenate(arrival)
        return np.concatenate(prompt), np.concatenate(output), times

    def finished(self) -> tuple[IntArray, IntArray]:
        self._trim()
        prompt, output, _ = self._parts[0]
        return prompt, output


def _starts(ascending: IntArray) -> IntArray:
    """Where runs of equal values begin."""
    import numpy as np

    if not ascending.size:
        return np.empty(0, np.int64)
    changes = np.flatnonzero(ascending[1:] != ascending[:-1]) + 1
    return np.concatenate([np.zeros(1, np.int64), changes])


def population_of(
    name: str, prompt: IntArray, output: IntArray, remarks: tuple[str, ...] = ()
) -> Population:
    """The population of sequences that are there as arrays, in order of arrival. [tokens]"""
    gathering = Gathering(name)
    gathering.add(prompt, output)
    return gathering.population(name, remarks)
