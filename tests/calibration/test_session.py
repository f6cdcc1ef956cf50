"""A run loses nothing: killed, resumed, out of memory, in a folder that is taken."""

from __future__ import annotations

import errno
import itertools
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from lrkv_plan.calibration import machine, session
from lrkv_plan.calibration import run as run_module
from lrkv_plan.calibration.design import PlannedPoint
from lrkv_plan.calibration.run_record import SAMPLES_FILE, RunInfo, read_run_info, write_run_info
from lrkv_plan.calibration.samples import DecodeSample, SampleFile, read_samples
from lrkv_plan.calibration.session import RunOptions, RunOutcome, replace_run, run_session
from lrkv_plan.errors import CalibrationError, UsageError

SMALL = RunOptions(device="cpu", paths=("lrkv/factored",), budget_s=60.0, seed=1)
ROUNDS = 4
BASE = PlannedPoint(
    path="lrkv/factored", attention="lrkv:5", n_heads=4, head_dim=16, batch_size=1,
    context_tokens=8, dtype="fp32", role="fit",
)  # fmt: skip


def quiet(_round: int, _left: int, _seconds: float) -> None:
    """No progress."""


@pytest.fixture(autouse=True)
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six tiny points, no probes, and the core left as it was."""
    points = [replace(BASE, context_tokens=8 * k) for k in range(1, 7)]
    monkeypatch.setattr(session, "planned_points", lambda *_args, **_options: points)
    monkeypatch.setattr(session, "_runs_here", lambda _path: True)
    monkeypatch.setattr(session, "prepare_cpu", lambda threads: f"{threads} threads")
    monkeypatch.setattr(
        session,
        "measured_peaks",
        lambda *_args: {"stream_bytes_per_s": 1e10, "peak_flops_per_s": {"fp32": 1e11}},
    )
    monkeypatch.setattr(run_module, "MAX_ROUNDS", ROUNDS)


def ran(options: RunOptions, folder: Path) -> RunOutcome:
    return run_session(options, folder, quiet)


def rounds_of(folder: Path) -> Counter[tuple[str, int]]:
    return Counter((s.point, s.round) for s in read_samples(folder / SAMPLES_FILE))


def test_a_run_measures_every_round_of_every_point_once(tmp_path: Path) -> None:
    outcome = ran(SMALL, tmp_path / "new" / "folder")
    assert (outcome.n_points, outcome.n_rounds, outcome.n_unmeasured) == (6, ROUNDS, 0)
    counted = rounds_of(outcome.folder)
    assert len(counted) == outcome.n_samples == 6 * ROUNDS
    assert set(counted.values()) == {1}


def test_allocated_bytes_are_the_predicted_ones(tmp_path: Path) -> None:
    samples = read_samples(ran(SMALL, tmp_path).folder / SAMPLES_FILE)
    # lrkv:5, 4 heads of 16, fp32: 2 (16 + 4 * 5) 4 = 288 bytes a token
    assert {s.allocated_bytes / s.context_tokens for s in samples} == {288.0}
    assert all(s.allocated_bytes == s.predicted_bytes for s in samples)


def test_measuring_ends_at_the_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The clock is read before and after each point: 0 and 1 s, 2 and 3 s, ... The fifth point
    # begins at 8 s; at 10 s nothing begins.
    ticks = itertools.count()
    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: next(ticks)))
    outcome = ran(replace(SMALL, deadline=10.0), tmp_path)
    assert (outcome.n_samples, outcome.n_rounds, outcome.n_unmeasured) == (5, 0, 1)


def acknowledged(folder: Path, link: int, options: RunOptions) -> None:
    """Run, and say each sample over ``link`` as soon as it is on disk."""
    append = SampleFile.append

    def told(self: SampleFile, sample: DecodeSample) -> None:
        append(self, sample)
        os.write(link, f"{sample.point},{sample.round}\n".encode())

    SampleFile.append = told  # type: ignore[method-assign]
    run_session(options, folder, quiet)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_ten_kills_lose_and_double_no_sample(tmp_path: Path) -> None:
    rng, seen = random.Random(7), set()
    fork = multiprocessing.get_context("fork")
    torch.set_num_threads(1)
    for kill in range(10):
        reader, writer = os.pipe()
        options = replace(SMALL, resume=kill > 0)
        child = fork.Process(target=acknowledged, args=(tmp_path, writer, options))
        child.start()
        os.close(writer)
        with os.fdopen(reader, "rb") as told:
            for _ in range(rng.randint(1, 2)):  # some samples are on disk, more are under way
                seen.add(told.readline().decode().strip())
            time.sleep(rng.uniform(0, 0.02))
            os.kill(child.pid or 0, signal.SIGKILL)
            seen |= set(told.read().decode().split("\n")[:-1])
        child.join()
        assert child.exitcode in (-signal.SIGKILL, 0)
    seen.discard("")
    outcome = ran(replace(SMALL, resume=True), tmp_path)
    counted = rounds_of(tmp_path)
    assert set(counted.values()) == {1}
    assert {f"{point},{number}" for point, number in counted} >= seen
    assert len(seen) >= 10
    assert outcome.n_rounds == ROUNDS
    assert len(counted) == 6 * ROUNDS


def test_what_memory_cannot_hold_is_left_out_before_it_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 48 tokens need 2 * 48 * 288 + 4 * 48 * 4 * (2 * 16 + 4) = 55,296 bytes; 80 % of 60,000 is less
    monkeypatch.setattr(run_module, "free_bytes", lambda _device: 60_000)
    outcome = ran(SMALL, tmp_path)
    (reason,) = outcome.skipped.values()
    assert "not tried" in reason
    assert read_run_info(tmp_path).skipped == outcome.skipped
    assert max(s.context_tokens for s in read_samples(tmp_path / SAMPLES_FILE)) == 40


def failing(errors: Sequence[BaseException]) -> Callable[..., object]:
    left = list(errors)
    build = run_module.build_step

    def built(*args: object, **options: object) -> object:
        if left:
            raise left.pop()
        return build(*args, **options)  # type: ignore[arg-type]

    return built


def test_an_out_of_memory_point_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
    monkeypatch.setattr(run_module, "build_step", failing([error]))
    outcome = ran(SMALL, tmp_path)
    assert [r for r in outcome.skipped.values() if "out of memory when tried" in r]
    assert outcome.n_samples == 5 * ROUNDS


def test_ctrl_c_keeps_what_was_measured_and_frees_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(SMALL, tmp_path)
    before = rounds_of(tmp_path)
    monkeypatch.setattr(run_module, "build_step", failing([KeyboardInterrupt()]))
    monkeypatch.setattr(run_module, "MAX_ROUNDS", ROUNDS + 1)
    with pytest.raises(KeyboardInterrupt):
        ran(replace(SMALL, resume=True), tmp_path)
    assert rounds_of(tmp_path) >= before
    ran(replace(SMALL, resume=True), tmp_path)
    assert len(rounds_of(tmp_path)) == 6 * (ROUNDS + 1)


def test_a_folder_with_samples_is_not_overwritten(tmp_path: Path) -> None:
    ran(SMALL, tmp_path)
    data = (tmp_path / SAMPLES_FILE).read_bytes()
    with pytest.raises(UsageError, match="--resume goes on"):
        ran(SMALL, tmp_path)
    assert (tmp_path / SAMPLES_FILE).read_bytes() == data
    ran(replace(SMALL, force=True), tmp_path)


def test_another_plan_or_device_is_not_mixed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(SMALL, tmp_path)
    again = replace(SMALL, resume=True)
    monkeypatch.setattr(session, "describe", lambda _device: {"device_name": "Other CPU"})
    with pytest.raises(CalibrationError, match="not on Other CPU"):
        ran(again, tmp_path)
    monkeypatch.undo()
    with pytest.raises(CalibrationError, match="this plan does not"):
        ran(again, tmp_path)


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    with session.alone(tmp_path), pytest.raises(UsageError, match="another run"):
        ran(SMALL, tmp_path)
    ran(SMALL, tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (replace(SMALL, dtypes=("fp3",)), "fp3"),
        (replace(SMALL, paths=("lrkv/factord",)), "did you mean 'lrkv/factored'"),
        (replace(SMALL, attention=("gpa:8",)), "gpa:8"),
        (replace(SMALL, device="gpu"), "gpu"),
    ],
)
def test_a_wrong_option_ends_in_one_line(
    tmp_path: Path, options: RunOptions, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    with pytest.raises((UsageError, CalibrationError), match=words):
        ran(options, tmp_path)
    assert not (tmp_path / SAMPLES_FILE).exists()


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def held_open(folder: Path, link: int) -> None:
    """Measure three samples, say so, and stay at the fourth."""
    build, built = run_module.build_step, itertools.count()

    def waits(*args: object, **options: object) -> object:
        if next(built) == 8:  # each point so far: its step, and a small one for its code
            os.write(link, b"x")
            time.sleep(600)
        return build(*args, **options)  # type: ignore[arg-type]

    run_module.build_step = waits  # type: ignore[assignment]
    run_session(SMALL, folder, quiet)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_second_run_touches_nothing_and_a_killed_one_holds_nothing(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    reader, writer = os.pipe()
    child = multiprocessing.get_context("fork").Process(
        target=held_open, args=(tmp_path, writer)
    )  # fmt: skip
    child.start()
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        assert told.read(1) == b"x"
    before = files_of(tmp_path)
    for options in (SMALL, replace(SMALL, force=True), replace(SMALL, resume=True)):
        with pytest.raises(UsageError, match="another run writes there"):
            ran(options, tmp_path)
        assert files_of(tmp_path) == before
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join()
    kept = rounds_of(tmp_path)
    assert kept
    outcome = ran(replace(SMALL, resume=True), tmp_path)
    assert outcome.n_rounds == ROUNDS
    assert rounds_of(tmp_path) >= kept


def test_a_run_that_replaces_another_leaves_it_until_its_own_results_are_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(SMALL, tmp_path)
    before = files_of(tmp_path)
    monkeypatch.setattr(run_module, "build_step", failing([KeyboardInterrupt()]))
    with pytest.raises(KeyboardInterrupt):
        ran(replace(SMALL, force=True, seed=2), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(before)  # nothing was measured
    outcome = ran(replace(SMALL, force=True, seed=2), tmp_path)
    assert outcome.folder.parent == tmp_path
    assert files_of(tmp_path) == before
    (outcome.folder / "report.md").write_text("results")
    moved = replace_run(outcome.folder, tmp_path)
    assert {p.name for p in moved} == {"report.md", "run.json", "samples.csv"}
    assert not outcome.folder.exists()
    assert read_run_info(tmp_path).seed == 2
    assert len(rounds_of(tmp_path)) == 6 * ROUNDS


def test_a_stopped_run_that_was_to_replace_another_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(SMALL, tmp_path)
    before = files_of(tmp_path)
    build = run_module.build_step
    built = itertools.count()

    def stops(*args: object, **options: object) -> object:
        if next(built) == 6:
            raise KeyboardInterrupt
        return build(*args, **options)  # type: ignore[arg-type]

    anew = replace(SMALL, force=True)
    monkeypatch.setattr(run_module, "build_step", stops)
    with pytest.raises(KeyboardInterrupt):
        ran(anew, tmp_path)
    monkeypatch.setattr(run_module, "build_step", build)
    (first,) = (p for p in tmp_path.iterdir() if p.is_dir())
    kept = rounds_of(first)
    assert 0 < len(kept) < 6
    second = ran(anew, tmp_path).folder  # begun anew: what the first measured stays all the same
    assert rounds_of(first) == kept
    assert ran(replace(anew, resume=True), tmp_path).folder == second
    assert files_of(tmp_path) == before
    replace_run(second, tmp_path)
    assert [p for p in tmp_path.iterdir() if p.is_dir()] == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"seed": 2}, "--seed: .* begun with 1, not 2"),
        ({"dtypes": ("fp32", "bf16")}, "--dtype: .* begun with fp32, not fp32, bf16"),
        ({"cold": False}, "--hot: .* begun with cold, not hot"),
        ({"attention": ("lrkv:40",)}, "--attention: .* begun with none, not lrkv:40"),
        (
            {"paths": ("lrkv/factored", "grouped/plain")},
            "--path: .* begun with lrkv/factored, not lrkv/factored, grouped/plain",
        ),
    ],
)
def test_a_run_is_resumed_with_its_own_options(
    tmp_path: Path, changed: dict[str, object], words: str
) -> None:
    ran(SMALL, tmp_path)
    before = files_of(tmp_path)
    with pytest.raises(UsageError, match=words):
        ran(replace(SMALL, resume=True, **changed), tmp_path)  # type: ignore[arg-type]
    assert files_of(tmp_path) == before


def test_threads_are_resumed_and_bounded_by_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "n_cores", lambda: 2)
    ran(SMALL, tmp_path)
    with pytest.raises(UsageError, match=r"--threads: .* begun with 1, not 2"):
        ran(replace(SMALL, resume=True, threads=2), tmp_path)
    for threads in (0, 3, 10**9):
        with pytest.raises(UsageError, match=f"--threads {threads}: .* allowed are 1 to 2"):
            ran(replace(SMALL, threads=threads), tmp_path / "new")
    with pytest.raises(UsageError, match="counts CPU threads, and cuda is measured"):
        machine.threads_on(torch.device("cuda"), 1)
    assert machine.threads_on(torch.device("cuda"), None) == 0


def test_a_record_without_its_options_is_resumed_as_before(tmp_path: Path) -> None:
    ran(SMALL, tmp_path)
    old = read_run_info(tmp_path).model_dump(exclude_none=True)
    for name in ("yardsticks", "stream_spread", "peak_spread", "dtypes", "paths", "attention"):
        del old[name]
    write_run_info(tmp_path, RunInfo(**old))
    outcome = ran(replace(SMALL, resume=True), tmp_path)
    assert outcome.n_rounds == ROUNDS
    # The old measurement, two before and two after.
    assert read_run_info(tmp_path).yardsticks == 5


def test_every_design_needs_a_path_and_every_path_a_design(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for attention, paths, words in (
        (("gqa:8", "foo:2"), (), "--attention 'foo:2': no path runs it: family 'foo' is unknown"),
        (("gqa:8",), ("lrkv/factored",), "--attention 'gqa:8': no path runs it"),
        (("gqa:8",), ("grouped/plain", "lrkv/factored"), "--path lrkv/factored: runs no design"),
        (("gqa:7",), (), "7 does not divide"),
    ):
        with pytest.raises(UsageError, match=words):
            ran(replace(SMALL, attention=attention, paths=paths), tmp_path / "new")
    assert not (tmp_path / "new").exists()
    outcome = ran(replace(SMALL, attention=("gqa:8",), paths=()), tmp_path)
    paths = read_run_info(outcome.folder).paths
    assert paths == ("grouped/plain", "grouped/sdpa")


def test_a_budget_that_cannot_hold_two_rounds_is_refused_before_measuring(tmp_path: Path) -> None:
    # 2 rounds of 6 points of 10 ms are 0.12 s; with 4 probes of bandwidth and of fp32, 0.2 s each,
    # 1.72 s are needed.
    with pytest.raises(
        CalibrationError, match=r"budget of 0\.1s is too short for two rounds: 6 poi"
    ):
        ran(replace(SMALL, budget_s=0.1), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_scale_is_the_best_rate_and_its_spread_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rates = iter((8e9, 10e9, 9e9, 9e9))
    monkeypatch.setattr(
        session,
        "measured_peaks",
        lambda *_args: {"stream_bytes_per_s": next(rates), "peak_flops_per_s": {"fp32": 1e11}},
    )
    info = read_run_info(ran(SMALL, tmp_path).folder)
    assert (info.yardsticks, info.stream_bytes_per_s, info.stream_spread) == (4, 10e9, 0.25)
    assert (info.peak_flops_per_s, info.peak_spread) == ({"fp32": 1e11}, {"fp32": 0.0})


def fills_up(monkeypatch: pytest.MonkeyPatch, n_writes: int) -> None:
    """A disk that takes so many rows (the header is the first), and no more."""
    write, rows = SampleFile._write, itertools.count()

    def full(self: SampleFile, text: str) -> None:
        if next(rows) >= n_writes:
            raise self._refused(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        write(self, text)

    monkeypatch.setattr(SampleFile, "_write", full)


def test_a_full_disk_keeps_the_samples_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills_up(monkeypatch, 4)
    with pytest.raises(CalibrationError, match=r"the 3 samples in it are kept; .* --resume"):
        ran(SMALL, tmp_path / "new")
    assert len(rounds_of(tmp_path / "new")) == 3


@pytest.mark.parametrize("n_writes", [0, 1])
def test_a_disk_that_is_full_from_the_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_writes: int
) -> None:
    fills_up(monkeypatch, n_writes)
    with pytest.raises(CalibrationError, match="No space left on device"):
        ran(SMALL, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
