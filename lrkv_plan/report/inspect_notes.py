"""What ``inspect`` must say beside its numbers: what they are not, how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lrkv_plan.checkpoint.inspection import LayerInspection
from lrkv_plan.checkpoint.rank_plan import RankPlan
from lrkv_plan.errors import one_line
from lrkv_plan.report.tables import percent

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
