"""Tables of calls measured elsewhere: fitted, judged on other head configurations, written."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("scipy")

from lrkv_plan import load_hardware
from lrkv_plan.attention.families.grouped import grouped_work
from lrkv_plan.cli.app import app
from lrkv_plan.loader import find_hardware

H200 = load_hardware("h200")
TRUE = {"t0_s": 20e-6, "beta": 0.8}
CALLS = ((1, 1024), (1, 65_536), (8, 16_384), (64, 4096), (64, 65_536))  # batch, context


def table(path: Path, noise: float = 0.02, **changes: str) -> Path:
    """Calls of four head configurations on an H200, memory-bound as decode is."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["gpu", "family", "backend", "backend_version", "kv_dtype", "batch", "kv_len",
             "n_heads", "n_kv_heads", "head_dim", "d_c", "d_rope", "latency_us"]
        )  # fmt: skip
        for heads, kv_heads in ((32, 8), (16, 4), (64, 8), (40, 8)):
            for batch, kv_len in CALLS:
                n_bytes, _, _ = grouped_work(
                    batch, kv_len, n_heads=heads, n_kv_heads=kv_heads, head_dim=128,
                    bytes_per_scalar=2,
                )  # fmt: skip
                time_s = TRUE["t0_s"] + n_bytes / (TRUE["beta"] * H200.mem_bandwidth_bytes_per_s)
                time_s *= np.exp(noise * rng.standard_normal())
                told = {"gpu": "h200", "family": "gqa", "backend": "made/up", "v": "1",
                        "kv_dtype": "bf16"} | changes  # fmt: skip
                writer.writerow(
                    [*told.values(), batch, kv_len, heads, kv_heads, 128, 0, 0, 1e6 * time_s]
                )
    return path


def called(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_table_from_elsewhere_becomes_a_profile(tmp_path: Path) -> None:
    samples = table(tmp_path / "calls.csv")
    done = called("calibrate", "fit", samples, "--gpu", "h200", "--format", "json")
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    assert row["beta"] == pytest.approx(TRUE["beta"], rel=0.03)
    assert row["t0_s"] == pytest.approx(TRUE["t0_s"], rel=0.05)
    assert row["identified"] == ["t0_s", "beta"]
    assert (row["verdict"], row["held_out_by"], row["n_points"]) == ("accepted", "heads", 20)
    assert row["held_out_median_error"] < 0.03
    own = load_hardware(tmp_path / "h200.calibrated.yaml")
    assert own.kernels[0].backend == "made/up"
    assert own.kernels[0].preferred
    assert len(own.kernels) == len(H200.kernels) + 1
    assert called("calibrate", "fit", samples, "--gpu", "h200").exit_code == 2
    shown = called("calibrate", "show", tmp_path / "h200.calibrated.yaml")
    assert "made/up" in shown.stdout


def test_a_table_that_does_not_fit_the_model_is_refused(tmp_path: Path) -> None:
    samples = table(tmp_path / "calls.csv", noise=0.6)
    done = called("calibrate", "fit", samples, "--gpu", "h200")
    assert done.exit_code == 5
    assert "1 of 1 fits refused: made/up grouped bf16" in done.stderr
    assert not (tmp_path / "h200.calibrated.yaml").exists()
    assert called("calibrate", "fit", samples, "--gpu", "h200", "--force").exit_code == 0
    entry = load_hardware(tmp_path / "h200.calibrated.yaml").kernels[0]
    assert (entry.remark or "").startswith("FORCED")


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    samples = table(tmp_path / "calls.csv")
    done = called("calibrate", "fit", samples)
    assert done.exit_code == 2
    assert "needs --gpu" in done.stderr
    samples.write_text("\n".join(samples.read_text().splitlines()[:5]))
    done = called("calibrate", "fit", samples, "--gpu", "h200")
    assert done.exit_code == 5
    assert "too few" in done.stderr
    both = tmp_path / "both.csv"
    other = table(tmp_path / "other.csv", gpu="b200").read_text().split("\n", 1)[1]
    both.write_text(table(tmp_path / "again.csv").read_text() + other)
    done = called("calibrate", "fit", both, "--gpu", "h200")
    assert "several GPUs (b200, h200)" in done.stderr


def test_more_than_the_device_can_do_is_refused_but_of_a_cached_set(tmp_path: Path) -> None:
    # Two and a half times an H200's bandwidth: 0.8 of it becomes 2.0.
    slow = tmp_path / "slow.yaml"
    text = find_hardware("h200")[1].read_text()
    slow.write_text(re.sub(r"(?m)^mem_bandwidth_bytes_per_s:.*$",
                           "mem_bandwidth_bytes_per_s: 1.92e+12", text))  # fmt: skip
    samples = table(tmp_path / "calls.csv")
    done = called("calibrate", "fit", samples, "--gpu", slow, "--format", "json")
    assert done.exit_code == 5, done.output
    document = json.loads(done.stdout)
    (row,) = document["rows"]
    assert (row["verdict"], row["beta"]) == ("impossible", pytest.approx(2.0, rel=0.03))
    assert "beta 2" in document["inputs"]["refused"]
    assert "at most 1.25" in done.stderr
    assert not (tmp_path / "h200.calibrated.yaml").exists()
    assert called("calibrate", "fit", samples, "--gpu", slow, "--force").exit_code == 0
    entry = load_hardware(tmp_path / "h200.calibrated.yaml").kernels[0]
    assert (entry.remark or "").startswith("FORCED: beta 2")
    hot = tmp_path / "hot.csv"
    lines = samples.read_text().splitlines()
    hot.write_text("\n".join([f"{lines[0]},regime", *(f"{line},l2_hot" for line in lines[1:])]))
    done = called("calibrate", "fit", hot, "--gpu", slow, "--format", "json", "--force")
    assert [r["verdict"] for r in json.loads(done.stdout)["rows"]] == ["accepted"]
