"""Which rows each GPU keeps under each placement policy, and which of them it fetches.

Counts follow calculators/placement.py; here they become ranges of heads and tokens:

* ``by_copy`` and ``replicated``: GPU k keeps all tokens of its copies; with fewer copies than
  GPUs, neighbours keep the same copy; tensors without heads to deal are whole everywhere.
* ``by_token``: GPU k keeps tokens k T/P to (k + 1) T/P of every tensor, all copies. Nothing is
  dealt out by head: LRKV's logit is a sum over shared and private rows, so a head's private rows
  are of use only where the shared rows of the same tokens are.
* ``gathered``: as ``replicated``, but the R GPUs that need the same copies keep one R-th of their
  rows each and fetch the rest in every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from lrkv_plan.attention.layout import AttentionLayout, CachedTensor, Sharding
from lrkv_plan.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class TensorShare:
    """One GPU's part of one cached tensor, per sequence.

    ``n_sharing`` GPUs, neighbours from ``first_sharing`` on, need the same ``copies``. With
    ``is_spread`` each of them keeps one part in ``n_sharing`` of those rows.
    """

    name: str
    width: int
    copies: range
    tokens: range
    first_sharing: int
    n_sharing: int
    is_spread: bool = False

    @property
    def used_rows(self) -> int:
        """Rows per sequence that the GPU's step reads."""
        return len(self.copies) * len(self.tokens)

    @property
    def kept_rows(self) -> int:
        """Rows per sequence that the GPU keeps."""
        return self.used_rows // self.n_sharing if self.is_spread else self.used_rows


def heads_of(layout: AttentionLayout, index: int, tp_size: int) -> range:
    """Query heads that GPU ``index`` answers for.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.
    """
    layout.check_tp_size(tp_size)
    each = layout.n_heads // tp_size
    return range(index * each, (index + 1) * each)


def shares_of(
    layout: AttentionLayout, policy: str, *, index: int, tp_size: int, context_tokens: int
) -> tuple[TensorShare, ...]:
    """What GPU ``index`` of ``tp_size`` keeps of each cached tensor.

    Raises
    ------
    PlacementError
        If no engine can deal the heads out over that many GPUs.
    UsageError
        If a policy that spreads rows meets a context that is no multiple of the GPUs.

    Examples
    --------
    >>> from lrkv_plan.attention.families import layout_of
    >>> from lrkv_plan.specs.attention_families import GroupedSpec
    >>> two = layout_of(GroupedSpec(family="gqa", n_heads=8, n_kv_heads=2, head_dim=16), 128)
    >>> key = shares_of(two, "gathered", index=3, tp_size=4, context_tokens=100)[0]
    >>> key.copies, key.first_sharing, key.n_sharing, key.kept_rows
    (range(1, 2), 2, 2, 50)
    """
    layout.check_tp_size(tp_size)
    if policy in ("by_token", "gathered"):
        check_even(context_tokens, policy, tp_size)
    if policy == "by_token":
        each = context_tokens // tp_size
        tokens = range(index * each, (index + 1) * each)
        return tuple(
            TensorShare(
                name=t.name, width=t.width, copies=range(t.copies_per_layer), tokens=tokens,
                first_sharing=index, n_sharing=1,
            )
            for t in layout.cached
        )  # fmt: skip
    spread = policy == "gathered"
    return tuple(_dealt(t, index, tp_size, context_tokens, spread) for t in layout.cached)


def check_even(context_tokens: int, policy: str, tp_size: int) -> None:
    """Raise ``UsageError`` unless every GPU keeps equally many rows.

    The calculators state the mean per GPU. An engine would round the fullest GPU up by one row per
    tensor; this measurement refuses instead, so that bytes can be compared exactly.
    """
    left = context_tokens % tp_size
    if left or context_tokens < tp_size:
        below, above = context_tokens - left, context_tokens - left + tp_size
        choices = f"{below} or {above}" if below else f"{above}"
        raise UsageError(
            f"context_tokens {context_tokens}: {policy} spreads rows evenly over {tp_size} GPUs; "
            f"use {choices}"
        )


def _dealt(
    tensor: CachedTensor, index: int, tp_size: int, context_tokens: int, spread: bool
) -> TensorShare:
    """Copies dealt out in order; fewer copies than GPUs are shared by neighbours."""
    n_copies = tensor.copies_per_gpu(tp_size)
    dealt = tensor.sharding is Sharding.BY_COPY
    n_sharing = tp_size * n_copies // tensor.copies_per_layer
    first_sharing = index // n_sharing * n_sharing
    first_copy = index * tensor.copies_per_layer // tp_size if dealt else 0
    return TensorShare(
        name=tensor.name, width=tensor.width, copies=range(first_copy, first_copy + n_copies),
        tokens=range(context_tokens), first_sharing=first_sharing, n_sharing=n_sharing,
        is_spread=spread and n_sharing > 1,
    )  # fmt: skip
