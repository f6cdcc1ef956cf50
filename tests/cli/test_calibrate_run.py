"""``calibrate run`` and ``validate`` from the command line: rows, exit codes, one line per error."""

from __future__ import annotations

import errno
import importlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("torch")

from lrkv_plan.calibration import run as run_module
from lrkv_plan.calibration import session
from lrkv_plan.calibration.decode.step import DecodeStep
from lrkv_plan.calibration.design import PlannedPoint
from lrkv_plan.calibration.machine import TimedCalls
from lrkv_plan.cli.app import app
from tests.cli.schemas import fault

BASE = PlannedPoint(
    path="lrkv/factored", attention="lrkv:8", n_heads=8, head_dim=64, batch_size=1,
    context_tokens=64, dtype="fp32", role="fit",
)  # fmt: skip
POINTS = [
    replace(BASE, n_heads=heads, context_tokens=tokens)
    for heads in (2, 8)
    for tokens in (16, 64, 256, 1024, 2048)
] + [
    replace(BASE, role="rank", attention="lrkv:7", context_tokens=512),
    replace(BASE, role="heads", n_heads=4, context_tokens=256),
    replace(BASE, role="context", context_tokens=512),
    replace(BASE, role="random", batch_size=2, context_tokens=96),
]
ASKED = ["calibrate", "run", "--device", "cpu", "--path", "lrkv/factored", "--budget", "60s"]
WANTED = {
    "path", "device", "dtype", "n_fit", "n_heldout", "heldout_median_error", "heldout_p90_error",
    "t0_s", "t0_s_low", "t0_s_high", "beta", "beta_low", "beta_high", "phi", "phi_low", "phi_high",
    "identified", "verdict",
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "planned_points", lambda *_args, **_options: POINTS)
    monkeypatch.setattr(session, "prepare_cpu", lambda threads: f"{threads} threads")
    monkeypatch.setattr(run_module, "MAX_ROUNDS", 2)
    monkeypatch.setattr(session, "_runs_here", lambda _path: True)
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "0")
    monkeypatch.setattr(
        session,
        "measured_peaks",
        lambda *_args: {"stream_bytes_per_s": 1e10, "peak_flops_per_s": {"fp32": 1e11}},
    )


@pytest.fixture
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of a machine that is never disturbed: 100 us, 10 GB/s and 100 GFLOP/s."""

    def timed(self: object, point: PlannedPoint, step: DecodeStep) -> TimedCalls:
        step.run()
        n_bytes = step.read_bytes + step.weight_bytes
        time_s = 1e-4 + n_bytes / 1e10 + step.flops / 1e11
        return TimedCalls(repeats_s=(time_s,) * 2, control_s=(1e-3,) * 2, peak_bytes=0)

    monkeypatch.setattr(run_module.Measuring, "_timed", timed)


def called(*arguments: str):
    """The command as asked, with options in ``arguments`` in the place of their defaults."""
    asked: list[str] = []
    for word in ASKED:
        asked = asked[:-1] if asked and asked[-1] in arguments else [*asked, word]
    return CliRunner().invoke(app, [*asked, *arguments])


@pytest.mark.usefixtures("steady_clock")
def test_rows_hold_constants_intervals_and_held_out_errors(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = called("--output", str(folder), "--format", "json")
    assert done.exit_code == 0, done.stderr
    answer = json.loads(done.stdout)
    assert fault("calibrate run", answer) is None
    (row,) = answer["rows"]
    assert set(row) >= WANTED
    assert (row["path"], row["device"], row["dtype"]) == ("lrkv/factored", "cpu", "fp32")
    assert (row["n_fit"], row["n_heldout"]) == (10, 4)
    assert row["t0_s_low"] <= row["t0_s"] <= row["t0_s_high"]
    assert row["t0_s"] == pytest.approx(1e-4, rel=0.05)
    assert row["beta"] == pytest.approx(1.0, rel=0.05)  # of the stand-in's 10 GB/s
    assert (row["verdict"], row["heldout_median_error"] < 0.01) == ("accepted", True)
    assert answer["inputs"]["run"]["torch"]
    names = {"samples.csv", "run.json", "report.md", "errors.csv", "cpu.calibrated.yaml"}
    assert names <= {p.name for p in folder.iterdir()}
    used = CliRunner().invoke(
        app, ["roofline", "llama-3.1-8b", "--gpu", str(folder / "cpu.calibrated.yaml"),
              "--units", "fp32", "--kv-dtype", "fp32"],
    )  # fmt: skip
    assert used.exit_code == 0, used.stderr


@pytest.mark.usefixtures("steady_clock")
def test_a_noisy_or_poor_fit_ends_with_5_and_keeps_the_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lrkv_plan.calibration import fit_run

    monkeypatch.setattr(fit_run, "NOISE_LIMIT", -1.0)
    monkeypatch.setattr(fit_run.fit_run, "__kwdefaults__", {
        **(fit_run.fit_run.__kwdefaults__ or {}), "noise_limit": -1.0,
    })  # fmt: skip
    done = called("--output", str(tmp_path / "run"))
    assert done.exit_code == 5
    assert "the run was noisy" in done.stderr
    assert (tmp_path / "run" / "samples.csv").exists()
    assert not (tmp_path / "run" / "cpu.calibrated.yaml").exists()


@pytest.mark.usefixtures("steady_clock")
def test_a_run_of_one_round_is_too_short_not_noisy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def one_round(self: run_module.Measuring, points: list[PlannedPoint], progress: object) -> int:
        for point in points:
            self._measure(point, 0)
        return 1

    monkeypatch.setattr(run_module.Measuring, "run", one_round)
    done = called("--output", str(tmp_path / "run"))
    assert done.exit_code == 5
    assert "a budget of 60s is too short for two rounds: 14 points measured twice" in done.stderr
    assert "the 14 samples are kept" in done.stderr
    assert "noisy" not in done.stderr
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"samples.csv", "run.json"}


@pytest.mark.usefixtures("steady_clock")
def test_a_yardstick_measured_too_low_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = {"stream_bytes_per_s": 5e9, "peak_flops_per_s": {"fp32": 1e11}}  # half of the truth
    monkeypatch.setattr(session, "measured_peaks", lambda *_args: loaded)
    done = called("--output", str(tmp_path / "run"), "--format", "json")
    assert done.exit_code == 5
    assert re.search(
        r"lrkv/factored fp32 beta (1\.9\d|2\.0\d|2) of 5 GB/s, at most 1.05", done.stderr
    )
    assert "probably loaded" in done.stderr
    document = json.loads(done.stdout)
    assert document["rows"][0]["verdict"] == "impossible"
    assert f"error: {document['inputs']['refused']}" in done.stderr
    run = document["inputs"]["run"]
    assert (run["yardsticks"], run["stream_spread"]) == (4, 0.0)
    assert not (tmp_path / "run" / "cpu.calibrated.yaml").exists()


@pytest.mark.usefixtures("steady_clock")
def test_a_forced_run_replaces_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lrkv_plan.report.views import calibration as calibration_files

    folder = tmp_path / "run"
    assert called("--output", str(folder)).exit_code == 0
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    write, kept = calibration_files.write_result, []

    def looks(*args: object, **options: object) -> list[Path]:
        kept.append({p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()})
        return write(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(calibration_files, "write_result", looks)
    done = called("--output", str(folder), "--force", "--seed", "2")
    assert done.exit_code == 0, done.output
    assert kept == [before]  # until the new results were fitted
    assert sorted(p.name for p in folder.iterdir()) == sorted(before)
    assert json.loads((folder / "run.json").read_text())["seed"] == 2
    assert f"wrote {folder / 'samples.csv'}" in done.stderr


def test_results_without_samples_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cpu.calibrated.yaml").write_text("mine\n")
    done = called("--output", str(tmp_path))
    assert done.exit_code == 2
    assert "holds cpu.calibrated.yaml; --force replaces" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["cpu.calibrated.yaml"]


@pytest.mark.usefixtures("steady_clock")
def test_results_that_find_no_room_cost_no_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from lrkv_plan import files

    written = files._beside

    def full(target: Path, data: bytes) -> Path:
        if target.name == "run.json":
            return written(target, data)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_beside", full)
    done = called("--output", str(tmp_path / "run"))
    assert done.exit_code == 2
    assert "No space left on device; the 28 samples there are kept" in done.stderr
    assert {p.name for p in (tmp_path / "run").iterdir()} == {"samples.csv", "run.json"}


def test_ctrl_c_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module, "build_step", interrupted)
    done = called("--output", str(tmp_path))
    assert done.exit_code == 130
    assert "--resume" in done.stderr
    assert "Traceback" not in done.stderr


def test_samples_in_the_folder_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "samples.csv").write_text("mine\n")
    done = called("--output", str(tmp_path))
    assert done.exit_code == 2
    assert "--resume goes on" in done.stderr
    assert (tmp_path / "samples.csv").read_text() == "mine\n"
    damaged = called("--output", str(tmp_path), "--resume")
    assert damaged.exit_code == 5
    assert "lacks the columns" in damaged.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--budget", "soon"], 2, "'soon' is not a time"),
        (["--budget", "0s"], 2, "above 0"),
        (["--threads", "none"], 2, "--threads"),
        (["--threads", "0"], 2, "this process may use"),
        (["--threads", "1000000000"], 2, "this process may use"),
        (["--seed", "99999999999"], 2, "at most 1,000,000,000"),
        (["--budget", "0.1s"], 5, "a budget of 0.1s is too short for two rounds"),
        (["--attention", "gqa:8"], 2, "lrkv/factored runs other designs"),
        (["--dtype", "fp31"], 2, "did you mean 'fp32'"),
        (["--device", "cud"], 2, "did you mean 'cuda'"),
        (["--path", "lrkv/factord"], 2, "did you mean 'lrkv/factored'"),
        (["--max-error", "lots"], 2, "--max-error"),
    ],
)
def test_bad_options_are_one_line(
    tmp_path: Path, arguments: list[str], code: int, words: str
) -> None:
    done = called("--output", str(tmp_path / "run"), *arguments)
    assert done.exit_code == code
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "command",
    [[*ASKED, "--output", "x"], ["validate", "llama-3.1-8b", "--gpu", "cpu"]],
    ids=["run", "validate"],
)
def test_without_torch_one_line_says_how_to_install_it(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from lrkv_plan.calibration import torch_gate

    real = importlib.import_module

    def missing(name: str) -> object:
        if name == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name)

    monkeypatch.setattr(torch_gate.importlib, "import_module", missing)
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 5
    assert "pip install 'lrkv-plan[calibrate]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_validate_fails_with_5_where_the_profile_does_not_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from lrkv_plan.calibration import validate as module

    monkeypatch.setattr(module, "N_ROUNDS", 1)
    monkeypatch.setattr(module, "REPEATS_PER_ROUND", 2)
    monkeypatch.setattr(module, "prepare_cpu", lambda _threads: "")
    # The placeholder's fp32 read of 64 KiB at 65 GB/s and 15 us is no eager torch call's time.
    asked = ["validate", "llama-3.1-8b", "--gpu", "cpu", "--device", "cpu", "--tp-size", "8",
             "--context-tokens", "1k,2k", "--batch-size", "1", "--format", "json"]  # fmt: skip
    done = CliRunner().invoke(app, asked)
    document = json.loads(done.stdout)
    assert fault("validate", document) is None
    rows = document["rows"]
    assert len(rows) == 2
    outside = [r for r in rows if r["verdict"] == "outside the band"]
    assert done.exit_code == (5 if len(outside) == 2 else 0)
    for row in rows:
        assert row["error"] == pytest.approx(row["predicted_s"] / row["measured_s"] - 1)


@pytest.mark.parametrize(
    ("name", "words"), [("", "an empty name is no folder"), ("a" * 400, "File name too long")]
)
@pytest.mark.parametrize("command", [ASKED, ["calibrate", "fit", "samples.csv"]])
def test_a_folder_that_cannot_be_is_one_line(command: list[str], name: str, words: str) -> None:
    done = CliRunner().invoke(app, [*command, "--output", name])
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
