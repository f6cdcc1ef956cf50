"""The datasheet roofline of a GPU with designs and decode paths placed on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lrkv_plan.report.captions import caption, gpus
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.views.specs import model_inputs
from lrkv_plan.units import format_rate

if TYPE_CHECKING:
    from lrkv_plan.latency.roofline import RooflinePoint
    from lrkv_plan.specs.hardware import HardwareProfile
    from lrkv_plan.specs.model import ModelSpec

_UNIT_NAMES = {"fp32": "plain fp32"}


def roofline(
    model: ModelSpec,
    designs: Sequence[tuple[str, Sequence[RooflinePoint]]],
    hardware: HardwareProfile,
    *,
    context_tokens: int,
    kv_dtype: str = "bf16",
    tp_size: int = 1,
    query_tokens: int = 1,
    heads_per_tile: int | None = None,
    units: Sequence[str] = ("bf16", "fp32"),
) -> Figure:
    """Attainable arithmetic against intensity.

    Parameters
    ----------
    designs : (label, its point on each of ``units``).
    units : peaks drawn as ceilings; designs stand on the first, and hollow on another that holds
        them lower.

    Notes
    -----
    attainable = min(intensity x bandwidth, peak); the two meet at ridge = peak / bandwidth.
    """
    told: dict[str, Any] = {
        "context_tokens": context_tokens, "kv_dtype": kv_dtype, "tp_size": tp_size,
        "query_tokens": query_tokens, "heads_per_tile": heads_per_tile,
    }  # fmt: skip
    bandwidth, peaks = hardware.mem_bandwidth_bytes_per_s, hardware.peak_flops_per_s
    points: list[Series] = []
    for style, (name, found) in enumerate(designs):
        points += _placed(name, style, found)
    intensities = [x for series in points for x in series.x]
    ridges = [peaks[unit] / bandwidth for unit in units]
    low, high = 0.4 * min(*intensities, *ridges, 1.0), 16 * max(*intensities, *ridges)
    ceilings = [
        _ceiling(hardware, unit, ridge, low, high, style)
        for style, (unit, ridge) in enumerate(zip(units, ridges, strict=True))
    ]
    guides = tuple(
        Guide(name=f"ridge {unit}", axis="x", value=ridge, label=f"ridge {ridge:.3g}")
        for unit, ridge in zip(units, ridges, strict=True)
    )
    lowest = min(y for series in points for y in series.y)
    return Figure(
        kind="roofline",
        title=f"Decode attention on {hardware.title}",
        caption=caption(
            f"{model.name} backbone, {context_tokens:,} tokens",
            f"{kv_dtype} cache",
            "" if query_tokens == 1 else f"{query_tokens} query tokens",
            gpus(tp_size),
            "" if heads_per_tile is None else f"{heads_per_tile} heads per read of a shared row",
            f"datasheet limits, {format_rate(bandwidth, 'B')}, no efficiencies",
            "hollow: the same on plain units" if any(s.is_open for s in points) else "",
        ),
        inputs={
            "model": model_inputs(model),
            "gpu": hardware.name,
            "units": list(units),
            **told,
        },
        panels=(
            Panel(
                name="roofline",
                x=Axis(
                    key="intensity_flops_per_byte", label="Intensity, FLOP per byte",
                    scale="log10", low=low, high=high,
                ),
                y=Axis(
                    key="attainable_flops_per_s", label="Attainable, TFLOP/s", scale="log10",
                    factor=1e-12, low=min(0.5 * lowest, low * bandwidth),
                    high=4 * max(peaks[unit] for unit in units),
                ),
                series=(*ceilings, *points),
                guides=guides,
            ),
        ),
        remarks=("a bound from the datasheet: no kernel reaches all of it",),
    )  # fmt: skip


def _placed(name: str, style: int, found: Sequence[RooflinePoint]) -> list[Series]:
    """The design's point on the first ceiling, and hollow ones on lower ceilings it meets."""
    series = []
    for index, point in enumerate(found):
        attained = point.n_flops / max(point.memory_s, point.compute_s)
        if index and point.bound == "memory":
            continue  # the same point of the bandwidth's slope
        series.append(
            Series(
                name=name,
                role=Role.POINTS,
                x=(point.intensity_flops_per_byte,),
                y=(attained,),
                style=style,
                texts=("" if index else name,),
                facts={"path": point.path, "units": point.units, "bound": point.bound},
                is_open=bool(index),
            )
        )
    return series


def _ceiling(
    hardware: HardwareProfile, unit: str, ridge: float, low: float, high: float, style: int
) -> Series:
    peak, bandwidth = hardware.peak_flops_per_s[unit], hardware.mem_bandwidth_bytes_per_s
    name = _UNIT_NAMES.get(unit, f"{unit} tensor cores")
    return Series(
        name=name,
        role=Role.CEILING,
        x=(low, ridge, high),
        y=(low * bandwidth, peak, peak),
        style=style,
        label=f"{name}, {format_rate(peak, 'FLOP')}",
        facts={"units": unit},
    )
