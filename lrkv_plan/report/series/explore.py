"""The curves of a page at the sliders' first position, for readers without its script."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.figures import Axis, Figure, Panel, Role, Series

if TYPE_CHECKING:
    from lrkv_plan.report.explorer import GridDesign, Measure, SliderGrid

_CONTEXT = 1  # the axis along which the pictures go


def users_figure(grid: SliderGrid) -> Figure:
    """Users that fit against the context of each, a line per design."""

    def series(design: GridDesign) -> Series | None:
        return _line(grid, design, lambda _: True, "total_sequences")

    axis = Axis(key="total_sequences", label="Users that fit", scale="log10")
    return _figure(grid, "explore-users", axis, series)


def steps_figure(grid: SliderGrid) -> Figure:
    """A step's time with its band against the context, where the batch fits."""

    def series(design: GridDesign) -> Series | None:
        fits = design.measure("batch_fits")
        held = fits.refused is None
        return _line(
            grid, design, lambda at: not held or fits.values[fits.place(at)], "step_s", "low_s",
            "high_s",
        )  # fmt: skip

    batch = grid.axes[2].texts[grid.axes[2].start]
    axis = Axis(key="step_s", label=f"Step at batch {batch}, ms", scale="log10", factor=1e3)
    return _figure(grid, "explore-steps", axis, series)


def _figure(
    grid: SliderGrid, kind: str, y: Axis, series: Callable[[GridDesign], Series | None]
) -> Figure:
    shown = [one for one in grid.designs if "planned" in one.sets and not one.is_covered]
    x = Axis(key="context_tokens", label="Context, tokens", scale="log2")
    lines = tuple(filter(None, map(series, shown)))
    return Figure(
        kind=kind, title="", caption="", inputs={},
        panels=(Panel(name=kind, x=x, y=y, series=lines),),
    )  # fmt: skip


def _line(
    grid: SliderGrid,
    design: GridDesign,
    is_shown: Callable[[tuple[int, ...]], bool],
    key: str,
    low: str | None = None,
    high: str | None = None,
) -> Series | None:
    places = [
        (*grid.start[:_CONTEXT], n, *grid.start[_CONTEXT + 1 :])
        for n in range(len(grid.axes[_CONTEXT].values))
    ]
    places = [at for at in places if is_shown(at)]
    if design.measure(key).refused is not None or not places:
        return None

    def values(measure: Measure) -> tuple[Any, ...]:
        return tuple(measure.values[measure.place(at)] for at in places)

    name = design.name.texts[design.name.place(grid.start)]
    return Series(
        name=name, role=Role.LINE, label=name, style=design.style,
        x=tuple(grid.axes[_CONTEXT].values[at[_CONTEXT]] for at in places),
        y=values(design.measure(key)),
        low=() if low is None else values(design.measure(low)),
        high=() if high is None else values(design.measure(high)),
    )  # fmt: skip
