"""A picture as data: panels, axes with units, series and guide lines, before anything is drawn.

Values are in base units (bytes, seconds, FLOPs, tokens, ratios); an axis says by what they are
multiplied when drawn. The same figure is a table of the plotted points.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lrkv_plan.report.tables import Column, Table


class Role(str, enum.Enum):
    """What a series is, and with that how it is drawn."""

    LINE = "line"  # joined points, named at the end
    POINTS = "points"  # single points, each with its own text or the series' name
    CEILING = "ceiling"  # a limit: a heavy line, named along it
    STACK = "stack"  # one part of horizontal bars; x is the length, y the category
    BAND = "band"  # a whisker from low to high over the whole bar
    REGION = "region"  # at each x, from low to high
    BOUNDARY = "boundary"  # the edge between regions, with its band
    CLOUD = "cloud"  # many small points without names
    KEYED = "keyed"  # points whose names stand in a key above the panel
    STEPS_AFTER = "steps_after"  # joined by steps: each y holds until the next x
    STEPS_BEFORE = "steps_before"  # joined by steps: each y holds since the x before
    CELLS = "cells"  # one shade per pair of categories, by ``values``
    SWING = "swing"  # bars from ``origin`` to x, y the category


@dataclass(frozen=True, kw_only=True)
class Axis:
    """``key`` names the values in rows; ``factor`` turns base units into the label's unit."""

    key: str
    label: str
    scale: str = "linear"  # linear, log2, log10 or category
    factor: float = 1.0
    low: float | None = None
    high: float | None = None
    step: float | None = None  # between ticks of a linear axis, in base units


@dataclass(frozen=True, kw_only=True)
class Series:
    """Points of one name. ``style`` picks colour, marker and line; equal styles go together.

    ``texts`` are drawn beside single points; ``label`` names the series in the picture (None draws
    no name). ``facts`` are columns that all its rows share.
    """

    name: str
    role: Role
    x: tuple[Any, ...]
    y: tuple[Any, ...]
    low: tuple[Any, ...] = ()
    high: tuple[Any, ...] = ()
    style: int = 0
    label: str | None = None
    texts: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()  # of cells; the panel's ``value`` says their key and unit
    origin: Any = None  # where bars of a swing begin
    facts: Mapping[str, Any] = field(default_factory=dict)
    is_open: bool = False  # hollow markers: a variant of the filled ones
    is_thin: bool = False  # a guide to the eye rather than a result


@dataclass(frozen=True, kw_only=True)
class Guide:
    """A straight line across the panel at ``value`` of the x or y axis, such as a budget."""

    name: str
    axis: str
    value: Any
    label: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes."""

    name: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    guides: tuple[Guide, ...] = ()
    title: str | None = None
    value: Axis | None = None  # of cells: what their shade shows


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture: ``caption`` states the inputs in one small line, ``remarks`` the caveats.

    At double width its panels stand in ``columns`` columns; side by side when None.
    """

    kind: str
    title: str
    caption: str
    inputs: Mapping[str, Any]
    panels: tuple[Panel, ...]
    remarks: tuple[str, ...] = ()
    columns: int | None = None


def figure_rows(figure: Figure) -> list[dict[str, Any]]:
    """One row per plotted point and guide line, in base units."""
    several = len(figure.panels) > 1
    rows = []
    for panel in figure.panels:
        place = {"panel": panel.name} if several else {}
        rows += [{**place, **row} for row in _panel_rows(panel)]
    return rows


def _panel_rows(panel: Panel) -> Iterator[dict[str, Any]]:
    x_key, y_key = panel.x.key, panel.y.key
    for series in panel.series:
        if series.role in (Role.STEPS_AFTER, Role.STEPS_BEFORE):
            continue  # they join points that are a series of their own
        for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
            spread = [ends[index] for ends in (series.low, series.high) if ends]
            if y is None and not any(value is not None for value in spread):
                continue  # nothing is drawn here
            row = {"series": series.name, **series.facts, x_key: x, y_key: y}
            if panel.value is not None and series.values:
                row[panel.value.key] = series.values[index]
            spread_key = x_key if series.role is Role.BAND else y_key
            if series.low:
                row[f"low_{spread_key}"] = series.low[index]
            if series.high:
                row[f"high_{spread_key}"] = series.high[index]
            yield row
    for guide in panel.guides:
        values = {x_key: None, y_key: None}
        values[x_key if guide.axis == "x" else y_key] = guide.value
        yield {"series": guide.name, **values}


def figure_table(figure: Figure) -> Table:
    """The plotted points as a table of every format."""
    rows = figure_rows(figure)
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return Table(
        title=f"{figure.title} ({figure.caption})",
        inputs=figure.inputs,
        rows=rows,
        columns=tuple(
            Column(
                key=key,
                title=key,
                text=_number_text,
                is_number=not any(isinstance(row.get(key), str) for row in rows),
            )
            for key in keys
        ),
        notes=figure.remarks,
    )


def _number_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{float(value):,.6g}"
