"""The screen of ``inspect``: the ranks that keep a share of energy, and a plan's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high
from typing import TYPE_CHECKING, Any

from lrkv_plan.checkpoint.spectra import rank_keeping
from lrkv_plan.report.screen import Row, Screen, ScreenColumn, short_percent
from lrkv_plan.report.screens.rank import budget_words
from lrkv_plan.report.tables import count

if TYPE_CHECKING:
    from lrkv_plan.checkpoint.inspection import LayerInspection
    from lrkv_plan.checkpoint.rank_plan import RankPlan
    from lrkv_plan.checkpoint.spectra import ResidualSpectrum

_NAMES = ("key", "value")


@dataclass(frozen=True, kw_only=True)
class InspectAnswer:
    """Layers of one checkpoint, the share of energy to keep, and the plan if one was asked for."""

    inputs: Mapping[str, Any]
    layers: Sequence[LayerInspection]
    energy: float
    plan: RankPlan | None
    remarks: Sequence[str]

    def rank(self, spectrum: ResidualSpectrum) -> int | None:
        """The rank that keeps the share, with a fitted base where one was fitted."""
        return rank_keeping(spectrum.best_errors, self.energy)

    def ranks(self, name: str) -> list[int]:
        """That rank in every layer whose spectrum exists."""
        spectra = (dict(layer.spectra)[name] for layer in self.layers)
        found = (self.rank(one) for one in spectra if one.undefined is None)
        return [rank for rank in found if rank is not None]


def inspect_screen(answer: InspectAnswer, following: Sequence[str]) -> Screen:
    """One row per layer: what the base keeps, the rank of keys and values, the maps of heads."""
    return Screen(
        verdict=tuple(_verdict(answer)),
        rows=[{"layer": layer} for layer in answer.layers],
        columns=tuple(_columns(answer)),
        foot=(
            *(text for text in answer.remarks if text.startswith(("undefined", "left out"))),
            "Frobenius errors of weights, not language-model loss. Why: --explain",
        ),
        following=[following] if following else (),
    )  # fmt: skip


def _verdict(answer: InspectAnswer) -> Iterator[str]:
    if answer.plan is not None:
        yield _planned(answer, answer.plan)
    told = []
    for name in _NAMES:
        ranks = answer.ranks(name)
        if ranks:
            ends = f" ({min(ranks)} to {max(ranks)})" if min(ranks) < max(ranks) else ""
            told.append(f"{count(median_high(ranks))}{ends} for {name}s")
    share = short_percent(answer.energy)
    where = f"{len(answer.layers)} of {answer.inputs['n_layers']} layers"
    if told:
        median_word = " in the median layer" if len(answer.layers) > 1 else ""
        yield f"Rank {' and '.join(told)} keeps {share} of the energy{median_word}; {where} read."
    else:
        yield f"No rank keeps {share} of the energy: {where} read, all their weights are zero."


def _planned(answer: InspectAnswer, plan: RankPlan) -> str:
    ranks, uniform = list(plan.ranks.values()), plan.uniform_rank
    budget = budget_words(str(answer.inputs["budget"]))
    if min(ranks) == max(ranks):
        return f"In {budget} rank {ranks[0]} everywhere loses {_lost(plan.loss)} of the energy."
    return (
        f"In {budget} ranks of {min(ranks)} to {max(ranks)} lose {_lost(plan.loss)} of the energy; "
        f"one rank for all, {uniform}, loses {_lost(plan.uniform_loss)}."
    )


def _lost(share: float) -> str:
    """A share that may be zero but for rounding."""
    return short_percent(share) if share >= 1e-5 else "under 0.001 %"


def _columns(answer: InspectAnswer) -> Iterator[ScreenColumn]:
    def spectrum(name: str, write: Callable[[Any], str]) -> Callable[[Row], str]:
        return lambda row: write(dict(row["layer"].spectra)[name])

    def base(one: ResidualSpectrum) -> str:
        share = one.base_energy_share
        return "-" if share is None else short_percent(share)

    def kept(one: ResidualSpectrum) -> str:
        rank = None if one.undefined else answer.rank(one)
        return "-" if rank is None else count(rank)

    def of_plan(name: str) -> Callable[[Row], str]:
        ranks = {} if answer.plan is None else answer.plan.ranks
        return lambda row: count(ranks[row["layer"].layer, name])

    yield ScreenColumn(title="layer", text=lambda row: str(row["layer"].layer))
    for name in _NAMES:
        yield ScreenColumn(title=f"{name} rank", text=spectrum(name, kept))
        if answer.plan is not None:
            yield ScreenColumn(title=f"{name} plan", text=of_plan(name))
        yield ScreenColumn(title=f"{name} base", text=spectrum(name, base), drop=1)
    yield ScreenColumn(title="eff. rank, centred", text=_centred, drop=2)
    yield ScreenColumn(
        title="mean cosine", text=lambda row: _three(row["layer"].maps.mean_cosine), drop=3
    )
    yield ScreenColumn(title="closest heads", text=_closest, drop=4)


def _three(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _centred(row: Row) -> str:
    maps = row["layer"].maps
    rank = maps.centred_effective_rank
    return "-" if rank is None else f"{rank:.2f} of {maps.centred_effective_rank_ceiling}"


def _closest(row: Row) -> str:
    maps = row["layer"].maps
    if maps.closest_heads is None:
        return "-"
    return f"{maps.max_cosine:.3f} ({maps.closest_heads[0]}, {maps.closest_heads[1]})"


def inspect_equation(row: Row) -> list[str]:
    """The energy that the stated rank of one tensor keeps, and what the rank below keeps."""
    if row["tensor"] not in _NAMES or row["undefined"]:
        return []
    share = row["kept_energy_share"]
    fitted = row["fitted_base_relative_errors"]
    errors = row["mean_base_relative_errors"] if fitted is None else fitted
    rank = row["mean_base_rank"] if fitted is None else row["fitted_base_rank"]
    if rank is None:
        return []
    below = ""
    if rank:
        below = f" > rank {rank - 1}: 1 - {errors[rank - 1]:.4g}^2 = {_kept(errors[rank - 1])}"
    base = "mean" if fitted is None else "fitted"
    return [
        f"layer {row['layer']}, {row['tensor']}, {base} base: rank {rank} keeps "
        f"1 - {errors[rank]:.4g}^2 = {_kept(errors[rank])} >= {short_percent(share)}{below}"
    ]


def _kept(error: float) -> str:
    return short_percent(1 - error**2)
