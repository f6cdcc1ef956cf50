"""The committed calibration is what its samples give, and every sample's cache has its bytes."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lrkv_plan.calibration.fit_result import FitResult
from lrkv_plan.calibration.fit_run import fit_run
from lrkv_plan.calibration.profile import kernel_entries
from lrkv_plan.calibration.samples import read_samples
from lrkv_plan.loader import load_hardware

FOLDER = Path(__file__).parent.parent.parent / "reports" / "calibration-cpu"


@pytest.fixture(scope="module")
def result() -> FitResult:
    return fit_run(FOLDER)


def test_constants_of_the_profile_come_from_the_samples(result: FitResult) -> None:
    """To 1 %: the search for them ends where rounding of the machine's libraries lets it."""
    shipped = {e.backend: e for e in load_hardware(FOLDER / "cpu.calibrated.yaml").kernels}
    fitted = {e.backend: e for e in kernel_entries(result, result.fits)}
    assert set(shipped) <= set(fitted)
    for backend, entry in shipped.items():
        assert entry.form == fitted[backend].form
        for name in ("t0_s", "beta", "phi"):
            again = getattr(fitted[backend], name)
            assert getattr(entry, name) == pytest.approx(again, rel=0.01), (backend, name)


def test_predictions_in_the_report_come_from_the_samples(result: FitResult) -> None:
    with (FOLDER / "errors.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    errors = [e for fit in result.fits for e in fit.errors]
    assert len(rows) == len(errors)
    for row, error in zip(rows, errors, strict=True):
        assert float(row["measured_s"]) == pytest.approx(error.point.time_s, rel=1e-9)
        assert float(row["predicted_s"]) == pytest.approx(error.predicted_s, rel=0.02)


def test_allocated_bytes_equal_predicted_ones_in_every_sample() -> None:
    samples = read_samples(FOLDER / "samples.csv")
    assert samples
    assert all(s.allocated_bytes == s.predicted_bytes for s in samples)
