"""What sequences of uneven length hold in a pool of blocks, and how many fit together.

Pure arithmetic: an engine says how many blocks and payload bytes a length takes. Leaves out
sequences that end and free their blocks, prefixes that sequences share, and preemption.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from lrkv_plan.errors import UsageError
from lrkv_plan.memory.exact import as_count, exact_product, is_array

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray
    from lrkv_plan.specs.population import LengthCounts


@dataclass(frozen=True, kw_only=True)
class PopulationAccount:
    """A population against one pool. Shares and errors are exact fractions."""

    n_sequences: int
    total_tokens: int
    mean_tokens: Fraction
    p50_tokens: int
    p95_tokens: int
    max_tokens: int
    payload_bytes: int
    allocated_bytes: int
    waste_share: Fraction
    admitted_sequences: int
    equal_length_sequences: int
    equal_length_error: Fraction | None
    all_fit: bool
    oversized_sequences: int


def account_population(
    population_lengths: IntArray | LengthCounts,
    *,
    blocks_of: Callable[[IntArray], IntArray],
    n_blocks: int,
    block_bytes: int,
    payload_bytes_of: Callable[[IntArray], IntArray],
) -> PopulationAccount:
    """Bytes that a population takes, and how much of it a pool of blocks admits.

    Parameters
    ----------
    population_lengths : tokens that each sequence holds, in arrival order, a non-empty
        one-dimensional integer array; or how often each length occurs, with the first arrivals.
        [tokens]
    blocks_of : blocks that sequences of these lengths take; at least 1 each. [blocks]
    n_blocks : blocks in the pool. [blocks]
    block_bytes : size of one block. [bytes]
    payload_bytes_of : bytes of cache that sequences of these lengths hold, before rounding to
        blocks. [bytes]

    Returns
    -------
    ``payload_bytes``, ``allocated_bytes`` and ``waste_share`` are of the whole population,
    whether it fits or not. ``admitted_sequences`` is the longest prefix that fits together: a
    queue in arrival order. A sequence larger than the whole pool is never admitted, so that it
    blocks those behind it; ``oversized_sequences`` counts such sequences.
    ``equal_length_sequences`` is what an estimate admits that takes every sequence at the mean
    length, rounded up; it may exceed the population. ``equal_length_error`` is how far that
    estimate, capped at the population, is above the admitted number, as a share of it; None
    where nothing is admitted.

    Raises
    ------
    UsageError
        If a count is not a whole number or too small, a rule returns another number of values
        than it was given, payload exceeds allocation, a total would overflow int64, or the pool
        admits all of the first arrivals where there are more sequences than these.

    Notes
    -----
    With lengths T_i, b_i = blocks_of(T_i), pool N and block size s: allocated = s sum_i b_i,
    waste = 1 - payload / allocated, admitted = max{k : b_1 + ... + b_k <= N},
    equal = floor(N / blocks_of(ceil(mean T))), error = min(equal, n) / admitted - 1.
    The percentiles are nearest ranks: the shortest length that at least p% of the sequences do
    not exceed. Sums run over distinct lengths times their counts, which is the same exact number.

    Examples
    --------
    Blocks of 16 tokens at 2 bytes a token. Lengths 10, 40, 16 take 1, 3, 1 of the pool's 4
    blocks: 66 tokens hold 132 bytes in 5 * 32 = 160, and the first two fit. At the mean, 22
    tokens, a sequence takes 2 blocks: two fit.

    >>> import numpy as np
    >>> account = account_population(
    ...     np.array([10, 40, 16]), blocks_of=lambda tokens: -(-tokens // 16), n_blocks=4,
    ...     block_bytes=32, payload_bytes_of=lambda tokens: 2 * tokens)
    >>> account.allocated_bytes, account.waste_share, account.admitted_sequences
    (160, Fraction(7, 40), 2)
    >>> account.equal_length_sequences, account.equal_length_error
    (2, Fraction(0, 1))
    """
    import numpy as np

    counted = _counted(population_lengths)
    lengths, counts, n_sequences = counted.tokens, counted.counts, counted.n_sequences
    pool, block_size = _one("n_blocks", n_blocks, 0), _one("block_bytes", block_bytes, 1)
    blocks = _per_sequence("blocks_of", blocks_of, lengths, 1)
    payload = _exact_total(_per_sequence("payload_bytes_of", payload_bytes_of, lengths, 0), counts)
    total_tokens, total_blocks = _exact_total(lengths, counts), _exact_total(blocks, counts)
    allocated = _whole(exact_product(block_size, total_blocks))
    if payload > allocated:
        raise UsageError(
            f"payload of {payload} bytes in blocks of {allocated}: the rules of blocks and payload "
            "disagree; payload must fit its blocks"
        )
    admitted = n_sequences if total_blocks <= pool else _admitted(counted, blocks, pool)
    mean = Fraction(total_tokens, n_sequences)
    mean_length = np.array([-(-total_tokens // n_sequences)], dtype=np.int64)
    equal = pool // int(_per_sequence("blocks_of", blocks_of, mean_length, 1)[0])
    p50, p95 = _nearest_ranks(counted, 50, 95)
    return PopulationAccount(
        n_sequences=n_sequences,
        total_tokens=total_tokens,
        mean_tokens=mean,
        p50_tokens=p50,
        p95_tokens=p95,
        max_tokens=counted.max_tokens,
        payload_bytes=payload,
        allocated_bytes=allocated,
        waste_share=1 - Fraction(payload, allocated),
        admitted_sequences=admitted,
        equal_length_sequences=equal,
        equal_length_error=Fraction(min(equal, n_sequences), admitted) - 1 if admitted else None,
        all_fit=admitted == n_sequences,
        oversized_sequences=int(counts[blocks > pool].sum()),
    )


def _counted(values: Any) -> LengthCounts:
    from lrkv_plan.specs.population import LengthCounts

    if isinstance(values, LengthCounts):
        return values
    lengths = as_count("population_lengths", values, minimum=1)
    if isinstance(lengths, int) or lengths.ndim != 1 or not lengths.size:
        raise UsageError("population_lengths: must be one row of at least one length")
    return LengthCounts.of(lengths)


def _admitted(counted: LengthCounts, blocks: IntArray, pool: int) -> int:
    """The longest prefix of arrivals that fits a pool too small for all of them."""
    import numpy as np

    # The running sum cannot overflow: all blocks together are known to fit int64.
    taken = blocks[counted.first_places].cumsum()
    admitted = int(np.searchsorted(taken, pool, side="right"))
    if admitted == taken.size:
        raise UsageError(
            f"the pool admits the first {admitted:,} sequences, the most that are kept in order of "
            f"arrival, of {counted.n_sequences:,}; ask for a smaller pool or a part of the trace"
        )
    return admitted


def _one(name: str, value: Any, minimum: int) -> int:
    count = as_count(name, value, minimum)
    if is_array(count):
        raise UsageError(f"{name}: must be one number, not an array")
    return int(count)


def _per_sequence(
    name: str, rule: Callable[[IntArray], IntArray], lengths: IntArray, minimum: int
) -> IntArray:
    values = as_count(name, rule(lengths), minimum)
    if isinstance(values, int) or values.shape != lengths.shape:
        raise UsageError(f"{name}: must return one value for each of {lengths.size} sequences")
    return values


def _exact_total(values: IntArray, counts: IntArray) -> int:
    """The sum of values times counts, exact even where int64 would wrap, refused beyond int64.

    Halves of 32 bits are summed apart; each sum fits int64 below 2**31 sequences.
    """
    high, low = int(((values >> 32) * counts).sum()), int(((values & 0xFFFFFFFF) * counts).sum())
    return _whole(exact_product((high << 32) + low))


def _whole(value: Any) -> int:
    return int(value)


def _nearest_ranks(counted: LengthCounts, *percentiles: int) -> list[int]:
    import numpy as np

    up_to = counted.counts.cumsum()
    ranks = [-(-percentile * counted.n_sequences // 100) for percentile in percentiles]
    return [int(counted.tokens[np.searchsorted(up_to, rank)]) for rank in ranks]
