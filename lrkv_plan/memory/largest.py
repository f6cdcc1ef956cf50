"""The largest size that a limit allows, and the largest rank within a cache budget.

Bytes never fall when a rank, a head count or a latent width grows, so the largest value that fits
is found by bisection on the byte count itself: the answer is its exact inverse,
bytes(r) <= budget < bytes(r + step).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

from lrkv_plan.attention.families.grouped import fewest_kv_heads
from lrkv_plan.attention.families.latent import narrowest_latent
from lrkv_plan.attention.families.low_rank import plain_low_rank
from lrkv_plan.attention.registry import layout_of
from lrkv_plan.attention.spec import AttentionSpec
from lrkv_plan.errors import PlacementError, RequirementError, SpecError, UsageError
from lrkv_plan.memory.arithmetic import arithmetic_ratio_limit, arithmetic_ratio_to_mha
from lrkv_plan.memory.cache import bytes_per_token, reference_mha
from lrkv_plan.memory.exact import check_is, check_model, one_count, over_each, simplest
from lrkv_plan.memory.weights import kv_params_ratio_to_mha
from lrkv_plan.specs.budget import Budget, parse_budget
from lrkv_plan.specs.design import (
    as_stored,
    design_text,
    first_backbone,
    layers_of,
    sizes_of,
    swap_attention,
    with_size,
)
from lrkv_plan.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A design that fits a budget. Bytes are per token on one GPU. [bytes/token]"""

    value: int  # rank, key/value heads, or latent width
    text: str
    model: ModelSpec = field(repr=False)
    bytes_per_token_per_gpu: int | Fraction
    spare_bytes_per_token_per_gpu: int | Fraction
    ratio_to_mha: Fraction
    kv_params_ratio: Fraction | None
    arithmetic_ratio: Fraction | None  # decode multiply-adds over MHA's at ``context_tokens``
    arithmetic_ratio_limit: Fraction | None  # the same as the context grows


def largest(
    sizes: Sequence[int], measure: Callable[[int], Fraction], limit: Fraction
) -> int | None:
    """The last of ascending ``sizes`` with measure(size) <= limit, or None.

    ``measure`` (bytes, a time, sequences that are missing) must not fall as a size grows.
    """
    low, high = 0, len(sizes)  # sizes[:low] fit, sizes[high:] do not
    while low < high:
        middle = (low + high) // 2
        if measure(sizes[middle]) <= limit:
            low = middle + 1
        else:
            high = middle
    return sizes[low - 1] if low else None


def latent_bound_remark(model: ModelSpec, widest: int) -> str:
    """What to say where the budget would allow a latent wider than any that is offered."""
    return (
        f"the budget would allow an MLA latent beyond {widest:,}, the widest that "
        f"compresses anything: the hidden state has {model.model_dim:,} scalars"
    )


def aligned_size(sizes: Sequence[int], most: int, alignment: int) -> int:
    """The largest of ``sizes`` up to ``most`` that is a multiple; ``most`` where none is."""
    return max((n for n in sizes if n <= most and n % alignment == 0), default=most)


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


def infeasible(
    budget: Budget, limit: Fraction, base: Fraction, share: Fraction, least: str = "rank 0"
) -> RequirementError:
    """Nothing fits: the least size takes ``base`` bytes, ``share`` of MHA's."""
    return RequirementError(
        f"no {least.rpartition(' ')[0]} fits the budget {budget.text} "
        f"({float(limit):,.6g} B per token and GPU)",
        advice=(
            f"{least} already takes {float(base):,.6g} B",
            f"the smallest feasible budget is {share} = {float(share):.4%} of MHA",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class OtherFits:
    """What other families fit in a budget, and what is to say of them."""

    grouped: Fit | None
    latent: Fit | None
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RankCeiling:
    """The largest ranks under a budget; what other families fit in it is searched when read."""

    budget_bytes_per_token_per_gpu: int | Fraction
    largest: Fit
    aligned: Fit
    padded: Fit  # the largest rank stored at the next aligned width; may exceed the budget
    next_rank_price_bytes: int | Fraction | None  # what one more step of rank adds
    next_rank_shortfall_bytes: int | Fraction | None  # how far that is beyond the budget
    alignment: int
    search: Callable[[], OtherFits] = field(repr=False, compare=False)

    @cached_property
    def others(self) -> OtherFits:
        """What ``search`` finds, once."""
        return self.search()

    @property
    def grouped(self) -> Fit | None:
        """The GQA design with most key/value heads."""
        return self.others.grouped

    @property
    def latent(self) -> Fit | None:
        """The MLA design with the widest latent."""
        return self.others.latent

    @property
    def remarks(self) -> tuple[str, ...]:
        """What bounds the latent, or why there is none."""
        return self.others.remarks


def rank_ceiling(
    model: ModelSpec,
    *,
    budget: str | Budget,
    alignment: int = 16,
    tp_size: int = 1,
    kv_dtype: str = "bf16",
    context_tokens: int = 8192,
    design: AttentionSpec | None = None,
    latent_rope_dim: int | None = None,
) -> RankCeiling:
    """Largest rank, or other size of a design, whose cache fits the budget.

    Parameters
    ----------
    model : gives the backbone; every attention layer takes the same rank.
    budget : a share of MHA's bytes on the same GPUs, bytes per token (over the group, or
        ``/token/gpu``), or another design's bytes.
    alignment : multiple that the aligned rank must be. [scalars]
    tp_size : GPUs sharing the model; bytes are compared on one of them. [GPUs]
    kv_dtype : storage format of both sides.
    context_tokens : cached tokens at which decode arithmetic is compared. [tokens]
    design : what is sized: an LRKV variant such as
        ``parse_attention("lrkv:0,groups=2", backbone)``, or a design of another family that has
        sizes; plain LRKV when None.
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
    if latent_rope_dim is not None:
        latent_rope_dim = one_count("latent_rope_dim", latent_rope_dim, 0)
    mha = bytes_per_token(reference_mha(model), kv_dtype=kv_dtype, tp_size=tp_size)
    if not mha:
        raise SpecError(f"{model.name}: no layer keeps keys and values, so a rank changes nothing")
    limit = budget_bytes(model, wanted, tp_size=tp_size, kv_dtype=kv_dtype)

    def held(one: ModelSpec) -> Fraction:
        return Fraction(bytes_per_token(one, kv_dtype=kv_dtype, tp_size=tp_size))

    def fit(value: int, one: ModelSpec) -> Fit:
        taken = held(one)
        return Fit(
            value=value,
            text=design_text(one),
            model=one,
            bytes_per_token_per_gpu=simplest(taken),
            spare_bytes_per_token_per_gpu=simplest(limit - taken),
            ratio_to_mha=taken / mha,
            kv_params_ratio=kv_params_ratio_to_mha(one),
            arithmetic_ratio=arithmetic_ratio_to_mha(one, context),
            arithmetic_ratio_limit=arithmetic_ratio_limit(one),
        )

    def widest(one: ModelSpec, sizes: Sequence[int]) -> Fit | None:
        size = largest(sizes, lambda n: held(with_size(one, n)), limit)
        return None if size is None else fit(size, with_size(one, size))

    varied = _as_design(model, design)
    sizes = runnable_sizes(varied, tp_size)
    if not sizes:
        raise UsageError(f"design {design_text(varied)}: has no size that could be varied")
    best = widest(varied, sizes)
    if best is None:
        base = held(with_size(varied, sizes[0]))
        least = f"{layers_of(varied)[0].size_name} {sizes[0]}"
        raise infeasible(wanted, limit, base, base / mha, least)
    aligned = aligned_size(sizes, best.value, alignment)
    following = next((n for n in sizes if n > best.value), None)
    dearer = None if following is None else held(with_size(varied, following))
    padded = with_size(varied, best.value)

    def others() -> OtherFits:
        grouped = swap_attention(model, fewest_kv_heads(first_backbone(model)))
        mla = swap_attention(model, narrowest_latent(first_backbone(model), latent_rope_dim))
        latents = sizes_of(mla)
        try:
            latent = widest(mla, latents)
            is_bound = held(with_size(mla, latents[-1] + 1)) <= limit
            remarks = (latent_bound_remark(model, latents[-1]),) if is_bound else ()
        except PlacementError as error:  # its row is key and value, which the format keeps apart
            latent, remarks = None, (f"no MLA: {error}",)
        return OtherFits(
            grouped=widest(grouped, runnable_sizes(grouped, tp_size)),
            latent=latent,
            remarks=remarks,
        )

    return RankCeiling(
        budget_bytes_per_token_per_gpu=simplest(limit),
        largest=best,
        aligned=fit(aligned, with_size(varied, aligned)),
        padded=fit(best.value, as_stored(padded, alignment)),
        next_rank_price_bytes=(
            None if dearer is None else simplest(dearer - best.bytes_per_token_per_gpu)
        ),
        next_rank_shortfall_bytes=None if dearer is None else simplest(dearer - limit),
        alignment=alignment,
        search=others,
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
    design: AttentionSpec | None = None,
    alignment: int = 1,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
) -> Any:
    """LRKV bytes per token on one GPU for a rank or an integer array of ranks. [bytes/token]

    Parameters
    ----------
    design : as for ``rank_ceiling``.
    alignment : multiple to which stored ranks are padded. [scalars]

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
    alignment, varied = one_count("alignment", alignment), _as_design(model, design)

    def at(rank: int) -> int | Fraction:
        sized = as_stored(with_size(varied, rank), alignment)
        held: int | Fraction = bytes_per_token(sized, kv_dtype=kv_dtype, tp_size=tp_size)
        return held

    return over_each("rank", ranks, at)


def _as_design(model: ModelSpec, design: AttentionSpec | None) -> ModelSpec:
    """The model with that design, or with plain LRKV."""
    if design is None:
        design = plain_low_rank(first_backbone(model))
    return swap_attention(model, check_is("design", design, AttentionSpec))


def runnable_sizes(model: ModelSpec, tp_size: int) -> Sequence[int]:
    """Sizes of the model's design that an engine can place on ``tp_size`` GPUs.

    A count of heads decides where copies go and is tried; a width does not.
    """
    sizes = sizes_of(model)

    def runs(size: int) -> bool:
        try:
            for layer in layers_of(with_size(model, size)):
                layout_of(layer, model.model_dim).check_tp_size(tp_size)
        except PlacementError:
            return False
        return True

    return sizes if isinstance(sizes, range) else [size for size in sizes if runs(size)]
