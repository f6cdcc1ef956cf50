"""Names beside what they name: at line ends, near points, inside regions, after bars."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lrkv_plan.errors import one_line
from lrkv_plan.report.figures import Panel, Role, Series
from lrkv_plan.report.panels import (
    GAP_POINTS,
    INK,
    LABEL_SIZE,
    SOFT,
    TICK_SIZE,
    broken,
    categories,
    drawn_value,
    positions,
    text_size,
)

KEYED = (Role.STACK, Role.SWING, Role.KEYED)  # roles whose names stand in a key


def reserve(axes: Any, panel: Panel) -> list[Any]:
    """Texts that the layout leaves room for: values and key of bars, names at line ends.

    Those at line ends are returned: once the layout stands, ``place_labels`` takes their room.
    """
    if panel.y.scale == "category":
        _bar_texts(axes, panel)
    _key(axes, panel)
    if panel.y.scale == "category":
        return []
    ends = []
    for series in panel.series:
        points = _seen(panel, series)
        if series.role is Role.LINE and series.label and points:
            ends.append(
                axes.annotate(
                    broken(series.label), points[-1], xytext=(1.3 * GAP_POINTS, 0), va="center",
                    textcoords="offset points", fontsize=LABEL_SIZE, annotation_clip=False,
                )
            )  # fmt: skip
    return ends


def _bar_texts(axes: Any, panel: Panel) -> None:
    """Values after whiskers and bars, and before single points, whose limits stand after them."""
    names = categories(panel)
    beside: dict[str, Any] = {
        "textcoords": "offset points", "va": "center", "fontsize": LABEL_SIZE, "color": INK,
        "annotation_clip": False,
    }  # fmt: skip
    for series in panel.series:
        if series.role is Role.POINTS:
            for x, y, text in zip(*positions(panel, series), series.texts, strict=True):
                at = (-1.3 * GAP_POINTS, 0)
                axes.annotate(one_line(text), (x, y), xytext=at, ha="right", **beside)
        elif series.role is Role.SWING:
            base = drawn_value(series.origin, panel.x)
            for x, y, text in zip(*positions(panel, series), series.texts, strict=True):
                side = 1 if x >= base else -1
                at, ha = (0.7 * side * GAP_POINTS, 0), "left" if side > 0 else "right"
                axes.annotate(one_line(text), (x, y), xytext=at, ha=ha, **beside)
        elif series.role is Role.BAND:
            for high, y, text in zip(series.high, series.y, series.texts, strict=True):
                place = drawn_value(high, panel.x), names.index(str(y))
                axes.annotate(one_line(text), place, xytext=(GAP_POINTS, 0), **beside)


def key_columns(panel: Panel, width_in: float) -> int:
    """Columns of the key above a panel of that width."""
    longest = max((len(s.label or s.name) for s in panel.series if s.role in KEYED), default=0)
    return max(1, min(4, int(width_in / (0.055 * longest + 0.25))))


def _key(axes: Any, panel: Panel) -> None:
    """What fills, hatches and markers stand for."""
    if any(axes.get_legend_handles_labels()):
        sheet_in = axes.figure.get_size_inches()[0]
        columns = key_columns(panel, sheet_in / axes.get_gridspec().ncols - 0.4)
        axes.legend(
            ncols=columns, loc="lower left", bbox_to_anchor=(0, 1), frameon=False, borderpad=0.3,
            borderaxespad=0, fontsize=TICK_SIZE, handlelength=1.1, handleheight=0.8,
            handletextpad=0.4, columnspacing=0.9,
        )  # fmt: skip


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


def place_labels(sheet: Any, axes: Any, panel: Panel, reserved: Sequence[Any]) -> None:
    """Write names and point texts where they cover nothing, with a thin line to far ones."""
    if panel.y.scale == "category":
        _cell_texts(sheet, axes, panel)
        return
    frame, gap = axes.bbox, GAP_POINTS * sheet.dpi / 72
    has_region = any(series.role in (Role.REGION, Role.CLOUD) for series in panel.series)
    beside = 0.0 if has_region else 2 * gap
    right = max([frame.x1 + beside, *(text.get_window_extent().x1 + 2 for text in reserved)])
    room = Box(
        frame.x0 + 1, frame.y0 + 1, min(right, sheet.bbox.x1 - 0.5 * gap), frame.y1 + 0.5 * gap
    )
    for text in reserved:
        text.remove()
    obstacles = [point for series in panel.series for point in _obstacles(axes, panel, series)]
    for guide in panel.guides:
        obstacles += _guide_points(axes, panel, guide.axis, guide.value)
    taken = _region_names(sheet, axes, panel)
    wanted = _distinct(_wanted(axes, panel), 3 * gap)
    sized = [(text, *text_size(sheet, text, LABEL_SIZE)) for _, _, text, _ in wanted]
    labels = [
        Label(x, y, width + 2, height + 2, is_end=is_end)
        for (x, y, _, is_end), (_, width, height) in zip(wanted, sized, strict=True)
    ]
    order = sorted(range(len(labels)), key=lambda i: (not labels[i].is_end, i))
    boxes = places([labels[i] for i in order], obstacles, room, gap, taken)
    for index, box in zip(order, boxes, strict=True):
        _write(sheet, labels[index], sized[index][0], box, gap, on_fill=has_region)


_ON_FILL = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}


def _write(
    sheet: Any, label: Label, text: str, box: Box, gap: float, *, on_fill: bool = False
) -> None:
    width, height = sheet.bbox.width, sheet.bbox.height
    x, y = (box.left + box.right) / 2, (box.bottom + box.top) / 2
    near_x = min(max(label.x, box.left), box.right)
    near_y = min(max(label.y, box.bottom), box.top)
    if math.dist((near_x, near_y), (label.x, label.y)) > 2.0 * gap:
        from matplotlib.lines import Line2D

        sheet.add_artist(
            Line2D(
                [label.x / width, near_x / width], [label.y / height, near_y / height],
                color=SOFT, linewidth=0.5, zorder=5,
            )
        )  # fmt: skip
    sheet.text(
        x / width, y / height, text, ha="center", va="center", fontsize=LABEL_SIZE, color=INK,
        linespacing=1.0, bbox=_ON_FILL if on_fill else None,
    )  # fmt: skip


def _seen(panel: Panel, series: Series) -> list[tuple[float, float]]:
    """The points of a series that its axes can show."""
    points = zip(*positions(panel, series), strict=True)
    return [point for point in points if not any(map(math.isnan, point))]


def _wanted(axes: Any, panel: Panel) -> Iterator[Wanted]:
    """(x, y, text, is the end of a line) of each label, in pixels."""
    for series in panel.series:
        if series.role in _UNNAMED:
            continue
        seen = [axes.transData.transform(point) for point in _seen(panel, series)]
        if series.texts:
            every = zip(*positions(panel, series), series.texts, strict=True)
            named = [text for x, y, text in every if not (math.isnan(x) or math.isnan(y))]
            chosen = [(at, text) for at, text in zip(seen, named, strict=True) if text]
        elif series.label is None or not seen:
            continue
        elif series.role is Role.CEILING:
            chosen = [((seen[-2] + seen[-1]) / 2 if len(seen) > 1 else seen[-1], series.label)]
        else:
            middle = series.role is Role.BOUNDARY
            chosen = [(seen[len(seen) // 2 if middle else -1], series.label)]
        for at, text in chosen:
            yield *at, broken(text), series.role is Role.LINE and not series.texts
    for guide in panel.guides:
        points = _guide_points(axes, panel, guide.axis, guide.value)
        px, py = points[len(points) // 12]
        yield px, py, one_line(guide.label), False


_STEPS = (Role.STEPS_AFTER, Role.STEPS_BEFORE)
_UNNAMED = (
    Role.STACK,
    Role.BAND,
    Role.REGION,
    Role.CLOUD,
    Role.CELLS,
    Role.SWING,
    Role.KEYED,
    *_STEPS,
)
Wanted = tuple[float, float, str, bool]


def _distinct(wanted: Iterable[Wanted], near: float) -> list[Wanted]:
    """Without repeats: one text serves two points side by side."""
    kept: list[Wanted] = []
    for one in wanted:
        if not any(one[2] == old[2] and math.dist(one[:2], old[:2]) < near for old in kept):
            kept.append(one)
    return kept


def _obstacles(axes: Any, panel: Panel, series: Series) -> list[tuple[float, float]]:
    """Pixels that a label should not cover: markers, and lines sampled every few pixels."""
    if series.role in _UNNAMED and series.role not in (*_STEPS, Role.KEYED):
        return []
    points = [tuple(axes.transData.transform(point)) for point in _seen(panel, series)]
    if series.role not in (Role.POINTS, Role.KEYED):
        for one, other in list(pairwise(points)):
            n_steps = min(400, int(math.dist(one, other) / 6))
            shares = [k / n_steps for k in range(1, n_steps)]
            points += [
                tuple(a + (b - a) * s for a, b in zip(one, other, strict=True)) for s in shares
            ]
    else:  # a marker is wider than a line
        reach = (-5, 0, 5)
        points = [(px + dx, py + dy) for px, py in points for dx in reach for dy in reach]
    return points


def _cell_texts(sheet: Any, axes: Any, panel: Panel) -> None:
    """The value in each cell, dark on light and light on dark, if the cells have room for all."""
    if panel.value is None:
        return
    (mesh,) = axes.collections
    for series in panel.series:
        places = list(zip(*positions(panel, series), series.values, strict=True))
        drawn = [(x, y, drawn_value(v, panel.value)) for x, y, v in places if v is not None]
        whole = all(float(value).is_integer() for _, _, value in drawn)
        is_count = panel.value.factor == 1 and whole
        texts = [f"{v:,.0f}" if is_count or v >= 100 else f"{v:#.3g}" for _, _, v in drawn]
        widest = max((text_size(sheet, text, TICK_SIZE)[0] for text in set(texts)), default=0.0)
        n_columns, n_rows = len(categories(panel, "x")), len(categories(panel))
        if (
            widest > 0.9 * axes.bbox.width / n_columns
            or axes.bbox.height / n_rows < 0.12 * sheet.dpi
        ):
            continue
        for (x, y, value), text in zip(drawn, texts, strict=True):
            red, green, blue, _ = mesh.cmap(mesh.norm(value))
            is_light = 0.299 * red + 0.587 * green + 0.114 * blue > 0.5
            axes.text(
                x, y, text, ha="center", va="center", fontsize=TICK_SIZE,
                color=INK if is_light else "white",
            )  # fmt: skip


def _guide_points(axes: Any, panel: Panel, axis: str, value: Any) -> list[tuple[float, float]]:
    frame, shares = axes.bbox, [k / 60 for k in range(61)]
    if axis == "x":
        at = axes.transData.transform((drawn_value(value, panel.x), axes.get_ylim()[0]))[0]
        return [(at, frame.y0 + share * frame.height) for share in shares]
    at = axes.transData.transform((axes.get_xlim()[0], drawn_value(value, panel.y)))[1]
    return [(frame.x0 + share * frame.width, at) for share in shares]


def _region_names(sheet: Any, axes: Any, panel: Panel) -> list[Box]:
    """Each design's name once, where its region holds all of the text, nearest to its middle."""
    frame, taken = axes.bbox, []
    for label in dict.fromkeys(s.label for s in panel.series if s.role is Role.REGION and s.label):
        columns = [
            column
            for series in panel.series
            if series.role is Role.REGION and series.label == label
            for column in _columns(axes, panel, series)
        ]
        if not columns:
            continue
        text = broken(label)
        width, height = text_size(sheet, text, LABEL_SIZE, "bold")
        x, y = _middle(columns, width + 8, height + 8)
        x = min(max(x, frame.x0 + width / 2 + 4), frame.x1 - width / 2 - 4)
        sheet.text(
            x / sheet.bbox.width, y / sheet.bbox.height, text, ha="center", va="center",
            fontsize=LABEL_SIZE, fontweight="bold", color=INK, bbox=_ON_FILL,
        )  # fmt: skip
        taken.append(Box(x - width / 2, y - height / 2, x + width / 2, y + height / 2))
    return taken


def _columns(axes: Any, panel: Panel, series: Series) -> Iterator[tuple[float, ...]]:
    """(x, low, x, high) of a region's columns. [pixels]"""
    for x, low, high in zip(series.x, series.low, series.high, strict=True):
        if low is not None and high is not None:
            at = drawn_value(x, panel.x)
            ends = [(at, drawn_value(end, panel.y)) for end in (low, high)]
            yield tuple(axes.transData.transform(ends).ravel())


def _middle(
    columns: Sequence[tuple[float, ...]], width: float, height: float
) -> tuple[float, float]:
    """A place in the columns (x, low, x, high) around which a text of that size fits, if any."""
    area = sum(high - low for _, low, _, high in columns) or 1.0
    centre_x = sum(x * (high - low) for x, low, _, high in columns) / area
    centre_y = sum((low + high) / 2 * (high - low) for _, low, _, high in columns) / area
    best, place = math.inf, (centre_x, centre_y)
    for x, low, _, high in columns:
        for k in range(1, 20):
            y = low + (high - low) * k / 20
            missed = sum(
                not _inside(columns, x + dx * width / 2, y + dy * height / 2)
                for dx in (-1, 0, 1) for dy in (-1, 1)
            )  # fmt: skip
            cost = missed * 1e4 + math.dist((x, y), (centre_x, centre_y))
            if cost < best:
                best, place = cost, (x, y)
    return place


def _inside(columns: Sequence[tuple[float, ...]], x: float, y: float) -> bool:
    if not columns[0][0] <= x <= columns[-1][0]:
        return False
    nearest = min(abs(column[0] - x) for column in columns)
    return any(low <= y <= high for at, low, _, high in columns if abs(at - x) <= nearest + 1e-6)
