"""From a run's folder to constants with verdicts: what ``calibrate fit`` and ``run`` end with."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lrkv_plan.calibration.fit_result import Design, FitResult, Key, TimedCrossing
from lrkv_plan.calibration.path_fit import PathFit, Scale, fit_path
from lrkv_plan.calibration.profile import measured_profile, profile_of_device, scale_for
from lrkv_plan.calibration.run_record import RUN_FILE, SAMPLES_FILE, RunInfo, read_run_info
from lrkv_plan.calibration.samples import (
    MeasuredPoint,
    control_spread,
    estimator,
    measured_points,
    noise,
    read_samples,
)
from lrkv_plan.documents import read_text
from lrkv_plan.errors import CalibrationError, SpecError, UsageError
from lrkv_plan.files import start_of_regular
from lrkv_plan.latency.kernel import FORMS
from lrkv_plan.loader import find_hardware, load_all_hardware
from lrkv_plan.schema import validate
from lrkv_plan.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    from lrkv_plan.calibration.samples import FloatArray

MIN_CONTEXTS = 3
N_RESAMPLES = 200


Series = dict[int, MeasuredPoint]  # by context


def timed_crossings(
    points: Iterable[MeasuredPoint], predicted_s: dict[str, float] | None = None, seed: int = 0
) -> list[TimedCrossing]:
    """Every pair of comparable series.

    Parameters
    ----------
    points : all points of a run, held-out ones included.
    predicted_s : predicted time by point name, from the fitted constants. [s]
    seed : of the resampled repeats.
    """
    return [
        _crossing(one, other, predicted_s or {}, seed)
        for one, other in _pairs(_series(points).values())
    ]


def crossings_of(contexts: Sequence[float], log_ratios: Sequence[float]) -> tuple[float, ...]:
    """Contexts at which a log ratio of times changes sign, linear in ln(context) between points.

    Examples
    --------
    >>> crossings_of([100, 10000], [0.5, -0.5])  # halfway on a log scale
    (1000.0,)
    >>> crossings_of([100, 10000], [0.5, 0.1])
    ()
    """
    found = []
    pairs = list(zip(contexts, log_ratios, strict=True))
    signed = [pair for pair in pairs if pair[1] != 0]
    for (left, before), (right, after) in itertools.pairwise(signed):
        if before * after < 0:
            share = before / (before - after)
            found.append(math.exp(math.log(left) + share * math.log(right / left)))
    return tuple(round(place, 6) for place in found)


def _series(points: Iterable[MeasuredPoint]) -> dict[tuple[object, ...], Series]:
    found: dict[tuple[object, ...], Series] = defaultdict(dict)
    for point in points:
        s = point.sample
        key = (
            s.path, s.attention, s.dtype, s.n_heads, s.head_dim, s.batch_size, s.query_tokens,
            s.page_tokens, s.cache_state, s.device_name,
        )  # fmt: skip
        found[key][s.context_tokens] = point
    return {key: series for key, series in found.items() if len(series) >= MIN_CONTEXTS}


def _pairs(series: Iterable[Series]) -> Iterator[tuple[Series, Series]]:
    alike: dict[tuple[object, ...], list[Series]] = defaultdict(list)
    for one in series:
        s = next(iter(one.values())).sample
        key = (
            s.dtype, s.n_heads, s.head_dim, s.batch_size, s.query_tokens, s.page_tokens,
            s.cache_state, s.device_name,
        )  # fmt: skip
        alike[key].append(one)
    for group in alike.values():
        for index, one in enumerate(group):
            for other in group[index + 1 :]:
                first, second = sorted((one, other), key=_rank, reverse=True)
                if _compare(first, second) and len(set(first) & set(second)) >= MIN_CONTEXTS:
                    yield first, second


def _rank(series: Series) -> int:
    return next(iter(series.values())).sample.rank


def _compare(first: Series, second: Series) -> bool:
    """Two ranks on one path, or a low rank beside whole heads; the higher rank comes first."""
    one, other = (next(iter(s.values())).sample for s in (first, second))
    if one.rank == other.rank or not one.rank:
        return False
    whole = not other.rank and not other.latent_dim and other.n_copies == other.n_heads
    return whole or (other.rank > 0 and one.path == other.path)


def _crossing(
    first: Series, second: Series, predicted_s: dict[str, float], seed: int
) -> TimedCrossing:
    import numpy as np

    contexts = sorted(set(first) & set(second))
    pairs = [(first[c], second[c]) for c in contexts]
    logs = [math.log(one.time_s / other.time_s) for one, other in pairs]
    resampled = np.column_stack([_resampled(one, other, seed) for one, other in pairs])
    low, high = np.exp(np.quantile(resampled, (0.05, 0.95), axis=0))
    places = [found[0] for row in resampled if (found := crossings_of(contexts, row.tolist()))]
    ends = np.quantile(places, (0.05, 0.95)).tolist() if places else (None, None)
    known = all(p.sample.point in predicted_s for pair in pairs for p in pair)
    ahead = [
        math.log(predicted_s[one.sample.point] / predicted_s[other.sample.point])
        for one, other in pairs
        if known
    ]
    s = pairs[0][0].sample
    return TimedCrossing(
        first=_design(pairs[0][0]), second=_design(pairs[0][1]), dtype=s.dtype, n_heads=s.n_heads,
        head_dim=s.head_dim, batch_size=s.batch_size, query_tokens=s.query_tokens,
        contexts=tuple(contexts), ratios=tuple(math.exp(v) for v in logs),
        ratios_low=tuple(low.tolist()), ratios_high=tuple(high.tolist()),
        predicted_ratios=tuple(math.exp(v) for v in ahead) if known else None,
        measured=crossings_of(contexts, logs),
        predicted=crossings_of(contexts, ahead) if known else None,
        crossing_share=len(places) / len(resampled), low=ends[0], high=ends[1],
    )  # fmt: skip


def _design(point: MeasuredPoint) -> Design:
    return Design(path=point.sample.path, attention=point.sample.attention)


def _resampled(one: MeasuredPoint, other: MeasuredPoint, seed: int) -> FloatArray:
    """ln of the ratio of times, with each point's repeats drawn again with replacement."""
    import numpy as np

    generator = np.random.default_rng(seed)
    logs = []
    for point in (one, other):
        repeats = np.array(point.repeats_s)
        drawn = repeats[generator.integers(0, len(repeats), (N_RESAMPLES, len(repeats)))]
        smallest = estimator(point.sample.device)[0] == "minimum"
        logs.append(np.log(drawn.min(axis=1) if smallest else np.median(drawn, axis=1)))
    return logs[0] - logs[1]  # type: ignore[no-any-return]


def describe(crossing: TimedCrossing, places: Sequence[float] | None, ratio: float) -> str:
    """Where the ranking changes, in words; ``ratio`` is first over second at the last context."""
    first, second = crossing.first.attention, crossing.second.attention
    if places is None:
        return "no constants"
    if not places:
        if ratio == 1:
            return "equally fast"
        return f"none in range: {first if ratio < 1 else second} is faster"
    until = second if (ratio < 1) == (len(places) % 2 == 1) else first
    names = [until]
    for _ in places:
        names.append(first if names[-1] == second else second)
    parts = [f"{name} from {place:,.0f}" for name, place in zip(names[1:], places, strict=True)]
    return f"{names[0]} first, " + ", ".join(parts)


MAX_ERROR = 0.15  # held-out median above which a fit is refused
NOISE_LIMIT = 0.05  # median split-half instability above which a run is noisy


def fit_run(
    source: Path,
    *,
    gpu: str | Path | None = None,
    max_error: float = MAX_ERROR,
    noise_limit: float = NOISE_LIMIT,
    forms: Sequence[str] = FORMS,
    spec_dir: Path | None = None,
    seed: int = 0,
) -> FitResult:
    """Fit every path of a run.

    Parameters
    ----------
    source : the run's folder, or its samples file.
    gpu : name or file of the profile whose bandwidth and peaks the shares refer to; when None the
        shipped one of the device's name, or for a CPU and an unknown GPU what the run measured.
    max_error : held-out median error above which a path is refused. [share]
    noise_limit : median split-half instability above which the run is. [share]
    forms : forms to choose from.
    spec_dir : a folder of profiles searched before the shipped ones.
    seed : of the bootstrap.

    Returns
    -------
    FitResult: verdicts included; nothing is written, and a bad fit does not raise.

    Raises
    ------
    CalibrationError
        If files are missing or invalid, hold several devices, or nothing can be fitted.
    """
    folder, path = (source, source / SAMPLES_FILE) if source.is_dir() else (source.parent, source)
    points = measured_points(read_samples(path))
    if not points:
        raise CalibrationError(f"{path}: holds no samples; `lrkv-plan calibrate run` makes them")
    info = _info(folder, path, points)
    profile, text = _profile(info, gpu, spec_dir)
    groups: dict[Key, list[MeasuredPoint]] = defaultdict(list)
    for point in points:
        groups[point.sample.path, point.sample.dtype].append(point)
    fits: list[PathFit] = []
    not_fitted: dict[Key, str] = {}
    for key, members in sorted(groups.items()):
        scale: Scale = scale_for(profile, key[1])
        try:
            fits.append(fit_path(members, scale, forms=forms, seed=seed))
        except CalibrationError as error:
            not_fitted[key] = str(error)
    if not fits:
        raise CalibrationError(f"{path}: nothing can be fitted: {'; '.join(not_fitted.values())}")
    predicted = {e.point.sample.point: e.predicted_s for fit in fits for e in fit.errors}
    return FitResult(
        folder=folder, info=info, profile=profile, profile_text=text, points=tuple(points),
        fits=tuple(fits), not_fitted=not_fitted,
        crossings=tuple(timed_crossings(points, predicted, seed)), noise=noise(points),
        control_spread=control_spread(points), max_error=max_error, noise_limit=noise_limit,
    )  # fmt: skip


def require_scipy() -> None:
    """Raise ``CalibrationError`` with the way to install scipy if it is missing."""
    try:
        import scipy  # noqa: F401
    except ImportError as error:
        raise CalibrationError(
            f"a fit needs scipy ({error}): pip install 'lrkv-plan[calibrate]'"
        ) from None


def holds_decode_samples(path: Path) -> bool:
    """Whether the file's first line names the columns of decode samples.

    Raises
    ------
    CalibrationError
        If the file cannot be read.
    """
    first = start_of_regular(path, 10_000, error=CalibrationError)
    start = first.decode("utf-8-sig", errors="replace")
    header = start.splitlines()[:1]
    return {"point", "repeats_s"} <= set("".join(header).strip().split(","))


def _info(folder: Path, path: Path, points: Sequence[MeasuredPoint]) -> RunInfo:
    """``run.json``, or what the samples say themselves where there is none."""
    names = sorted({p.sample.device_name for p in points})
    if len(names) > 1:
        raise CalibrationError(f"{path}: holds samples of several devices: {', '.join(names)}")
    if (folder / RUN_FILE).exists():
        return read_run_info(folder)
    first = points[0].sample
    told = {
        "device": first.device, "device_name": first.device_name or None,
        "threads": first.threads, "cache_state": first.cache_state,
        "notes": (f"no {RUN_FILE} beside the samples: software, date and command are unknown",),
    }  # fmt: skip
    try:
        return validate(RunInfo, told, path)
    except SpecError as error:
        raise CalibrationError(str(error)) from None


def _profile(
    info: RunInfo, gpu: str | Path | None, spec_dir: Path | None
) -> tuple[HardwareProfile, str | None]:
    """The profile that shares refer to, and its file's text; None if the run measured it."""
    if gpu is None and info.device == "cuda" and info.device_name:
        found = profile_of_device(info.device_name, load_all_hardware(spec_dir))
        gpu = found.name if found else None
    if gpu is None:
        if spec_dir is not None and info.device == "cpu":
            raise UsageError(
                f"--spec-dir {spec_dir}: no profile is looked up, since the shares refer to what "
                "this run measured; --gpu names one that they are to refer to"
            )
        return measured_profile(info), None
    profile, path = find_hardware(gpu, spec_dir=spec_dir)
    return profile, read_text(path)
