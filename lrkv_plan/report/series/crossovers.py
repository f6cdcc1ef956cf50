"""Which of two designs decodes faster, as a map over context and rank, or context and batch.

The boundary is exact at every column: each one is solved by ``latency.faster_map``, not read off a
grid, and so are the boundaries with the constants at the ends of their bands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.captions import caption, unmeasured
from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series

if TYPE_CHECKING:
    from lrkv_plan.latency.faster_map import Columns, FasterMap, Pair


def region_series(found: Columns, faster: int, label: str, ends: tuple[int, int]) -> list[Series]:
    """The intervals in which a design is faster: one series per interval up the column."""
    intervals = [(at, _intervals(start, changes, faster, ends)) for at, (start, changes) in found]
    series = []
    for k in range(max(len(parts) for _, parts in intervals)):
        column = [(at, parts[k] if k < len(parts) else None) for at, parts in intervals]
        edges = _closed(column, ends) if faster else column
        series.append(
            Series(
                name=f"{label} faster",
                role=Role.REGION,
                x=tuple(at for at, _ in edges),
                y=(None,) * len(edges),
                low=tuple(part and part[0] for _, part in edges),
                high=tuple(part and part[1] for _, part in edges),
                style=faster,
                label=f"{label} faster",
            )
        )
    return series


def _intervals(
    start: int | None, changes: Sequence[tuple[int, int]], faster: int, ends: tuple[int, int]
) -> list[tuple[int, int]]:
    """Contexts from and to which that design is faster."""
    edges = [(ends[0], start), *changes]
    stops = [*(at for at, _ in changes), ends[1]]
    return [(at, stop) for (at, who), stop in zip(edges, stops, strict=True) if who == faster]


_Interval = tuple[int, int] | None


def _closed(
    column: Sequence[tuple[float, _Interval]], ends: tuple[int, int]
) -> list[tuple[float, _Interval]]:
    """The intervals with an edge where they end between two columns.

    One that touches an end of the context closes there, at the next column; one that filled the
    column ends half way to it.
    """
    edges: list[tuple[float, _Interval]] = []
    for (at, part), (then, other) in pairwise(column):
        edges.append((at, part))
        if (part is None) == (other is None):
            continue
        held = part or other
        assert held is not None, "one of the two is an interval"
        if held == ends:
            half = (at + then) / 2
            edges += [(half, held), (half, None)] if part else [(half, None), (half, held)]
            continue
        end = ends[1] if held[1] == ends[1] else ends[0] if held[0] == ends[0] else held[0]
        edges.append((then, (end, end)) if part else (at, (end, end)))
    return [*edges, column[-1]]


def boundary_series(found: Columns, ends: tuple[int, int], best: str | None = None) -> list[Series]:
    """One line per change up the column; it leaves through the end that it went beyond.

    ``best`` names the design whose constants were taken at their best.
    """
    most = max(len(changes) for _, (_, changes) in found)
    return [
        Series(
            name=f"boundary, {best}" if best else "boundary",
            role=Role.BOUNDARY,
            x=tuple(at for at, _ in points),
            y=tuple(context for _, context in points),
            is_thin=best is not None,
            label=best,
        )
        for k in range(max(most, 1))
        if (points := _edge(found, k, ends)) and any(y is not None for _, y in points)
    ]


def _edge(found: Columns, k: int, ends: tuple[int, int]) -> list[tuple[float, int | None]]:
    """The k-th change of each column, and where it enters and leaves the range of contexts."""
    points: list[tuple[float, int | None]] = []
    places = [changes[k][0] if k < len(changes) else None for _, (_, changes) in found]
    for index, (at, (start, changes)) in enumerate(found):
        points.append((at, places[index]))
        if index + 1 == len(found):
            break
        then, (start_then, changes_then) = found[index + 1]
        gone = ends[1] if start == start_then else ends[0]
        if places[index] is not None and places[index + 1] is None:
            points.append((then, gone))
        elif places[index] is None and places[index + 1] is not None:
            points.append((at, gone))
        elif k == 0 and not changes and not changes_then and start != start_then:
            half = (at + then) / 2
            points += [(half, ends[0]), (half, ends[1]), (half, None)]
    return points


def crossover_map(
    solved: FasterMap,
    labels: tuple[str, str],
    *,
    where: str = "",
    inputs: Mapping[str, Any] | None = None,
) -> Figure:
    """Regions of the faster design, the boundary between them, and its band.

    Parameters
    ----------
    solved : the map; along the batch the designs are the same in all of its columns.
    """
    columns, over, low, high = solved.columns, solved.over, solved.low, solved.high
    batch_size, query_tokens = solved.batch_size, solved.query_tokens
    found, leaning = solved.found, solved.leaning
    regions = [region_series(found, faster, labels[faster], (low, high)) for faster in (0, 1)]
    bands = [
        one
        for better in (0, 1)
        for one in boundary_series(leaning[better], (low, high), f"{labels[better]} at best")
    ]
    x_axis = (
        Axis(
            key="batch_size", label="Sequences decoded together", scale="log2",
            low=columns[0][0], high=columns[-1][0],
        )
        if over == "batch_size"
        else Axis(
            key="rank", label="Rank per head", low=columns[0][0], high=columns[-1][0], step=16,
        )
    )  # fmt: skip
    sequences = "1 sequence" if batch_size == 1 else f"{batch_size:,} sequences"
    return Figure(
        kind="crossover-map",
        title=f"Which decodes faster, {labels[0]} or {labels[1]}?",
        caption=caption(
            where,
            "" if over == "batch_size" else sequences,
            "" if query_tokens == 1 else f"{query_tokens} query tokens",
            "whole steps compared",
            "at best: attention at the good end of its 90 % band, the other's at the bad end",
            *_everywhere(leaning, labels),
            unmeasured(zip(labels, columns[-1][1], strict=True)),
        ),
        inputs={
            **(inputs or {}),
            "over": over,
            "context_tokens": [low, high],
            "batch_size": None if over == "batch_size" else batch_size,
            "query_tokens": query_tokens,
        },
        panels=(
            Panel(
                name="map",
                x=x_axis,
                y=Axis(
                    key="context_tokens", label="Context, tokens", scale="log2", low=low, high=high
                ),
                series=(*regions[0], *regions[1], *boundary_series(found, (low, high)), *bands),
            ),
        ),
        remarks=_remarks(labels, columns[0][1]),
    )


def _everywhere(leaning: Sequence[Columns], labels: tuple[str, str]) -> list[str]:
    """What the bands' ends say where they leave no boundary to draw."""
    said = []
    for better, found in enumerate(leaning):
        leaders = {start for _, (start, changes) in found if start is not None and not changes}
        if len(leaders) == 1 and not any(changes for _, (_, changes) in found):
            leader = labels[leaders.pop()]
            said.append(f"with {labels[better]} at best, {leader} is faster everywhere")
    return said


def _remarks(labels: tuple[str, str], pair: Pair) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(
            f"{label}: {remark}"
            for label, model in zip(labels, pair, strict=True)
            for remark in model.remarks
        )
    )
