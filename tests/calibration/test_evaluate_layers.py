"""Tables of layer operations: known by their columns, judged in groups, refitted left out."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from lrkv_plan.calibration.evaluate_layers import evaluate_layers
from lrkv_plan.calibration.layer_fit import fit_layer
from lrkv_plan.calibration.layer_samples import samples_of_table
from lrkv_plan.calibration.layer_tables import read_layer_table
from lrkv_plan.cli.app import app
from lrkv_plan.errors import CalibrationError
from lrkv_plan.latency.matrix import matrix_model, matrix_time
from lrkv_plan.loader import load_hardware
from lrkv_plan.specs.hardware import HardwareProfile

RUN = CliRunner().invoke
HEADER = "gpu,engine,engine_version,gemm_dtype,m,n,k,latency_us,weights_cold"
H100 = load_hardware("h100-sxm")


@cache
def profile_of(name: str) -> HardwareProfile:
    return load_hardware(name.replace("_", "-"))


def table(path: Path, rows: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n")
    return path


def row(m: int, n: int, k: int, us: float, cold: str = "1", dtype: str = "bf16") -> str:
    return f"h100_sxm,vllm,0.24.0,{dtype},{m},{n},{k},{us},{cold}"


def test_errors_are_of_the_engines_own_constants(tmp_path: Path) -> None:
    model = matrix_model(H100, "vllm", "bf16")
    predicted = 1e6 * float(matrix_time(model, 1, 8192, 8192).time_s)
    factors = (1.0, 1.1, 0.5)  # errors 0, 1/1.1 - 1, 1
    rows = [row(1, 8192, 8192, predicted * f) for f in factors]
    rows.append(row(1, 8192, 8192, predicted * 2, cold="0"))
    (cold, hot), unknown = evaluate_layers(table(tmp_path / "m.csv", rows), profile_of)
    assert (cold.operation, cold.gpu, cold.engine, cold.format) == (
        "matrices", "h100_sxm", "vllm", "bf16",
    )  # fmt: skip
    assert (cold.part, cold.n, cold.basis, cold.error_bound) == ("cold", 3, "measured", 0.06)
    assert cold.median_error == pytest.approx(1 - 1 / 1.1)
    assert cold.predicted_over_measured == pytest.approx(1.0)
    assert cold.in_band == pytest.approx(2 / 3)
    assert (hot.part, hot.n, hot.error_bound) == ("l2", 1, None)
    assert hot.median_error == pytest.approx(0.5)
    assert unknown == []


def test_what_cannot_be_predicted_is_counted(tmp_path: Path) -> None:
    rows = [row(1, 4096, 4096, 20.0, dtype="fp3"), row(1, 4096, 4096, 20.0).replace("h100", "x9")]
    groups, _ = evaluate_layers(table(tmp_path / "m.csv", rows), profile_of)
    assert [(g.n, g.basis, g.median_error) for g in groups] == [(1, "not predicted", None)] * 2


def test_another_engines_constants_in_a_step_are_said(tmp_path: Path) -> None:
    rows = [row(1, 8192, 8192, 30.0, dtype="fp8").replace("vllm", "trtllm")]
    ((group,), _) = evaluate_layers(table(tmp_path / "m.csv", rows), profile_of)
    assert (group.engine, group.basis) == ("tensorrt_llm", "measured")
    assert "a step takes vllm's fp8" in group.note


def made_up(path: Path) -> Path:
    """Matrices with t0 5 us, 80 % of the bandwidth, 70 % of the peak, tau 0.1 ns."""
    rows = []
    for n in (4096, 8192, 16384, 28672, 65536):
        for k in (4096, 8192, 14336, 28672):
            for m in (1, 8, 64, 128, 256, 512):
                memory = (2 * n * k + 2 * m * (n + k)) / (0.8 * H100.mem_bandwidth_bytes_per_s)
                compute = 2 * m * n * k / (0.7 * H100.peak_flops_per_s["bf16"])
                time = 5e-6 + np.sqrt(memory**2 + compute**2 + (1e-10 * k) ** 2)
                rows.append(row(m, n, k, time * 1e6))
    return table(path, rows)


def test_a_fit_finds_the_constants_again(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    measured = read_layer_table(made_up(tmp_path / "m.csv"))
    assert measured is not None
    (samples,) = samples_of_table(measured, profile_of)
    fit = fit_layer(samples)
    assert fit is not None
    assert fit.constants["t0_s"] == pytest.approx(5e-6, rel=0.05)
    assert fit.constants["beta"] == pytest.approx(0.8, rel=0.01)
    assert fit.constants["phi"] == pytest.approx(0.7, rel=0.01)
    assert fit.median_error < 0.005
    assert "beta" in fit.identified


def test_a_shape_left_out_is_judged_by_the_others(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    path = made_up(tmp_path / "m.csv")
    # One shape takes twice as long: refitted without it, the others do not excuse it.
    lines = path.read_text().splitlines()
    odd = [
        ",".join([*line.split(",")[:7], str(2 * float(line.split(",")[7])), "1"])
        for line in lines if ",16384,14336," in line
    ]  # fmt: skip
    path.write_text("\n".join([line for line in lines if ",16384,14336," not in line] + odd) + "\n")
    ((group,), _) = evaluate_layers(path, profile_of, held_out=True)
    assert (group.basis, group.in_band) == ("shapes left out", None)
    assert group.median_error is not None
    assert group.median_error < 0.02
    measured = read_layer_table(path)
    assert measured is not None
    (samples,) = samples_of_table(measured, profile_of)
    fit = fit_layer(samples)
    assert fit is not None
    assert np.exp(fit.left_out[-len(odd) :]) == pytest.approx(2.0, rel=0.1)


def test_the_command_and_its_json(tmp_path: Path) -> None:
    rows = [row(1, 8192, 8192, 50.0)]
    table(tmp_path / "m.csv", rows)
    table(tmp_path / "other.csv", ["1,2"], header="a,b")
    done = RUN(app, ["calibrate", "evaluate-layers", str(tmp_path), "-f", "json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert answer["inputs"]["unknown_files"] == ["other.csv"]
    (found,) = answer["rows"]
    assert (found["operation"], found["n"], found["error_bound"]) == ("matrices", 1, 0.06)
    assert any("other.csv: its columns are of no operation" in line for line in answer["remarks"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no known table of layer operations; nearest to"),
        ("gpu,engine,gemm_dtype,m,n,latency_us\n", "nearest to matrices, but lacks the columns k"),
        ("", "is empty"),
        (f"{HEADER}\n{row(1, 64, 64, 5.0).replace('64,64', '64,many')}\n", "row 1: k 'many'"),
        (f"{HEADER}\n{row(1, 64, 64, -5.0)}\n", "row 1: latency_us '-5.0'"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "m.csv"
    path.write_text(text)
    done = RUN(app, ["calibrate", "evaluate-layers", str(path)])
    assert done.exit_code == 5
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    (tmp_path / "empty").mkdir()
    with pytest.raises(CalibrationError, match="holds no"):
        evaluate_layers(tmp_path / "empty", profile_of)


def test_a_cache_format_that_is_none_is_counted_as_not_predicted(tmp_path: Path) -> None:
    golden = Path(__file__).parent.parent / "golden" / "layers"
    lines = (golden / "mla_layer.csv").read_text().splitlines()
    place = lines[0].split(",").index("kv_dtype")
    cells = lines[1].split(",")
    cells[place] = "default"
    path = tmp_path / "mla_layer.csv"
    path.write_text("\n".join([lines[0], ",".join(cells), *lines[2:]]) + "\n")
    done = RUN(app, ["calibrate", "evaluate-layers", str(path), "-f", "json"])
    assert done.exit_code == 0, done.output
    assert "kv_dtype 'default': known are bf16" in done.stdout
