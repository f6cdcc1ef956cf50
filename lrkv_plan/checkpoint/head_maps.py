"""How different the heads of one layer are, by their bilinear score maps A_h = W_Q,h W_K,h^T.

Rotating a head's queries and keys together leaves A_h as it is, so it is compared rather than the
keys. No map of inputs x inputs is formed. Positions, norms and biases are not part of A_h.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lrkv_plan.checkpoint.tensors import Array

_FLOAT64_SCALARS = 2**22


@dataclass(frozen=True, kw_only=True)
class HeadMaps:
    """Cosines between the maps of all query heads, and the effective rank of their spectrum.

    Effective ranks run from 1 to their ceiling: ``n_maps`` uncentred, one less centred. A value
    that does not exist is None and ``undefined`` says why.
    """

    n_heads: int
    n_maps: int  # heads whose map is not zero
    cosine: Array  # (n_maps, n_maps)
    effective_rank: float | None
    centred_effective_rank: float | None
    mean_cosine: float | None  # over pairs of different heads
    max_cosine: float | None
    closest_heads: tuple[int, int] | None
    undefined: str | None

    @property
    def effective_rank_ceiling(self) -> int:
        """The largest uncentred effective rank."""
        return self.n_maps

    @property
    def centred_effective_rank_ceiling(self) -> int:
        """The largest centred effective rank: J 1 = 0 takes one direction away."""
        return max(0, self.n_maps - 1)


def head_maps(query: Array, key: Array) -> HeadMaps:
    """Compare the score maps of a layer's query heads.

    Parameters
    ----------
    query : W_Q^T of every query head, shape (heads, width, inputs).
    key : W_K^T of every key head, shape (key heads, width, inputs); query head h reads key head
        h // (heads / key heads).

    Notes
    -----
    G_ij = <A_i, A_j> / (|A_i| |A_j|), centred J G J with J = I - 11^T / H, and
    r_eff = exp(-sum p ln p) over the normalised positive eigenvalues p (review of
    arXiv:2601.11471v3, section 6).
    """
    products = _products(query, key)
    lengths = np.sqrt(np.clip(np.diag(products), 0, None))
    present = np.flatnonzero(lengths > 0)
    n_zero = len(lengths) - len(present)
    cosine = products[np.ix_(present, present)] / np.outer(lengths[present], lengths[present])
    np.fill_diagonal(cosine, 1.0)
    n_maps = len(present)
    reasons = [f"zero maps, left out: {n_zero} of {len(lengths)}"] if n_zero else []
    centred = None
    if n_maps == 0:
        reasons.append("no head has a map")
    elif n_maps == 1:
        reasons.append("centred effective rank of a single map")
    else:
        flat = cosine - cosine.mean(axis=0)
        flat -= flat.mean(axis=1, keepdims=True)
        if np.trace(flat) <= _equal_maps(query) * n_maps:
            reasons.append("centred effective rank of identical maps: nothing is left after JGJ")
        else:
            centred = effective_rank(np.linalg.eigvalsh(flat))
    pairs = cosine[np.triu_indices(n_maps, 1)]
    return HeadMaps(
        n_heads=len(lengths),
        n_maps=n_maps,
        cosine=cosine,
        effective_rank=effective_rank(np.linalg.eigvalsh(cosine)) if n_maps else None,
        centred_effective_rank=centred,
        mean_cosine=float(pairs.mean()) if len(pairs) else None,
        max_cosine=float(pairs.max()) if len(pairs) else None,
        closest_heads=_closest(cosine, present) if len(pairs) else None,
        undefined="; ".join(reasons) or None,
    )


def effective_rank(eigenvalues: Array) -> float:
    """exp of the entropy of the positive eigenvalues.

    Examples
    --------
    >>> round(effective_rank(np.array([2.0, 2.0, 2.0, 0.0])), 12)
    3.0
    """
    positive = eigenvalues[eigenvalues > 0]
    shares = positive / positive.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))


def _products(query: Array, key: Array) -> Array:
    """<A_i, A_j> = tr((K_j^T K_i)(Q_i^T Q_j)), one key head's rows at a time."""
    n_heads, width, n_inputs = query.shape
    per_key = n_heads // len(key)
    exact = max(query.size, key.size) <= _FLOAT64_SCALARS
    dtype = np.float64 if exact else np.float32
    queries, keys = (_scaled(part, dtype) for part in (query, key))
    found = np.zeros((n_heads, n_heads))
    for group, head_key in enumerate(keys):
        first = group * per_key
        key_rows = head_key @ keys[group:].reshape(-1, keys.shape[2]).T
        key_blocks = key_rows.reshape(width, len(keys) - group, width).transpose(1, 0, 2)
        for head in range(first, first + per_key):
            rows = queries[head] @ queries[first:].reshape(-1, n_inputs).T
            blocks = rows.reshape(width, len(keys) - group, per_key, width).transpose(1, 2, 0, 3)
            inner = np.einsum("gab,gpab->gp", key_blocks, blocks)
            found[head, first:] = inner.reshape(-1)
    return np.triu(found) + np.triu(found, 1).T


def _scaled(part: Array, dtype: type) -> Array:
    """Cosines do not change with a head's factor, and without one products could overflow."""
    largest = np.abs(part).max(axis=(1, 2), keepdims=True).astype(np.float64)
    scaled: Array = (part / np.where(largest > 0, largest, 1.0).astype(part.dtype)).astype(dtype)
    return scaled


def _equal_maps(query: Array) -> float:
    """Below this mean squared distance of unit maps from their mean, it is rounding."""
    return 1e-12 if query.size <= _FLOAT64_SCALARS else 1e-6


def _closest(cosine: Array, present: Array) -> tuple[int, int]:
    upper = np.where(np.triu(np.ones_like(cosine), 1) > 0, cosine, -np.inf)
    first, second = np.unravel_index(int(np.argmax(upper)), upper.shape)
    return int(present[first]), int(present[second])
