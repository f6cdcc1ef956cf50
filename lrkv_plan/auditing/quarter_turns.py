"""What turning a key's plane does to a rank-one residual, exactly, for quarter turns.

With row vectors the residual of a rotated key is z b D_j. A rotation that is pulled into the
latent can only give e b, so it is right only where the turned row stays on the line of b
(review of arXiv:2601.11471v3, section 8). Quarter turns need no rounding; other angles and widths
are measured by ``calibration.decode.rotary.rotation_pull_error``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

Row = tuple[Fraction, Fraction]


@dataclass(frozen=True, kw_only=True)
class TurnedResidual:
    """A residual row after ``quarter_turns``, and the nearest row that the latent can give.

    ``lost_ratio`` is the squared length that is missed over the whole squared length.
    """

    quarter_turns: int
    turned: Row
    nearest: Row
    lost_ratio: Fraction


def turned_residual(basis: tuple[int, int], quarter_turns: int) -> TurnedResidual:
    """The row ``basis`` turned by quarter turns, which send (1, 0) to (0, 1).

    Raises
    ------
    ValueError
        If the basis is zero.

    Examples
    --------
    >>> one = turned_residual((1, 0), 1)
    >>> [int(x) for x in (*one.turned, *one.nearest, one.lost_ratio)]
    [0, 1, 0, 0, 1]
    """
    length = Fraction(basis[0] ** 2 + basis[1] ** 2)
    if not length:
        raise ValueError("the basis is zero")
    x, y = Fraction(basis[0]), Fraction(basis[1])
    for _ in range(quarter_turns % 4):
        x, y = -y, x
    scale = score((x, y), basis) / length  # least squares: the projection on the basis
    nearest = (scale * basis[0], scale * basis[1])
    missed = (x - nearest[0]) ** 2 + (y - nearest[1]) ** 2
    return TurnedResidual(
        quarter_turns=quarter_turns, turned=(x, y), nearest=nearest, lost_ratio=missed / length
    )


def score(row: Row, query: tuple[int, int]) -> Fraction:
    """The row's dot product with a query."""
    return row[0] * query[0] + row[1] * query[1]
