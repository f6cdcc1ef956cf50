"""Where labels go so that they cover neither each other nor what they name: plain geometry.

Greedy and deterministic: labels are placed in order, each at the candidate with the lowest cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Box:
    """A rectangle in pixels; ``left < right`` and ``bottom < top``."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """The shared area. [pixels squared]"""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(0.0, width) * max(0.0, height)

    def holds(self, x: float, y: float) -> bool:
        """Whether the point is inside."""
        return self.left <= x <= self.right and self.bottom <= y <= self.top

    def sticks_out(self, room: Box) -> float:
        """How far it reaches beyond ``room``, all sides together. [pixels]"""
        return (
            max(0.0, room.left - self.left)
            + max(0.0, room.bottom - self.bottom)
            + max(0.0, self.right - room.right)
            + max(0.0, self.top - room.top)
        )


@dataclass(frozen=True)
class Label:
    """A text of that size, to be placed near (x, y); ``is_end`` names a line's right end."""

    x: float
    y: float
    width: float
    height: float
    is_end: bool = False


def places(
    labels: Sequence[Label],
    obstacles: Iterable[tuple[float, float]],
    room: Box,
    gap: float,
    taken: Sequence[Box] = (),
) -> list[Box]:
    """A box per label, in order.

    Parameters
    ----------
    obstacles : points that should stay visible: markers and samples of lines. [pixels]
    room : where labels may be. [pixels]
    gap : the distance from a point at which a label starts. [pixels]
    taken : boxes of texts that are already there.
    """
    points = list(obstacles)
    placed: list[Box] = []
    for label in labels:
        candidates = [(_moved_into(room, box), far) for box, far in _candidates(label, gap)]
        costs = [_cost(box, far, points, [*taken, *placed], room, label) for box, far in candidates]
        placed.append(candidates[costs.index(min(costs))][0])
    return placed


def _cost(
    box: Box,
    far: float,
    points: Sequence[tuple[float, float]],
    others: Sequence[Box],
    room: Box,
    label: Label,
) -> float:
    area = label.width * label.height
    hidden = sum(box.holds(x, y) for x, y in points)
    crossing = sum(box.overlap(other) for other in others)
    return far + 1e4 * box.sticks_out(room) + 3 * hidden * label.height + 2e4 * crossing / area


# Right of the point first, then around it; the order breaks ties.
_DIRECTIONS = (0, 45, -45, 90, -90, 135, -135, 180, 22, -22, 67, -67, 112, -112, 157, -157)


def _candidates(label: Label, gap: float) -> Iterator[tuple[Box, float]]:
    """Boxes around the point, near ones first, each with its cost of being far."""
    half_w, half_h = label.width / 2, label.height / 2
    if label.is_end:
        for step in range(0, 25):
            for sign in (1, -1) if step else (1,):
                shift = sign * step * half_h / 2
                yield (
                    _box(label.x + 1.3 * gap + half_w, label.y + shift, half_w, half_h),
                    abs(shift),
                )
        return
    for ring in (1.0, 1.8, 3.0, 4.5, 6.5, 9.0):
        for order, degrees in enumerate(_DIRECTIONS):
            turn = math.radians(degrees)
            across, up = math.cos(turn), math.sin(turn)
            x = label.x + across * gap * ring + _sign(across) * half_w
            y = label.y + up * gap * ring + _sign(up) * half_h
            yield _box(x, y, half_w, half_h), 3 * gap * (ring - 1) + 0.2 * order


def _moved_into(room: Box, box: Box) -> Box:
    """The box moved sideways until it is in the room, if it can be."""
    over = max(0.0, box.right - room.right) - max(0.0, room.left - box.left)
    return Box(box.left - over, box.bottom, box.right - over, box.top)


def _sign(value: float) -> float:
    return 0.0 if abs(value) < 0.3 else math.copysign(1.0, value)


def _box(x: float, y: float, half_w: float, half_h: float) -> Box:
    return Box(x - half_w, y - half_h, x + half_w, y + half_h)
