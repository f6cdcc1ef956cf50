"""The picture of ``inspect``: relative error by rank, keys beside values."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import median

from lrkv_plan.checkpoint.inspection import LayerInspection
from lrkv_plan.checkpoint.residual_spectra import ResidualSpectrum
from lrkv_plan.errors import SpecError
from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.tables import Row

_TITLES = {"key": "Keys", "value": "Values"}


def spectra_figure(
    inputs: Row, layers: Sequence[LayerInspection], *, energy: float, remarks: Sequence[str]
) -> Figure:
    """Errors of the mean and the fitted base: the median layer, and the spread of all layers.

    Raises
    ------
    SpecError
        If no layer has a spectrum.
    """
    panels = tuple(
        _panel(name, [s for layer in layers for n, s in layer.spectra if n == name], energy)
        for name in _TITLES
    )
    if not any(panel.series for panel in panels):
        raise SpecError(f"{inputs['name']}: there is no spectrum to draw, all weights are zero")
    return Figure(
        kind="residual-spectra",
        title=f"{inputs['name']}: error of a shared base plus rank-r residuals",
        caption=caption(
            f"{len(layers)} of {inputs['n_layers']} layers",
            "lines: median layer; thin: least and largest of all layers" if len(layers) > 1 else "",
            "weights only, not language-model loss",
        ),
        inputs=inputs,
        panels=tuple(panel for panel in panels if panel.series),
        remarks=tuple(remarks),
    )


def _panel(name: str, spectra: Sequence[ResidualSpectrum], energy: float) -> Panel:
    defined = [spectrum for spectrum in spectra if spectrum.undefined is None]
    width = max((spectrum.width for spectrum in defined), default=1)
    guide = Guide(
        name=f"energy {energy:.4g} kept", axis="y", value=sqrt(1 - energy),
        label=f"{100 * energy:.4g} % of energy kept",
    )  # fmt: skip
    bases = [("mean base", 2, [s.mean_errors for s in defined])]
    fitted = [s.fitted_errors for s in defined if s.fitted_errors is not None]
    bases += [("fitted base", 1, fitted)] if fitted else []
    return Panel(
        name=name,
        title=_TITLES[name],
        x=Axis(key="rank", label="rank of the residual, per head", low=0, high=width),
        y=Axis(key="relative_error", label="relative Frobenius error", low=0),
        series=(
            *(series for label, style, errors in bases for series in _base(label, style, errors)),
            *_names(bases),
        ),
        guides=(guide,) if energy < 1 else (),
    )


def _base(label: str, style: int, errors: Sequence[Sequence[float]]) -> list[Series]:
    """The median line and, for several layers, thin lines at both ends. Widths may differ."""
    if not errors:
        return []
    widest = max(len(row) for row in errors)
    by_rank = list(zip(*([*row, *[0.0] * (widest - len(row))] for row in errors), strict=True))
    ends = [(f"{label}, median layer", [median(at) for at in by_rank], False)]
    if len(errors) > 1:
        ends += [
            (f"{label}, least", [min(at) for at in by_rank], True),
            (f"{label}, largest", [max(at) for at in by_rank], True),
        ]
    return [
        Series(
            name=name, role=Role.LINE, x=tuple(range(widest)), y=tuple(map(float, values)),
            style=style, is_thin=thin,
        )
        for name, values, thin in ends
    ]  # fmt: skip


def _names(bases: Sequence[tuple[str, int, Sequence[Sequence[float]]]]) -> list[Series]:
    """A marker with the base's name where its median line is far from the other: all end in 0."""
    medians = [[median(at) for at in zip(*errors, strict=False)] for _, _, errors in bases]
    if not all(medians):
        return []
    gaps = [max(at) - min(at) if len(at) > 1 else 0.0 for at in zip(*medians, strict=False)]
    rank = gaps.index(max(gaps)) if max(gaps) > 0 else len(gaps) // 3
    return [
        Series(
            name=label, role=Role.POINTS, x=(rank,), y=(line[rank],), style=style, texts=(label,)
        )
        for (label, style, _), line in zip(bases, medians, strict=True)
    ]
