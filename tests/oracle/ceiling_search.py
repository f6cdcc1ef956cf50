"""Ceilings by brute force: every candidate is tried, the largest that fits is the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import gcd
from typing import Any

Design = dict[str, Any]


def limit_of(budget: tuple[str, Any], mha: Fraction, gpus: int) -> Fraction:
    """A budget in bytes per token on one GPU; a design's budget comes as its bytes there."""
    kind, amount = budget
    if kind == "share":
        return Fraction(amount) * mha
    if kind == "bytes":
        return Fraction(amount, gpus)
    return Fraction(amount)  # per GPU, or another design's bytes on one


def largest(
    values: Iterable[int], bytes_of: Callable[[int], Fraction], limit: Fraction
) -> int | None:
    return max((v for v in values if bytes_of(v) <= limit), default=None)


def head_counts(all_heads: list[int], gpus: int) -> list[int]:
    """Key/value head counts that divide every layer's heads and that an engine can place."""
    common = gcd(*all_heads)
    divisors = [n for n in range(1, common + 1) if common % n == 0]
    return [n for n in divisors if n % gpus == 0 or gpus % n == 0]


def latent_widths(backbones: list[Design], model_dim: int) -> range:
    """No latent is wider than all keys and values together, nor than the hidden state it sums up."""
    everything = max(b["heads"] * (b["key"] + b["value"]) for b in backbones)
    return range(1, min(everything, model_dim) + 1)


def design_at(backbone: Design, family: str, value: int, **options: Any) -> Design:
    """One layer's design on its backbone at a rank, a head count or a latent width."""
    if family == "gqa":
        return {
            "family": "gqa", "n_heads": backbone["heads"], "n_kv_heads": value,
            "head_dim": backbone["key"], "v_head_dim": backbone["value"],
        }  # fmt: skip
    if family == "mla":
        return {
            "family": "mla", "n_heads": backbone["heads"], "latent_dim": value,
            "rope_dim": options["rope_dim"], "nope_dim": backbone["key"],
            "v_head_dim": backbone["value"],
        }  # fmt: skip
    return {
        "family": "lrkv", "n_heads": backbone["heads"], "head_dim": backbone["key"],
        "v_head_dim": backbone["value"], "key_rank": value, "value_rank": value, **options,
    }  # fmt: skip
