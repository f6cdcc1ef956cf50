"""A cache budget in bytes, a design that fits it, and the search for the largest that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from lrkv_plan.calculators.cache_bytes import bytes_per_token, reference_mha
from lrkv_plan.specs.attention_text import swap_attention
from lrkv_plan.specs.budget_text import Budget
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
