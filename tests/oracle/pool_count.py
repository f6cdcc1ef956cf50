"""Engines' pools from their published rules: kinds of layers in, blocks and sequences out.

A kind is (keeps, layers, row bytes, payload row bytes, window, fixed bytes). R12 to R24 are the
rules of the public serving logs that the engines' modules cite.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from math import ceil, floor
from typing import Any, NamedTuple

INFINITE = 10**30


class Kind(NamedTuple):
    keeps: str
    count: int
    row: Fraction
    payload: Fraction
    window: int
    fixed: int


class Answer(NamedTuple):
    n_blocks: int
    tokens: int
    concurrency: Fraction
    sequences: int
    waste: Fraction
    blocks_of: Callable[[int], int]


def used(kinds: list[Kind], tokens: int, encoder: int) -> Fraction:
    """Bytes that one sequence really fills."""
    rows = [encoder if k.keeps == "cross" else min(tokens, k.window) for k in kinds]
    return sum((k.count * (n * k.payload + k.fixed) for k, n in zip(kinds, rows, strict=True)),
               start=Fraction(0))  # fmt: skip


def rate(kinds: list[Kind]) -> Fraction:
    return sum((k.count * k.row for k in kinds), start=Fraction(0))


def share_lost(used_bytes: Fraction, held: Fraction) -> Fraction:
    return 1 - used_bytes / held if held else Fraction(0)


def equal(kinds: list[Kind], budget: int, page: int, per_token: Fraction, tokens: int,
          last: Any = floor) -> Answer:  # fmt: skip
    """One pool whose blocks hold a page of tokens of every layer (SGLang, TensorRT-LLM, V0).

    ``last`` is what becomes of the last block: TensorRT-LLM rounds it up, the others down.
    """
    n = last(budget / (page * per_token))
    each = ceil(Fraction(tokens, page))
    lost = max(Fraction(0), share_lost(used(kinds, tokens, 0), each * page * per_token))
    return Answer(n, n * page, Fraction(n * page, tokens), n // each, lost,
                  lambda t: ceil(Fraction(t, page)))  # fmt: skip


def paged(kinds: list[Kind], budget: int, page: int, tokens: int, encoder: int) -> Answer:
    """Every layer's rows rounded up to whole pages, a byte is a block."""

    def held(t: int) -> int:
        total = Fraction(0)
        for k in kinds:
            rows = encoder if k.keeps == "cross" else 0 if k.keeps == "state" else min(t, k.window)
            total += k.count * (ceil(Fraction(rows, page)) * page * k.row + k.fixed)
        return ceil(total)

    per_token = rate([k for k in kinds if k.keeps != "cross"])
    each = held(tokens)
    lost = share_lost(used(kinds, tokens, encoder), Fraction(each))
    return Answer(budget, floor(budget / (page * per_token)) * page, Fraction(budget, each),
                  budget // each, lost, held)  # fmt: skip


def llama_cpp(
    kinds: list[Kind], budget: int, tokens: int, encoder: int, micro_batch: int
) -> tuple[int, int]:
    """R24: (sequences whose cells fit, bytes of one sequence); cells are padded to 256."""

    def held(n: int) -> Fraction:
        total = Fraction(0)
        for k in kinds:
            cells = n * tokens
            if k.window < INFINITE:
                cells = min(cells, k.window * n + micro_batch)
            rows = {"cross": n * encoder, "state": 0}.get(k.keeps, -(-cells // 256) * 256)
            total += k.count * (rows * k.row + n * k.fixed)
        return total

    n = 0
    while n < 3000 and held(n + 1) <= budget:
        n += 1
    return n, ceil(held(1))


def vllm(
    kinds: list[Kind], budget: int, page: int, tokens: int, encoder: int, told: dict[str, Any]
) -> Answer | None:
    """R12 to R19: groups of equally many layers share one pool; None where pages cannot be equal."""
    dcp, batched, version = told["dcp"], told["batched"], told["version"]
    states = [k for k in kinds if k.keeps == "state"]
    rows = [k for k in kinds if k.keeps != "state"]
    if not rows:
        return None
    if not states and len({(k.keeps, k.window) for k in kinds}) == 1:
        groups, layers, block_bytes = [(kinds[0], 1, page)], 1, page * rate(kinds)
    else:
        widest = max(k.row for k in rows)
        if states:  # R17: an attention page must hold a state page
            need = 16 * ceil(max(k.fixed for k in states) / (16 * widest))
            page = max(page, need)
        counts = [k.count for k in kinds]
        nearly = (2 * max(counts) < 3 * min(counts) if version >= (0, 20)
                  else 4 * max(counts) < 5 * min(counts))  # fmt: skip
        layers = max(counts) if nearly else min(counts)
        block_bytes = layers * page * widest
        if any((widest / k.row).denominator != 1 for k in rows):
            return None
        groups = [
            (k, ceil(Fraction(k.count, layers)),
             page if k.keeps == "state" else page * int(widest / k.row))
            for k in kinds
        ]  # fmt: skip
    flight = 2 if version >= (0, 26) else 1

    def blocks_of(t: int) -> int:
        total = 0
        for k, n, block in groups:
            size = block * dcp
            if k.keeps == "state":
                each = 1 + told["prefix"] + told["draft_tokens"]
            elif k.keeps == "cross":
                each = ceil(Fraction(batched, size))
            elif k.keeps == "sliding":
                each = ceil(Fraction(min(t, k.window - 1 + flight * batched), size)) + 1
            elif k.keeps == "chunked":
                each = ceil(Fraction(min(t, k.window + flight * batched), size))
            else:
                each = ceil(Fraction(t, size))
            total += n * each
        return total

    n_blocks, request = floor(budget / block_bytes), blocks_of(tokens)
    smallest = min(block for k, _, block in groups if k.keeps != "state")
    counted = n_blocks // sum(n for _, n, _ in groups) * smallest * dcp
    concurrency = Fraction(n_blocks, request)
    printed = floor(concurrency * tokens) if version >= (0, 21) else counted
    lost = share_lost(used(kinds, tokens, encoder) / dcp, request * block_bytes)
    return Answer(n_blocks, printed, concurrency, n_blocks // request, lost, blocks_of)
