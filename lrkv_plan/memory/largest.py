"""The largest size that a limit allows, and the largest LRKV rank within a cache budget.

Bytes never fall when a rank, a head count or a latent width grows, so the largest value that fits
is found by bisection on the byte count itself: the answer is its exact inverse,
bytes(r) <= budget < bytes(r + step).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lrkv_plan.attention.families.low_rank import LowRankOptions
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import Backbone, divisors_of
from lrkv_plan.errors import PlacementError, RequirementError, SpecError
from lrkv_plan.memory.arithmetic import arithmetic_ratio_limit, arithmetic_ratio_to_mha
from lrkv_plan.memory.cache import bytes_per_token, reference_mha
from lrkv_plan.memory.exact import check_is, check_model, one_count, over_each, simplest
from lrkv_plan.memory.weights import kv_params_ratio_to_mha
from lrkv_plan.specs.budget import Budget, parse_budget
from lrkv_plan.specs.design import swap_attention
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A design that fits a budget. Bytes are per token on one GPU. [bytes/token]"""

    value: int  # rank, key/value heads, or latent width
    text: str
    bytes_per_token_per_gpu: int | Fraction
    spare_bytes_per_token_per_gpu: int | Fraction
    ratio_to_mha: Fraction
    kv_params_ratio: Fraction | None
    arithmetic_ratio: Fraction | None  # decode multiply-adds over MHA's at ``context_tokens``
    arithmetic_ratio_limit: Fraction | None  # the same as the context grows


def largest_fitting(
    values: Sequence[int], bytes_of: Callable[[int], Fraction], limit: Fraction
) -> int | None:
    """The last of ascending ``values`` with bytes_of(value) <= limit, or None.

    ``bytes_of`` must not fall as its argument grows.
    """
    low, high = 0, len(values)  # values[:low] fit, values[high:] do not
    while low < high:
        middle = (low + high) // 2
        if bytes_of(values[middle]) <= limit:
            low = middle + 1
        else:
            high = middle
    return values[low - 1] if low else None


def widest_latent(model: ModelSpec) -> int:
    """The widest MLA latent that compresses anything. [scalars]

    A latent is made from the ``model_dim`` scalars of a token and makes the keys and values of all
    heads: wider than either, the hidden state or the heads themselves would be the smaller cache.
    """
    backbones = (g.attention.backbone() for g in model.attention_groups if g.attention is not None)
    return min(model.model_dim, max(b.n_heads * (b.head_dim + b.v_head_dim) for b in backbones))


def latent_bound_remark(model: ModelSpec) -> str:
    """What to say where the budget would allow a latent wider than ``widest_latent``."""
    return (
        f"the budget would allow an MLA latent beyond {widest_latent(model):,}, the widest that "
        f"compresses anything: the hidden state has {model.model_dim:,} scalars"
    )


def budget_bytes(
    model: ModelSpec, budget: Budget, *, tp_size: int = 1, kv_dtype: str = "bf16"
) -> Fraction:
    """The budget in bytes per token on one GPU. [bytes/token]

    A share and a design are compared with the same GPUs and format; bytes over the group are
    divided by its GPUs.
    """
    if budget.bytes_per_token is not None:
        return Fraction(budget.bytes_per_token, 1 if budget.per_gpu else tp_size)
    if budget.share_of_own is not None:
        return budget.share_of_own * bytes_per_token(model, kv_dtype=kv_dtype, tp_size=tp_size)
    share = Fraction(1) if budget.share_of_mha is None else budget.share_of_mha
    other = reference_mha(model) if budget.design is None else swap_attention(model, budget.design)
    return share * bytes_per_token(other, kv_dtype=kv_dtype, tp_size=tp_size)


def infeasible(budget: Budget, limit: Fraction, base: Fraction, share: Fraction) -> str:
    """Why nothing fits: rank 0 takes ``base`` bytes, ``share`` of MHA's, against ``limit``."""
    return (
        f"no rank fits the budget {budget.text} ({float(limit):,.6g} B per token and GPU): rank 0 "
        f"already takes {float(base):,.6g} B; the smallest feasible budget is "
        f"{share} = {float(share):.4%} of MHA"
    )


@dataclass(frozen=True, kw_only=True)
class RankCeiling:
    """The largest ranks under a budget and what other families fit in it."""

    budget_bytes_per_token_per_gpu: int | Fraction
    largest: Fit
    aligned: Fit
    padded: Fit  # the largest rank stored at the next aligned width; may exceed the budget
    next_rank_price_bytes: int | Fraction | None  # what one more step of rank adds
    next_rank_shortfall_bytes: int | Fraction | None  # how far that is beyond the budget
    grouped: Fit | None
    latent: Fit | None
    alignment: int
    remarks: tuple[str, ...] = ()


def rank_ceiling(
    model: ModelSpec,
    *,
    budget: str | Budget,
    alignment: int = 16,
    tp_size: int = 1,
    kv_dtype: str = "bf16",
    context_tokens: int = 8192,
    options: LowRankOptions | None = None,
    latent_rope_dim: int | None = None,
) -> RankCeiling:
    """Largest rank whose cache fits the budget.

    Parameters
    ----------
    model : gives the backbone; every attention layer takes the same rank.
    budget : a share of MHA's bytes on the same GPUs, bytes per token (over the group, or
        ``/token/gpu``), or another design's bytes.
    alignment : multiple that the aligned rank must be. [scalars]
    tp_size : GPUs sharing the model; bytes are compared on one of them. [GPUs]
    kv_dtype : storage format of both sides.
    context_tokens : cached tokens at which decode arithmetic is compared. [tokens]
    options : the LRKV variant; plain when None.
    latent_rope_dim : MLA's rotary key for the comparison; the backbone's own, or head_dim / 2
        (DeepSeek-V2, arXiv:2405.04434 section 2.1.4) when None. The latent beside it is at most
        as wide as the model: a wider one compresses nothing, and a remark says so. [scalars]

    Raises
    ------
    RequirementError
        If not even rank 0 fits; the message names the smallest feasible budget.
    PlacementError
        If no engine can deal the heads out over ``tp_size`` GPUs.
    SpecError, UsageError
        If the budget or a design cannot be read, or does not fit the backbone.

    Notes
    -----
    In closed form for one plain layer type: r <= floor(d_h (c - P g'/H)) with c the share
    (arXiv:2601.11471v3 review, section 4, at P = 1: floor(d_h (c - 1/H))).

    Examples
    --------
    >>> from lrkv_plan import load_model
    >>> answer = rank_ceiling(load_model("lrkv-paper-2.5b"), budget="1/2")
    >>> answer.largest.value, answer.aligned.value  # floor(128 (1/2 - 1/18)) = floor(56.9)
    (56, 48)
    """
    check_model("model", model)
    wanted = parse_budget(budget) if isinstance(budget, str) else budget
    wanted = check_is("budget", wanted, Budget, "text such as '50%'")
    alignment = one_count("alignment", alignment)
    context, tp_size = one_count("context_tokens", context_tokens), one_count("tp_size", tp_size)
    variant = LowRankOptions() if options is None else check_is("options", options, LowRankOptions)
    mha = bytes_per_token(reference_mha(model), kv_dtype=kv_dtype, tp_size=tp_size)
    if not mha:
        raise SpecError(f"{model.name}: no layer keeps keys and values, so a rank changes nothing")
    limit = budget_bytes(model, wanted, tp_size=tp_size, kv_dtype=kv_dtype)

    def bytes_of(text: str) -> Fraction:
        swapped = swap_attention(model, text)
        return Fraction(bytes_per_token(swapped, kv_dtype=kv_dtype, tp_size=tp_size))

    def fit(value: int, text: str) -> Fit:
        held, swapped = bytes_of(text), swap_attention(model, text)
        return Fit(
            value=value,
            text=text,
            bytes_per_token_per_gpu=simplest(held),
            spare_bytes_per_token_per_gpu=simplest(limit - held),
            ratio_to_mha=held / mha,
            kv_params_ratio=kv_params_ratio_to_mha(swapped),
            arithmetic_ratio=arithmetic_ratio_to_mha(swapped, context),
            arithmetic_ratio_limit=arithmetic_ratio_limit(swapped),
        )

    def largest(values: Sequence[int], text_of: Callable[[int], str]) -> Fit | None:
        value = largest_fitting(values, lambda v: bytes_of(text_of(v)), limit)
        return None if value is None else fit(value, text_of(value))

    top, step = _largest_rank(model), variant.rank_step
    best = largest(range(0, top + 1, step), variant.text)
    if best is None:
        base = bytes_of(variant.text(0))
        raise RequirementError(infeasible(wanted, limit, base, base / mha))
    aligned = largest(range(0, top + 1, math.lcm(step, alignment)), variant.text)
    assert aligned is not None, "rank 0 is a multiple of every alignment"
    rope = _latent_rope_dim(model, latent_rope_dim)
    latent = largest(range(1, widest_latent(model) + 1), lambda width: f"mla:{width}+{rope}")
    wider = f"mla:{widest_latent(model) + 1}+{rope}"
    following = best.value + step
    dearer = bytes_of(variant.text(following)) if following <= top else None
    return RankCeiling(
        budget_bytes_per_token_per_gpu=simplest(limit),
        largest=best,
        aligned=aligned,
        padded=fit(best.value, variant.text(best.value, alignment)),
        next_rank_price_bytes=(
            None if dearer is None else simplest(dearer - best.bytes_per_token_per_gpu)
        ),
        next_rank_shortfall_bytes=None if dearer is None else simplest(dearer - limit),
        grouped=largest(_runnable_kv_heads(model, tp_size), lambda heads: f"gqa:{heads}"),
        latent=latent,
        alignment=alignment,
        remarks=(latent_bound_remark(model),) if bytes_of(wider) <= limit else (),
    )


@dataclass(frozen=True, kw_only=True)
class OwnReading:
    """A share of MHA read against the model's own cache.

    ``budget_share_of_own`` is what the budget is of the own design's bytes; ``text`` asks for the
    same share of the own cache, and ``largest`` is its largest rank, None where not even rank 0
    fits.
    """

    budget_share_of_own: Fraction
    text: str
    largest: Fit | None


def own_reading(model: ModelSpec, budget: str, **told: Any) -> OwnReading | None:
    """The other reading of a share, where MHA and the model's own design cache differently.

    Parameters
    ----------
    told : as for ``rank_ceiling``.

    Returns
    -------
    None where the budget is no share of MHA, or the own design caches what MHA does.
    """
    wanted = parse_budget(budget)
    if wanted.share_of_mha is None:
        return None
    place = {name: told[name] for name in ("kv_dtype", "tp_size") if name in told}
    own = bytes_per_token(model, **place)
    limit = budget_bytes(model, wanted, **place)
    if not own or limit == wanted.share_of_mha * own:
        return None
    text = f"{budget.strip().removesuffix(' of mha').removesuffix(' of MHA')} of own"
    try:
        largest = rank_ceiling(model, budget=text, **told).largest
    except RequirementError:
        largest = None
    return OwnReading(budget_share_of_own=limit / own, text=text, largest=largest)


def bytes_per_token_at_ranks(
    model: ModelSpec,
    ranks: Any,
    *,
    options: LowRankOptions | None = None,
    alignment: int = 1,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
) -> Any:
    """LRKV bytes per token on one GPU for a rank or an integer array of ranks. [bytes/token]

    Raises
    ------
    SpecError
        If a rank exceeds a head's width.

    Examples
    --------
    >>> import numpy as np
    >>> from lrkv_plan import load_model
    >>> bytes_per_token_at_ranks(load_model("lrkv-paper-2.5b"), np.array([0, 55]))
    array([ 9216, 80496])
    """
    check_model("model", model)
    variant = LowRankOptions() if options is None else check_is("options", options, LowRankOptions)
    alignment = one_count("alignment", alignment)

    def at(rank: int) -> int | Fraction:
        swapped = swap_attention(model, variant.text(rank, alignment))
        held: int | Fraction = bytes_per_token(swapped, kv_dtype=kv_dtype, tp_size=tp_size)
        return held

    return over_each("rank", ranks, at)


def _backbones(model: ModelSpec) -> list[Backbone]:
    return [g.attention.backbone() for g in model.attention_groups if g.attention is not None]


def _largest_rank(model: ModelSpec) -> int:
    return min(min(backbone.head_dim, backbone.v_head_dim) for backbone in _backbones(model))


def _runnable_kv_heads(model: ModelSpec, tp_size: int) -> list[int]:
    """Head counts that divide every layer's heads and that an engine can place."""
    common: int = math.gcd(*(backbone.n_heads for backbone in _backbones(model)))

    def runs(kv_heads: int) -> bool:
        swapped = swap_attention(model, f"gqa:{kv_heads}")
        try:
            for group in swapped.attention_groups:
                if group.attention is not None:
                    layout_of(group.attention, model.model_dim).check_tp_size(tp_size)
        except PlacementError:
            return False
        return True

    return [kv_heads for kv_heads in divisors_of(common) if runs(kv_heads)]


def _latent_rope_dim(model: ModelSpec, stated: int | None) -> int:
    """The rotary key's width as stated, the backbone's own, or half a head. [scalars]"""
    first = _backbones(model)[0]
    rope = first.rope_dim if stated is None else one_count("latent_rope_dim", stated, 0)
    return max(2, first.head_dim // 2) if rope is None else rope
