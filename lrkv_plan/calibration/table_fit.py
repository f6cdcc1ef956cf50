"""Constants from a table of calls measured elsewhere, judged on head configurations left out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lrkv_plan.calibration.fit import IDENTIFIED_BELOW, MIN_POINTS, RESIDUAL_SCALE, Prior
from lrkv_plan.calibration.profile import profile_entry, profile_with
from lrkv_plan.calibration.run_record import LARGEST_EXCESS
from lrkv_plan.calibration.samples import (
    GroupKey,
    KernelSamples,
    grouped_rows,
    read_rows,
    samples_of,
)
from lrkv_plan.calibration.selection import (
    GAIN,
    CellFit,
    at_random,
    best_partition,
    by_head_configuration,
    judged,
    shape_index,
)
from lrkv_plan.documents import read_text
from lrkv_plan.errors import CalibrationError, UsageError
from lrkv_plan.files import write_together
from lrkv_plan.latency.all_reduce import AllReduceModel, allreduce_time
from lrkv_plan.loader import find_hardware
from lrkv_plan.specs.hardware import HardwareProfile, KernelConstants

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

PRIORS = {
    "t0_s": Prior(6e-6, 1.0),
    "link_efficiency": Prior(0.75, 0.5),
    "two_shot_s": Prior(5e-6, 1.0),
}
_NAMES = {False: ("t0_s", "link_efficiency"), True: ("t0_s", "link_efficiency", "two_shot_s")}


@dataclass(frozen=True, kw_only=True)
class AllReduceSamples:
    """Message sizes and times of one group. [bytes], [s], link per direction [bytes/s]"""

    message_bytes: FloatArray
    time_s: FloatArray
    n_gpus: int
    link_bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class AllReduceFit:
    """Constants by name (``two_shot_s`` only for two paths), and errors of sizes left out."""

    constants: dict[str, float]
    identified: tuple[str, ...]
    left_out: FloatArray


def fit_allreduce(samples: AllReduceSamples, n_folds: int = 5) -> AllReduceFit:
    """The constants of one group, with one or two paths.

    Raises
    ------
    CalibrationError
        If there are fewer than ``MIN_POINTS`` message sizes.
    """
    if len(samples.time_s) < MIN_POINTS:
        raise CalibrationError(f"{len(samples.time_s)} points are too few; need {MIN_POINTS}")
    one = _judged(samples, False, n_folds)
    if samples.n_gpus == 2:  # both paths send the same
        return one
    two = _judged(samples, True, n_folds)
    return two if _cost(two.left_out) < GAIN * _cost(one.left_out) else one


def _judged(samples: AllReduceSamples, two_paths: bool, n_folds: int) -> AllReduceFit:
    import numpy as np

    fold = np.random.default_rng(0).permutation(len(samples.time_s)) % n_folds
    errors = np.empty(len(fold))
    for k in range(n_folds):
        constants, _ = _solve(samples, two_paths, fold != k)
        errors[fold == k] = log_errors(samples, constants)[fold == k]
    constants, identified = _solve(samples, two_paths, fold >= 0)
    return AllReduceFit(constants=constants, identified=identified, left_out=errors)


def log_errors(samples: AllReduceSamples, constants: dict[str, float]) -> FloatArray:
    """ln(measured / predicted) of each message."""
    import numpy as np

    model = AllReduceModel(
        n_gpus=samples.n_gpus, t0_s=constants["t0_s"],
        link_bytes_per_s=constants["link_efficiency"] * samples.link_bytes_per_s,
        two_shot_s=constants.get("two_shot_s"), band90=(1.0, 1.0), basis="measured",
    )  # fmt: skip
    predicted: Any = allreduce_time(model, samples.message_bytes).time_s
    errors: FloatArray = np.log(samples.time_s / predicted)
    return errors


def _solve(
    samples: AllReduceSamples, two_paths: bool, used: Any
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Constants from the ``used`` messages, and which of them those narrow."""
    import numpy as np
    from scipy.optimize import least_squares

    names = _NAMES[two_paths]
    centres = np.log([PRIORS[n].value for n in names])
    widths = np.array([PRIORS[n].width for n in names])

    def constants(logs: FloatArray) -> dict[str, float]:
        return dict(zip(names, np.exp(logs).tolist(), strict=True))

    def residuals(logs: FloatArray) -> FloatArray:
        data = log_errors(samples, constants(logs))[used]
        return np.concatenate((data, RESIDUAL_SCALE * (logs - centres) / widths))

    found = least_squares(residuals, centres, loss="soft_l1", f_scale=RESIDUAL_SCALE)
    data = residuals(found.x)[: -len(names)]
    spread = max(RESIDUAL_SCALE, 1.4826 * float(np.median(np.abs(data))))
    slopes = np.column_stack([
        (residuals(found.x + step)[: -len(names)] - data) / 1e-4
        for step in 1e-4 * np.eye(len(names))
    ])  # fmt: skip
    information = slopes.T @ slopes / spread**2 + np.diag(widths**-2.0)
    after = np.sqrt(np.diag(np.linalg.inv(information)))
    known = (after < IDENTIFIED_BELOW * widths).tolist()
    identified = tuple(n for n, k in zip(names, known, strict=True) if k)
    return constants(found.x), identified


def _cost(errors: FloatArray) -> float:
    import numpy as np

    return float(np.abs(errors).mean())


COMMENT = "fitted by lrkv-plan calibrate; see lrkv_plan/latency/kernel.py"
MIN_CONFIGURATIONS = 4  # to leave whole ones out of a cell
_REGIMES = ("cold", "l2_hot")


@dataclass(frozen=True, kw_only=True)
class GroupFit:
    """One group of calls: its cells, and held-out ln(measured / predicted) by scheme.

    NaN where a scheme does not judge a call.
    """

    key: GroupKey
    samples: KernelSamples
    cells: tuple[CellFit, ...]
    errors: dict[str, FloatArray]
    version: str | None
    source: str
    licence: str


@dataclass(frozen=True, kw_only=True)
class TableFit:
    """Entries fitted from one table, and those whose held-out error is above the limit."""

    path: Path
    profile: HardwareProfile
    profile_text: str
    entries: tuple[KernelConstants, ...]
    not_fitted: dict[str, str]
    max_error: float

    def impossible(self, entry: KernelConstants) -> list[str]:
        """Each share that is above what the profile's device can do, with its value and the limit.

        Rows of the regime ``l2_hot`` read a cached set, whose bandwidth may be any.
        """
        names = ("beta", "phi") if entry.regime == "cold" else ("phi",)
        limit = 1 + LARGEST_EXCESS
        return [
            f"{name} {getattr(entry, name):.3g}, at most {limit:.3g}"
            for name in names
            if getattr(entry, name) > limit
        ]

    def verdict(self, entry: KernelConstants) -> str:
        """``accepted``, ``impossible`` or ``poor``."""
        if self.impossible(entry):
            return "impossible"
        return "poor" if entry.held_out_median_error > self.max_error else "accepted"

    def label(self, entry: KernelConstants) -> str | None:
        """What a profile must say about a refused entry; None about others."""
        if self.impossible(entry):
            return f"FORCED: {'; '.join(self.impossible(entry))}: more than the device can do"
        is_poor = self.verdict(entry) != "accepted"
        return "FORCED: held-out error above the stated limit" if is_poor else None

    @property
    def refusal(self) -> str | None:
        """Why entries are refused, in one line; None where all are accepted."""
        refused = [
            f"{e.backend} {e.kernel} {e.kv_dtype} "
            f"({'; '.join(self.impossible(e)) or f'{e.held_out_median_error:.1%}'})"
            for e in self.entries
            if self.verdict(e) != "accepted"
        ]
        if not refused:
            return None
        return (
            f"{len(refused)} of {len(self.entries)} fits refused: {', '.join(refused)}; held-out "
            f"median error may be at most {self.max_error:.0%} (--max-error), and no device "
            f"exceeds {self.profile.name}'s rates on cold caches; --force writes them with a label"
        )


def fit_table(
    path: Path, *, gpu: str | Path | None, max_error: float, spec_dir: Path | None = None
) -> TableFit:
    """Fit every group of a table in the columns of ``samples``.

    Parameters
    ----------
    gpu : the profile whose bandwidth and bf16 peak the shares refer to.
    max_error : held-out median error above which an entry is refused. [share]

    Raises
    ------
    UsageError
        If ``gpu`` is missing.
    CalibrationError
        If the table cannot be read, holds several GPUs, or supports no fit.
    """
    groups = grouped_rows(read_rows(path))
    if gpu is None:
        raise UsageError(
            f"{path}: a table measured elsewhere needs --gpu, the profile whose bandwidth and "
            "peaks the fitted shares refer to"
        )
    names = sorted({key.gpu for key in groups})
    if len(names) > 1:
        raise CalibrationError(f"{path}: holds calls of several GPUs ({', '.join(names)}): fit one")
    profile, profile_path = find_hardware(gpu, spec_dir=spec_dir)
    fits: list[GroupFit] = []
    not_fitted: dict[str, str] = {}
    for key, rows in groups.items():
        if key.regime not in _REGIMES:
            continue
        try:
            fit = fit_group(key, rows, profile)
            list(entries_of(fit, preferred=False))  # raises if no profile may state them
            fits.append(fit)
        except CalibrationError as error:
            not_fitted[f"{key.backend} {key.kernel} {key.kv_dtype} {key.regime}"] = str(error)
    if not fits:
        reasons = "; ".join(f"{name}: {why}" for name, why in not_fitted.items())
        raise CalibrationError(f"{path}: nothing can be fitted: {reasons or 'no rows'}")
    preferred = _preferred(fits)
    entries = tuple(e for fit in fits for e in entries_of(fit, preferred=fit in preferred))
    return TableFit(
        path=path, profile=profile, profile_text=read_text(profile_path), entries=entries,
        not_fitted=not_fitted, max_error=max_error,
    )  # fmt: skip


def fit_group(key: GroupKey, rows: list[dict[str, str]], profile: HardwareProfile) -> GroupFit:
    """Cells and held-out errors of one group. Raises ``CalibrationError`` for too few calls."""
    samples = samples_of(
        rows,
        bandwidth=profile.mem_bandwidth_bytes_per_s,
        peak=profile.peak_flops_per_s.get("bf16", profile.peak_flops_per_s[profile.matmul_peak]),
    )
    # An L2-hot call hardly reads memory: splitting its shapes further buys nothing.
    may_split = key.regime == "cold"
    schemes = {
        "heads": by_head_configuration(samples, 5, seed=1),
        "rows": at_random(samples, 5, seed=1),
    }
    return GroupFit(
        key=key, samples=samples, cells=best_partition(key.kernel, samples, may_split=may_split),
        errors={
            scheme: judged(key.kernel, samples, folds, may_split=may_split)[0]
            for scheme, folds in schemes.items()
        },
        version=rows[-1].get("backend_version") or None,
        source=rows[0].get("source") or "stated in the samples only",
        licence=rows[0].get("licence") or "unstated",
    )  # fmt: skip


def entries_of(group: GroupFit, *, preferred: bool) -> Iterator[KernelConstants]:
    """A profile entry for each cell; its errors are those of calls it was fitted without."""
    key = group.key
    for cell_fit in group.cells:
        fit, cell = cell_fit.fit, cell_fit.cell
        inside = cell.holds(group.samples)
        n_shapes = len(set(shape_index(group.samples.where(inside)).tolist()))
        scheme = "heads" if n_shapes >= MIN_CONFIGURATIONS else "rows"
        median, p90 = _shares(group.errors[scheme][inside])
        if median != median:  # too few rows to hold any out twice
            scheme, (median, p90) = "rows", _shares(cell_fit.left_out)
        low, high = cell_fit.band90
        yield profile_entry(
            f"{key.backend} {key.kernel} {key.kv_dtype}",
            kernel=key.kernel, kv_dtype=key.kv_dtype, backend=key.backend,
            backend_version=group.version, form=fit.form, regime=key.regime, preferred=preferred,
            **{name: float(f"{value:.4g}") for name, value in fit.constants.items()},
            query_heads_per_kv_head=cell.query_heads, head_dims=cell.head_dims,
            identified=fit.identified, n_points=fit.n_points, held_out_by=scheme,
            held_out_median_error=round(median, 4), held_out_p90_error=round(p90, 4),
            band90=(round(low, 4), round(high, 4)), source=group.source, licence=group.licence,
        )  # fmt: skip


def write_profile(result: TableFit, folder: Path, *, force: bool) -> list[Path]:
    """Write the profile with what was accepted; with ``force`` all, refused ones labelled.

    Raises
    ------
    UsageError
        If it exists and ``force`` is not given, or the folder cannot be written.
    """
    kept = [
        e if (label := result.label(e)) is None else e.model_copy(update={"remark": label})
        for e in result.entries
        if force or result.verdict(e) == "accepted"
    ]
    if not kept:
        return []
    text = profile_with(result.profile_text, result.profile, kept, COMMENT)
    name = f"{result.profile.name}.calibrated.yaml"
    return write_together(folder, {name: text}, force=force)


def _preferred(fits: Sequence[GroupFit]) -> list[GroupFit]:
    """Of the backends of one kernel and format, the one with most calls."""
    best: dict[tuple[str, str, str], GroupFit] = {}
    for fit in fits:
        slot = (fit.key.kernel, fit.key.kv_dtype, fit.key.regime)
        if slot not in best or len(fit.samples) > len(best[slot].samples):
            best[slot] = fit
    return list(best.values())


def _shares(log_errors: FloatArray) -> tuple[float, float]:
    """Median and 90th percentile of |predicted / measured - 1|; NaN where nothing was judged."""
    import numpy as np

    known = log_errors[np.isfinite(log_errors)]
    if not known.size:
        return float("nan"), float("nan")
    relative = np.abs(np.exp(-known) - 1)
    return float(np.median(relative)), float(np.quantile(relative, 0.9))
