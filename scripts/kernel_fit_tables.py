"""What ``fit_kernels.py`` prints: held-out errors, reliability of the bands, constants."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lrkv_plan.calibration.fit import predicted_s
from lrkv_plan.calibration.samples import GroupKey, KernelSamples
from lrkv_plan.calibration.selection import CellFit
from lrkv_plan.latency.kernel import DATASHEET_BETA, DATASHEET_PHI, DATASHEET_T0_S
from lrkv_plan.specs.hardware import AllReduceConstants


@dataclass(frozen=True, kw_only=True)
class GroupResult:
    """One group's cells, and held-out ln(measured / predicted) by scheme; NaN where not judged."""

    key: GroupKey
    cells: tuple[CellFit, ...]
    samples: KernelSamples
    families: np.ndarray
    errors: dict[str, np.ndarray]
    inside: dict[str, np.ndarray]
    source: str
    version: str


def shares(log_errors: np.ndarray) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1|."""
    known = log_errors[np.isfinite(log_errors)]
    if not known.size:
        return float("nan"), float("nan")
    relative = np.abs(np.exp(-known) - 1)
    return float(np.median(relative)), float(np.quantile(relative, 0.9))


def print_groups(results: list[GroupResult]) -> None:
    """Held-out errors and band hits, one line per group."""
    print("held-out error, median / p90, and share of held-out rows inside the 90 % band")
    print(f"{'group':74} {'n':>4} {'other heads':>13} {'random':>13} {'> 8k':>13}  heads random")
    for result in results:
        key = result.key
        name = f"{key.gpu} {key.backend} {key.kernel} {key.kv_dtype} {key.regime}"
        cells = [f"{m:5.1%} / {p:5.1%}" for m, p in map(shares, result.errors.values())]
        hits = [f"{hit_share(result, s):6.1%}" for s in ("heads", "random")]
        print(f"{name:74} {len(result.samples):4} {' '.join(cells)} {' '.join(hits)}")
        for cell_fit in result.cells:
            fit, cell = cell_fit.fit, cell_fit.cell
            constants = " ".join(f"{n}={v:.4g}" for n, v in fit.constants.items())
            where = f"heads {cell.query_heads} dims {cell.head_dims}"
            low, high = cell_fit.band90
            print(f"    {fit.form} {constants}; identified {', '.join(fit.identified)}; {where}; "
                  f"n {fit.n_points}; band {low:.3f} to {high:.3f}")  # fmt: skip


def hit_share(result: GroupResult, scheme: str) -> float:
    """Share of judged rows inside the band that was stated without them."""
    known = np.isfinite(result.errors[scheme])
    return float(result.inside[scheme][known].mean()) if known.any() else float("nan")


def print_summary(title: str, results: list[GroupResult]) -> None:
    """Medians over groups, with groups cut by family, beside the design study's figures."""
    print(f"\n{title}: medians over groups (GPU, backend, family, format)")
    for scheme in ("heads", "random", "context"):
        found = []
        for result in results:
            for family in np.unique(result.families):
                part = result.errors[scheme][result.families == family]
                if np.isfinite(part).sum() >= 8:
                    found.append(shares(part))
        if found:
            median, p90 = np.median(found, axis=0)
            beyond = sum(m > 0.10 for m, _ in found)
            print(
                f"  {scheme:8} {len(found):4} groups: median {median:5.1%}  p90 {p90:5.1%}  "
                f"above 10 %: {beyond}"
            )
    for scheme in ("heads", "random"):
        hits = [hit_share(r, scheme) for r in results]
        print(f"  90 % band, {scheme}: {np.nanmean(hits):.1%} of held-out rows on average")


def print_datasheet(results: list[GroupResult]) -> None:
    """What the datasheet with typical constants does on the preferred kernels."""
    typical = {"t0_s": DATASHEET_T0_S, "beta": DATASHEET_BETA, "phi": DATASHEET_PHI}
    errors = [np.log(r.samples.time_s / predicted_s("base", typical, r.samples)) for r in results]
    each = [np.quantile(np.exp(e), np.linspace(0.05, 0.95, 19)) for e in errors]
    low, high = np.quantile(np.concatenate(each), (0.05, 0.95))
    median = np.median([shares(e)[0] for e in errors])
    print(
        f"\ndatasheet with typical constants: median of medians {median:.1%}; "
        f"90 % of rows, groups alike: {low:.2f} to {high:.2f}"
    )


def print_links(links: dict[str, list[AllReduceConstants]]) -> None:
    """All-reduce constants and held-out errors."""
    print("\nall-reduce, held-out error median / p90")
    for gpu, entries in links.items():
        for e in entries:
            two = f" two-shot +{e.two_shot_s * 1e6:.2f} us" if e.two_shot_s else ""
            print(
                f"  {gpu:20} {e.n_gpus:2} GPUs {e.backend} {e.backend_version}: "
                f"t0 {e.t0_s * 1e6:5.2f} us, {e.link_efficiency:.3f} of the link{two}; "
                f"n {e.n_points}; {e.held_out_median_error:.1%} / {e.held_out_p90_error:.1%}; "
                f"band {e.band90[0]:.2f} to {e.band90[1]:.2f}"
            )
