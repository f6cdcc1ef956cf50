"""Inspected layers for people: spectra, head maps, planned ranks, and a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from typing import Any

from lrkv_plan.checkpoint.inspection import LayerInspection
from lrkv_plan.checkpoint.rank_plan import RankPlan
from lrkv_plan.checkpoint.spectra import ResidualSpectrum, exact_from_rank, rank_keeping
from lrkv_plan.errors import SpecError, one_line
from lrkv_plan.report.captions import caption
from lrkv_plan.report.figures import Axis, Figure, Guide, Panel, Role, Series
from lrkv_plan.report.screens.inspect import InspectAnswer, inspect_equation, inspect_screen
from lrkv_plan.report.tables import Column, Row, Table, percent

_WEIGHTS_ONLY = (
    "errors are relative Frobenius norms of weights, base plus the best rank-r residual of each "
    "head; Frobenius error is not language-model loss, which depends on data and was not measured"
)
_INVARIANCE = (
    "head maps W_Q W_K^T are the scores without positions: under RoPE the map depends on the "
    "distance and a rotation of a head leaves it alone only if it commutes with RoPE; query/key "
    "norms, their gains and biases are left out and restrict it further. Rank-r key latents "
    "cannot be rotated in rank space unless their basis spans whole rotary planes"
)


def inspect_notes(
    layers: Sequence[LayerInspection], skipped: Mapping[int, str], plan: RankPlan | None
) -> tuple[str, ...]:
    """Remarks in the order of their weight."""
    notes = [_WEIGHTS_ONLY, _INVARIANCE, *_fit(layers)]
    shared = [layer for layer in layers if layer.maps.n_heads != layer.key.n_heads]
    if shared:
        notes.append(
            f"{shared[0].maps.n_heads} query heads share {shared[0].key.n_heads} keys and values: "
            "spectra are over the latter, head maps over the former"
        )
    if any(layer.from_latent for layer in layers):
        notes.append(
            "MLA: keys and values are maps from the latent, head maps their part without position"
        )
    notes += _undefined(layers)
    for reason in dict.fromkeys(skipped.values()):
        which = [str(layer) for layer, why in skipped.items() if why == reason]
        verb = "layer" if len(which) == 1 else "layers"
        notes.append(one_line(f"left out: {verb} {', '.join(which)}, which {_plural(reason)}"))
    return (*notes, *(_plan(layers, plan) if plan is not None else ()))


def _plural(reason: str) -> str:
    return reason.replace("has no", "without")


def _fit(layers: Sequence[LayerInspection]) -> list[str]:
    fitted = [s for layer in layers for _, s in layer.spectra if s.fitted_errors is not None]
    spectra = [s for s in fitted if s.last_decrease is not None]
    if fitted and not spectra:
        return ["fitted base: of two heads the best one is known in closed form"]
    if not spectra:
        return []
    most = max(s.last_decrease or 0.0 for s in spectra)
    steps = max(s.n_alternations for s in spectra)
    ranks = max((s.fit_ranks for s in spectra), key=len)
    exact = (
        "from rank head_dim - floor(head_dim / heads) on any weights are exact, with a cache no "
        "smaller than the checkpoint's heads have"
    )
    if not ranks:
        return ["fitted base: no rank left to fit, so it is the mean below exactness", exact]
    spaced = f"at {len(ranks)} ranks from {ranks[0]} to {ranks[-1]}"
    return [
        f"fitted base: truncated SVDs and the least-squares base by turns, {spaced}, up to "
        f"{steps} turns each, started from the mean and then from the rank before; other ranks "
        "take the best of these bases. The last turn lowered a relative error by at most "
        f"{most:.2g}; a minimum found so is a local one",
        exact,
    ]


def _undefined(layers: Sequence[LayerInspection]) -> list[str]:
    found: dict[str, list[int]] = {}
    for layer in layers:
        for name, spectrum in layer.spectra:
            if spectrum.undefined:
                found.setdefault(f"{name} spectrum: {spectrum.undefined}", []).append(layer.layer)
        if layer.maps.undefined:
            found.setdefault(layer.maps.undefined, []).append(layer.layer)
    return [
        one_line(f"undefined in layer {', '.join(map(str, where))}: {reason}")
        for reason, where in found.items()
    ]


def _plan(layers: Sequence[LayerInspection], plan: RankPlan) -> list[str]:
    lines = [
        f"plan: {float(plan.bytes_per_token):,.6g} of {float(plan.budget_bytes_per_token):,.6g} "
        f"B/token ({percent(plan.ratio_to_mha)} of MHA) discards {plan.loss:.4%} of the energy, a "
        "mean over layers, keys and values, interpolated between fitted ranks; rank "
        f"{plan.uniform_rank} everywhere takes "
        f"{float(plan.uniform_bytes_per_token):,.6g} B/token and discards {plan.uniform_loss:.4%}"
    ]
    if any(layer.maps.n_heads != layer.key.n_heads for layer in layers):
        lines.append(
            "the plan's bytes keep a latent per query head, as LRKV does; heads that share keys "
            "could share it, which a model spec cannot say"
        )
    return lines


def inspect_table(
    inputs: Row,
    layers: Sequence[LayerInspection],
    *,
    energy: float,
    skipped: Mapping[int, str],
    plan: RankPlan | None,
    following: Sequence[str] = (),
) -> Table:
    """The answer of ``inspect``.

    Parameters
    ----------
    energy : share of sum_h ||W_h||^2 that the stated ranks keep.
    skipped : layers without keys and values of their own, and why.
    plan : ranks under a budget, where one was given.
    following : the words of the next command.
    """
    rows = [row for layer in layers for row in layer_rows(layer, energy, plan)]
    rows += [] if plan is None else [_plan_row(plan)]
    notes = inspect_notes(layers, skipped, plan)
    answer = InspectAnswer(inputs=inputs, layers=layers, energy=energy, plan=plan, remarks=notes)
    return Table(
        title=_title(inputs, layers),
        inputs=inputs,
        rows=[{"model": inputs["name"], **row} for row in rows],
        columns=_columns(layers, energy, plan),
        notes=notes,
        shown_rows=[_shown_row(layer, energy, plan) for layer in layers],
        screen=lambda: inspect_screen(answer, following),
        explain=inspect_equation,
    )


def layer_rows(
    layer: LayerInspection, energy: float, plan: RankPlan | None = None
) -> list[dict[str, Any]]:
    """Rows of one layer: keys, values, and the maps of its query heads."""
    rows: list[dict[str, Any]] = []
    for name, spectrum in layer.spectra:
        fitted = spectrum.fitted_errors
        row = {
            "layer": layer.layer,
            "tensor": name,
            "n_heads": spectrum.n_heads,
            "head_dim": spectrum.width,
            "input_dim": layer.n_inputs,
            "base_energy_share": spectrum.base_energy_share,
            "kept_energy_share": energy,
            "mean_base_rank": rank_keeping(spectrum.mean_errors, energy),
            "fitted_base_rank": rank_keeping(fitted or (), energy),
            "exact_from_rank": exact_from_rank(spectrum.n_heads, spectrum.width),
            "mean_base_relative_errors": list(spectrum.mean_errors),
            "fitted_base_relative_errors": None if fitted is None else list(fitted),
            "fit_ranks": list(spectrum.fit_ranks),
            "fit_alternations": spectrum.n_alternations,
            "fit_last_decrease": spectrum.last_decrease,
            "undefined": spectrum.undefined,
        }
        if plan is not None:
            row |= {
                "planned_rank": plan.ranks[layer.layer, name],
                "uniform_rank": plan.uniform_rank,
            }
        rows.append(row)
    maps = layer.maps
    rows.append(
        {
            "layer": layer.layer,
            "tensor": "query_key_map",
            "n_heads": maps.n_heads,
            "n_maps": maps.n_maps,
            "effective_rank": maps.effective_rank,
            "effective_rank_ceiling": maps.effective_rank_ceiling,
            "centred_effective_rank": maps.centred_effective_rank,
            "centred_effective_rank_ceiling": maps.centred_effective_rank_ceiling,
            "mean_cosine": maps.mean_cosine,
            "max_cosine": maps.max_cosine,
            "closest_heads": None if maps.closest_heads is None else list(maps.closest_heads),
            "cosine_gram": maps.cosine.tolist(),
            "undefined": maps.undefined,
        }
    )
    return rows


def _plan_row(plan: RankPlan) -> dict[str, Any]:
    return {
        "layer": None,
        "tensor": "rank_plan",
        "budget_bytes_per_token": plan.budget_bytes_per_token,
        "planned_bytes_per_token": plan.bytes_per_token,
        "planned_ratio_to_mha": plan.ratio_to_mha,
        "planned_discarded_energy_share": plan.loss,
        "uniform_rank": plan.uniform_rank,
        "uniform_bytes_per_token": plan.uniform_bytes_per_token,
        "uniform_discarded_energy_share": plan.uniform_loss,
    }


def _title(inputs: Row, layers: Sequence[LayerInspection]) -> str:
    kinds = dict.fromkeys(
        f"{layer.maps.n_heads} query, {layer.key.n_heads} key/value heads of {layer.key.width}"
        for layer in layers
    )
    return f"{inputs['name']}: {len(layers)} of {inputs['n_layers']} layers, {'; '.join(kinds)}"


def _shown_row(layer: LayerInspection, energy: float, plan: RankPlan | None) -> dict[str, Any]:
    maps = layer.maps
    row: dict[str, Any] = {"layer": layer.layer}
    for name, spectrum in layer.spectra:
        row[f"{name}_base"] = spectrum.base_energy_share
        row[f"{name}_mean"] = rank_keeping(spectrum.mean_errors, energy)
        row[f"{name}_fitted"] = rank_keeping(spectrum.fitted_errors or (), energy)
        if plan is not None:
            row[f"{name}_plan"] = plan.ranks[layer.layer, name]
    row["centred"] = _of_ceiling(maps.centred_effective_rank, maps.centred_effective_rank_ceiling)
    row["uncentred"] = _of_ceiling(maps.effective_rank, maps.effective_rank_ceiling)
    row["mean_cosine"] = maps.mean_cosine
    row["closest"] = (
        None
        if maps.closest_heads is None
        else f"{maps.max_cosine:.3f} ({maps.closest_heads[0]}, {maps.closest_heads[1]})"
    )
    return row


def _of_ceiling(value: float | None, ceiling: int) -> str:
    return "undefined" if value is None else f"{value:.2f} of {ceiling}"


def _columns(
    layers: Sequence[LayerInspection], energy: float, plan: RankPlan | None
) -> tuple[Column, ...]:
    fitted = any(s.fitted_errors is not None for layer in layers for _, s in layer.spectra)
    columns = [Column(key="layer", title="layer")]
    for name in ("key", "value"):
        columns.append(Column(key=f"{name}_base", title=f"{name} base", text=_share))
        columns.append(Column(key=f"{name}_mean", title=f"r({energy:.4g}) mean"))
        if fitted:
            columns.append(Column(key=f"{name}_fitted", title="fitted"))
        if plan is not None:
            columns.append(Column(key=f"{name}_plan", title="plan"))
    columns += [
        Column(key="centred", title="eff. rank, centred"),
        Column(key="uncentred", title="uncentred"),
        Column(key="mean_cosine", title="mean cosine", text=lambda value: f"{value:.3f}"),
        Column(key="closest", title="closest heads"),
    ]
    return tuple(columns)


def _share(value: float) -> str:
    return f"{value:.1%}".replace("%", " %")


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
