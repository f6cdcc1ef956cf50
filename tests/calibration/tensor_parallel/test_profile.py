"""A measured all-reduce in a hardware profile: usable at once, everything else untouched."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

import numpy as np

from lrkv_plan.calibration.table_fit import AllReduceFit
from lrkv_plan.calibration.tensor_parallel.measure import Link, Measured, calibrated_text, entry_of
from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.all_reduce import allreduce_model, allreduce_time
from lrkv_plan.loader import find_hardware, load_hardware

LINK = Link(bytes_per_s=2e9, name="gloo, one way between two workers, measured", is_measured=True)
MEASURED = Measured(
    n_workers=2, backend="gloo", torch_version="2.0", device_name="Some CPU", date="2026-11-30",
    n_points=14, largest_bytes=1 << 20,
)  # fmt: skip


def fit(error: float = 0.05) -> AllReduceFit:
    left_out = np.log1p(np.array([error, -error] * 7))
    return AllReduceFit(
        constants={"t0_s": 4e-4, "link_efficiency": 0.5}, identified=("t0_s", "link_efficiency"),
        left_out=left_out,
    )  # fmt: skip


def test_the_copy_predicts_with_what_was_measured(tmp_path: Path) -> None:
    profile, path = find_hardware("cpu")
    copy = tmp_path / "cpu.allreduce.yaml"
    copy.write_text(calibrated_text(profile, path, entry_of(fit(), MEASURED), LINK))
    model = allreduce_model(load_hardware(copy), 2)
    assert model.basis == "measured"
    # t0 + m 2 (P - 1) / P / (f L) = 400 us + 1e6 B / (0.5 * 2 GB/s) = 400 + 1000 us
    assert allreduce_time(model, 10**6).time_s == pytest.approx(1.4e-3, rel=1e-3)
    assert copy.read_text().startswith(path.read_text().rstrip())


def test_other_group_sizes_and_kernels_stay(tmp_path: Path) -> None:
    profile, path = find_hardware("h200")
    copy = tmp_path / "h200.yaml"
    copy.write_text(calibrated_text(profile, path, entry_of(fit(), MEASURED), LINK))
    after = load_hardware(copy)
    assert after.link == profile.link  # efficiencies refer to the profile's own link
    assert after.kernels == profile.kernels
    others = [e for e in profile.allreduce if e.n_gpus != 2]
    assert others
    assert [e for e in after.allreduce if e.n_gpus != 2] == others
    (mine,) = [e for e in after.allreduce if e.n_gpus == 2]
    assert (mine.t0_s, mine.backend) == (4e-4, "torch.distributed/gloo")
    # It stands for every engine at its size, and for none at another.
    for engine in (None, "vllm", "tensorrt_llm", "llama_cpp"):
        assert allreduce_model(after, 2, engine=engine).t0_s == 4e-4
        for size in (4, 8):
            found = allreduce_model(after, size, engine=engine)
            assert found == allreduce_model(profile, size, engine=engine)


def test_a_fit_that_is_far_off_is_refused() -> None:
    assert entry_of(fit(0.2), MEASURED).held_out_median_error == pytest.approx(0.2)
    with pytest.raises(CalibrationError, match="off by 30%"):
        entry_of(fit(0.3), MEASURED)
