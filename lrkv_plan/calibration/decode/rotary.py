"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) on half-split pairs.

Of w scalars, scalar i and scalar i + w/2 form plane i, turned by ``position * base**(-2 i / w)``
radians with base 10,000. Positions are given per token, so that they may be mixed.
"""

from __future__ import annotations

import torch

ROPE_BASE = 10_000.0


def frequencies(width: int, planes: torch.Tensor | None = None) -> torch.Tensor:
    """Radians per position of each plane of a row of ``width`` scalars, or of some planes of it."""
    chosen = torch.arange(width // 2) if planes is None else planes
    return ROPE_BASE ** (-2.0 * chosen.double() / width)


def angles(positions: torch.Tensor, speed: torch.Tensor) -> torch.Tensor:
    """Angle of every plane at every position: (..., T) and (w/2,) give (..., T, w/2). [radians]"""
    return positions.double()[..., None] * speed.to(positions.device)


def rotate(rows: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """Rows (..., w) with plane i turned by ``turned[..., i]`` radians.

    Examples
    --------
    >>> turned = rotate(torch.tensor([2.0, 0.0]), torch.tensor([torch.pi / 6]))
    >>> [round(scalar, 6) for scalar in turned.tolist()]
    [1.732051, 1.0]
    """
    first, second = rows.chunk(2, dim=-1)
    cos, sin = turned.cos().to(rows.dtype), turned.sin().to(rows.dtype)
    return torch.cat((first * cos - second * sin, first * sin + second * cos), dim=-1)


def unrotate(rows: torch.Tensor, turned: torch.Tensor) -> torch.Tensor:
    """The inverse of ``rotate``: a rotation is orthogonal, so the angles change sign."""
    return rotate(rows, -turned)


def rotation_pull_error(basis: torch.Tensor, turned: torch.Tensor) -> float:
    """How far the rotation of a rank-r residual leaves the span of its basis.

    With row vectors the rotated private key is z B^T D_j. A rank-space map E can stand for it at
    position j only if E B^T = B^T D_j (review of arXiv:2601.11471v3, section 8). This returns the
    least relative Frobenius error over all E, not only rotations:
    ``|B^T D_j (I - P)| / |B^T D_j|`` with P the projection on the columns of B. It is 0 where B
    spans whole rotary planes, and 1 where the turn takes the span out of itself altogether.

    Parameters
    ----------
    basis : B, (w, r).
    turned : angle of each plane, (w/2,). [radians]

    Examples
    --------
    A quarter turn of the basis (1, 0) in two dimensions, the review's counterexample:

    >>> round(rotation_pull_error(torch.tensor([[1.0], [0.0]]), torch.tensor([torch.pi / 2])), 9)
    1.0
    """
    columns = basis.double()
    turned_rows = rotate(columns.T, turned.double())
    span, _ = torch.linalg.qr(columns)
    outside = turned_rows - turned_rows @ span @ span.T
    return float(outside.norm() / turned_rows.norm())
