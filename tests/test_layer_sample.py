"""The shipped constants of layer operations against a sample of the measurements behind them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from lrkv_plan.calibration.evaluate_layers import LayerError, evaluate_layers
from lrkv_plan.calibration.layer_samples import samples_of_table
from lrkv_plan.calibration.layer_tables import read_layer_table
from lrkv_plan.loader import HARDWARE_FOLDER, load_all_hardware, load_hardware, shipped_files
from lrkv_plan.specs.hardware import HardwareProfile
from lrkv_plan.specs.layer_constants import LAYER_BLOCKS

SAMPLES = Path(__file__).parent / "golden" / "layers"
FITTED = [p for f in shipped_files(HARDWARE_FOLDER) if (p := load_hardware(f)).matrices]
ALL = load_all_hardware()


@cache
def profile_of(gpu: str) -> HardwareProfile:
    return load_hardware(gpu.replace("_", "-"))


def judged(name: str) -> list[LayerError]:
    return evaluate_layers(SAMPLES / f"{name}.csv", profile_of, relatives=ALL)[0]


def beyond(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Whether each row's error exceeds the median, and the p90, that its entry states."""
    table = read_layer_table(SAMPLES / f"{name}.csv")
    assert table is not None
    over_median, over_p90 = [], []
    for samples in samples_of_table(table, profile_of, ALL):
        model = samples.shipped(ALL)
        assert model.basis == "measured", (samples.gpu, samples.engine, samples.format)
        everything = np.ones(len(samples.time_s), dtype=bool)
        errors = np.abs(samples.predict(model, everything) / samples.time_s - 1)
        over_median.append(errors > model.held_out_median_error)
        over_p90.append(errors > model.held_out_p90_error)
    return np.concatenate(over_median), np.concatenate(over_p90)


@pytest.mark.parametrize(("name", "n"), [("matrices", 207), ("experts", 178), ("products", 62)])
def test_the_sample_is_predicted_within_the_stated_errors(name: str, n: int) -> None:
    over_median, over_p90 = beyond(name)
    assert len(over_median) == n
    # n rows know a half and a tenth to within two standard errors.
    assert over_median.mean() <= 0.5 + 2 * np.sqrt(0.25 / n)
    assert over_p90.mean() <= 0.1 + 2 * np.sqrt(0.09 / n)


def test_a_whole_layer_is_the_sum_of_its_parts() -> None:
    groups = judged("mla_layer")
    assert {g.part for g in groups} == {"from 2k tokens"}
    assert all(g.error_bound == 0.05 for g in groups)
    medians = [g.predicted_over_measured for g in groups if g.predicted_over_measured]
    assert len(medians) == len(groups)
    assert 0.95 <= np.median(medians) <= 1.06


@pytest.mark.parametrize("name", ["matrices", "experts", "products"])
def test_the_bands_hold_their_share_of_the_sample(name: str) -> None:
    groups = judged(name)
    inside = sum(g.n * g.in_band for g in groups if g.in_band is not None)
    n = sum(g.n for g in groups if g.in_band is not None)
    # 90 % of 60 to 180 rows is known to within 2 sqrt(0.9 * 0.1 / n) = 4.5 to 7.7 %.
    assert 0.9 - 2 * np.sqrt(0.09 / n) <= inside / n


@pytest.mark.parametrize("profile", FITTED, ids=lambda p: p.name)
def test_shipped_entries_are_usable_and_sourced(profile: HardwareProfile) -> None:
    for block in LAYER_BLOCKS:
        places = []
        for entry in getattr(profile, block):
            assert entry.band90[0] <= 1 <= entry.band90[1]
            assert entry.licence == "Apache-2.0"
            assert "095f58a51c4c" in entry.source
            assert getattr(entry, "peak", "bf16") in profile.peak_flops_per_s
            keys = ("engine", "format", "kind", "implementation", "ranks", "nodes")
            places.append(tuple(getattr(entry, key, None) for key in keys))
        assert len(set(places)) == len(places), block
