"""Known constants come back from made-up runs, and what runs cannot tell is not claimed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("scipy")

from lrkv_plan.calibration.fit import fit_kernel, intervals, resampled_logs
from lrkv_plan.calibration.path_fit import PathFit, best_form, fit_path
from lrkv_plan.calibration.samples import DecodeSample, KernelSamples, as_arrays, measured_points
from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.kernel import FORMS
from tests.calibration.made_up_run import PRIORS, SCALE, TRUE, planned, timed


def fitted(samples: list[DecodeSample], **options: object) -> PathFit:
    return fit_path(measured_points(samples), SCALE, **options)  # type: ignore[arg-type]


def arrays(samples: list[DecodeSample]) -> KernelSamples:
    points = [p for p in measured_points(samples) if p.is_fitted]
    return as_arrays(points, bandwidth=SCALE.bandwidth, peak=SCALE.peak)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("seed", [1, 2])
def test_known_constants_come_back_within_5_percent_under_5_percent_noise(
    form: str, seed: int
) -> None:
    fit = fitted(timed(planned(160, seed=seed), form, noise=0.05, seed=seed + 10))
    assert fit.fit.form == form
    assert set(fit.fit.identified) == set(fit.fit.constants)
    for name, value in fit.fit.constants.items():
        assert value == pytest.approx(TRUE[name], rel=0.05), name
    assert fit.overall.median is not None
    assert fit.overall.median < 0.06  # the noise's own median is 0.6745 * 5 % = 3.4 %


@pytest.mark.parametrize("form", FORMS)
def test_the_form_that_made_the_times_is_chosen(form: str) -> None:
    assert best_form(arrays(timed(planned(64, seed=5), form, noise=0.03)), PRIORS) == form


def test_arithmetic_that_never_decides_is_not_identified() -> None:
    fit = fitted(timed(planned(intensity=(0.05, 0.2)), "base"))  # the ridge is at 10
    assert "phi" not in fit.fit.identified
    assert fit.fit.constants["phi"] == PRIORS["phi"].value
    assert "phi" not in fit.intervals


def test_large_calls_do_not_identify_the_fixed_time() -> None:
    fit = fitted(timed(planned(n_bytes=(1e9, 1e11)), "base"))  # from 0.13 s on; t0 is 80 us
    assert "t0_s" not in fit.fit.identified
    assert {"beta", "phi"} <= set(fit.fit.identified)


def test_calls_of_one_size_are_refused() -> None:
    with pytest.raises(CalibrationError, match="one kind and size"):
        fitted(timed(planned(n_bytes=(1e6, 1.0001e6), intensity=(1, 1.0001)), "base"))


def test_too_few_fitted_points_are_refused() -> None:
    with pytest.raises(CalibrationError, match="7 points to fit; need 8"):
        fitted(timed(planned(7)))


def test_held_out_points_change_neither_form_nor_constants_nor_intervals() -> None:
    samples = timed(planned(48), "sum")
    spoilt = [
        s if s.role == "fit"
        else replace(s, repeats_s=tuple(9 * t for t in s.repeats_s), n_bytes=7 * s.n_bytes)
        for s in samples
    ]  # fmt: skip
    one, other = fitted(samples), fitted(spoilt)
    alone = fitted([s for s in samples if s.role == "fit"])
    for fit in (other, alone):
        assert (fit.fit.form, fit.fit.identified) == (one.fit.form, one.fit.identified)
        # The last bits depend on where numpy's buffers lie.
        assert fit.fit.constants == pytest.approx(one.fit.constants, rel=1e-8)
        for name, ends in one.intervals.items():
            assert fit.intervals[name] == pytest.approx(ends, rel=1e-4)
    assert one.overall.median is not None
    assert other.overall.median is not None
    assert other.overall.median > 10 * one.overall.median
    assert alone.overall.median is None


def test_errors_are_split_by_what_points_were_held_out_by() -> None:
    fit = fitted(timed(planned(40, held_out=20), "base", noise=0.0))
    assert {role: error.n for role, error in fit.by_role.items()} == {
        "random": 5, "rank": 5, "heads": 5, "context": 5
    }  # fmt: skip
    assert fit.overall.n == 20
    assert all(e.median is not None and e.median < 0.01 for e in fit.by_role.values())


def test_the_band_holds_most_held_out_points() -> None:
    hits = []
    for seed in range(4):
        fit = fitted(timed(planned(40, seed=seed, held_out=40), "base", seed=seed), forms=("base",))
        low, high = fit.band90
        ratios = [e.point.time_s / e.predicted_s for e in fit.errors if not e.point.is_fitted]
        hits.append(np.mean([low <= r <= high for r in ratios]))
    assert 0.85 <= np.mean(hits) <= 0.99


@pytest.mark.parametrize("form", FORMS)
def test_a_resample_of_every_point_once_is_the_fit_itself(form: str) -> None:
    samples = arrays(timed(planned(48), form))
    fit = fit_kernel(samples, form, priors=PRIORS)
    logs = resampled_logs(fit, samples, PRIORS, np.ones((1, len(samples))))
    known = [fit.constants[name] for name in fit.identified]
    assert np.exp(logs[0]) == pytest.approx(known, rel=1e-4)


@pytest.mark.slow
def test_intervals_hold_the_truth_in_at_least_85_of_100_runs() -> None:
    hits: dict[str, int] = dict.fromkeys(("t0_s", "beta", "phi"), 0)
    for seed in range(100):
        samples = arrays(timed(planned(40, seed=seed, held_out=0), "sum", seed=seed + 1000))
        fit = fit_kernel(samples, "sum", priors=PRIORS)
        found = intervals(fit, samples, PRIORS, n_resamples=150, seed=seed)
        for name in hits:
            low, high = found[name]
            hits[name] += low <= TRUE[name] <= high
    assert min(hits.values()) >= 85, hits


def test_intervals_are_the_same_on_every_run_and_narrow_with_less_noise() -> None:
    quiet, loud = (
        fitted(timed(planned(40), "base", noise=noise), forms=("base",)) for noise in (0.01, 0.1)
    )
    again = fitted(timed(planned(40), "base", noise=0.01), forms=("base",))
    assert quiet.intervals == again.intervals
    for name, (low, high) in quiet.intervals.items():
        assert high / low < loud.intervals[name][1] / loud.intervals[name][0]
