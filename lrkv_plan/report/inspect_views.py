"""What ``inspect`` shows: a row per layer for people, a row per layer and tensor for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lrkv_plan.checkpoint.base_fit import exact_from_rank
from lrkv_plan.checkpoint.inspection import LayerInspection
from lrkv_plan.checkpoint.rank_plan import RankPlan
from lrkv_plan.checkpoint.residual_spectra import rank_keeping
from lrkv_plan.report.inspect_notes import inspect_notes
from lrkv_plan.report.tables import Column, Row, Table


def inspect_table(
    inputs: Row,
    layers: Sequence[LayerInspection],
    *,
    energy: float,
    skipped: Mapping[int, str],
    plan: RankPlan | None,
) -> Table:
    """The answer of ``inspect``.

    Parameters
    ----------
    energy : share of sum_h ||W_h||^2 that the stated ranks keep.
    skipped : layers without keys and values of their own, and why.
    plan : ranks under a budget, where one was given.
    """
    rows = [row for layer in layers for row in layer_rows(layer, energy, plan)]
    return Table(
        title=_title(inputs, layers),
        inputs=inputs,
        rows=rows if plan is None else [*rows, _plan_row(plan)],
        columns=_columns(layers, energy, plan),
        remarks=inspect_notes(layers, skipped, plan),
        shown_rows=[_shown_row(layer, energy, plan) for layer in layers],
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
