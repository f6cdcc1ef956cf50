"""What sequences that begin alike hold in a pool of blocks, and what a prefix cache finds again.

Pure arithmetic: an engine says how many blocks a length takes and how many of them a common prefix
fills. Blocks that several sequences share are held once. The cache keeps blocks of ended sequences
until others need the room, the least recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lrkv_plan.memory.exact import IntArray
    from lrkv_plan.specs.prefix_trace import PrefixTrace

POOL_SHARES = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))


@dataclass(frozen=True, kw_only=True)
class HitRate:
    """Prompt tokens found in a cache of ``pool_share`` of the pool, over all prompt tokens."""

    pool_share: Fraction
    hit_rate: Fraction


@dataclass(frozen=True, kw_only=True)
class PrefixAccount:
    """Sequences of a trace against one pool that holds common prefixes once.

    ``admitted_sequences`` is the longest prefix of the queue that fits together. ``hit_rate`` is of
    the pool as it is, ``unbounded_hit_rate`` of one that forgets nothing, ``hit_rates`` of others.
    ``allocated_bytes`` is of all sequences, whether they fit or not. ``block_tokens`` are those of
    an id. ``all_read`` is False where the file holds more.
    """

    block_tokens: int
    n_sequences: int
    admitted_sequences: int
    allocated_bytes: int
    hit_rate: Fraction
    unbounded_hit_rate: Fraction
    hit_rates: tuple[HitRate, ...]
    all_read: bool


def account_prefixes(
    trace: PrefixTrace,
    *,
    n_blocks: int,
    blocks_of: Callable[[Any], Any],
    prefix_blocks_of: Callable[[Any], Any],
    block_bytes: int = 1,
    page_tokens: int = 1,
) -> PrefixAccount:
    """Sequences that fit together and hit rates by the size of the pool.

    Parameters
    ----------
    n_blocks, block_bytes : blocks in the pool, and the size of one. [blocks, bytes]
    blocks_of, prefix_blocks_of : blocks of sequences of these lengths, and those of them that a
        first part of so many tokens fills.
    page_tokens : a hit is a multiple of it. [tokens]

    Notes
    -----
    With T_i tokens of a sequence, and s_i of them already held by those before it, it adds
    blocks_of(T_i) - prefix_blocks_of(min(s_i, prompt_i - 1)): the last token of a prompt is always
    computed. Hits are replayed one request after another, in order of arrival, each with all its
    blocks: a pool that many share at once finds less.
    """
    reader = _Requests.of(trace, blocks_of, prefix_blocks_of, page_tokens)
    admitted, held = _admitted(reader, n_blocks)
    rates = {share: _hit_rate(reader, int(n_blocks * share)) for share in POOL_SHARES}
    return PrefixAccount(
        block_tokens=trace.block_tokens,
        n_sequences=trace.n_requests,
        admitted_sequences=admitted,
        allocated_bytes=held * block_bytes,
        hit_rate=rates[Fraction(1)],
        unbounded_hit_rate=_hit_rate(reader, None),
        hit_rates=tuple(HitRate(pool_share=share, hit_rate=rate) for share, rate in rates.items()),
        all_read=trace.is_whole,
    )


@dataclass(frozen=True)
class _Request:
    """A request's ids, the tokens up to the end of each, and the blocks that each fills."""

    prompt_tokens: int
    n_blocks: int
    ids: list[int]
    ends: list[int]
    blocks: list[int]


@dataclass(frozen=True, eq=False)
class _Requests:
    prompt: list[int]
    total_blocks: list[int]
    starts: list[int]
    ids: list[int]
    ends: list[int]
    blocks: list[int]
    prefix_blocks_of: Callable[[Any], Any]
    page_tokens: int

    @classmethod
    def of(
        cls, trace: PrefixTrace, blocks_of: Callable[[Any], Any],
        prefix_blocks_of: Callable[[Any], Any], page_tokens: int,
    ) -> _Requests:  # fmt: skip
        import numpy as np

        counts = np.diff(trace.starts)
        place = np.arange(trace.ids.size) - np.repeat(trace.starts[:-1], counts)
        prompt = np.repeat(trace.prompt_tokens, counts)
        ends = np.minimum((place + 1) * trace.block_tokens, prompt)
        starts = np.minimum(place * trace.block_tokens, prompt)
        filled: IntArray = np.asarray(prefix_blocks_of(ends) - prefix_blocks_of(starts))
        totals = np.asarray(blocks_of(trace.prompt_tokens + trace.output_tokens))
        return cls(
            prompt=trace.prompt_tokens.tolist(), total_blocks=totals.tolist(),
            starts=trace.starts.tolist(), ids=trace.ids.tolist(), ends=ends.tolist(),
            blocks=np.broadcast_to(filled, ends.shape).tolist(),
            prefix_blocks_of=prefix_blocks_of, page_tokens=page_tokens,
        )  # fmt: skip

    def __iter__(self) -> Iterator[_Request]:
        for index, prompt in enumerate(self.prompt):
            part = slice(self.starts[index], self.starts[index + 1])
            yield _Request(
                prompt, self.total_blocks[index], self.ids[part], self.ends[part],
                self.blocks[part],
            )  # fmt: skip

    def hit_tokens(self, request: _Request, n_hits: int) -> int:
        """Tokens that need not be computed where the first ``n_hits`` ids are held."""
        if not n_hits:
            return 0
        held = min(request.ends[n_hits - 1], request.prompt_tokens - 1)
        return held // self.page_tokens * self.page_tokens


def _n_hits(request: _Request, held: Any) -> int:
    for place, one in enumerate(request.ids):
        if one not in held:
            return place
    return len(request.ids)


def _admitted(requests: _Requests, n_blocks: int) -> tuple[int, int]:
    """How many of the queue fit together, and the blocks that all of it takes."""
    held: set[int] = set()
    used = admitted = 0
    for index, request in enumerate(requests):
        shared = requests.hit_tokens(request, _n_hits(request, held))
        used += request.n_blocks - int(requests.prefix_blocks_of(shared))
        held.update(request.ids)
        if used <= n_blocks:
            admitted = index + 1
    return admitted, used


def _hit_rate(requests: _Requests, n_blocks: int | None) -> Fraction:
    """Prompt tokens found again over all; of a cache without end where ``n_blocks`` is None."""
    cache: OrderedDict[int, int] = OrderedDict()  # id -> blocks, the least recently used first
    used = found = total = 0
    for index, request in enumerate(requests):
        total += request.prompt_tokens
        if n_blocks is not None and request.n_blocks > n_blocks:
            continue  # it cannot run
        found += requests.hit_tokens(request, _n_hits(request, cache))
        # What only this request has stands last in line, its first block first.
        own = {-1 - index: request.n_blocks - sum(request.blocks)}
        kept = {**own, **dict(zip(reversed(request.ids), reversed(request.blocks), strict=True))}
        for one, blocks in kept.items():
            if one in cache:
                cache.move_to_end(one)
            else:
                cache[one] = blocks
                used += blocks
        while n_blocks is not None and used > n_blocks:
            used -= cache.popitem(last=False)[1]
    return Fraction(found, total) if total else Fraction(0)
