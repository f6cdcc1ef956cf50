"""A decode path that another package adds: exact, measured and fitted like the shipped ones."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

pytest.importorskip("torch")

import yaml
from typer.testing import CliRunner

import lrkv_plan
from lrkv_plan.attention import registry
from lrkv_plan.calibration import run as run_module
from lrkv_plan.calibration import session
from lrkv_plan.calibration.decode import paths
from lrkv_plan.calibration.decode.step import DecodeStep, build_step
from lrkv_plan.calibration.design import PlannedPoint
from lrkv_plan.calibration.machine import TimedCalls
from lrkv_plan.cli.app import app
from lrkv_plan.latency.kernel import kernel_model
from lrkv_plan.specs.design import layers_of, swap_attention

POINTS = {
    registry.ENTRY_POINTS: "tests.plugins.gta:FAMILIES",
    paths.ENTRY_POINTS: "tests.plugins.gta_decode:PATHS",
}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def entry_points(group: str) -> list[EntryPoint]:
        return [EntryPoint(name="gta", value=POINTS[group], group=group)]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    registry.load_plugins.cache_clear()
    paths.load_path_plugins.cache_clear()
    yield
    for family in [f for f in registry.all_families() if "gta" in f.names]:
        registry.forget(family)
    paths.PATHS.pop("gta/tied", None)
    registry.load_plugins.cache_clear()
    paths.load_path_plugins.cache_clear()


def test_the_path_is_exact() -> None:
    model = lrkv_plan.load_model("llama-3.1-8b")
    spec = layers_of(swap_attention(model, "gta:4"))[0]
    step = build_step("gta/tied", spec, model_dim=4096, batch_size=2, context_tokens=50)
    difference = (step.run().double() - step.reference()).abs().max()
    assert float(difference) < 1e-5


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a machine that is never disturbed: 100 us, 10 GB/s and 100 GFLOP/s."""

    def timed(self: object, point: PlannedPoint, step: DecodeStep) -> TimedCalls:
        step.run()
        n_bytes = step.read_bytes + step.weight_bytes
        time_s = 1e-4 + n_bytes / 1e10 + step.flops / 1e11
        return TimedCalls(repeats_s=(time_s,) * 2, control_s=(1e-3,) * 2, peak_bytes=0)

    peaks = {"stream_bytes_per_s": 1e10, "peak_flops_per_s": {"fp32": 1e11}}
    monkeypatch.setattr(run_module.Measuring, "_timed", timed)
    monkeypatch.setattr(session, "measured_peaks", lambda *_arguments: peaks)


@pytest.mark.usefixtures("steady_clock")
def test_a_run_measures_it_and_its_profile_knows_the_kernel(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    result = CliRunner().invoke(
        app,
        ["calibrate", "run", "--device", "cpu", "--path", "gta/tied", "--budget", "60s",
         "--output", str(folder), "--quiet", "--format", "json"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "gta_tied" in result.stdout
    (profile,) = folder.glob("*.yaml")
    entries = yaml.safe_load(profile.read_text())["kernels"]
    assert {entry["kernel"] for entry in entries} == {"gta_tied"}
    measured = lrkv_plan.load_hardware(profile)
    assert kernel_model(measured, "gta_tied", "fp32").basis == "measured"
    (row,) = json.loads(result.stdout)["rows"]
    assert (row["path"], row["verdict"]) == ("gta/tied", "accepted")
    assert row["t0_s"] == pytest.approx(1e-4, rel=0.05)
