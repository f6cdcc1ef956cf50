"""From a folder of samples to verdicts, a profile that commands use, and a report."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

pytest.importorskip("scipy")

from lrkv_plan import load_hardware
from lrkv_plan.calibration.fit_result import FitResult
from lrkv_plan.calibration.fit_run import fit_run
from lrkv_plan.calibration.run_record import (
    RunInfo,
    largest_share,
    read_run_info,
    write_run_info,
    yardsticks,
)
from lrkv_plan.calibration.samples import measured_points, noise, quantile
from lrkv_plan.cli.app import app
from lrkv_plan.errors import CalibrationError
from lrkv_plan.report.views.calibration import written_files
from lrkv_plan.specs.hardware import HardwareProfile
from tests.calibration.made_up_run import INFO, TRUE, planned, timed, written

PATHS = (("lrkv/factored", "low_rank"), ("grouped/plain", "grouped"), ("grouped/sdpa", "grouped"))


@cache
def quiet_samples() -> tuple[object, ...]:
    """Three paths; grouped/plain is a tenth slower than grouped/sdpa in every constant."""
    slow = {**TRUE, "t0_s": 1.1 * TRUE["t0_s"], "beta": TRUE["beta"] / 1.1,
            "phi": TRUE["phi"] / 1.1}  # fmt: skip
    return tuple(
        sample
        for path, kernel in PATHS
        for sample in timed(
            planned(40, path=path, kernel=kernel, held_out=12), "sum", noise=0.02,
            constants=slow if path == "grouped/plain" else TRUE,
        )
    )  # fmt: skip


def quiet(folder: Path, info: RunInfo | None = INFO, **changes: object) -> Path:
    samples = [replace(s, **changes) for s in quiet_samples()]  # type: ignore[type-var]
    return written(folder, samples, info)  # type: ignore[arg-type]


def called(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_a_quiet_run_is_accepted_and_says_what_it_rests_on(tmp_path: Path) -> None:
    done = called("calibrate", "fit", quiet(tmp_path / "run"), "--format", "json")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["rows"]
    assert [row["path"] for row in rows] == ["grouped/plain", "grouped/sdpa", "lrkv/factored"]
    for row in rows:
        assert (row["verdict"], row["form"], row["device"]) == ("accepted", "sum", "cpu")
        assert (row["n_fit"], row["n_heldout"], row["dtype"]) == (40, 12, "fp32")
        assert row["heldout_median_error"] < 0.05
        assert row["t0_s_low"] < row["t0_s"] < row["t0_s_high"]
        assert row["identified"] == ["t0_s", "beta", "phi"]
        assert row["noise"] < 0.01
        assert row["rank_n"] == 3
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names == {
        "samples.csv", "run.json", "report.md", "errors.csv", "predicted-vs-measured.png",
        "predicted-vs-measured.svg", "cpu.calibrated.yaml",
    }  # fmt: skip


def test_the_profile_loads_and_every_command_predicts_lrkv_from_measurements(
    tmp_path: Path,
) -> None:
    quiet(tmp_path / "run")
    assert called("calibrate", "fit", tmp_path / "run").exit_code == 0
    path = tmp_path / "run" / "cpu.calibrated.yaml"
    profile = load_hardware(path)
    assert profile.mem_bandwidth_bytes_per_s == 10e9
    assert profile.mem_capacity_bytes == 16 * 2**30
    used = {e.kernel: e.backend for e in profile.kernels if e.preferred}
    assert used == {"grouped": "torch/grouped/sdpa", "low_rank": "torch/lrkv/factored"}
    common = ("llama-3.1-8b", "--gpu", path, "--kv-dtype", "fp32")
    designs = ("--attention", "mha", "--attention", "lrkv:55")
    for command in (
        ("plan", *common, "--context-tokens", "2k", "--weight-dtype", "int8"),
        ("crossover", *common, *designs),
    ):
        done = called(*command, "--explain")
        assert done.exit_code == 0, done.output
        assert "low_rank, fp32: measured (torch/lrkv/factored)" in " ".join(done.output.split())
    assert called("roofline", *common, *designs, "--units", "fp32").exit_code == 0
    shown = called("calibrate", "show", path, "--format", "markdown")
    assert shown.exit_code == 0
    assert "torch/lrkv/factored" in shown.output
    assert "Made-up CPU, torch 2.0, 1 thread, 2026-11-30" in shown.output


def test_constants_of_a_known_gpu_join_its_shipped_profile(tmp_path: Path) -> None:
    info = INFO.model_copy(update={"device": "cuda", "device_name": "NVIDIA H200"})
    folder = quiet(tmp_path / "run", info, device="cuda", device_name="NVIDIA H200", dtype="bf16")
    result = fit_run(folder)
    assert result.profile.name == "h200"
    done = called("calibrate", "fit", folder, "--max-error", "1")
    assert done.exit_code == 0, done.output
    shipped, own = load_hardware("h200"), load_hardware(folder / "h200.calibrated.yaml")
    assert own.peak_flops_per_s == shipped.peak_flops_per_s
    assert own.title == "NVIDIA H200 SXM 141 GB, calibrated"
    assert len(own.source) == len(shipped.source) + 1
    assert len(own.kernels) == len(shipped.kernels) + 3
    assert _preferred(own, "grouped", "bf16") == {"torch/grouped/sdpa"}
    assert _preferred(own, "grouped", "fp8") == _preferred(shipped, "grouped", "fp8") != set()
    again = called("calibrate", "fit", folder, "--gpu", folder / "h200.calibrated.yaml",
                   "--max-error", "1", "--force")  # fmt: skip
    assert again.exit_code == 0, again.output
    assert len(load_hardware(folder / "h200.calibrated.yaml").kernels) == len(own.kernels)


def _preferred(profile: HardwareProfile, kernel: str, kv_dtype: str) -> set[str]:
    return {
        e.backend for e in profile.kernels
        if e.preferred and (e.kernel, e.kv_dtype, e.regime) == (kernel, kv_dtype, "cold")
    }  # fmt: skip


def test_a_noisy_run_is_refused_and_labelled_if_forced(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", timed(planned(40), "sum", round_noise=0.5))
    done = called("calibrate", "fit", folder)
    assert done.exit_code == 5
    assert "the run was noisy" in done.stderr
    assert "noisy" in done.output
    assert not (folder / "cpu.calibrated.yaml").exists()
    assert "The run was noisy" in (folder / "report.md").read_text()
    forced = called("calibrate", "fit", folder, "--force")
    assert forced.exit_code == 0, forced.output
    (entry,) = load_hardware(folder / "cpu.calibrated.yaml").kernels
    assert (entry.remark or "").startswith("FORCED: the run was noisy")


def test_a_poor_path_is_left_out_and_the_others_kept(tmp_path: Path) -> None:
    samples = [
        replace(s, repeats_s=tuple(2 * t for t in s.repeats_s))
        if s.role != "fit" and s.path == "grouped/sdpa" else s
        for s in quiet_samples()  # type: ignore[attr-defined]
    ]  # fmt: skip
    folder = written(tmp_path / "run", samples)
    done = called("calibrate", "fit", folder, "--format", "json")
    assert done.exit_code == 5
    assert "1 of 3 paths refused: grouped/sdpa fp32 poor (" in done.stderr
    verdicts = {row["path"]: row["verdict"] for row in json.loads(done.stdout)["rows"]}
    assert verdicts["grouped/sdpa"] == "poor"
    backends = [e.backend for e in load_hardware(folder / "cpu.calibrated.yaml").kernels]
    assert sorted(backends) == ["torch/grouped/plain", "torch/lrkv/factored"]
    assert called("calibrate", "fit", folder).exit_code == 2  # what is there is kept
    assert called("calibrate", "fit", folder, "--force").exit_code == 0
    entries = load_hardware(folder / "cpu.calibrated.yaml").kernels
    labels = {e.backend: (e.remark or "").startswith("FORCED") for e in entries}
    assert labels == {
        "torch/grouped/plain": False, "torch/grouped/sdpa": True, "torch/lrkv/factored": False
    }  # fmt: skip


def test_without_held_out_points_nothing_is_accepted(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", timed(planned(40, held_out=0), "sum"))
    result = fit_run(folder)
    assert result.accepted == ()
    assert "not judged" in (result.refusal or "")


def test_a_run_of_one_round_is_judged_by_its_repeats_and_one_repeat_not_at_all() -> None:
    rows = timed(planned(8), "base", noise=0.0)[:24]
    once = [replace(s, round=0, repeats_s=(1.0, 1.1, 1.0, 1.1)) for s in rows[:24]]
    # Even repeats are 1.0, odd ones 1.1: ln 1.1 = 9.53 %.
    assert noise(measured_points(once)) == pytest.approx(0.0953, abs=1e-4)
    assert noise(measured_points([replace(s, repeats_s=(1.0,)) for s in once])) is None


def test_a_point_takes_the_median_of_all_its_repeats() -> None:
    row = replace(planned(1, held_out=0)[0], repeats_s=(3.0, 2.0, 9.0))
    (point,) = measured_points([row])
    assert (point.time_s, point.repeats_s) == (3.0, (3.0, 2.0, 9.0))
    assert quantile((1.0, 2.0, 3.0, 4.0), 0.5) == 2.5


def test_show_of_a_folder_repeats_the_fit_and_writes_nothing(tmp_path: Path) -> None:
    folder = quiet(tmp_path / "run")
    before = sorted(folder.iterdir())
    shown = called("calibrate", "show", folder, "--format", "markdown")
    assert shown.exit_code == 0
    assert "90 % intervals t0_s" in shown.output
    assert "load_average 0.1" in shown.output
    assert sorted(folder.iterdir()) == before


def test_the_report_holds_every_section(tmp_path: Path) -> None:
    info = INFO.model_copy(update={"skipped": {"lrkv/factored huge": "not tried: 99 GiB"}})
    folder = quiet(tmp_path / "run", info)
    assert called("calibrate", "fit", folder).exit_code == 0
    text = (folder / "report.md").read_text()
    for part in (
        "Every path is accepted", "Constants with 90 % intervals", "by what was not measured",
        "by regime", "Crossings along the context", "allocated by torch against predicted",
        "Latency of single calls", "Even against odd rounds", "not tried: 99 GiB",
    ):  # fmt: skip
        assert part in text
    errors = (folder / "errors.csv").read_text().splitlines()
    assert len(errors) == 1 + 3 * 52
    assert errors[0].startswith("path,dtype,attention,n_heads")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ('{"device": "tpu"}', "device"),
        ('{"device": "cpu", "threads": "many"}', "threads"),
        ('{"device": "cpu", "thread": 1}', "did you mean 'threads'"),
        ('{"device": "cpu"}', "--gpu names one"),
    ],
)
def test_a_bad_run_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    folder = quiet(tmp_path / "run")
    (folder / "run.json").write_text(text)
    done = called("calibrate", "fit", folder)
    assert done.exit_code == 5, done.output
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


WRONG = (None, True, -1, "x", [], {}, [[]], {"fp32": None}, {"fp32": "x"}, {"": 1e9})


def test_a_damaged_run_file_is_refused_or_gone_on_with(tmp_path: Path) -> None:
    write_run_info(tmp_path, INFO)
    text = (tmp_path / "run.json").read_text()
    known = json.loads(text)
    damaged = [text[:end] for end in range(len(text))]
    damaged += [json.dumps({**known, key: value}) for key in known for value in WRONG]
    damaged += [json.dumps({k: v for k, v in known.items() if k != key}) for key in known]
    once = {"stream_bytes_per_s": 1e10, "peak_flops_per_s": {"fp32": 1e11, "bf16": 1e11}}
    refused = []
    for each in damaged:
        (tmp_path / "run.json").write_text(each)
        try:
            info = read_run_info(tmp_path)
        except CalibrationError as error:
            refused.append(str(error))
        else:
            assert yardsticks([once, once], info)["stream_bytes_per_s"] > 0
    assert len(refused) > len(text)
    assert all(line.startswith(f"{tmp_path / 'run.json'}: ") for line in refused)
    assert not any("\n" in line for line in refused)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
def test_a_pipe_in_place_of_a_run_file_is_not_waited_for(tmp_path: Path) -> None:
    folder = quiet(tmp_path / "run")
    (folder / "run.json").unlink()
    os.mkfifo(folder / "run.json")
    done = called("calibrate", "fit", folder)
    assert (done.exit_code, done.stderr) == (
        5, f"error: {folder / 'run.json'}: cannot be read: is a named pipe; a file is needed\n",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["nowhere", "empty.csv", "other.csv"])
def test_a_source_that_holds_no_samples_is_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    done = called("calibrate", "fit", tmp_path / name)
    assert done.exit_code in (2, 5)
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.strip().splitlines()) == 1


def test_samples_of_two_devices_are_refused(tmp_path: Path) -> None:
    samples = timed(planned(10))
    mixed = [replace(s, device_name=f"CPU {i % 2}") for i, s in enumerate(samples)]
    with pytest.raises(CalibrationError, match="several devices: CPU 0, CPU 1"):
        fit_run(written(tmp_path / "run", mixed))


def test_samples_alone_need_a_profile_to_refer_to(tmp_path: Path) -> None:
    folder = quiet(tmp_path / "run", None)
    with pytest.raises(CalibrationError, match="--gpu"):
        fit_run(folder / "samples.csv")
    result = fit_run(folder / "samples.csv", gpu="cpu")
    assert isinstance(result, FitResult)
    assert result.profile.name == "cpu"
    assert [p.name for p in written_files(result, folder)][-1] == "cpu.calibrated.yaml"


def test_run_info_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write_run_info(tmp_path, INFO)
    assert read_run_info(tmp_path) == INFO


def overdriven(folder: Path, info: RunInfo, factor: float, **changes: object) -> FitResult:
    """The quiet run, had its bandwidth and peak been measured ``factor`` times too low."""
    low = {
        "stream_bytes_per_s": 10e9 / factor, "peak_flops_per_s": {"fp32": 100e9 / factor},
    }  # fmt: skip
    return fit_run(quiet(folder, info.model_copy(update=low), **changes))


def repeated(spread: float) -> RunInfo:
    return INFO.model_copy(
        update={"yardsticks": 4, "stream_spread": spread, "peak_spread": {"fp32": spread}}
    )


def test_a_share_beyond_what_the_yardstick_allows_is_refused(tmp_path: Path) -> None:
    # beta is 0.75 of 10 GB/s: of 4 GB/s it is 1.88, as on a machine loaded while it was measured.
    result = overdriven(tmp_path / "run", repeated(0.02), 2.5)
    assert result.is_impossible
    fit = result.fits[-1]
    assert fit.path == "lrkv/factored"
    (found,) = result.impossible(fit)  # phi is 0.35 * 2.5 = 0.88
    assert found.startswith("beta 1.8")
    assert found.endswith("of 4 GB/s, at most 1.05")
    assert [result.verdict(f) for f in result.fits] == ["impossible"] * 3
    assert result.accepted == ()
    done = called("calibrate", "fit", tmp_path / "run")
    assert done.exit_code == 5
    for part in ("lrkv/factored fp32 beta 1.8", "at most 1.05", "probably loaded", "--force"):
        assert part in done.stderr
    assert len(done.stderr.splitlines()[-1]) < 610
    assert not (tmp_path / "run" / "cpu.calibrated.yaml").exists()
    forced = called("calibrate", "fit", tmp_path / "run", "--force")
    assert forced.exit_code == 0, forced.output
    entries = load_hardware(tmp_path / "run" / "cpu.calibrated.yaml").kernels
    assert all((e.remark or "").startswith("FORCED: beta 1.") for e in entries)


@pytest.mark.parametrize(
    ("info", "limit"),
    [
        (repeated(0.0), 1.05),  # points repeat to 5 %, or the run is noisy
        (repeated(0.12), 1.12),
        (repeated(1.0), 1.25),  # a yardstick that doubled says nothing, and allows nothing more
        (INFO, 1.25),  # measured once, as runs were before the spread was recorded
        (INFO.model_copy(update={"yardsticks": 1, "stream_spread": 0.0}), 1.25),
    ],
)
def test_the_limit_is_what_the_yardstick_repeats_to(info: RunInfo, limit: float) -> None:
    assert largest_share(info) == pytest.approx(limit, rel=1e-12)
    if info.peak_spread:
        assert largest_share(info, "fp32") == pytest.approx(limit, rel=1e-12)
    assert largest_share(info, "bf16") == 1.25  # that peak was not measured


def test_one_false_yardstick_refuses_the_paths_that_it_would_fit(tmp_path: Path) -> None:
    slow = [
        replace(s, repeats_s=tuple(2.5 * t for t in s.repeats_s))
        if s.path != "lrkv/factored" else s
        for s in quiet_samples()  # type: ignore[attr-defined]
    ]  # fmt: skip
    low = repeated(0.0).model_copy(update={"stream_bytes_per_s": 4e9})
    result = fit_run(written(tmp_path / "run", slow, low))
    verdicts = {f.path: result.verdict(f) for f in result.fits}
    assert verdicts == {
        "grouped/plain": "false yardstick", "grouped/sdpa": "false yardstick",
        "lrkv/factored": "impossible",
    }  # fmt: skip


def test_a_set_that_was_left_in_caches_may_be_read_faster_than_memory(tmp_path: Path) -> None:
    result = overdriven(tmp_path / "run", repeated(0.0), 2.5, cache_state="hot")
    assert not result.is_impossible
    beyond = overdriven(tmp_path / "more", repeated(0.0), 4.0, cache_state="hot")
    assert all(found.startswith("phi 1.") for found in beyond.impossible(beyond.fits[-1]))
    assert beyond.is_impossible  # 0.35 * 4 = 1.4: no cache computes


def test_a_refused_document_says_so(tmp_path: Path) -> None:
    folder = written(tmp_path / "run", timed(planned(40), "sum", round_noise=0.5))
    done = called("calibrate", "fit", folder, "--format", "json")
    document = json.loads(done.stdout)
    assert done.exit_code == 5
    assert done.stderr.splitlines()[-1] == f"error: {document['inputs']['refused']}"
    assert document["remarks"][0] == f"refused: {document['inputs']['refused']}"
    assert "the run was noisy" in document["inputs"]["refused"]
    forced = called("calibrate", "fit", folder, "--force", "--format", "json")
    assert json.loads(forced.stdout)["inputs"]["refused"] is None
    good = called("calibrate", "fit", quiet(tmp_path / "good"), "--format", "json")
    assert json.loads(good.stdout)["inputs"]["refused"] is None


def test_the_advice_after_noise_keeps_the_samples(tmp_path: Path) -> None:
    folder = written(tmp_path / "a run", timed(planned(40), "sum", round_noise=0.5))
    refusal = fit_run(folder).refusal or ""
    assert f"`lrkv-plan calibrate fit '{folder}' --force`" in refusal
    assert "calibrate run` with the same options and --resume" in refusal
    assert "run --force" not in refusal


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n_points", [1, 4, 7, 8, 9, 11, 13])
def test_few_points_end_in_a_fit_or_in_one_line(tmp_path: Path, n_points: int) -> None:
    folder = written(tmp_path / "run", timed(planned(n_points, held_out=0)))
    done = called("calibrate", "fit", folder, "--force")
    lines = done.stderr.splitlines()
    if n_points < 8:
        assert (done.exit_code, len(lines)) == (5, 1)
        assert f"{n_points} points to fit; need 8" in lines[0]
        assert {p.name for p in folder.iterdir()} == {"samples.csv", "run.json"}
    else:
        assert done.exit_code == 0, done.output
        assert all(line.startswith(("wrote ", "note: ")) for line in lines)


def test_what_no_profile_may_state_is_one_line(tmp_path: Path) -> None:
    slow = [replace(s, repeats_s=(1e5,) * 2, controls_s=()) for s in timed(planned(12))]
    done = called("calibrate", "fit", written(tmp_path / "run", slow), "--force")
    assert done.exit_code == 5, done.output
    assert "no profile may state what was fitted" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_folder_of_profiles_that_nothing_looks_into_is_refused(tmp_path: Path) -> None:
    folder = quiet(tmp_path / "run")
    done = called("calibrate", "fit", folder, "--spec-dir", tmp_path)
    assert done.exit_code == 2
    assert "--spec-dir" in done.stderr
    named = called("calibrate", "fit", folder, "--gpu", "cpu", "--spec-dir", tmp_path)
    assert named.exit_code in (0, 5)


def test_a_library_s_warning_is_one_line_without_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    from lrkv_plan.calibration import fit_run as module

    def warns(*_args: object, **_options: object) -> FitResult:
        for _ in range(2):
            warnings.warn("overflow encountered", RuntimeWarning, stacklevel=1)
        raise CalibrationError("no fit")

    monkeypatch.setattr(module, "fit_run", warns)
    done = called("calibrate", "fit", quiet(tmp_path / "run"))
    assert done.stderr == "warning: overflow encountered\nerror: no fit\n"
